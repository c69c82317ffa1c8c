"""How a module's weights are wired: the value that one reading of a model gives.

A *space* is a set of units that lie side by side: the input channels, the output channels of a layer, the channels of a
residual stream after an addition. Two kinds of connection lead from a space to a later one (ids rise along every path):

- a `Layer` is one use of one weight: unit `i` of its `source` reaches unit `o` of its `target` through kernel `[o, i]`;
- a `Hop` has no weight: an addition, a concatenation, a flattening, the way into a layer's input port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

Units = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Axis:
    """A kernel or pooling window along one spatial axis: output `p` reads `p*stride + tap*dilation - padding`."""

    taps: int
    stride: int
    padding: int
    dilation: int
    size_in: int
    size_out: int


@dataclass(frozen=True)
class Window:
    """One spatial step. In a `pool` every tap is read; otherwise each tap is a weight, and a walk takes one of them.

    Without `axes` positions are mixed beyond tracking (attention, flattening), and a path may be at any afterwards.
    """

    axes: tuple[Axis, ...] = ()
    pool: bool = False
    transposed: bool = False
    """Input and output change places: input `p` goes to output `p*stride + tap*dilation - padding`."""


@dataclass(frozen=True, eq=False)
class Channels:
    """Units side by side. Paths begin in `input` spaces."""

    id: int
    size: int
    input: bool = False


@dataclass(frozen=True, eq=False)
class Link:
    """A connection without weights. `pairs` are arrays of source and target units; None: unit `i` leads to unit `i`."""

    source: int
    target: int
    pairs: tuple[Units, Units] | None = None
    shortcut: bool = False
    """The plain branch of an addition whose other branch was computed from it: an identity shortcut."""
    trail: tuple[Window, ...] = ()
    """Spatial steps (pools) between the two, in order."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One use of one weight, seen as `[out, in / groups, *kernel]` whatever layout the parameter has."""

    index: int
    name: str | None
    """Parameter name; None: the weight was computed (weight norm), so it carries paths but cannot be switched."""
    kind: Literal["linear", "conv"]
    source: int
    """The input port: a space of its own, with one unit per input channel, which exactly one hop leads into."""
    target: int
    shape: tuple[int, ...]
    groups: int
    window: Window
    positions: int
    """Multiply-adds per weight for one sample: output positions or tokens."""
    where: Tensor | None = field(default=None, repr=False)
    """Flat positions in the parameter, shaped `shape`; None: the parameter itself is laid out like `shape`."""

    def pick(self, parameter: Tensor) -> Tensor:
        """This layer's weight out of its parameter (or out of a mask or score of the parameter's shape)."""
        if self.where is None:
            return parameter
        return parameter.reshape(-1)[self.where.to(parameter.device)]

    def lay_(self, values: Tensor, onto: Tensor) -> None:
        """Add `values` (shaped like this layer) to a tensor of the parameter's shape, in place."""
        if self.where is None:
            onto += values
        else:
            onto.view(-1).index_add_(0, self.where.reshape(-1).to(onto.device), values.reshape(-1))

    @property
    def macs(self) -> int:
        """Dense multiply-adds for one sample."""
        return int(np.prod(self.shape)) * self.positions


