"""Batches of random walks: thousands of walkers move in one sweep over the nodes in each direction.

Node ids increase along every path, so a sweep over the nodes in order brings every forward walker to the output, and a
sweep in reverse order brings every backward walker to the input. A step that would take a walker off the map is drawn
again: a walk is a path in space too, and no walk is wasted on small maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pathgrow.graph.graph import Flags, Floats, Layer, Link, Units
from pathgrow.walks.positions import UNTRACKED, Places, Positions
from pathgrow.walks.transitions import END, Transitions

T = TypeVar("T", bound=np.generic)

_TRIES = 64
"""Draws of one step before a walker gives up; on a 2x2 map, the worst common case, 5 draws in 9 fail."""


class Walks(NamedTuple):
    """Walks from input to output, one per column."""

    units: npt.NDArray[np.int32]
    """`[nodes, walks]`: the unit visited; -1: the walk does not visit the node."""
    links: npt.NDArray[np.int32]
    """`[nodes, walks]`: the index of the link by which the walk leaves; -1: none."""
    weights: npt.NDArray[np.int64]
    """`[layers, walks]`: flat position in the layer's weight; -1: the layer is not used."""

    @property
    def num(self) -> int:
        """Number of walks."""
        return int(self.units.shape[1])

    def take(self, columns: Units | Flags | slice) -> Walks:
        """Return some of the walks, in the given order."""
        return Walks(self.units[:, columns], self.links[:, columns], self.weights[:, columns])

    def splice(self, heads: Units, tails: Units, layer: Layer, weights: Units) -> Walks:
        """Join heads of walks, up to the input port of a layer, and tails of others by weights of the layer."""

        # Node ids and layer indices increase along every path, so a head is the upper part of a column.
        def join(rows: npt.NDArray[T], last: int) -> npt.NDArray[T]:
            return np.concatenate([rows[: last + 1, heads], rows[last + 1 :, tails]])

        spliced = Walks(join(self.units, layer.source), join(self.links, layer.source), join(self.weights, layer.index))
        spliced.weights[layer.index] = weights
        return spliced

    @staticmethod
    def concatenated(parts: Sequence[Walks]) -> Walks:
        """Concatenate walks."""
        return Walks(*(np.concatenate(rows, axis=1) for rows in zip(*parts, strict=True)))


class Walker:
    """Draws walks from transition probabilities, and checks spliced walks."""

    def __init__(self, transitions: Transitions) -> None:
        self.transitions = transitions
        self.positions = Positions(transitions.graph)

    def walk(self, first: int, num: int, generator: torch.Generator) -> Walks:
        """Draw `num` walks in each direction, alternating (forward first); start units go round robin from `first`.

        Walks that leave the map in spite of redraws are dropped, with as many of the other direction, so fewer walks
        may be returned.
        """
        turns, graph = np.arange(first, first + num), self.transitions.graph
        visited, taken = np.full((2, len(graph.channels), 2 * num), -1, dtype=np.int32)
        walks = Walks(visited, taken, np.full((len(graph.layers), 2 * num), -1))
        finished = np.zeros((num, 2), dtype=bool)
        for way, (nodes, units) in enumerate((self.transitions.inputs, self.transitions.outputs)):
            turn = turns % len(units)
            own = walks.take(slice(way, None, 2))
            finished[:, way] = self._sweep(own, nodes[turn], units[turn], generator, forward=way == 0)
        if finished.all():
            return walks
        columns = [2 * np.flatnonzero(finished[:, way]) + way for way in range(2)]
        num_pairs = min(map(len, columns))
        return walks.take(np.stack([own[:num_pairs] for own in columns], axis=1).reshape(-1))

    def real(self, walks: Walks) -> Flags:
        """Flag the walks that have a possible position all the way from input to output."""
        graph, good = self.transitions.graph, np.ones(walks.num, dtype=bool)
        places = _Whereabouts(self.positions, walks.num, forward=True)
        for node in graph.channels:
            here = np.flatnonzero((walks.units[node.id] >= 0) & good)
            if (layer := graph.layer_from.get(node.id)) is not None:
                good[here] = places.cross_layer(layer, here, walks.weights[layer.index, here] % prod(layer.shape[2:]))
                continue
            leaving = walks.links[node.id, here]
            for number in np.unique(leaving[leaving >= 0]):
                link, who = graph.links[number], here[leaving == number]
                good[who] = places.cross_link(link, who, walks.units[link.target, who])
        return good

    def _sweep(self, walks: Walks, nodes: Units, units: Units, generator: torch.Generator, *, forward: bool) -> Flags:
        """Fill in walks from their start; return which of them reached the other end."""
        graph = self.transitions.graph
        walks.units[nodes, np.arange(walks.num)] = units
        step = _Step(self, walks, generator, forward)
        layers = graph.layer_from if forward else graph.layer_into
        for node in graph.channels if forward else reversed(graph.channels):
            here = np.flatnonzero(walks.units[node.id] >= 0)
            layer = layers.get(node.id)
            for _ in range(_TRIES):
                if not len(here):
                    break
                arrived = step.fork(node.id, here) if layer is None else step.layer(layer, here)
                here = here[~arrived]
            step.places.forget(node.id)
        return step.finished


