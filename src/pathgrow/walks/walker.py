"""Walkers moving together: thousands of them, one sweep over the spaces in each direction.

Space ids rise along every path, so visiting the spaces in order brings every forward walker to the output, and visiting
them in reverse brings every backward walker to the input. A step that would take a walker off the map is drawn again:
a walk is a path in space too, and nothing has to be thrown away on small maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pathgrow.graph.graph import Flags, Layer, Units
from pathgrow.walks.positions import UNTRACKED, Places, Positions
from pathgrow.walks.transitions import END, Floats, Law

T = TypeVar("T", bound=np.generic)

_TRIES = 64
"""Draws of one step before a walker gives up; on a 2x2 map, the worst that is common, 5 draws in 9 fail."""


@dataclass(frozen=True, eq=False)
class Walks:
    """Walks from input to output, one per column."""

    units: npt.NDArray[np.int32]
    """`[spaces, walks]`: the unit visited; -1: the walk does not pass here."""
    hops: npt.NDArray[np.int32]
    """`[spaces, walks]`: the number of the hop by which the walk leaves; -1: none."""
    weights: npt.NDArray[np.int64]
    """`[layers, walks]`: flat position in the layer's weight; -1: the layer is not used."""

    @staticmethod
    def blank(law: Law, num: int) -> Walks:
        """`num` walks that have not begun."""
        rows = len(law.graph.spaces)
        return Walks(
            np.full((rows, num), -1, dtype=np.int32),
            np.full((rows, num), -1, dtype=np.int32),
            np.full((len(law.graph.layers), num), -1, dtype=np.int64),
        )

    @property
    def num(self) -> int:
        """How many walks."""
        return int(self.units.shape[1])

    def take(self, columns: Units | Flags | slice) -> Walks:
        """Some of the walks, in the given order."""
        return Walks(self.units[:, columns], self.hops[:, columns], self.weights[:, columns])

    def splice(self, heads: Units, tails: Units, layer: Layer, weights: Units) -> Walks:
        """New walks: the head of one walk up to a layer's port, a weight of that layer, the tail of another walk."""

        # Space ids and layer indices rise along every path, so a head is the upper part of a column.
        def join(rows: npt.NDArray[T], last: int) -> npt.NDArray[T]:
            return np.concatenate([rows[: last + 1, heads], rows[last + 1 :, tails]])

        spliced = Walks(join(self.units, layer.source), join(self.hops, layer.source), join(self.weights, layer.index))
        spliced.weights[layer.index] = weights
        return spliced

    @staticmethod
    def together(parts: Sequence[Walks]) -> Walks:
        """The walks of all parts, one part after the other."""
        return Walks(
            np.concatenate([part.units for part in parts], axis=1),
            np.concatenate([part.hops for part in parts], axis=1),
            np.concatenate([part.weights for part in parts], axis=1),
        )