@dataclass(frozen=True, eq=False)
class Graph:
    """One reading of one model."""

    channels: tuple[Channels, ...]
    links: tuple[Link, ...]
    layers: tuple[Layer, ...]
    """In order of use. A tied weight appears once per use."""
    outputs: tuple[tuple[int, Units], ...]
    """The model's outputs: a space and those of its units that are read."""
    product_macs: int
    """Multiply-adds for one sample between two activations (attention), never sparse."""
    tokens_in: bool
    """Whether the input is token ids, so that paths begin at the output of the embedding."""
    attention: bool
    """Whether some softmax mixes positions."""

    @cached_property
    def links_from(self) -> dict[int, list[Link]]:
        """Hops by the space they leave."""
        found: dict[int, list[Link]] = {node.id: [] for node in self.channels}
        for link in self.links:
            found[link.source].append(link)
        return found

    @cached_property
    def links_into(self) -> dict[int, list[Link]]:
        """Hops by the space they lead into."""
        found: dict[int, list[Link]] = {node.id: [] for node in self.channels}
        for link in self.links:
            found[link.target].append(link)
        return found

    @cached_property
    def layer_from(self) -> dict[int, Layer]:
        """Layers by their input port."""
        return {layer.source: layer for layer in self.layers}

    @cached_property
    def layer_into(self) -> dict[int, Layer]:
        """Layers by their output space."""
        return {layer.target: layer for layer in self.layers}

    def reached(self, kernels: dict[int, Flags] | None = None) -> dict[int, Flags]:
        """Per space: units that a path from the input reaches, through the given kernels `[out, in]` of layers only."""
        flags = {s.id: np.full(s.size, s.input) for s in self.channels}
        for node in self.channels:
            here = flags[node.id]
            for link in self.links_from[node.id]:
                _spread(here, flags[link.target], link.pairs)
            if (layer := self.layer_from.get(node.id)) is not None:
                flags[layer.target] |= _through(layer, here, kernels, forward=True)
        return flags

    def reaching(self, kernels: dict[int, Flags] | None = None) -> dict[int, Flags]:
        """Per space: units from which a path leads to the output, through the given kernels only."""
        flags = {s.id: np.zeros(s.size, dtype=bool) for s in self.channels}
        for space_id, units in self.outputs:
            flags[space_id][units] = True
        for node in reversed(self.channels):
            here = flags[node.id]
            for link in self.links_from[node.id]:
                pairs = None if link.pairs is None else (link.pairs[1], link.pairs[0])
                _spread(flags[link.target], here, pairs)
            if (layer := self.layer_from.get(node.id)) is not None:
                here |= _through(layer, flags[layer.target], kernels, forward=False)
        return flags


def _spread(source: Flags, target: Flags, pairs: tuple[Units, Units] | None) -> None:
    if pairs is None:
        target |= source
    else:
        np.logical_or.at(target, pairs[1], source[pairs[0]])


def _through(layer: Layer, flags: Flags, kernels: dict[int, Flags] | None, *, forward: bool) -> Flags:
    """Units on the other side of a layer that are connected to a flagged unit on this side."""
    out, per_group = layer.shape[0], layer.shape[1]
    rows = out // layer.groups
    result = np.zeros(out if forward else per_group * layer.groups, dtype=bool)
    for group in range(layer.groups):
        o, i = slice(group * rows, (group + 1) * rows), slice(group * per_group, (group + 1) * per_group)
        here, there = (i, o) if forward else (o, i)
        if kernels is None:
            result[there] = bool(flags[here].any())
        else:
            block = kernels[layer.index][o]
            result[there] = (block @ flags[here]) if forward else (flags[here] @ block)
    return result


def per_axis(value: int | Sequence[int], num_axes: int) -> tuple[int, ...]:
    """A stride, padding or size for each spatial axis; torch takes a single number for all of them.

    >>> per_axis(2, 3), per_axis([2], 3), per_axis((1, 2), 2)
    ((2, 2, 2), (2, 2, 2), (1, 2))
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * num_axes if len(values) == 1 else values


def live_taps(window: Window) -> tuple[Flags, ...]:
    """Per axis: taps that read at least one real position (3 taps over one padded pixel: only the middle one)."""
    found: list[Flags] = []
    for axis in window.axes:
        positions = np.arange(axis.size_out)[None, :] * axis.stride
        reads = positions + np.arange(axis.taps)[:, None] * axis.dilation - axis.padding
        found.append(np.asarray(((reads >= 0) & (reads < axis.size_in)).any(axis=1)))
    return tuple(found)


__all__ = ["Axis", "Channels", "Flags", "Graph", "Layer", "Link", "Units", "Window", "live_taps", "per_axis"]
