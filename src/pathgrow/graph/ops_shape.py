"""Op handlers of functions over elements and positions: reshaping, concatenation, padding, pooling, reductions."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathgrow.graph.faults import untraceable
from pathgrow.graph.graph import GATE, Axis, Label, Window, compact, known_label, label_of, labeled, per_axis
from pathgrow.graph.running import tensors_in
from pathgrow.graph.tracer import Call


def move(call: Call) -> Any:
    """Handle functions that only move elements: move the units in the same way."""
    x = call.traced[0]
    label = known_label(x)
    if call.name in _COPYING:  # activations here may have other strides than the model's
        call = replace(call, func=_COPYING[call.name])
    result = call.func(*call.args, **call.kwargs)
    # Units are moved as floats shifted by one: every function that moves elements accepts floats, and padding gives 0.
    moved_units = (label.units.expand(x.shape) + 1).to(torch.float64).contiguous()
    args = tuple(moved_units if value is x else value for value in call.args)
    kwargs = {name: moved_units if value is x else value for name, value in call.kwargs.items()}
    moved = call.func(*args, **kwargs)
    for tensor, units in zip(tensors_in(result), tensors_in(moved), strict=True):
        same_map = tensor.ndim == x.ndim and tensor.ndim > 2 and tensor.shape[2:] == x.shape[2:]
        keeps_positions = same_map and call.name in _WITHIN_UNITS
        trail = label.trail if keeps_positions else (*label.trail, Window())
        labeled(tensor, replace(label, units=compact(units.to(torch.int64) - 1), trail=trail))
    return result


_WITHIN_UNITS = {"view", "reshape", "chunk", "split", "split_with_sizes", "tensor_split", "narrow", "getitem"}
"""If the size of the map is unchanged, these have not moved any position; `flip` and `roll` might have."""
_COPYING: dict[str, Callable[..., Any]] = {"view": Tensor.reshape, "view_as": Tensor.reshape_as}


def pad(call: Call) -> Any:
    """Pad a map with constants, which are on no path: positions are shifted."""
    x, pads = call.args[0], list(call.get(1, "pad"))
    label = known_label(x)
    num_axes = max(x.ndim - 2, 0)
    pads += [0] * (2 * num_axes - len(pads))
    on_map = num_axes > 0 and len(pads) == 2 * num_axes and all(size == 1 for size in label.units.shape[2:])
    if call.get(2, "mode", "constant") != "constant" or not on_map:
        return move(call)
    out = F.pad(x, pads)
    before = pads[::2][::-1]  # torch lists the last axis first
    sizes = zip(before, x.shape[2:], out.shape[2:], strict=True)
    window = Window(tuple(Axis(1, 1, border, 1, i, o) for border, i, o in sizes))
    return labeled(out, replace(label, trail=(*label.trail, window)))


def concatenate(call: Call) -> Any:
    """Concatenate pieces; those that are not traced (a class token) are on no path."""
    tracer = call.tracer
    pieces = [piece for piece in call.args[0] if not (label_of(piece) is None and piece.shape == (0,))]
    labels = [label for piece in pieces if (label := label_of(piece)) is not None]
    top = max(label.exponent for label in labels)
    values, unit_pieces = [], []
    first_label = {label.node: label for label in reversed(labels)}
    offsets, total = {}, 0
    for node in dict.fromkeys(label.node for label in labels):
        offsets[node] = total
        total += tracer.builder.channels[node].size
    for piece in pieces:
        label = label_of(piece)
        if label is None:
            values.append(torch.zeros(piece.shape, dtype=tracer.dtype, device=call.traced[0].device))
            unit_pieces.append(torch.full(piece.shape, -1))
            continue
        values.append(tracer.rescaled(piece, top))
        shifted = torch.where(label.units >= 0, label.units + offsets[label.node], -1)
        unit_pieces.append(shifted.expand(piece.shape))
    rest, kwargs = call.args[1:], call.kwargs
    out = call.func(values, *rest, **kwargs)
    units = compact(call.func(unit_pieces, *rest, **kwargs))
    if len(offsets) == 1:
        trails = {label.trail for label in labels}
        trail = labels[0].trail if len(trails) == 1 else (Window(),)
        same = {(label.strength, label.gate) for label in labels}
        merged = labels[0] if len(same) == 1 else labels[0].plain()
        return labeled(out, replace(merged, units=units, trail=trail, exponent=top))
    target = tracer.builder.add(total, *offsets)
    for node, offset in offsets.items():
        size = tracer.builder.channels[node].size
        tracer.builder.link(replace(first_label[node], units=torch.arange(size)), target, torch.arange(size) + offset)
    return labeled(out, Label(target, units, (), top))


def reduce(call: Call) -> Any:
    """Sum or average over axes; a maximum counts as the mean."""
    x, axes = call.args[0], call.get(1, "dim", call.kwargs.get("axis"))
    keep = call.get(2, "keepdim", False)
    keep = keep if isinstance(keep, bool) else False
    axes = list(range(x.ndim)) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    axes = sorted(axis % x.ndim for axis in axes) or list(range(x.ndim))
    count = prod(x.shape[axis] for axis in axes)
    value = x.sum(axes, keepdim=True)
    if call.name != "sum":
        value = value * (1.0 / count) ** call.tracer.power
    after = replace(call.tracer.reduced(x, axes), statistic=keep and call.name == "mean")
    if call.name in ("norm", "var", "std", "vector_norm"):
        after = replace(after, strength=GATE)
    if not keep:
        for axis in reversed(axes):
            value = value.squeeze(axis)
            after = replace(after, units=after.units.squeeze(axis))
    out = labeled(value, after)
    if call.name in ("max", "min", "median") and call.get(1, "dim") is not None:
        real = call.func(x, *call.args[1:], **call.kwargs)
        return type(real)((out, real[1]))
    return out


def var_mean(call: Call) -> Any:
    """Return statistics of a normalization: the variance is a normalizer, the mean is subtracted."""
    mean = reduce(replace(call, name="mean"))
    variance = call.tracer.same(mean, replace(known_label(mean), strength=GATE))
    return variance, mean


def pool(call: Call) -> Any:
    """Pool over positions; a maximum counts as the average of the same window."""
    x = call.args[0]
    label = known_label(x)
    axes = int(call.name[-2])
    if any(size != 1 for size in label.units.shape[-axes:]):
        raise untraceable(call.name, "it pools over units, not over positions")
    if call.name.startswith("adaptive"):
        pooled = getattr(F, f"adaptive_avg_pool{axes}d")(x, call.get(1, "output_size"))
        maps = list(zip(x.shape[-axes:], pooled.shape[-axes:], strict=True))
        shares, window = [1.0 / _adaptive_counts(i, o) for i, o in maps], Window()
        if all(i % o == 0 for i, o in maps) and any(o > 1 for _, o in maps):
            window = Window(tuple(Axis(i // o, i // o, 0, 1, i, o) for i, o in maps))
    else:
        kernel = per_axis(call.get(1, "kernel_size"), axes)
        stride = per_axis(call.get(2, "stride") or kernel, axes)
        padding = per_axis(call.get(3, "padding", 0), axes)
        average = call.name.startswith("avg")
        ceil = call.get(4 if average else 5, "ceil_mode", False)
        include = call.get(5, "count_include_pad", True) if average else False
        how = {"ceil_mode": ceil, "count_include_pad": include}
        divisor = call.get(6, "divisor_override") if average else None
        how |= {"divisor_override": divisor} if divisor is not None else {}  # avg_pool1d does not have it
        scalar = (kernel[0], stride[0], padding[0]) if axes == 1 else (kernel, stride, padding)
        pooled = getattr(F, f"avg_pool{axes}d")(x, *scalar, **how)
        sizes = list(zip(kernel, stride, padding, x.shape[-axes:], pooled.shape[-axes:], strict=True))
        shares = [1.0 / _window_counts(*size, include=include) for size in sizes]
        if divisor is not None:
            shares = [torch.tensor(1.0 / divisor, dtype=torch.float64)]
        window = Window(tuple(Axis(k, s, p, 1, i, o) for k, s, p, i, o in sizes))
    if call.tracer.power != 1:
        for number, share in enumerate(reversed(shares)):  # the factors of each axis, last axis first
            pooled = pooled * (share ** (call.tracer.power - 1)).to(pooled).view(-1, *[1] * number)
    out = labeled(pooled, replace(label.plain(), trail=(*label.trail, window)))
    if call.kwargs.get("return_indices"):
        raise untraceable(f"{call.name} with return_indices=True")
    return out


def _window_counts(kernel: int, stride: int, padding: int, size_in: int, size_out: int, *, include: bool) -> Tensor:
    """Return the divisor of the sum over one axis of a window, by output position; it may be smaller at a border."""
    start = torch.arange(size_out, dtype=torch.float64) * stride - padding
    end = (start + kernel).clamp(max=size_in + padding)  # the last window of `ceil_mode` may end further out
    return end - start if include else end.clamp(max=size_in) - start.clamp(min=0)


def _adaptive_counts(size_in: int, size_out: int) -> Tensor:
    """Return the same divisors for adaptive pooling, whose windows overlap if sizes do not divide."""
    place = torch.arange(size_out)
    return (-((place + 1) * size_in // -size_out) - place * size_in // size_out).double()


def interpolate(call: Call) -> Any:
    """Resample by nearest neighbor: weights of other modes may be negative."""
    x = call.args[0]
    label = known_label(x)
    if any(size != 1 for size in label.units.shape[2:]):
        raise untraceable("interpolate over units")
    real = call.func(*call.args, **call.kwargs)
    out = F.interpolate(x, size=real.shape[2:], mode="nearest")
    return labeled(out, replace(label, trail=(*label.trail, Window())))
