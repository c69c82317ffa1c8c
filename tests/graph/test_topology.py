"""Topology measures: errors, limits on cost, and the measures themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import topology, trace
from pathgrow.graph.scope import alive_units, dead_units, isolated_units
from pathgrow.graph.topology import count_isolated, measure, tau_core
from pathgrow.masks import Masks
from pathgrow.walks.phew import phew


def wide_chain() -> tuple[nn.Sequential, Tensor, Masks]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(a, b) for a, b in ((5, 30), (30, 10), (10, 40), (40, 3))))
    return net, torch.ones(1, 5), Masks.full(net)


@pytest.mark.parametrize("tau", [0.0, -1.0, 1.1, math.nan])
def test_a_tau_outside_0_1_is_refused(tau: float) -> None:
    net, example, masks = wide_chain()
    with pytest.raises(UserError, match=r"tau must be in \(0, 1\], got"):
        tau_core(net, example, masks, tau)


def test_masks_without_a_hidden_layer_are_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(UserError, match="needs a hidden layer"):
        tau_core(net, torch.ones(1, 3), Masks.full(net))


def test_masks_of_another_model_are_refused() -> None:
    net, example, _ = wide_chain()
    with pytest.raises(UserError, match="no such parameter"):
        tau_core(net, example, Masks({"elsewhere": torch.ones(2, 2, dtype=torch.bool)}))


def test_only_prunable_hidden_layers_have_a_ratio() -> None:
    net, example, masks = wide_chain()
    some = Masks({name: masks[name] for name in ("1.weight", "3.weight")})
    assert list(tau_core(net, example, some).layer_ratios) == ["1.weight"]


def test_units_that_the_dense_network_does_not_read_are_not_part_of_a_width() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(3, 6, bias=False), nn.Linear(4, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x)[:, :4])

    model = Half()
    nn.init.ones_(model.stem.weight)
    nn.init.ones_(model.head.weight)
    masks = Masks({"stem.weight": torch.ones(6, 3, dtype=torch.bool)})
    assert tau_core(model, torch.ones(1, 3), masks, tau=0.75).layer_ratios == {"stem.weight": 3 / 4}
    masks["stem.weight"][1] = False
    assert measure(model, torch.ones(1, 3), masks).dead == {"stem.weight": 1}


def test_a_core_inside_one_layer_takes_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of one layer share no path, so their centralities stay as they are when one of them joins."""
    net, example, masks = wide_chain()
    passes: list[Any] = []
    real = topology.signals
    monkeypatch.setattr(topology, "signals", lambda *args, **kwargs: passes.append(args) or real(*args, **kwargs))
    core = tau_core(net, example, masks)
    assert core.size == core.layer_sizes["1.weight"] > 3  # the narrowest layer is the cheapest cut
    assert len(passes) == 1


def test_a_zero_head_does_not_change_the_rules_midway() -> None:
    """The head counts as ones in the first pass, so it must in those after a unit was taken out."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.head(x + self.b(x).relu())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Skip()
    scope = {"a.weight": torch.ones(4, 3, dtype=torch.bool), "b.weight": torch.ones(4, 4, dtype=torch.bool)}
    nn.init.ones_(model.head.weight)
    ones = tau_core(model, torch.ones(1, 3), Masks(scope))
    nn.init.zeros_(model.head.weight)
    assert tau_core(model, torch.ones(1, 3), Masks(scope)) == ones
    assert ones.size > 1


def test_dead_and_isolated_units() -> None:
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in ((2, 3), (3, 3), (3, 3), (3, 2))))
    first = torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.bool)
    second = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.bool)
    third = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    found = measure(net, torch.ones(1, 2), Masks({"0.weight": first, "1.weight": second, "2.weight": third}))
    # 0.2 and 1.2, 2.2 have no way in; 1.1 and 2.1 have both ways but hang on 0.2, which nothing reaches.
    assert found.dead == {"0.weight": 1, "1.weight": 2, "2.weight": 2}
    assert found.num_dead == 5
    assert found.num_isolated == 3
    assert found.num_hidden == 9


def test_the_global_core_is_skipped_if_it_costs_too_much() -> None:
    net, example, masks = wide_chain()
    assert measure(net, example, masks, global_limit=0).tau_core_size is None
    assert measure(net, example, masks).tau_core_size == tau_core(net, example, masks).size


def test_a_resnet_round_trip_through_json() -> None:
    model = models.create("resnet20", 10, seed=0)
    masks = phew(model, model.example_input(), 0.05)
    found = measure(model, model.example_input(), masks)
    again = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert again == found.as_dict()
    assert again["density"] == masks.density
    assert set(again["layer_densities"]) == set(masks)
    assert 0 < again["mean_tau_core_ratio"] <= 1
    assert again["num_dead"] == again["num_isolated"]  # PHEW: a unit with a weight is on a path
    assert 0 < again["tau_core_size"] <= 16  # the stem alone is a cut of 16 units


def test_depth_does_not_overflow() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(40)))
    for layer in net:
        layer.weight.data.mul_(1e9)
    found = measure(net, torch.ones(1, 8), Masks.full(net))
    assert found.total is None
    assert 330 < found.log10_total < 420
    json.dumps(found.as_dict(), allow_nan=False)


def test_isolated_means_no_way_in_or_no_way_out() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    first = torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]], dtype=torch.bool)
    second = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    masks = Masks({"0.weight": first, "1.weight": second})
    graph = trace(net, torch.ones(1, 2))
    isolated = isolated_units(graph, masks)
    assert isolated[0].tolist() == [False, True, True, True]
    assert isolated[1].tolist() == [False, True, False]
    assert count_isolated(graph, masks) == (4, 7)
    # In the first layer, unit 2 has no input weight, and units 1 and 3 have no output weight.
    assert dead_units(graph, masks)[0].tolist() == [False, True, True, True]
    assert all(flags.all() for flags in alive_units(graph).values())
