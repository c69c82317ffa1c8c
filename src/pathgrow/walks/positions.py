"""Where on the map a path can be: exact sets of positions, one per walker and spatial axis.

A chain of taps is a path only if some position survives it: on a small padded map, two taps to the right may take it
off the map. Windows act on each axis alone, so a set of positions is a product of one set per axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from pathgrow.graph.graph import Axis, Flags, Graph, Layer, Link, Units, Window
from pathgrow.walks.sets import EMPTY, Catalogue, Moves, Numbers

Sets = tuple[Flags, ...]
"""Alive positions: `[sets, size]` per axis; (): not tracked, all of them may be alive."""
Grid = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Places:
    """Where walkers can be: the size of every axis, and on it the number of each walker's set.

    Without axes positions are not tracked: all of them may be alive.
    """

    grid: Grid
    numbers: tuple[Numbers, ...]

    def alive(self, num_walkers: int) -> Flags:
        """Walkers that still have a position on every axis."""
        flags = np.ones(num_walkers, dtype=bool)
        for numbers in self.numbers:
            flags &= numbers != EMPTY
        return flags


UNTRACKED = Places((), ())


class Positions:
    """Moves sets of positions along the connections of a wiring, with or against the arrows."""

    def __init__(self, graph: Graph) -> None:
        self._catalogue = Catalogue()
        self._moves: dict[tuple[Axis, bool, bool, bool], Moves] = {}
        self._keeps: dict[tuple[int, int, bool], Moves] = {}
        self._taps_by_axis = {
            layer.index: np.unravel_index(np.arange(prod(layer.shape[2:])), layer.shape[2:])
            for layer in graph.layers
            if layer.window.axes
        }
        self._unfolds: dict[Link, _Unfold] = {}
        self.grid: dict[int, Grid | None] = {}
        """Per space: the size of the map. None: that of the raw input, whatever it is; (): not tracked."""
        self.exact = True
        """False where some window reads positions that could no longer be tracked."""
        for node in graph.channels:
            layer = graph.layer_into.get(node.id)
            grids = [self._grid_after(link) for link in graph.links_into[node.id]]
            if layer is not None:
                grids.append(self._grid_behind(layer))
            known = {grid for grid in grids if grid is not None}
            self.grid[node.id] = (known.pop() if len(known) == 1 else ()) if known else None
        self._from_input = self._possible(graph, forward=True)
        self._to_output = self._possible(graph, forward=False)

    def places(self, sets: Sets) -> Places:
        """These sets, by their numbers."""
        return Places(tuple(axis.shape[1] for axis in sets), tuple(self._catalogue.number(axis) for axis in sets))

    def sets(self, places: Places) -> Sets:
        """The sets behind the numbers."""
        return tuple(
            self._catalogue.flags(numbers, size) for size, numbers in zip(places.grid, places.numbers, strict=True)
        )

    def keeps_on(self, node: int, places: Places, *, forward: bool) -> Places:
        """The same places without positions from which no choice of taps leads on to the far end of the walk."""
        far = (self._to_output if forward else self._from_input)[node]
        if not far:
            return places
        return Places(
            places.grid,
            tuple(
                self._kept(node, number, leading, forward)(numbers)
                for number, (leading, numbers) in enumerate(zip(far, places.numbers, strict=True))
            ),
        )

    def everywhere(self, node: int, num_walkers: int) -> Places:
        """Every position of a space."""
        grid = self.grid[node] or ()
        return Places(grid, tuple(self._whole(size, num_walkers) for size in grid))

    def along_layer(self, layer: Layer, places: Places, taps: Units, *, forward: bool) -> Places:
        """Through one tap of a layer's kernel; `taps` are flat within the kernel."""
        if not layer.window.axes:
            return UNTRACKED
        return self._through(layer.window, places, len(taps), (taps, self._taps_by_axis[layer.index]), forward=forward)

    def along_link(self, link: Link, places: Places, targets: npt.NDArray[np.integer], *, forward: bool) -> Places:
        """Through a hop's pools; where the hop flattens positions into units, the target unit tells the position."""
        unfold = self._unfolds.get(link)
        trail = link.trail if unfold is None else unfold.trail
        if forward:
            for window in trail:
                places = self._through(window, places, len(targets), None, forward=True)
            return places if unfold is None else self.places(unfold.entered(self.sets(places), targets))
        places = places if unfold is None else self.places(unfold.left(targets))
        for window in reversed(trail):
            places = self._through(window, places, len(targets), None, forward=False)
        return places

    def _through(
        self,
        window: Window,
        places: Places,
        num_walkers: int,
        taps: tuple[Units, tuple[npt.NDArray[np.intp], ...]] | None,
        *,
        forward: bool,
    ) -> Places:
        """Through one window: by one tap per walker (`taps`: flat, and the coordinates of all taps), or by all taps."""
        if len(places.grid) != len(window.axes):
            places = UNTRACKED
        grid, moved = [], []
        for number, axis in enumerate(window.axes):
            if places.grid and _is_identity(axis):
                grid.append(places.grid[number])
                moved.append(places.numbers[number])
                continue
            near, far = (axis.size_in, axis.size_out) if forward else (axis.size_out, axis.size_in)
            if places.grid and places.grid[number] == near:
                numbers = places.numbers[number]
            else:
                numbers = self._whole(near, num_walkers)
            grid.append(far)
            moves = self._moved(axis, near, window.transposed, forward, pool=taps is None)
            moved.append(moves(numbers, None if taps is None else taps[1][number][taps[0]]))
        return Places(tuple(grid), tuple(moved))

    def _whole(self, size: int, num_walkers: int) -> Numbers:
        return np.repeat(self._catalogue.number(np.ones((1, size), dtype=bool)), num_walkers)

    def _moved(self, axis: Axis, near: int, transposed: bool, forward: bool, *, pool: bool) -> Moves:
        key = axis, transposed, forward, pool
        if key not in self._moves:
            self._moves[key] = Moves(
                self._catalogue,
                near,
                1 if pool else axis.taps,
                lambda sets, taps: _moved_along(axis, sets, None if pool else taps, transposed, forward=forward),
            )
        return self._moves[key]

    def _kept(self, node: int, number: int, leading: Flags, forward: bool) -> Moves:
        key = node, number, forward
        if key not in self._keeps:
            self._keeps[key] = Moves(self._catalogue, leading.shape[1], 1, lambda sets, _: sets & leading)
        return self._keeps[key]

    def _possible(self, graph: Graph, *, forward: bool) -> dict[int, Sets]:
        """Per space: positions that a path from this end can reach; () where it can reach all."""
        found: dict[int, Sets] = {}
        for node in graph.channels if forward else reversed(graph.channels):
            arriving = []
            for link in graph.links_into[node.id] if forward else graph.links_from[node.id]:
                sets = found[link.source if forward else link.target]
                trail = self._unfolds[link].trail if link in self._unfolds else link.trail
                for window in trail if forward else reversed(trail):
                    sets = _pooled(window, sets, forward=forward)
                arriving.append(() if link in self._unfolds and forward else sets)
            layer = (graph.layer_into if forward else graph.layer_from).get(node.id)
            if layer is not None:
                near = found[layer.source if forward else layer.target]
                arriving.append(_pooled(layer.window, near, forward=forward))
            grid = self.grid[node.id]
            known = arriving and grid and all(tuple(axis.shape[1] for axis in sets) == grid for sets in arriving)
            union = tuple(np.logical_or.reduce(axes) for axes in zip(*arriving, strict=True)) if known else ()
            found[node.id] = () if all(bool(axis.all()) for axis in union) else union
        return found

    def _grid_behind(self, layer: Layer) -> Grid:
        axes = layer.window.axes
        if axes and self.grid[layer.source] == () and any(axis.size_in > 1 for axis in axes):
            self.exact = False
        return tuple(axis.size_out for axis in axes)

    def _grid_after(self, link: Link) -> Grid | None:
        """The map on which a hop arrives; also records a hop that flattens it, and positions lost on the way."""
        trail = link.trail
        while trail and not trail[-1].axes:
            trail = trail[:-1]
        grid = tuple(axis.size_out for axis in trail[-1].axes) if trail else self.grid[link.source]
        lost = self.grid[link.source] == () or any(not window.axes for window in trail)
        if lost and any(axis.size_in > 1 for window in trail for axis in window.axes):
            self.exact = False
        if link.pairs is not None:
            source, target = link.pairs
            copies = np.bincount(source)
            copies = copies[copies > 0]
            if (copies > 1).any() and grid is not None:
                if grid and (copies == prod(grid)).all() and len(np.unique(target)) == len(target):
                    order = np.lexsort((target, source))
                    place = np.zeros(int(target.max()) + 1, dtype=np.int64)
                    place[target[order]] = np.arange(len(order)) % prod(grid)
                    self._unfolds[link] = _Unfold(grid, place, trail)
                else:
                    self.exact = False
                return ()
        return grid if trail == link.trail else ()


