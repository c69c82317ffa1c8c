"""Transition probabilities: layers, taps, forks and identity shortcuts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pathgrow.graph import trace
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker


def test_rows_of_very_different_size_are_drawn_from_alike() -> None:
    """A unit whose weights are tiny beside those of all others still goes where its own weights point."""
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4])
    with torch.no_grad():
        net[0].weight.copy_(shares[:, None] * torch.tensor([1e20, 1e-30, 1.0]))
    transitions = Transitions(trace(net, torch.ones(1, 3)), net)
    uniform = (np.arange(1000) + 0.5) / 1000
    for unit in range(3):
        units = np.full(1000, unit)
        drawn = transitions.next_units(transitions.graph.layers[0], units, uniform, forward=True)
        assert np.abs(np.bincount(drawn, minlength=4) - 1000 * shares.numpy()).max() <= 1
        assert np.array_equal(drawn, np.sort(drawn))


@given(st.integers(0, 2**32), st.permutations(range(20)))
def test_the_order_of_the_walkers_does_not_matter(seed: int, order: list[int]) -> None:
    net = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Linear(7, 2, bias=False))
    transitions = Transitions(trace(net, torch.ones(1, 5)), net)
    noise = np.random.default_rng(seed)
    units, uniform = noise.integers(0, 5, 20), noise.random(20)
    layer = transitions.graph.layers[0]
    drawn = transitions.next_units(layer, units, uniform, forward=True)
    assert np.array_equal(transitions.next_units(layer, units[order], uniform[order], forward=True), drawn[order])
    cumulative = np.cumsum(net[0].weight.detach().abs().double().numpy(), axis=0)
    by_hand = [int((cumulative[:, u] <= lot * cumulative[-1, u]).sum()) for u, lot in zip(units, uniform, strict=True)]
    assert drawn.tolist() == by_hand


def test_taps_that_read_nothing_are_not_drawn_and_do_not_repel() -> None:
    """Over one pixel the middle tap alone counts, however large its neighbours: units are 1 to 3, not 10 to 3."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Conv2d(2, 1, 1))
    with torch.no_grad():
        net[0].weight.fill_(9.0)[:, 0, 1, 1] = torch.tensor([1.0, 3.0])
        net[0].weight[1, 0, 0] = net[0].weight[1, 0, 2] = 0.0
    transitions = Transitions(trace(net, torch.ones(1, 1, 1, 1)), net)
    uniform = (np.arange(1000) + 0.5) / 1000
    zeros = np.zeros(1000, dtype=np.int64)
    assert set(transitions.taps(transitions.graph.layers[0], zeros, zeros, uniform)) == {4}
    units = Walker(transitions).walk(0, 2000, generator(0)).units[transitions.graph.layers[0].target, ::2]
    assert abs((units == 1).mean() - 0.75) < 0.05  # five standard deviations


def test_branches_of_a_fork_are_equally_likely_however_many_ways_each_has() -> None:
    class Fork(nn.Module):
        """Every channel goes on as four positions, and as their mean."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.places, self.mean = nn.Conv2d(2, 3, 1), nn.Linear(12, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.places(x.flatten(1)) + self.mean(x.mean((2, 3)))

    model = Fork()
    transitions = Transitions(trace(model, torch.ones(1, 2, 2, 2)), model)
    walks = Walker(transitions).walk(0, 2000, generator(0))
    forward = walks.weights[:, ::2] >= 0
    by_name = {layer.name: forward[layer.index].mean() for layer in transitions.graph.layers}
    assert by_name["places.weight"] + by_name["mean.weight"] == pytest.approx(1)
    assert abs(by_name["mean.weight"] - 0.5) < 0.05  # more than four standard deviations


def test_a_branch_that_leads_nowhere_is_not_walked() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.aside = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            self.aside(self.aside(x).relu())
            return self.b(x)

    model = Aside()
    rates = Transitions(trace(model, torch.ones(1, 4)), model).visit_rates()
    names = [layer.name for layer in trace(model, torch.ones(1, 4)).layers]
    totals = dict(zip(names, (float(rate.sum()) for rate in rates.values()), strict=True))
    assert totals == {"a.weight": pytest.approx(2), "b.weight": pytest.approx(2), "aside.weight": 0}


class Block(nn.Module):
    """Stem, a residual block with an identity shortcut, head; all 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 1), nn.Linear(6, 4)
        self.first, self.second = nn.Conv2d(6, 5, 1), nn.Conv2d(5, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head((x + self.second(self.first(x).relu())).mean((2, 3)))


IMAGE = torch.ones(1, 3, 4, 4)


class TestShortcuts:
    def test_an_identity_shortcut_is_not_walked(self) -> None:
        model = Block()
        walks = Walker(Transitions(trace(model, IMAGE), model)).walk(0, 500, generator(0))
        assert bool((walks.weights >= 0).all())  # every walk uses every layer

    def test_it_is_one_of_two_branches_where_asked_for(self) -> None:
        model = Block()
        walks = Walker(Transitions(trace(model, IMAGE), model, identity_shortcuts=True)).walk(0, 2000, generator(0))
        share = (walks.weights[1] >= 0).mean()
        assert abs(share - 0.5) < 0.05  # five standard deviations

    def test_a_unit_without_another_way_takes_it(self) -> None:
        model = Block()
        with torch.no_grad():
            model.first.weight[:, 2] = 0.0  # unit 2 of the stem has no way on but the shortcut
            model.second.weight[4] = 0.0  # unit 4 of the sum has no way back but the shortcut
        transitions = Transitions(trace(model, IMAGE), model)
        walks = Walker(transitions).walk(0, 2000, generator(0))
        stem, first = transitions.graph.layers[0], transitions.graph.layers[1]
        at_stem, skipped = walks.units[stem.target], walks.weights[first.index] < 0
        assert bool((at_stem[skipped & (np.arange(walks.num) % 2 == 0)] == 2).all())
        assert bool(skipped[::2].any())
        assert bool(skipped[1::2].any())
        assert bool(np.isin(at_stem[skipped], [2, 4]).all())
