"""What the reader knows of one activation, and arithmetic on unit labels.

Every element of a followed activation carries the number of the unit it belongs to, so any reshaping can be followed by
doing the same reshaping to the labels. Labels are kept compact: an axis along which they do not vary has size 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathgrow.graph.graph import Window

ATTRIBUTE = "_pathgrow_wire"

PLAIN, ACTIVATED, SQUASHED, GATE, ATTENTION = 0, 1, 2, 3, 4
"""How gate-like an activation is. Where two activations are multiplied, the more gate-like one counts as open.

After a layer an activation is plain again, except for a softmax (attention heads that are mixed by a layer).
"""


@dataclass(frozen=True, eq=False)
class Label:
    """What is known of one followed tensor, whose true value is `tensor * 2**exponent`."""

    node: int
    units: Tensor
    """Labels within the space, as many axes as the tensor and broadcastable to it; -1: no path comes through here."""
    trail: tuple[Window, ...] = ()
    """Spatial steps since the space was made."""
    exponent: int = 0
    strength: int = PLAIN
    gate: float = 1.0
    """The factor that the tensor counts as where it multiplies another activation (softmax: one over the number of
    keys)."""
    statistic: bool = False
    """Whether this is a mean with its axes kept, whose subtraction is normalisation and no path."""

    def plain(self) -> Label:
        """The same activation as an ordinary operand of an addition or a layer."""
        return replace(self, strength=PLAIN, gate=1.0, statistic=False)


def label_of(value: object) -> Label | None:
    """The wire of a value; None if it is not a followed activation."""
    return value.__dict__.get(ATTRIBUTE) if isinstance(value, Tensor) else None


def known_label(tensor: Tensor) -> Label:
    """The wire of a tensor that is known to be a followed activation."""
    label = label_of(tensor)
    assert label is not None
    return label


def put(tensor: Tensor, label: Label) -> Tensor:
    """Put a wire on a tensor and hand the tensor back."""
    assert label.units.ndim == tensor.ndim, f"labels {tuple(label.units.shape)} for {tuple(tensor.shape)}"
    setattr(tensor, ATTRIBUTE, label)
    return tensor


def compact(units: Tensor) -> Tensor:
    """Reduce the axes along which labels do not vary to size 1."""
    for axis in range(units.ndim):
        if units.shape[axis] > 1:
            first = units.narrow(axis, 0, 1)
            if bool((units == first).all()):
                units = first
    return units.contiguous()


def along(size: int, axis: int, ndim: int) -> Tensor:
    """Labels 0..size-1 along one axis."""
    shape = [1] * ndim
    shape[axis] = size
    return torch.arange(size).view(shape)


def aligned(units: Tensor, ndim: int) -> Tensor:
    """Labels with leading axes added, as broadcasting does."""
    return units.view((1,) * (ndim - units.ndim) + tuple(units.shape))


def relation(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct pairs (source unit, target unit) that occur at some position, in order; -1 is dropped."""
    a, b = torch.broadcast_tensors(source, target)
    a, b = a.reshape(-1), b.reshape(-1)
    on_path = (a >= 0) & (b >= 0)
    width = int(b.max()) + 1
    keys = torch.unique(a[on_path] * width + b[on_path])
    return keys // width, keys % width