@dataclass(frozen=True, eq=False)
class _Unfold:
    """A flattening: every position of every channel becomes a unit of its own, `place[unit]` is the position."""

    grid: Grid
    place: Units
    trail: tuple[Window, ...]
    """The pools before the flattening."""

    def entered(self, sets: Sets, targets: npt.NDArray[np.integer]) -> Sets:
        """A single flag per walker: whether its position is alive. After a flattening there is no map any more."""
        reached = np.ones(len(targets), dtype=bool)
        for here, there in zip(sets, self.left(targets), strict=False):
            reached &= (here & there).any(axis=1)
        return (reached[:, None],)

    def left(self, targets: npt.NDArray[np.integer]) -> Sets:
        """Against the arrows: the one position that a unit stands for."""
        at = np.unravel_index(self.place[targets], self.grid)
        return tuple(np.arange(size) == coordinate[:, None] for size, coordinate in zip(self.grid, at, strict=True))


def _is_identity(axis: Axis) -> bool:
    return axis.taps == axis.stride == 1 and axis.padding == 0 and axis.size_in == axis.size_out


def _pooled(window: Window, sets: Sets, *, forward: bool) -> Sets:
    """One set per axis, through all taps of a window."""
    if len(sets) != len(window.axes):
        sets = ()
    moved = []
    for number, axis in enumerate(window.axes):
        if sets and _is_identity(axis):
            moved.append(sets[number])
            continue
        near = axis.size_in if forward else axis.size_out
        here = sets[number] if sets and sets[number].shape[1] == near else np.ones((1, near), dtype=bool)
        moved.append(_moved_along(axis, here, None, window.transposed, forward=forward))
    return tuple(moved)


