"""Products: layers (an activation and a weight), attention and gates (two activations)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.graph.graph import Axis, Window, per_axis
from pathgrow.graph.labels import PLAIN, aligned, known_label, label_of, put
from pathgrow.graph.tracer import Tracer

# -- layers ---------------------------------------------------------------------------------------------------------


def linear(tracer: Tracer, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y = x W^T`."""
    x = input
    if label_of(weight) is not None:
        raise UserError("paths cannot be followed through a linear layer whose weight is an activation")
    return tracer.layer(x, tracer.weight(weight), F.linear, kind="linear", unit_axis=x.ndim - 1)


def _linear_transposed(tracer: Tracer, x: Tensor, weight: Tensor) -> Tensor:
    """`y = x W` with a weight laid out `[in, out]`."""
    return tracer.layer(x, tracer.weight(weight).moved(Tensor.t), F.linear, kind="linear", unit_axis=x.ndim - 1)


def _conv(
    axes: int,
    tracer: Tracer,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    x = input
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    kernel = weight.shape[2:]
    if padding == "same":  # torch pads the odd element behind
        pads = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    elif padding == "valid":
        pads = (0,) * axes
    else:
        padding = pads = per_axis(padding, axes)
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return convolve(x, w, None, stride, padding, dilation, groups)

    sizes_in = x.shape[-axes:]
    sizes_out = (
        sizes_in
        if padding == "same"
        else [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(sizes_in, kernel, stride, pads, dilation, strict=True)
        ]
    )
    sizes = zip(kernel, stride, pads, dilation, sizes_in, sizes_out, strict=True)
    window = Window(tuple(Axis(*size) for size in sizes))
    unit_axis = x.ndim - axes - 1
    return tracer.layer(
        x, tracer.weight(weight), compute, kind="conv", unit_axis=unit_axis, groups=groups, window=window
    )


def _conv_transpose(
    axes: int,
    tracer: Tracer,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A weight laid out `[in, out / groups, *kernel]`, recorded as `[out, in / groups, *kernel]`."""
    x = input
    num_in, rows = weight.shape[:2]
    kernel = tuple(weight.shape[2:])

    def turn(w: Tensor) -> Tensor:
        split = w.reshape(groups, num_in // groups, rows, *kernel).transpose(1, 2)
        return split.reshape(groups * rows, num_in // groups, *kernel)

    def back(w: Tensor) -> Tensor:
        return w.reshape(groups, rows, num_in // groups, *kernel).transpose(1, 2).reshape(num_in, rows, *kernel)

    convolve: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return convolve(x, back(w), None, stride, padding, output_padding, groups, dilation)

    each = [per_axis(value, axes) for value in (stride, padding, dilation, output_padding)]
    axes_found = [
        Axis(k, s, p, d, size, (size - 1) * s - 2 * p + d * (k - 1) + extra + 1)
        for k, s, p, d, extra, size in zip(kernel, *each, x.shape[-axes:], strict=True)
    ]
    window = Window(tuple(axes_found), transposed=True)
    return tracer.layer(
        x, tracer.weight(weight).moved(turn), compute, kind="conv", unit_axis=x.ndim - axes - 1, groups=groups,
        window=window, positions=prod(x.shape[-axes:]),
    )  # fmt: skip


conv1d, conv2d, conv3d = (partial(_conv, axes) for axes in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (partial(_conv_transpose, axes) for axes in (1, 2, 3))


# -- two activations ------------------------------------------------------------------------------------------------


def gated(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    """An elementwise product: paths run through the operand that is less of a gate; through both if neither is one."""
    wa, wb = known_label(a), known_label(b)
    if wa.strength == wb.strength:
        if wa.strength == PLAIN or wa.node != wb.node:
            return a if a is b else tracer.join(a, b)
        open_, gate, label = a, wb.gate, wa
    elif wa.strength < wb.strength:
        open_, gate, label = a, wb.gate, wa
    else:
        open_, gate, label = b, wa.gate, wb
    shape = torch.broadcast_shapes(a.shape, b.shape)
    out = (open_ * gate**tracer.power).expand(shape)
    return put(out, replace(label, units=aligned(label.units, len(shape))))


def glu(tracer: Tracer, input: Tensor, dim: int = -1) -> Tensor:
    """`a * sigmoid(b)`: the gate is open."""
    half: Tensor = tracer.__torch_function__(torch.chunk, (), (input, 2, dim))[0]
    return half


def matmul(tracer: Tracer, input: Any, other: Any) -> Tensor:
    """A layer where one side is a weight; mixing where one side is a gate (attention) or a constant."""
    a, b = input, other
    wa, wb = label_of(a), label_of(b)
    if wa is not None and wb is not None:
        return _activations_matmul(tracer, a, b)
    if wb is None:
        if b.ndim == 2:
            return _linear_transposed(tracer, a, b)
        assert wa is not None
        if b.ndim > 2 and wa.units.shape[-1] == 1:
            return put(a @ tracer.coefficient(b), wa.plain())
        raise UserError(f"paths cannot be followed through a product with a constant of shape {tuple(b.shape)}")
    if a.ndim == 2 and tracer.weight(a).name is not None:
        turned = tracer.__torch_function__(torch.transpose, (), (b, -1, -2))
        out: Tensor = tracer.__torch_function__(torch.transpose, (), (linear(tracer, turned, a), -1, -2))
        return out
    return _mixed(tracer, tracer.coefficient(a), b)


def rmatmul(tracer: Tracer, input: Any, other: Any) -> Tensor:
    return matmul(tracer, other, input)


mm = bmm = matmul


def addmm(
    tracer: Tracer, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)`."""

    def times(x: Tensor, factor: float) -> Tensor:
        scaled: Tensor = x if factor == 1 else tracer.__torch_function__(torch.mul, (), (x, factor))
        return scaled

    product = times(matmul(tracer, mat1, mat2), alpha)
    return tracer.join(product, times(input, beta)) if label_of(input) is not None else product


def baddbmm(tracer: Tracer, input: Any, batch1: Any, batch2: Any, **scales: Any) -> Tensor:
    return addmm(tracer, input, batch1, batch2, **scales)


def _mixed(tracer: Tracer, mixing: Tensor, values: Tensor) -> Tensor:
    """Positions mixed by fixed coefficients: `mixing @ values`."""
    label = tracer.reduced(known_label(values).plain(), [values.ndim - 2])
    if tracer.gradients:
        out = mixing @ values
    else:
        batch = torch.broadcast_shapes(mixing.shape[:-2], values.shape[:-2])
        out = tracer.nothing((*batch, mixing.shape[-2], values.shape[-1]), values)
    return put(out, replace(label, units=aligned(label.units, out.ndim)))


def _activations_matmul(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    wa, wb = known_label(a), known_label(b)
    tracer.product_macs += (
        a.shape[-1] * torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]).numel() * a.shape[-2] * b.shape[-1]
    )
    if wa.strength > wb.strength:
        tracer.attention = True
        return _mixed(tracer, torch.full_like(a, wa.gate**tracer.power).detach(), b)
    if wb.strength > wa.strength:  # gates on the right: (v^T softmax(...))
        tracer.attention = True
        label = tracer.reduced(wa.plain(), [a.ndim - 1])
        out = a @ torch.full_like(b, wb.gate**tracer.power).detach()
        return put(out, replace(label, units=aligned(label.units, out.ndim)))
    # Neither is a gate: paths run through either side, mixed uniformly over the inner axis.
    inner = (1.0 / a.shape[-1]) ** tracer.power
    left = put(a.sum(-1, keepdim=True) * inner, tracer.reduced(wa.plain(), [a.ndim - 1]))
    right = put(b.sum(-2, keepdim=True) * inner, tracer.reduced(wb.plain(), [b.ndim - 2]))
    return tracer.join(left, right)


def einsum(tracer: Tracer, equation: str, *operands: Any) -> Tensor:
    """Two operands, rewritten as the products above."""
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if len(operands) != 2:
        raise UserError(f"paths cannot be followed through einsum {equation!r}: only two operands are understood")
    a, b = operands
    (left, right), out = _letters(equation, a.ndim, b.ndim)
    if label_of(a) is None:
        a, b, left, right = b, a, right, left
    wb = label_of(b)
    if wb is not None:
        sizes = dict(zip(left + right, (*a.shape, *b.shape), strict=True))
        tracer.product_macs += prod(sizes[letter] for letter in set(left + right))
        wa = known_label(a)
        if wa.strength > wb.strength:
            a, b, left, right, wa, wb = b, a, right, left, wb, wa
        gate = wb.gate if wb.strength > wa.strength else 1.0
        tracer.attention |= wb.strength > wa.strength
        ones = torch.full_like(b, gate**tracer.power).detach()
        through_a = _contracted(tracer, a, left, ones, right, out)
        if wb.strength > wa.strength:
            return through_a
        return tracer.join(through_a, _contracted(tracer, b, right, torch.ones_like(a).detach(), left, out))
    shared = [letter for letter in left if letter in right and letter not in out]
    new = [letter for letter in right if letter not in left]
    batch = [letter for letter in right if letter in left and letter in out]
    if shared and new and not batch:
        return _einsum_layer(tracer, a, left, b, right, out, shared, new)
    return _contracted(tracer, a, left, tracer.coefficient(b), right, out)


def _letters(equation: str, *ndims: int) -> tuple[list[str], str]:
    inputs, _, out = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    spare = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    extra = max(ndim - len(term.replace("...", "")) for term, ndim in zip(terms, ndims, strict=True))
    dots = "".join(spare[:extra])
    named = []
    for term, ndim in zip(terms, ndims, strict=True):
        own = ndim - len(term.replace("...", ""))
        named.append(term.replace("...", dots[extra - own :] if own else ""))
    return named, out.replace("...", dots)


def _contracted(tracer: Tracer, x: Tensor, own: str, factor: Tensor, other: str, out: str) -> Tensor:
    """`einsum` of a followed activation with fixed coefficients."""
    gone = [axis for axis, letter in enumerate(own) if letter not in out]
    label = tracer.reduced(known_label(x).plain(), gone)
    value = torch.einsum(f"{own},{other}->{out}", x, factor)
    kept = [letter for letter in own if letter in out]
    units = label.units
    for axis in reversed(gone):
        units = units.squeeze(axis)
    units = units.permute([kept.index(letter) for letter in out if letter in kept])
    for axis, letter in enumerate(out):
        if letter not in kept:
            units = units.unsqueeze(axis)
    return put(value, replace(label, units=units))


def _einsum_layer(
    tracer: Tracer, x: Tensor, own: str, weight: Tensor, other: str, out: str, shared: list[str], new: list[str]
) -> Tensor:
    """A weight that sums over `shared` letters and makes `new` ones is a linear layer."""

    def call(func: Callable[..., Tensor], *args: Any) -> Tensor:
        result: Tensor = tracer.__torch_function__(func, (), args)
        return result

    rest = [letter for letter in own if letter not in shared]
    x = call(torch.permute, x, [own.index(letter) for letter in [*rest, *shared]])
    x = call(torch.flatten, x, len(rest), -1)
    matrix = call(torch.permute, weight, [other.index(letter) for letter in [*new, *shared]])
    sizes = [weight.shape[other.index(letter)] for letter in new]
    matrix = call(torch.reshape, matrix, (prod(sizes), -1))
    y = linear(tracer, x, matrix)
    y = call(torch.unflatten, y, -1, sizes)
    have = [*rest, *new]
    return call(torch.permute, y, [have.index(letter) for letter in out])


# -- attention ------------------------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    tracer: Tracer, query: Tensor, key: Tensor, value: Tensor, *args: Any, enable_gqa: bool = False, **kwargs: Any
) -> Tensor:
    """Every query reads every position equally."""
    length, keys = query.shape[-2], key.shape[-2]
    heads = query.shape[:-2].numel()
    tracer.product_macs += heads * length * keys * (query.shape[-1] + value.shape[-1])
    tracer.attention = True
    if enable_gqa and value.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // value.shape[-3]
        value = tracer.__torch_function__(torch.repeat_interleave, (), (value, times, -3))
    label = tracer.reduced(known_label(value).plain(), [value.ndim - 2])
    mean = value.sum(-2, keepdim=True) * (1.0 / keys) ** tracer.power
    return put(mean.expand(*mean.shape[:-2], length, mean.shape[-1]), label)


