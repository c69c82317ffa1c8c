"""The weight graph of a network, as the tracer finds it, and the labels by which the tracer finds it.

Nodes (`Channels`) are groups of units: the input channels, the output channels of a layer, the channels of a residual
stream after an addition. Two kinds of edges lead from a node to a later one (node ids increase along every path):

- a `Layer` is one use of one weight: kernel `[o, i]` connects unit `i` of its `source` to unit `o` of its `target`;
- a `Link` has no weights: an addition, a concatenation, a flattening, or the way into the input port of a layer.

While a model is traced, every activation carries a `Label`: the node that it belongs to and the unit of each element.
Any reshaping is followed by reshaping the units in the same way. Units are stored compactly: an axis along which they
do not vary has size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Units = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


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
    """A convolution or pooling window. Without `axes` positions are mixed beyond tracking (attention, flattening)."""

    axes: tuple[Axis, ...] = ()
    pool: bool = False
    """Whether every tap is read (pooling). Otherwise each tap is a weight, and a walk takes one of them."""
    transposed: bool = False
    """Whether input and output are swapped: input `p` goes to output `p*stride + tap*dilation - padding`."""


@dataclass(frozen=True, eq=False)
class Channels:
    """A node of the graph: a group of units. Paths begin at the `input` nodes."""

    id: int
    size: int
    input: bool = False


@dataclass(frozen=True, eq=False)
class Link:
    """An edge without weights."""

    source: int
    target: int
    pairs: tuple[Units, Units] | None = None
    """Connected units, as arrays of source and target units; None: unit `i` leads to unit `i`."""
    shortcut: bool = False
    """Whether this is the identity shortcut of an addition: the other branch was computed from it."""
    trail: tuple[Window, ...] = ()
    """Windows (pooling) between the two nodes, in order."""


@dataclass(frozen=True, eq=False)
class Layer:
    """An edge with weights: one use of one weight, viewed as `[out, in / groups, *kernel]` whatever its layout."""

    index: int
    name: str | None
    """Parameter name; None: the weight is computed (weight norm), so it is on paths but cannot be pruned."""
    kind: Literal["linear", "conv"]
    source: int
    """The input port: a node with one unit per input channel, which exactly one link leads into."""
    target: int
    shape: tuple[int, ...]
    groups: int
    window: Window
    positions: int
    """MACs per weight and sample: the number of output positions or tokens."""
    where: Tensor | None = field(default=None, repr=False)
    """Flat positions in the parameter, shaped `shape`; None: the parameter itself is laid out like `shape`."""

    def pick(self, parameter: Tensor) -> Tensor:
        """Return this layer's weight from its parameter (or from a mask or score of the parameter's shape)."""
        if self.where is None:
            return parameter
        return parameter.reshape(-1)[self.where.to(parameter.device)]

    def lay_(self, values: Tensor, onto: Tensor) -> None:
        """Add `values`, shaped like this layer, to a tensor of the parameter's shape, in place."""
        if self.where is None:
            onto += values
        else:
            onto.view(-1).index_add_(0, self.where.reshape(-1).to(onto.device), values.reshape(-1))

    @property
    def macs(self) -> int:
        """Dense MACs for one sample."""
        return int(np.prod(self.shape)) * self.positions

    def live_taps(self) -> Flags:
        """Flag the taps, in the kernel's shape, that connect at least one pair of positions.

        Of a 3x3 kernel over a single padded pixel, this is only the tap in the middle.
        """
        live = np.ones(self.shape[2:], dtype=bool)
        for number, axis in enumerate(self.window.axes):
            sizes = (axis.size_in, axis.size_out) if self.window.transposed else (axis.size_out, axis.size_in)
            taps = np.arange(axis.taps)[:, None] * axis.dilation - axis.padding
            reads = np.arange(sizes[0])[None, :] * axis.stride + taps
            shape = [1] * live.ndim
            shape[number] = axis.taps
            live &= ((reads >= 0) & (reads < sizes[1])).any(axis=1).reshape(shape)
        return live


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight as a layer uses it: its values, the parameter they come from, and their positions in it."""

    values: Tensor
    name: str | None
    where: Tensor | None

    @property
    def positions(self) -> Tensor | None:
        """Flat position of each value in the parameter, written out; None for a computed weight."""
        if self.name is None or self.where is not None:
            return self.where
        return torch.arange(self.values.numel()).view(self.values.shape)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Weight:
        """Return the same weight in another layout, with values and positions moved alike."""
        positions = self.positions
        return Weight(move(self.values), self.name, None if positions is None else move(positions).contiguous())


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and edges of one traced model."""

    channels: tuple[Channels, ...]
    links: tuple[Link, ...]
    layers: tuple[Layer, ...]
    """In order of use. A tied weight appears once per use."""
    outputs: tuple[tuple[int, Units], ...]
    """The model's outputs: node ids and the units that are returned."""
    product_macs: int
    """MACs for one sample of products of two activations (attention), which are never sparse."""
    tokens_in: bool
    """Whether the input is token ids, so that paths begin at the output of the embedding."""
    attention: bool
    """Whether a softmax mixes positions."""

    @cached_property
    def links_from(self) -> dict[int, list[Link]]:
        """Links by source node."""
        found: dict[int, list[Link]] = {node.id: [] for node in self.channels}
        for link in self.links:
            found[link.source].append(link)
        return found

    @cached_property
    def links_into(self) -> dict[int, list[Link]]:
        """Links by target node."""
        found: dict[int, list[Link]] = {node.id: [] for node in self.channels}
        for link in self.links:
            found[link.target].append(link)
        return found

    @cached_property
    def layer_from(self) -> dict[int, Layer]:
        """Layers by input port."""
        return {layer.source: layer for layer in self.layers}

    @cached_property
    def layer_into(self) -> dict[int, Layer]:
        """Layers by target node."""
        return {layer.target: layer for layer in self.layers}

    def reached(self, kernels: dict[int, Flags] | None = None) -> dict[int, Flags]:
        """Flag, by node, the units that a path from the input reaches through the kernels `[out, in / groups]`."""
        flags = {node.id: np.full(node.size, node.input) for node in self.channels}
        for node in self.channels:
            here = flags[node.id]
            for link in self.links_from[node.id]:
                _spread(here, flags[link.target], link.pairs)
            if (layer := self.layer_from.get(node.id)) is not None:
                flags[layer.target] |= _through(layer, here, kernels, forward=True)
        return flags

    def reaching(self, kernels: dict[int, Flags] | None = None) -> dict[int, Flags]:
        """Flag, by node, the units from which a path leads to the output through the kernels."""
        flags = {node.id: np.zeros(node.size, dtype=bool) for node in self.channels}
        for output, units in self.outputs:
            flags[output][units] = True
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
    """Flag the units on the other side of a layer that are connected to a flagged unit on this side."""
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
    """Return a stride, padding or size for each spatial axis; torch accepts a single number for all of them.

    >>> per_axis(2, 3), per_axis([2], 3), per_axis((1, 2), 2)
    ((2, 2, 2), (2, 2, 2), (1, 2))
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * num_axes if len(values) == 1 else values


# -- labels of activations ----------------------------------------------------------------------------------------

_ATTRIBUTE = "_pathgrow_label"

PLAIN, ACTIVATED, SQUASHED, GATE, ATTENTION = 0, 1, 2, 3, 4
"""How gate-like an activation is. If two activations are multiplied, the more gate-like one counts as an open gate.

