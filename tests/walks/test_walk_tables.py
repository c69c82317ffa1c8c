"""What makes walks fast must not show in them: sets by number, tables of running sums, counts made by sorting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pathgrow.graph import trace
from pathgrow.graph.scope import scope_of
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker
from pathgrow.walks.phew import _Marks, _Seeding
from pathgrow.walks.sets import EMPTY, Catalogue, Moves

Flags = npt.NDArray[np.bool_]


@st.composite
def sets_of_one_size(draw: st.DrawFn) -> Flags:
    size = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=size, max_size=size), min_size=1, max_size=12))
    return np.array(rows)


@given(st.lists(sets_of_one_size(), min_size=1, max_size=4))
def test_sets_have_equal_numbers_where_they_are_equal(groups: list[Flags]) -> None:
    catalogue = Catalogue()
    seen: dict[int, tuple[bool, ...]] = {}
    for sets in groups:
        numbers = catalogue.number(sets)
        assert np.array_equal(catalogue.flags(numbers, sets.shape[1]), sets)
        for members, number in zip(sets, numbers, strict=True):
            if members.any():
                assert seen.setdefault(int(number), tuple(members)) == tuple(members)
            else:
                assert number == EMPTY
    assert len(set(seen.values())) == len(seen) == len(catalogue) - 1


@given(sets_of_one_size(), st.integers(1, 3), st.data())
def test_moves_by_number_are_the_moves_of_the_sets(sets: Flags, num_taps: int, data: st.DataObject) -> None:
    num_steps: list[int] = []

    def step(near: Flags, taps: npt.NDArray[np.int64]) -> Flags:
        num_steps.append(len(near))
        return np.array([np.append(row[tap:], np.zeros(tap, bool)) for row, tap in zip(near, taps, strict=True)])

    catalogue = Catalogue()
    moves = Moves(catalogue, sets.shape[1], num_taps, step)
    numbers = catalogue.number(sets)
    for _ in range(2):
        taps = np.array(data.draw(st.lists(st.integers(0, num_taps - 1), min_size=len(sets), max_size=len(sets))))
        by_hand = step(sets, taps)
        assert np.array_equal(catalogue.flags(moves(numbers, taps), sets.shape[1]), by_hand)
    worked_out = sum(num_steps) - 2 * len(sets)
    assert worked_out <= len(np.unique(numbers)) * num_taps


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


def test_walks_alternate_where_some_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without redraws many walks leave a 2x2 map; a forward walk is still followed by a backward one."""
    monkeypatch.setattr("pathgrow.walks.walker._TRIES", 1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 3, 1))
    with torch.no_grad():
        net[2].weight[1:] *= 1e-12  # forward walks end at output 0, backward ones begin at 0, 1, 2 in turn
    walker = Walker(Transitions(trace(net, torch.ones(1, 1, 2, 2)), net))
    walks = walker.walk(0, 50, generator(0))
    outputs = walks.units[walker.transitions.graph.outputs[0][0]]
    assert 0 < walks.num < 100
    assert set(outputs[0::2]) == {0}
    assert set(outputs[1::2]) == {0, 1, 2}
    assert walker.real(walks).all()


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_walks_fit_as_counted_one_by_one(seed: int, target: int) -> None:
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 2, bias=False))
    graph = trace(net, torch.ones(1, 6))
    marks, noise = _Marks(graph, scope_of(net, graph)), np.random.default_rng(seed)
    marks.add(noise.integers(0, 72, 3))
    seeding = _Seeding(
        Walker(Transitions(graph, net)), marks, marks.num_on + target, generator(0), net, torch.ones(1, 6)
    )
    numbers = noise.integers(-1, 72, (40, 2))
    taken: set[int] = set()
    expected = 0
    for walk in numbers:
        taken |= {int(number) for number in walk if number >= 0 and bool(marks.is_new(np.array([number]))[0])}
        if len(taken) > target:
            break
        expected += 1
    assert seeding._num_fit(numbers) == expected


@pytest.mark.parametrize(
    ("net", "size"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 1, stride=2)), 2),
        (nn.Sequential(nn.ConvTranspose2d(1, 4, 1, stride=2, output_padding=1), nn.Conv2d(4, 3, 2)), 1),
    ],
    ids=["forward", "backward"],
)
def test_no_walk_strays_where_nothing_leads_on(net: nn.Sequential, size: int) -> None:
    """One layer reads, or writes, one corner of a map; taps of the other that lead elsewhere are not taken."""
    walker = Walker(Transitions(trace(net, torch.ones(1, 1, size, size)), net))
    walks = walker.walk(0, 200, generator(0))
    assert walks.num == 400
    assert walker.real(walks).all()


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
