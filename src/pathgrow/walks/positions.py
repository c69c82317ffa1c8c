"""Where on the map a path can be: exact sets of positions, one row per walker, one array per spatial axis.

A chain of taps is a path only if some position survives it: on a small padded map, two taps to the right and the path
has left the picture. Windows act on each axis alone, so a set of positions is a product of one set per axis.
An empty tuple of axes means that positions are not tracked here: all of them may be alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from pathgrow.wiring.graph import Axis, Flags, Hop, Layer, Units, Window, Wiring

Sets = tuple[Flags, ...]
"""Alive positions: `[walkers, size]` per axis."""
Grid = tuple[int, ...]


class Positions:
    """Moves sets of positions along the connections of a wiring, with or against the arrows."""

    def __init__(self, wiring: Wiring) -> None:
        self._shape_of_taps = {layer.index: layer.shape[2:] for layer in wiring.layers}
        self._unfolds: dict[Hop, _Unfold] = {}
        self.grid: dict[int, Grid | None] = {}
        """Per space: the size of the map. None: that of the raw input, whatever it is; (): not tracked."""
        self.exact = True
        """Whether no window reads positions that were lost from sight before it."""
        for space in wiring.spaces:
            layer = wiring.layer_into.get(space.id)
            grids = [self._grid_after(hop) for hop in wiring.hops_into[space.id]]
            if layer is not None:
                grids.append(self._grid_behind(layer))
            known = {grid for grid in grids if grid is not None}
            self.grid[space.id] = (known.pop() if len(known) == 1 else ()) if known else None
        self._from_input = self._possible(wiring, forward=True)
        self._to_output = self._possible(wiring, forward=False)

    def keeps_on(self, space: int, sets: Sets, *, forward: bool) -> Sets:
        """Without the positions from which no path leads on to the walk's far end, whichever taps it takes."""
        far = (self._to_output if forward else self._from_input)[space]
        return tuple(here & there for here, there in zip(sets, far, strict=True)) if far else sets

    def everywhere(self, space: int, num_walkers: int) -> Sets:
        """Every position of a space."""
        return tuple(np.ones((num_walkers, size), dtype=bool) for size in self.grid[space] or ())

    def along_layer(self, layer: Layer, sets: Sets, taps: Units, *, forward: bool) -> Sets:
        """Through one tap of a layer's kernel; `taps` are flat within the kernel."""
        if not layer.window.axes:
            return ()
        by_axis = np.unravel_index(taps, self._shape_of_taps[layer.index])
        return _moved(layer.window, sets, by_axis, len(taps), forward=forward)

    def along_hop(self, hop: Hop, sets: Sets, targets: npt.NDArray[np.integer], *, forward: bool) -> Sets:
        """Through a hop's pools; where the hop unfolds positions into units, the target unit says which position."""
        unfold = self._unfolds.get(hop)
        trail = hop.trail if unfold is None else unfold.trail
        if forward:
            for window in trail:
                sets = _moved(window, sets, None, len(targets), forward=True)
            return sets if unfold is None else unfold.entered(sets, targets)
        sets = sets if unfold is None else unfold.left(targets)
        for window in reversed(trail):
            sets = _moved(window, sets, None, len(targets), forward=False)
        return sets

    def _possible(self, wiring: Wiring, *, forward: bool) -> dict[int, Sets]:
        """Per space: positions that a path from this end can come to; () where it can come to all."""
        found: dict[int, Sets] = {}
        for space in wiring.spaces if forward else reversed(wiring.spaces):
            arriving = []
            for hop in wiring.hops_into[space.id] if forward else wiring.hops_from[space.id]:
                sets = found[hop.source if forward else hop.target]
                trail = self._unfolds[hop].trail if hop in self._unfolds else hop.trail
                for window in trail if forward else reversed(trail):
                    sets = _moved(window, sets, None, 1, forward=forward)
                arriving.append(() if hop in self._unfolds and forward else sets)
            layer = (wiring.layer_into if forward else wiring.layer_from).get(space.id)
            if layer is not None:
                near = found[layer.source if forward else layer.target]
                arriving.append(_moved(layer.window, near, None, 1, forward=forward))
            grid = self.grid[space.id]
            known = arriving and grid and all(tuple(axis.shape[1] for axis in sets) == grid for sets in arriving)
            union = tuple(np.logical_or.reduce(axes) for axes in zip(*arriving, strict=True)) if known else ()
            found[space.id] = () if all(bool(axis.all()) for axis in union) else union
        return found

    def _grid_behind(self, layer: Layer) -> Grid:
        axes = layer.window.axes
        if axes and self.grid[layer.source] == () and any(axis.size_in > 1 for axis in axes):
            self.exact = False
        return tuple(axis.size_out for axis in axes)

    def _grid_after(self, hop: Hop) -> Grid | None:
        """The map on which a hop arrives; notes on the way whether the hop unfolds it."""
        trail = hop.trail
        while trail and not trail[-1].axes:
            trail = trail[:-1]
        grid = tuple(axis.size_out for axis in trail[-1].axes) if trail else self.grid[hop.source]
        lost = self.grid[hop.source] == () or any(not window.axes for window in trail)
        if lost and any(axis.size_in > 1 for window in trail for axis in window.axes):
            self.exact = False
        if hop.pairs is not None:
            source, target = hop.pairs
            copies = np.bincount(source)
            copies = copies[copies > 0]
            if (copies > 1).any() and grid is not None:
                if grid and (copies == prod(grid)).all() and len(np.unique(target)) == len(target):
                    order = np.lexsort((target, source))
                    place = np.zeros(int(target.max()) + 1, dtype=np.int64)
                    place[target[order]] = np.arange(len(order)) % prod(grid)
                    self._unfolds[hop] = _Unfold(grid, place, trail)
                else:
                    self.exact = False
                return ()
        return grid if trail == hop.trail else ()