After a layer an activation is plain again, except for a softmax (attention heads that are mixed by a layer).
"""


@dataclass(frozen=True, eq=False)
class Label:
    """What the tracer knows about an activation, whose true value is `tensor * 2**exponent`."""

    node: int
    units: Tensor
    """Unit of each element: as many axes as the tensor, broadcastable to it; -1: no path leads through the element."""
    trail: tuple[Window, ...] = ()
    """Windows since the node was created."""
    exponent: int = 0
    strength: int = PLAIN
    gate: float = 1.0
    """The factor that the tensor counts as if it multiplies another activation (softmax: 1 / number of keys)."""
    statistic: bool = False
    """Whether this is a mean with its axes kept, whose subtraction is a normalization and not a path."""

    def plain(self) -> Label:
        """Return the label of the same activation as an ordinary operand of an addition or a layer."""
        return replace(self, strength=PLAIN, gate=1.0, statistic=False)


def label_of(value: object) -> Label | None:
    """Return the label of a value; None if it is not a traced activation."""
    return value.__dict__.get(_ATTRIBUTE) if isinstance(value, Tensor) else None


def known_label(tensor: Tensor) -> Label:
    """Return the label of a traced activation."""
    label = label_of(tensor)
    assert label is not None
    return label


def labeled(tensor: Tensor, label: Label) -> Tensor:
    """Attach a label to a tensor and return the tensor."""
    assert label.units.ndim == tensor.ndim, f"units {tuple(label.units.shape)} for {tuple(tensor.shape)}"
    setattr(tensor, _ATTRIBUTE, label)
    return tensor


def compact(units: Tensor) -> Tensor:
    """Reduce the axes along which units do not vary to size 1."""
    for axis in range(units.ndim):
        if units.shape[axis] > 1:
            first = units.narrow(axis, 0, 1)
            if bool((units == first).all()):
                units = first
    return units.contiguous()


def along(size: int, axis: int, ndim: int) -> Tensor:
    """Return units 0..size-1 along one axis."""
    shape = [1] * ndim
    shape[axis] = size
    return torch.arange(size).view(shape)


def aligned(units: Tensor, ndim: int) -> Tensor:
    """Add leading axes to units, as broadcasting does."""
    return units.view((1,) * (ndim - units.ndim) + tuple(units.shape))


def relation(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct pairs (source unit, target unit) that occur at some position, sorted and without -1."""
    a, b = torch.broadcast_tensors(source, target)
    a, b = a.reshape(-1), b.reshape(-1)
    on_path = (a >= 0) & (b >= 0)
    width = int(b.max()) + 1
    keys = torch.unique(a[on_path] * width + b[on_path])
    return keys // width, keys % width


