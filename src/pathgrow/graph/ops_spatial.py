"""Pooling, sums, borders and resampling: what functions over positions mean for paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.graph.call import Call
from pathgrow.graph.graph import Axis, Window, per_axis
from pathgrow.graph.labels import GATE, known_label, put


def reduce(call: Call) -> Any:
    """Sums and means over positions; a maximum counts as the mean."""
    x = call.args[0]
    label = known_label(x)
    axes = call.get(1, "dim", call.kwargs.get("axis"))
    keep = call.get(2, "keepdim", False)
    keep = keep if isinstance(keep, bool) else False
    axes = list(range(x.ndim)) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    axes = sorted(axis % x.ndim for axis in axes) or list(range(x.ndim))
    count = prod(x.shape[axis] for axis in axes)
    value = x.sum(axes, keepdim=True)
    if call.name != "sum":
        value = value * (1.0 / count) ** call.tracer.power
    after = replace(call.tracer.reduced(label.plain(), axes), statistic=keep and call.name == "mean")
    if call.name in ("norm", "var", "std", "vector_norm"):
        after = replace(after, strength=GATE)
    if not keep:
        for axis in reversed(axes):
            value = value.squeeze(axis)
            after = replace(after, units=after.units.squeeze(axis))
    out = put(value, after)
    if call.name in ("max", "min", "median") and call.get(1, "dim") is not None:
        real = call.func(x, *call.args[1:], **call.kwargs)
        return type(real)((out, real[1]))
    return out


def var_mean(call: Call) -> Any:
    """Normalisation statistics: the variance is a normaliser, the mean is subtracted."""
    mean = reduce(replace(call, name="mean"))
    variance = call.tracer.same(mean, replace(known_label(mean), strength=GATE))
    return variance, mean


def pool(call: Call) -> Any:
    """Pooling over space; a maximum counts as the average of the same window."""
    x = call.args[0]
    label = known_label(x)
    axes = int(call.name[-2])
    if any(size != 1 for size in label.units.shape[-axes:]):
        raise UserError(f"paths cannot be followed through {call.name}: it pools over units, not over positions")
    if call.name.startswith("adaptive"):
        pooled = _POOLS[f"adaptive_avg_pool{axes}d"](x, call.get(1, "output_size"))
        maps = list(zip(x.shape[-axes:], pooled.shape[-axes:], strict=True))
        shares, window = [1.0 / _adaptive_counts(i, o) for i, o in maps], Window()
        if all(i % o == 0 for i, o in maps) and any(o > 1 for _, o in maps):
            window = Window(tuple(Axis(i // o, i // o, 0, 1, i, o) for i, o in maps), pool=True)
    else:
        kernel = per_axis(call.get(1, "kernel_size"), axes)
        stride = per_axis(call.get(2, "stride") or kernel, axes)
        padding = per_axis(call.get(3, "padding", 0), axes)
        average = call.name.startswith("avg")
        ceil = call.get(4 if average else 5, "ceil_mode", False)
        include = call.get(5, "count_include_pad", True) if average else False
        how = {"ceil_mode": ceil, "count_include_pad": include}
        divisor = call.get(6, "divisor_override") if average else None
        how |= {"divisor_override": divisor} if divisor is not None else {}  # which there is not for one axis
        scalar = (kernel[0], stride[0], padding[0]) if axes == 1 else (kernel, stride, padding)
        pooled = _POOLS[f"avg_pool{axes}d"](x, *scalar, **how)
        sizes = list(zip(kernel, stride, padding, x.shape[-axes:], pooled.shape[-axes:], strict=True))
        shares = [1.0 / _window_counts(*size, include=include) for size in sizes]
        if divisor is not None:
            shares = [torch.tensor(1.0 / divisor, dtype=torch.float64)]
        window = Window(tuple(Axis(k, s, p, 1, i, o) for k, s, p, i, o in sizes), pool=True)
    if call.tracer.power != 1:
        pooled = _scaled(pooled, [share ** (call.tracer.power - 1) for share in shares])
    out = put(pooled, replace(label.plain(), trail=(*label.trail, window)))
    if call.kwargs.get("return_indices"):
        raise UserError(f"paths cannot be followed through {call.name} with return_indices=True")
    return out


_POOLS: dict[str, Callable[..., Tensor]] = {
    "avg_pool1d": F.avg_pool1d,
    "avg_pool2d": F.avg_pool2d,
    "avg_pool3d": F.avg_pool3d,
    "adaptive_avg_pool1d": F.adaptive_avg_pool1d,
    "adaptive_avg_pool2d": F.adaptive_avg_pool2d,
    "adaptive_avg_pool3d": F.adaptive_avg_pool3d,
}


def _window_counts(kernel: int, stride: int, padding: int, size_in: int, size_out: int, *, include: bool) -> Tensor:
    """By output position, what a sum over one axis of a window is divided by; near a border that may be less."""
    start = torch.arange(size_out, dtype=torch.float64) * stride - padding
    end = (start + kernel).clamp(max=size_in + padding)  # a last window of `ceil_mode` may reach beyond
    return end - start if include else end.clamp(max=size_in) - start.clamp(min=0)


def _adaptive_counts(size_in: int, size_out: int) -> Tensor:
    """The same where windows are as even as they can be: they overlap where sizes do not divide."""
    place = torch.arange(size_out)
    return (-((place + 1) * size_in // -size_out) - place * size_in // size_out).double()


def _scaled(pooled: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Every output position times the product of its factors along the last axes."""
    for number, factor in enumerate(reversed(factors)):
        pooled = pooled * factor.to(pooled).view(-1, *[1] * number)
    return pooled


def interpolate(call: Call) -> Any:
    """Resampling, as the nearest neighbour: weights of other modes may be negative."""
    x = call.args[0]
    label = known_label(x)
    if any(size != 1 for size in label.units.shape[2:]):
        raise UserError("paths cannot be followed through interpolate over units")
    real = call.func(*call.args, **call.kwargs)
    out = F.interpolate(x, size=real.shape[2:], mode="nearest")
    return put(out, replace(label, trail=(*label.trail, Window())))