class _Step:
    """Moves some of the walkers of a sweep by one draw each; methods return which of them arrived."""

    def __init__(self, walker: Walker, walks: Walks, generator: torch.Generator, forward: bool) -> None:
        self.transitions = walker.transitions
        self.walks, self.generator, self.forward = walks, generator, forward
        self.finished = np.zeros(walks.num, dtype=bool)
        self.places = _Whereabouts(walker.positions, walks.num, forward)

    def layer(self, layer: Layer, here: Units) -> Flags:
        start, end = (layer.source, layer.target) if self.forward else (layer.target, layer.source)
        units = self.walks.units[start, here].astype(np.int64)
        drawn = self.transitions.next_units(layer, units, self._uniform(len(here)), forward=self.forward)
        out, into = (drawn, units) if self.forward else (units, drawn)
        taps = self.transitions.taps(layer, out, into, self._uniform(len(here)))
        arrived = self.places.cross_layer(layer, here, taps)
        weights = self.transitions.weight_number(layer, out, into, taps)
        if not arrived.all():
            here, drawn, weights = here[arrived], drawn[arrived], weights[arrived]
        self.walks.units[end, here] = drawn
        self.walks.weights[layer.index, here] = weights
        return arrived

    def fork(self, node: int, here: Units) -> Flags:
        fork = self.transitions.fork(node, forward=self.forward)
        # Random numbers are drawn even if there is only one link: the walks of a seed must not depend on that.
        entry = fork.draw(self.walks.units[node, here], self._uniform(len(here)))
        units = fork.unit[entry]
        if len(fork.links) == 1:  # the common case: not a real fork
            return self._link(fork.links[0], here, units)
        links, arrived = fork.link[entry], np.zeros(len(here), dtype=bool)
        for number in fork.links:
            chosen = np.flatnonzero(links == number)
            arrived[chosen] = self._link(number, here[chosen], units[chosen])
        return arrived

    def _link(self, number: int, who: Units, units: npt.NDArray[np.int32]) -> Flags:
        if number == END:
            self.finished[who] = True
            return np.ones(len(who), dtype=bool)
        link = self.transitions.graph.links[number]
        start, end = (link.source, link.target) if self.forward else (link.target, link.source)
        targets = units if self.forward else self.walks.units[start, who]
        arrived = self.places.cross_link(link, who, targets)
        if not arrived.all():
            who, units = who[arrived], units[arrived]
        self.walks.units[end, who] = units
        self.walks.links[link.source, who] = number
        return arrived

    def _uniform(self, num: int) -> Floats:
        numbers: Floats = torch.rand(num, dtype=torch.float64, generator=self.generator).numpy()
        return numbers


class _Whereabouts:
    """Possible positions of the walkers of a sweep, by node."""

    def __init__(self, positions: Positions, num: int, forward: bool) -> None:
        self._positions, self._num, self._forward = positions, num, forward
        self._held: dict[int, Places] = {}

    def cross_layer(self, layer: Layer, who: Units, taps: Units) -> Flags:
        """Move some walkers through one tap each; return which of them have a position left, and so arrive."""
        start, end = (layer.source, layer.target) if self._forward else (layer.target, layer.source)
        moved = self._positions.along_layer(layer, self._at(start, who), taps, forward=self._forward)
        return self._put(end, who, moved)

    def cross_link(self, link: Link, who: Units, targets: npt.NDArray[np.integer]) -> Flags:
        """Move some walkers along a link to or from these target units; return which of them arrive."""
        start, end = (link.source, link.target) if self._forward else (link.target, link.source)
        moved = self._positions.along_link(link, self._at(start, who), targets, forward=self._forward)
        return self._put(end, who, moved)

    def _at(self, node: int, who: Units) -> Places:
        held = self._held.get(node, UNTRACKED)
        return held if len(who) == self._num else Places(held.grid, tuple(numbers[who] for numbers in held.numbers))

    def _put(self, node: int, who: Units, moved: Places) -> Flags:
        if moved.grid != self._positions.grid[node]:
            return moved.alive(len(who))  # not tracked from here on
        moved = self._positions.leading_on(node, moved, forward=self._forward)
        arrived = moved.alive(len(who))
        if len(who) == self._num and arrived.all():
            self._held[node] = moved  # no copy: all walkers are here
            return arrived
        if node not in self._held:
            self._held[node] = self._positions.everywhere(node, self._num)
        for held, numbers in zip(self._held[node].numbers, moved.numbers, strict=True):
            held[who[arrived]] = numbers[arrived]
        return arrived

    def forget(self, node: int) -> None:
        self._held.pop(node, None)