def _moved_along(axis: Axis, sets: Flags, taps: Units | None, transposed: bool, *, forward: bool) -> Flags:
    """Sets on the far side of one axis, by one tap each, or by all of them."""
    near, far = (axis.size_in, axis.size_out) if forward else (axis.size_out, axis.size_in)
    table = _sources(axis, near, far, reading=transposed != forward)
    here = np.zeros((len(sets), near + 1), dtype=bool)  # the last column is "nowhere"
    here[:, :near] = sets
    if taps is not None:
        return np.take_along_axis(here, table[taps], axis=1)
    return np.asarray(here[:, table].any(axis=1))


@lru_cache(maxsize=1024)
def _sources(axis: Axis, near: int, far: int, *, reading: bool) -> npt.NDArray[np.int64]:
    """`[taps, far]`: the near position that each far position is connected to by each tap; `near` where there is none.

    With `reading` the far side reads position `far * stride + tap * dilation - padding` of the near side; otherwise the
    near side reads the far one. A transposed window is the same relation with the two sides exchanged.
    """
    offsets = np.arange(axis.taps)[:, None] * axis.dilation - axis.padding
    there = np.arange(far)[None, :]
    if reading:
        here = there * axis.stride + offsets
        valid = (here >= 0) & (here < near)
    else:
        here, rest = np.divmod(there - offsets, axis.stride)
        valid = (rest == 0) & (here >= 0) & (here < near)
    return np.where(valid, here, near)
