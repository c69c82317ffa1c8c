"""Positions on a feature map that a path can be at: exact sets, one per walker and spatial axis.

A chain of taps is a path only if some position survives it: on a small padded map, two taps to the right may lead off
the map. Windows act on each axis separately, so a set of positions is a product of one set per axis.

Thousands of walkers share few different sets. Sets are numbered as they appear (`Catalogue`), so a walker holds one
integer, and the result of a step is computed once per set instead of once per walker (`Moves`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from pathgrow.graph.graph import Axis, Flags, Graph, Layer, Link, Units, Window, near_positions

Numbers = npt.NDArray[np.int32]
Sets = tuple[Flags, ...]
"""Possible positions: `[sets, size]` per axis; (): not tracked, any position is possible."""
Grid = tuple[int, ...]

EMPTY = 0
"""The number of every empty set, whatever the size of its axis."""
_UNKNOWN = -1


class Catalogue:
    """All sets found so far. Flags of sets are `[sets, size of the axis]`."""

    def __init__(self) -> None:
        self._flags: list[Flags] = [np.zeros(0, dtype=bool)]
        self._number: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._flags)

    def number(self, sets: Flags) -> Numbers:
        """Return the number of each set; new sets get the next numbers."""
        numbers = np.full(len(sets), EMPTY, dtype=np.int32)
        for place in np.flatnonzero(sets.any(axis=1)):
            number = self._number.setdefault(sets[place].tobytes(), len(self))
            if number == len(self):
                self._flags.append(sets[place])
            numbers[place] = number
        return numbers

    def flags(self, numbers: Numbers, size: int) -> Flags:
        """Return the sets with these numbers, on an axis of this size."""
        sets = np.zeros((len(numbers), size), dtype=bool)
        for place in np.flatnonzero(numbers != EMPTY):
            sets[place] = self._flags[numbers[place]]
        return sets


class Moves:
    """One kind of step as a table: the set it leads to, by set and tap.

    Parameters
    ----------
    catalogue
        The sets before and after the step.
    size, num_taps
        Size of the axis before the step, and number of taps.
    step
        Function of sets and one tap for each of them that returns the sets after the step.
    """

    def __init__(self, catalogue: Catalogue, size: int, num_taps: int, step: Callable[[Flags, Units], Flags]) -> None:
        self._catalogue, self._size, self._num_taps, self._step = catalogue, size, num_taps, step
        self._known = np.zeros(0, dtype=np.int32)

    def __call__(self, numbers: Numbers, taps: Units | None = None) -> Numbers:
        """Return the numbers of the sets after the step; `taps` may be omitted if there is only one."""
        keys = numbers if self._num_taps == 1 or taps is None else numbers * self._num_taps + taps
        num_new = len(self._catalogue) * self._num_taps - len(self._known)
        self._known = np.pad(self._known, (0, num_new), constant_values=_UNKNOWN) if num_new else self._known
        found: Numbers = self._known[keys]
        if (unknown := found == _UNKNOWN).any():
            new = np.unique(keys[unknown])
            sets = self._catalogue.flags(new // self._num_taps, self._size)
            self._known[new] = self._catalogue.number(self._step(sets, new % self._num_taps))
            found = self._known[keys]
        return found


@dataclass(frozen=True, eq=False)
class Places:
    """Possible positions of walkers: the size of every axis, and the number of each walker's set on it.

    Without axes positions are not tracked: any of them is possible.
    """

    grid: Grid
    numbers: tuple[Numbers, ...]

    def alive(self, num_walkers: int) -> Flags:
        """Flag the walkers that still have a position on every axis."""
        flags = np.ones(num_walkers, dtype=bool)
        for numbers in self.numbers:
            flags &= numbers != EMPTY
        return flags


UNTRACKED = Places((), ())


class Positions:
    """Moves sets of positions along the edges of a graph, forward or backward."""

    def __init__(self, graph: Graph) -> None:
        self._catalogue = Catalogue()
        self._moves: dict[tuple[Axis, bool, bool, bool], Moves] = {}
        self._unfolds: dict[Link, _Unfold] = {}
        self.grid: dict[int, Grid | None] = {}
        """Size of the map by node. None: that of the raw input, whatever it is; (): not tracked."""
        self.exact = True
        """False if some window reads positions that are no longer tracked."""
        for node in graph.channels:
            grids = [self._grid_after(link) for link in graph.links_into[node.id]]
            if (layer := graph.layer_into.get(node.id)) is not None:
                self.exact &= self.grid[layer.source] != () or all(axis.size_in == 1 for axis in layer.window.axes)
                grids.append(tuple(axis.size_out for axis in layer.window.axes))
            known = {grid for grid in grids if grid is not None}
            self.grid[node.id] = (known.pop() if len(known) == 1 else ()) if known else None
        self._from_input = self._possible(graph, forward=True)
        self._to_output = self._possible(graph, forward=False)

    def places(self, sets: Sets) -> Places:
        """Return these sets by number."""
        return Places(tuple(axis.shape[1] for axis in sets), tuple(self._catalogue.number(axis) for axis in sets))

    def sets(self, places: Places) -> Sets:
        """Return the sets with the numbers of `places`."""
        return tuple(
            self._catalogue.flags(numbers, size) for size, numbers in zip(places.grid, places.numbers, strict=True)
        )

    def leading_on(self, node: int, places: Places, *, forward: bool) -> Places:
        """Drop positions from which no choice of taps leads to the end of the walk."""
        keeps = (self._to_output if forward else self._from_input)[node]
        if not keeps:
            return places
        return Places(places.grid, tuple(keep(numbers) for keep, numbers in zip(keeps, places.numbers, strict=True)))

    def everywhere(self, node: int, num_walkers: int) -> Places:
        """Return all positions of a node."""
        grid = self.grid[node] or ()
        return Places(grid, tuple(self._whole(size, num_walkers) for size in grid))

    def along_layer(self, layer: Layer, places: Places, taps: Units, *, forward: bool) -> Places:
        """Move through one tap of a layer's kernel; `taps` are flat within the kernel."""
        if not layer.window.axes:
            return UNTRACKED
        kernel = layer.shape[2:]
        by_axis = [coordinates[taps] for coordinates in np.unravel_index(np.arange(prod(kernel)), kernel)]
        return self._through(layer.window, places, len(taps), by_axis, forward=forward)

    def along_link(self, link: Link, places: Places, targets: npt.NDArray[np.integer], *, forward: bool) -> Places:
        """Move through the pools of a link; if it flattens positions into units, the target unit tells the position."""
        unfold = self._unfolds.get(link)
        if unfold is not None and not forward:
            places = self.places(unfold.left(targets))
        places = self._through_pools(link, places, len(targets), forward=forward)
        if unfold is not None and forward:
            places = self.places(unfold.entered(self.sets(places), targets))
        return places

    def _through_pools(self, link: Link, places: Places, num_walkers: int, *, forward: bool) -> Places:
        trail = self._unfolds[link].trail if link in self._unfolds else link.trail
        for window in trail if forward else reversed(trail):
            places = self._through(window, places, num_walkers, None, forward=forward)
        return places

    def _through(
        self, window: Window, places: Places, num_walkers: int, taps: Sequence[Units] | None, *, forward: bool
    ) -> Places:
        """Move through one window, by one tap per walker (`taps`, by axis) or by all taps."""
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
            key = axis, window.transposed, forward, taps is None
            if key not in self._moves:
                num_taps = 1 if taps is None else axis.taps
                self._moves[key] = Moves(self._catalogue, near, num_taps, partial(_moved_along, *key))
            moved.append(self._moves[key](numbers, None if taps is None else taps[number]))
        return Places(tuple(grid), tuple(moved))

    def _whole(self, size: int, num_walkers: int) -> Numbers:
        return np.repeat(self._catalogue.number(np.ones((1, size), dtype=bool)), num_walkers)

    def _possible(self, graph: Graph, *, forward: bool) -> dict[int, tuple[Moves, ...]]:
        """Return, by node, steps that keep the positions a path from this end can reach; () if it can reach all."""
        found: dict[int, Places] = {}
        keeps = {}
        for node in graph.channels if forward else reversed(graph.channels):
            arriving = []
            for link in graph.links_into[node.id] if forward else graph.links_from[node.id]:
                places = self._through_pools(link, found[link.source if forward else link.target], 1, forward=forward)
                arriving.append(UNTRACKED if link in self._unfolds and forward else places)
            layer = (graph.layer_into if forward else graph.layer_from).get(node.id)
            if layer is not None:
                near = found[layer.source if forward else layer.target]
                arriving.append(self._through(layer.window, near, 1, None, forward=forward))
            known = arriving and all(places.grid == self.grid[node.id] for places in arriving)
            axes = zip(*map(self.sets, arriving), strict=True) if known else ()
            union = tuple(np.logical_or.reduce(sets) for sets in axes)
            union = () if all(bool(sets.all()) for sets in union) else union
            found[node.id] = self.places(union)
            keeps[node.id] = tuple(map(self._kept, union))
        return keeps

    def _kept(self, kept: Flags) -> Moves:
        return Moves(self._catalogue, kept.shape[1], 1, lambda sets, _: sets & kept)

    def _grid_after(self, link: Link) -> Grid | None:
        """Return the map at the end of a link; also record whether it flattens the map or loses track of positions."""
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
    """A flattening: every position of every channel becomes a unit, and `place[unit]` is the position."""

    grid: Grid
    place: Units
    trail: tuple[Window, ...]
    """The pools before the flattening."""

    def entered(self, sets: Sets, targets: npt.NDArray[np.integer]) -> Sets:
        """Return a single flag per walker: whether its position is possible. A flattened map is not tracked."""
        reached = np.ones(len(targets), dtype=bool)
        for here, there in zip(sets, self.left(targets), strict=False):
            reached &= (here & there).any(axis=1)
        return (reached[:, None],)

    def left(self, targets: npt.NDArray[np.integer]) -> Sets:
        """Return, for a backward step, the one position that a unit stands for."""
        at = np.unravel_index(self.place[targets], self.grid)
        return tuple(np.arange(size) == coordinate[:, None] for size, coordinate in zip(self.grid, at, strict=True))


def _is_identity(axis: Axis) -> bool:
    return axis.taps == axis.stride == 1 and axis.padding == 0 and axis.size_in == axis.size_out


def _moved_along(axis: Axis, transposed: bool, forward: bool, pool: bool, sets: Flags, taps: Units) -> Flags:
    """Move sets along one axis, by one tap each or, in a pool, by all of them."""
    near = axis.size_in if forward else axis.size_out
    table = near_positions(axis, transposed, forward=forward)
    here = np.zeros((len(sets), near + 1), dtype=bool)  # the last column means "none"
    here[:, :near] = sets
    if pool:
        return np.asarray(here[:, table].any(axis=1))
    return np.take_along_axis(here, table[taps], axis=1)
