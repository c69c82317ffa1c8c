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
from functools import cached_property, lru_cache

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


@lru_cache(maxsize=1024)
def near_positions(axis: Axis, transposed: bool, *, forward: bool) -> Units:
    """Return, as `[taps, far]`, the near position that each far one is connected to by each tap; `size` if none.

    The near side, of this `size`, is the input if `forward`, otherwise the output. A transposed window is the same
    relation with the two sides swapped.
    """
    near, far = (axis.size_in, axis.size_out) if forward else (axis.size_out, axis.size_in)
    offsets = np.arange(axis.taps)[:, None] * axis.dilation - axis.padding
    there = np.arange(far)[None, :]
    if transposed != forward:  # the far side reads the near one
        here = there * axis.stride + offsets
        valid = (here >= 0) & (here < near)
    else:
        here, rest = np.divmod(there - offsets, axis.stride)
        valid = (rest == 0) & (here >= 0) & (here < near)
    return np.where(valid, here, near)


@dataclass(frozen=True)
class Window:
    """A convolution or pooling window. Without `axes` positions are mixed beyond tracking (attention, flattening)."""

    axes: tuple[Axis, ...] = ()
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
        live = np.ones((), dtype=bool)
        for axis in self.window.axes:
            table = near_positions(axis, self.window.transposed, forward=True)
            live = np.logical_and.outer(live, (table < axis.size_in).any(axis=1))
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
    ancestors: tuple[int, ...]
    """A bit set of node ids by node: itself and what it is computed from."""

    @cached_property
    def links_from(self) -> dict[int, list[Link]]:
        """Links by source node."""
        return self._links_by("source")

    @cached_property
    def links_into(self) -> dict[int, list[Link]]:
        """Links by target node."""
        return self._links_by("target")

    def _links_by(self, end: str) -> dict[int, list[Link]]:
        found: dict[int, list[Link]] = {node.id: [] for node in self.channels}
        for link in self.links:
            found[getattr(link, end)].append(link)
        return found

    @cached_property
    def layer_from(self) -> dict[int, Layer]:
        """Layers by input port."""
        return {layer.source: layer for layer in self.layers}

    @cached_property
    def layer_into(self) -> dict[int, Layer]:
        """Layers by target node."""
        return {layer.target: layer for layer in self.layers}

    def descends(self, node: int, ancestor: int) -> bool:
        """Whether a node is computed from another, or is the same."""
        return bool(self.ancestors[node] >> ancestor & 1)

    def connected(
        self, kernels: dict[int, Flags] | None = None, *, forward: bool, past_layers: bool = True
    ) -> dict[int, Flags]:
        """Flag, by node, the units that a path through the kernels `[out, in / groups]` connects to one end.

        The end is the input (`forward`) or the output of the model. Without `past_layers` every layer counts as an end.
        """
        flags = {node.id: np.full(node.size, forward and node.input) for node in self.channels}
        for output, units in () if forward else self.outputs:
            flags[output][units] = True
        for node in self.channels if forward else reversed(self.channels):
            here = flags[node.id]
            for link in (self.links_into if forward else self.links_from)[node.id]:
                before = flags[link.source if forward else link.target]
                if link.pairs is None:
                    here |= before
                else:
                    there, own = link.pairs if forward else link.pairs[::-1]
                    np.logical_or.at(here, own, before[there])
            if (layer := (self.layer_into if forward else self.layer_from).get(node.id)) is not None:
                before = flags[layer.source if forward else layer.target]
                here |= _through(layer, before | (not past_layers), kernels, forward=forward)
        return flags


def _through(layer: Layer, flags: Flags, kernels: dict[int, Flags] | None, *, forward: bool) -> Flags:
    """Flag the units on the other side of a layer that are connected to a flagged unit on this side."""
    near = flags.reshape(layer.groups, -1)
    if kernels is None:
        return near.any(axis=1).repeat(layer.shape[0] // layer.groups if forward else layer.shape[1])
    blocks = kernels[layer.index].reshape(layer.groups, -1, layer.shape[1])
    if forward:
        return (blocks & near[:, None]).any(axis=2).reshape(-1)
    return (blocks & near[:, :, None]).any(axis=1).reshape(-1)


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
    """Attach a label to a tensor and return the tensor; units get leading axes, as in broadcasting."""
    missing = tensor.ndim - label.units.ndim
    assert missing >= 0, f"units {tuple(label.units.shape)} for {tuple(tensor.shape)}"
    if missing:
        label = replace(label, units=label.units.view((1,) * missing + label.units.shape))
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


class GraphBuilder:
    """The nodes and links found so far."""

    def __init__(self) -> None:
        self.channels: list[Channels] = []
        self._links: list[tuple[Label, int, Tensor, bool]] = []
        self.ancestors: list[int] = []
        """A bit set of node ids by node: itself and what it is computed from."""

    def add(self, size: int, *parents: int, is_input: bool = False) -> int:
        """Add a node and return its id; `parents` are the nodes it is computed from."""
        node = len(self.channels)
        self.channels.append(Channels(node, size, is_input))
        bits = 1 << node
        for parent in parents:
            bits |= self.ancestors[parent]
        self.ancestors.append(bits)
        return node

    def link(self, label: Label, target: int, units: Tensor, *, shortcut: bool = False) -> None:
        """Link the node of a label to `target`, whose units at the same elements are `units`."""
        self._links.append((label, target, units, shortcut))

    def links(self) -> tuple[Link, ...]:
        """Return the links with the distinct pairs of units that they connect at some position, sorted."""
        found = []
        for label, target, units, shortcut in self._links:
            a, b = torch.broadcast_tensors(label.units, units)
            on_path = (a >= 0) & (b >= 0)
            width = int(b.max()) + 1
            keys = torch.unique(a[on_path] * width + b[on_path])
            sources, targets = keys // width, keys % width
            size = self.channels[label.node].size
            count = torch.arange(size)
            same = size == self.channels[target].size and torch.equal(sources, count) and torch.equal(targets, count)
            pairs = None if same else (sources.numpy(), targets.numpy())
            found.append(Link(label.node, target, pairs, shortcut, label.trail))
        return tuple(found)
