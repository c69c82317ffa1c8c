"""Invariants of the parts that dynamic sparse training methods share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pathgrow import attach, methods
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k_in, uniform_in
from pathgrow.methods.method import NetworkView, floor_of
from pathgrow.methods.rewire import RewireLayers, apportion

capacities = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), min_size=1, max_size=8)


@given(data=st.data(), places=capacities)
def test_apportion_is_exact_fits_and_is_fair(data: st.DataObject, places: list[tuple[float, int]]) -> None:
    shares = {str(k): share for k, (share, _) in enumerate(places)}
    capacity = {str(k): number for k, (_, number) in enumerate(places)}
    num = data.draw(st.integers(0, sum(capacity.values())))
    counts = apportion(num, shares, capacity)
    assert list(counts) == list(shares)
    assert sum(counts.values()) == num
    assert all(0 <= counts[name] <= capacity[name] for name in capacity)
    # Among places with capacity left, none is more than one away from the common proportion.
    spare = [name for name in capacity if counts[name] < capacity[name] and shares[name] > 1e-6]
    for one in spare:
        for other in shares:
            if shares[other] > 0:
                assert counts[other] - 1 <= (counts[one] + 1) * shares[other] / shares[one] * (1 + 1e-6) + 1e-3


@given(total=st.integers(0, 300), shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_without_limits_every_number_is_a_rounded_quota(total: int, shares: list[float]) -> None:
    named = {str(k): share for k, share in enumerate(shares)}
    counts = apportion(total, named, dict.fromkeys(named, 1000))
    for name, share in named.items():
        assert abs(counts[name] - total * share / sum(shares)) < 1 + 1e-5


def test_where_no_share_is_left_room_is_the_share() -> None:
    assert apportion(8, {"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 2, "b": 10, "c": 2}) == {"a": 2, "b": 5, "c": 1}


def rewired_one_by_one(
    rewire: RewireLayers, weights: dict[str, Tensor], scores: dict[str, Tensor], masks: Masks, draw: torch.Generator
) -> dict[str, Tensor]:
    """The update, written for one layer after the other."""
    result, fraction = {}, rewire.drop_fraction(0)
    for name, on in masks.items():
        kept = torch.zeros_like(on)
        for size in (weights[name], -weights[name]) if rewire.by_sign else (weights[name].abs(),):
            here = on & (size > 0) if rewire.by_sign else on
            kept |= top_k_in(size, here, int(here.sum()) - floor_of(fraction * int(here.sum())), draw)
        num = int(on.sum()) - int(kept.sum())
        grown = uniform_in(~kept, num, draw) if rewire.score is None else top_k_in(scores[name], ~kept, num, draw)
        result[name] = kept | grown
    return result


@pytest.mark.parametrize("by_sign", [False, True])
@pytest.mark.parametrize("by_score", [False, True])
@given(seed=st.integers(0, 2**31), kinds=st.sampled_from([2, 5, 10**6]))
def test_all_layers_at_once_are_rewired_as_one_by_one(by_score: bool, by_sign: bool, seed: int, kinds: int) -> None:
    """Also where ties are drawn: the growth of a layer draws before the next layer drops."""
    random = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 7))
    on, scores = {}, {}
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            on[name] = torch.rand(weight.shape, generator=random) < 0.5
            scores[name] = torch.randint(kinds, weight.shape, generator=random).float()
            weight.data = torch.where(on[name], torch.randint(-kinds, kinds, weight.shape, generator=random), 0.0)
    masks = Masks(on)
    rewire = RewireLayers(
        drop_fraction=lambda step: 0.4, score=(lambda net: scores) if by_score else None, by_sign=by_sign
    )
    net = NetworkView(model, masks, Masks({name: torch.ones_like(flags) for name, flags in on.items()}))
    here, there = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    together = rewire.rewired(net, on, 0, here)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    alone = rewired_one_by_one(rewire, weights, scores, masks, there)
    assert all(torch.equal(together[name], alone[name]) for name in on)
    assert torch.equal(here.get_state(), there.get_state())


class Waits(TorchDispatchMode):
    """Counts the operations whose result the host has to wait for, one value at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["rigl", "set"])
def test_no_layer_waits_for_the_device_by_itself(name: str) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = methods.create(name, density=0.5, num_steps=100, update_interval=10)
    attached = attach(model, optimizer, method, torch.zeros(1, 8), scope=Masks.full(model))
    before, waits = attached.masks.clone(), Waits()
    with attached.hooks_disabled():
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(0))).square().sum().backward()
        with waits:
            attached.update_masks_if_due_()
    assert attached.masks != before
    assert waits.num == 0
