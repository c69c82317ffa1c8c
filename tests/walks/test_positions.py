"""Sets of positions: numbered sets, and moves against relations written out by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.graph import Axis, Channels, Graph, Layer, Link, Window
from pathgrow.graph.graph import Flags
from pathgrow.walks.positions import EMPTY, Catalogue, Moves, Positions


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


class TestPositions:
    """Sets of positions against relations written out by hand."""

    @pytest.mark.parametrize("transposed", [False, True])
    @pytest.mark.parametrize(
        ("taps", "stride", "padding", "dilation", "size"),
        [(3, 1, 1, 1, 4), (3, 2, 1, 1, 5), (2, 2, 0, 1, 6), (3, 1, 2, 2, 4)],
    )
    def test_moving_along_one_axis(
        self, taps: int, stride: int, padding: int, dilation: int, size: int, transposed: bool
    ) -> None:
        reads = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        size_in, size_out = (reads, size) if transposed else (size, reads)
        window = Window((Axis(taps, stride, padding, dilation, size_in, size_out),), transposed=transposed)
        layer = Layer(0, "w", 1, 2, (1, 1, taps), 1, window, size_out)
        nodes = (Channels(0, 1, True), Channels(1, 1), Channels(2, 1))
        positions = Positions(Graph(nodes, (Link(0, 1),), (layer,), ((2, np.array([0])),), 0, False, False, ()))

        def moved(here: Flags, tap: int, *, forward: bool) -> tuple[Flags, ...]:
            return positions.sets(
                positions.along_layer(layer, positions.places((here,)), np.array([tap]), forward=forward)
            )

        for tap in range(taps):
            links = set()
            for near in range(reads):
                far = near * stride + tap * dilation - padding
                if 0 <= far < size:
                    links.add((near, far) if transposed else (far, near))
            for start in range(size_in):
                here = np.arange(size_in)[None] == start
                (there,) = moved(here, tap, forward=True)
                assert set(np.flatnonzero(there)) == {b for a, b in links if a == start}
            for end in range(size_out):
                here = np.arange(size_out)[None] == end
                (there,) = moved(here, tap, forward=False)
                assert set(np.flatnonzero(there)) == {a for a, b in links if b == end}
            assert bool(layer.live_taps()[tap]) == bool(links)