class Walker:
    """Draws walks by a law, and checks walks that were put together."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self.positions = Positions(law.graph)

    def walk(self, first: int, num: int, generator: torch.Generator) -> Walks:
        """`num` walks each way, alternating (forward first); starting units go round robin from turn `first` on.

        Walks that leave the map in spite of redraws are dropped, and as many of the other way, so fewer may come back.
        """
        turns = np.arange(first, first + num)
        walks, finished = Walks.blank(self.law, 2 * num), np.zeros((num, 2), dtype=bool)
        for way, (spaces, units) in enumerate((self.law.inputs, self.law.outputs)):
            turn = turns % len(units)
            own = walks.take(slice(way, None, 2))
            finished[:, way] = self._sweep(own, spaces[turn], units[turn], generator, forward=way == 0)
        if finished.all():
            return walks
        columns = [2 * np.flatnonzero(finished[:, way]) + way for way in range(2)]
        num_pairs = min(map(len, columns))
        return walks.take(np.stack([own[:num_pairs] for own in columns], axis=1).reshape(-1))

    def real(self, walks: Walks) -> Flags:
        """Which walks have a position to be at, all the way from input to output."""
        graph, good = self.law.graph, np.ones(walks.num, dtype=bool)
        places = _Whereabouts(self.positions, walks.num, forward=True)
        for space in graph.spaces:
            here = np.flatnonzero((walks.units[space.id] >= 0) & good)
            if (layer := graph.layer_from.get(space.id)) is not None:
                taps = walks.weights[layer.index, here] % int(np.prod(layer.shape[2:], dtype=np.int64))
                moved = self.positions.along_layer(layer, places.at(space.id, here), taps, forward=True)
                good[here] = places.put(layer.target, here, moved)
                continue
            leaving = walks.hops[space.id, here]
            for number in np.unique(leaving[leaving >= 0]):
                hop, who = graph.hops[number], here[leaving == number]
                moved = self.positions.along_hop(
                    hop, places.at(space.id, who), walks.units[hop.target, who], forward=True
                )
                good[who] = places.put(hop.target, who, moved)
        return good

    def _sweep(self, walks: Walks, spaces: Units, units: Units, generator: torch.Generator, *, forward: bool) -> Flags:
        """Fill in walks from where they begin; returns which of them reached the other end."""
        graph = self.law.graph
        walks.units[spaces, np.arange(walks.num)] = units
        step = _Step(self, walks, generator, forward)
        layers = graph.layer_from if forward else graph.layer_into
        for space in graph.spaces if forward else reversed(graph.spaces):
            here = np.flatnonzero(walks.units[space.id] >= 0)
            layer = layers.get(space.id)
            for _ in range(_TRIES):
                if not len(here):
                    break
                arrived = step.fork(space.id, here) if layer is None else step.layer(layer, here)
                here = here[~arrived]
            step.places.forget(space.id)
        return step.finished


class _Step:
    """Moves some of the walkers of a sweep by one draw each; its methods return which of them arrived."""

    def __init__(self, walker: Walker, walks: Walks, generator: torch.Generator, forward: bool) -> None:
        self.law, self.positions = walker.law, walker.positions
        self.walks, self.generator, self.forward = walks, generator, forward
        self.finished = np.zeros(walks.num, dtype=bool)
        self.places = _Whereabouts(walker.positions, walks.num, forward)

    def layer(self, layer: Layer, here: Units) -> Flags:
        start, end = (layer.source, layer.target) if self.forward else (layer.target, layer.source)
        units = self.walks.units[start, here].astype(np.int64)
        drawn = self.law.next_units(layer, units, self._uniform(len(here)), forward=self.forward)
        out, into = (drawn, units) if self.forward else (units, drawn)
        taps = self.law.taps(layer, out, into, self._uniform(len(here)))
        moved = self.positions.along_layer(layer, self.places.at(start, here), taps, forward=self.forward)
        arrived = self.places.put(end, here, moved)
        weights = self.law.weight_number(layer, out, into, taps)
        if not arrived.all():
            here, drawn, weights = here[arrived], drawn[arrived], weights[arrived]
        self.walks.units[end, here] = drawn
        self.walks.weights[layer.index, here] = weights
        return arrived

    def fork(self, space: int, here: Units) -> Flags:
        fork = self.law.fork(space, forward=self.forward)
        # Random numbers are drawn even where there is one way only, so that a seed gives the same walks either way.
        entry = fork.draw(self.walks.units[space, here], self._uniform(len(here)))
        units = fork.unit[entry]
        if len(fork.hops) == 1:  # no fork at all: the common case
            return self._hop(fork.hops[0], here, units)
        hops, arrived = fork.hop[entry], np.zeros(len(here), dtype=bool)
        for number in fork.hops:
            chosen = np.flatnonzero(hops == number)
            arrived[chosen] = self._hop(number, here[chosen], units[chosen])
        return arrived

    def _hop(self, number: int, who: Units, units: npt.NDArray[np.int32]) -> Flags:
        if number == END:
            self.finished[who] = True
            return np.ones(len(who), dtype=bool)
        hop = self.law.graph.hops[number]
        start, end = (hop.source, hop.target) if self.forward else (hop.target, hop.source)
        targets = units if self.forward else self.walks.units[start, who]
        moved = self.positions.along_hop(hop, self.places.at(start, who), targets, forward=self.forward)
        arrived = self.places.put(end, who, moved)
        if not arrived.all():
            who, units = who[arrived], units[arrived]
        self.walks.units[end, who] = units
        self.walks.hops[hop.source, who] = number
        return arrived

    def _uniform(self, num: int) -> Floats:
        numbers: Floats = torch.rand(num, dtype=torch.float64, generator=self.generator).numpy()
        return numbers


class _Whereabouts:
    """Where on the map the walkers of a sweep can be, for the spaces they stand at."""

    def __init__(self, positions: Positions, num: int, forward: bool) -> None:
        self._positions, self._num, self._forward = positions, num, forward
        self._held: dict[int, Places] = {}

    def at(self, space: int, who: Units) -> Places:
        held = self._held.get(space, UNTRACKED)
        return held if len(who) == self._num else Places(held.grid, tuple(numbers[who] for numbers in held.numbers))

    def put(self, space: int, who: Units, moved: Places) -> Flags:
        """Keep the positions of walkers that come to a space; returns which of them have any left, and so arrive."""
        if moved.grid != self._positions.grid[space]:
            return moved.alive(len(who))  # not tracked from here on
        moved = self._positions.keeps_on(space, moved, forward=self._forward)
        arrived = moved.alive(len(who))
        if len(who) == self._num and arrived.all():
            self._held[space] = moved  # no copy: nobody else will come
            return arrived
        if space not in self._held:
            self._held[space] = self._positions.everywhere(space, self._num)
        for held, numbers in zip(self._held[space].numbers, moved.numbers, strict=True):
            held[who[arrived]] = numbers[arrived]
        return arrived

    def forget(self, space: int) -> None:
        self._held.pop(space, None)