def multi_head_attention_forward(tracer: Tracer, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention`: value projection, uniform mixing over positions, output projection."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments

    def call(func: Callable[..., Any], *call_args: Any) -> Any:
        return tracer.__torch_function__(func, (), call_args)

    if given["use_separate_proj_weight"]:
        weights = [given[f"{which}_proj_weight"] for which in "qkv"]
    else:
        weights = call(torch.chunk, given["in_proj_weight"], 3)
    sides = (given["query"], given["key"], given["value"])
    query, key, value = (call(F.linear, x, w) for x, w in zip(sides, weights, strict=True))
    length, keys = query.shape[0], key.shape[0]  # positions come first here, whatever `batch_first` says
    tracer.product_macs += length * keys * (query.shape[-1] + value.shape[-1])
    tracer.attention = True
    label = tracer.reduced(known_label(value).plain(), [0])
    mean = value.sum(0, keepdim=True) * (1.0 / keys) ** tracer.power
    mixed = put(mean.expand(length, *mean.shape[1:]), label)
    out = call(F.linear, mixed, given["out_proj_weight"])
    if not given["need_weights"]:
        return out, None
    shape = (query.shape[1], length, keys) if query.ndim == 3 else (length, keys)
    return out, torch.full(shape, 1.0 / keys, dtype=tracer.dtype, device=out.device)
