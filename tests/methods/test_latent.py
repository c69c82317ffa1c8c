"""What methods with latent weights share."""

from __future__ import annotations

import pytest
import torch

from pathgrow import attach, methods
from pathgrow.masks import Masks
from pathgrow.methods.latent import largest_in, parameter_groups
from pathgrow.methods.method import Method, MethodState, NetworkView
from pathgrow.methods.picks import all_candidates
from tests.support.toy import network


def test_the_largest_inside_the_scope_are_chosen() -> None:
    sizes = torch.tensor([[9.0, 1.0, 0.0], [3.0, 2.0, 8.0]])
    inside = torch.tensor([[False, True, True], [True, True, False]])
    for num, expected in enumerate([[], [3], [3, 4], [1, 3, 4], [1, 2, 3, 4]]):
        assert largest_in(sizes, inside, num).flatten().nonzero().flatten().tolist() == expected


def test_ties_do_not_change_the_number() -> None:
    assert largest_in(torch.zeros(7), torch.ones(7, dtype=torch.bool), 3).sum() == 3


@pytest.mark.parametrize("name", ["edge_popup", "st3", "str"])
def test_latent_methods_start_from_all_weights_and_cost_as_much_as_dense(name: str) -> None:
    method = methods.create(name)
    assert (method.name, method.start_density, method.cost, method.needs) == (name, 1.0, "dense", {"dense"})
    assert method.weights is method.init_state is not None


def test_groups_are_those_of_the_optimizer_for_tensors_that_it_trains() -> None:
    model = network()
    first, *others = [name for name, parameter in model.named_parameters() if parameter.dim() == 2]
    for name in others:
        model.get_parameter(name).requires_grad_(False)
    optimizer = torch.optim.SGD([model.get_parameter(first)], lr=0.25)
    found = []

    def record(net: NetworkView) -> MethodState:
        found.append(parameter_groups(net))
        return {}

    sparse = attach(
        model,
        optimizer,
        Method(name="own", start=all_candidates, init_state=record, start_density=1.0),
        scope=Masks.full(model),
    )
    assert set(sparse.masks) == {first, *others}
    assert [list(groups) for groups in found] == [[first]]
    assert found[0][first]["lr"] == 0.25