@dataclass(frozen=True, eq=False)
class _Unfold:
    """A flattening: every position of every channel becomes a unit of its own, `place[unit]` is the position."""

    grid: Grid
    place: Units
    trail: tuple[Window, ...]
    """The pools before the flattening."""

    def entered(self, sets: Sets, targets: npt.NDArray[np.integer]) -> Sets:
        """A single flag per walker: whether its position is alive. Behind it there is no map any more."""
        reached = np.ones(len(targets), dtype=bool)
        for here, there in zip(sets, self.left(targets), strict=False):
            reached &= (here & there).any(axis=1)
        return (reached[:, None],)

    def left(self, targets: npt.NDArray[np.integer]) -> Sets:
        """Against the arrows: the one position that a unit stands for."""
        at = np.unravel_index(self.place[targets], self.grid)
        return tuple(np.arange(size) == coordinate[:, None] for size, coordinate in zip(self.grid, at, strict=True))


def alive(sets: Sets, num_walkers: int) -> Flags:
    """Walkers that still have a position on every axis."""
    flags = np.ones(num_walkers, dtype=bool)
    for axis in sets:
        flags &= axis.any(axis=1)
    return flags


def live_kernel(layer: Layer) -> Flags:
    """Taps of a layer's kernel that connect at least one pair of positions, in the kernel's shape."""
    window, live = layer.window, np.ones(layer.shape[2:], dtype=bool)
    for number, axis in enumerate(window.axes):
        table = _sources(axis, axis.size_in, axis.size_out, reading=not window.transposed)
        shape = [1] * live.ndim
        shape[number] = axis.taps
        live &= (table < axis.size_in).any(axis=1).reshape(shape)
    return live


def _moved(
    window: Window, sets: Sets, taps: tuple[npt.NDArray[np.intp], ...] | None, num_walkers: int, *, forward: bool
) -> Sets:
    if not window.axes:
        return ()
    if len(sets) != len(window.axes):
        sets = ()
    moved = []
    for number, axis in enumerate(window.axes):
        if sets and axis.taps == axis.stride == 1 and axis.padding == 0 and axis.size_in == axis.size_out:
            moved.append(sets[number])
            continue
        near, far = (axis.size_in, axis.size_out) if forward else (axis.size_out, axis.size_in)
        table = _sources(axis, near, far, reading=window.transposed != forward)
        here = np.zeros((num_walkers, near + 1), dtype=bool)  # the last column is "nowhere"
        here[:, :near] = sets[number] if sets and sets[number].shape[1] == near else True
        if taps is None:
            there = here[:, table[0]]
            for row in table[1:]:
                there |= here[:, row]
        else:
            there = np.take_along_axis(here, table[taps[number]], axis=1)
        moved.append(there)
    return tuple(moved)


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