class GraphBuilder:
    """The nodes and links found so far."""

    def __init__(self) -> None:
        self.channels: list[Channels] = []
        self._links: list[tuple[Label, int, Tensor, bool]] = []
        self._ancestors: list[int] = []
        """A bit set of node ids by node: itself and what it is computed from."""

    def add(self, size: int, *parents: int, is_input: bool = False) -> int:
        """Add a node and return its id; `parents` are the nodes it is computed from."""
        node = len(self.channels)
        self.channels.append(Channels(node, size, is_input))
        bits = 1 << node
        for parent in parents:
            bits |= self._ancestors[parent]
        self._ancestors.append(bits)
        return node

    def descends(self, node: int, ancestor: int) -> bool:
        """Whether a node is computed from another."""
        return bool(self._ancestors[node] >> ancestor & 1)

    def link(self, label: Label, target: int, units: Tensor, *, shortcut: bool = False) -> None:
        """Link the node of a label to `target`, whose units at the same elements are `units`."""
        self._links.append((label, target, units, shortcut))

    def links(self) -> tuple[Link, ...]:
        """Return the links with the pairs of units that they connect."""
        found = []
        for label, target, units, shortcut in self._links:
            size = self.channels[label.node].size
            sources, targets = relation(label.units, units)
            count = torch.arange(size)
            same = size == self.channels[target].size and torch.equal(sources, count) and torch.equal(targets, count)
            pairs = None if same else (sources.numpy(), targets.numpy())
            found.append(Link(label.node, target, pairs, shortcut, label.trail))
        return tuple(found)
