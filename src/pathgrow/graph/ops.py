"""Op handlers: what each torch function does to paths, as one literal table, and the handlers of common functions.

A function is known by its name, whether it is called as `torch.f`, `torch.nn.functional.f` or as a tensor method. A
function without a handler that returns a float tensor raises an error: a wrong path sum would go unnoticed.
Functions that move, pool or sum elements are handled in `ops_shape.py`, products of activations in `ops_matmul.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import resolve_name

from pathgrow.graph import ops_matmul, ops_shape
from pathgrow.graph.faults import WITHOUT_PATHS, calling_line, untraceable
from pathgrow.graph.graph import (
    ACTIVATED,
    ATTENTION,
    GATE,
    SQUASHED,
    Axis,
    Window,
    known_label,
    label_of,
    labeled,
    per_axis,
)
from pathgrow.graph.running import tensors_in
from pathgrow.graph.tracer import ALIAS, FROM_PARAMETER, TOKENS, Call, Tracer

Handler = Callable[[Call], Any]


def handle(tracer: Tracer, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a torch function in the path network, given at least one traced activation."""
    name, in_place = plain_name(func)
    # Constants that the model creates for this activation get the device and dtype of its parameters.
    if name == "get_device":
        return tracer.device
    if name == "get_dtype":
        return tracer.model_dtype
    handler = HANDLERS.get(name)
    if handler is None:
        result = func(*args, **kwargs)
        written = [value for value in args[2:] if name == "setitem" and label_of(value) is not None]
        if any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in((result, written))):
            raise untraceable(
                f"torch function {resolve_name(func) or name!r} in {type(tracer.model).__name__}",
                f"use known functions instead, or {WITHOUT_PATHS}",
            )
        if name in _LEAVING or next(tensors_in(result), None) is not None:
            tracer.lost_at = f"{resolve_name(func) or name} ({calling_line()})"
        return result
    result = handler(Call(tracer, func, name, args, kwargs))
    if in_place and isinstance(args[0], Tensor) and result is not args[0]:
        setattr(args[0], ALIAS, result)
    return result


_LEAVING = {"numpy", "array", "tolist", "item"}
"""Functions whose result is not a tensor but may become one again."""


def handle_constant(tracer: Tracer, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a call without a traced activation: on token ids, weights before a layer, or constants."""
    name, _ = plain_name(func)
    first = args[0] if args else None
    if not isinstance(first, Tensor):
        return func(*args, **kwargs)
    moves_or_keeps = HANDLERS.get(name) in (ops_shape.move, _identity)
    if TOKENS in first.__dict__:
        if name == "embedding":
            return _embedded(tracer, first, args[1] if len(args) > 1 else kwargs["weight"])
        result = func(*args, **kwargs)
        if moves_or_keeps:
            for tensor in tensors_in(result):
                setattr(tensor, TOKENS, True)
        return result
    origin = tracer.weight(first)
    if origin.name is not None and name in _WEIGHT_NORMS:
        return first
    result = func(*args, **kwargs)
    if origin.name is not None and moves_or_keeps:
        where = origin.positions
        moved = where if HANDLERS[name] is _identity else func(where, *args[1:], **kwargs)
        for tensor, positions in zip(tensors_in(result), tensors_in(moved), strict=True):
            if id(tensor) not in tracer.names:
                setattr(tensor, FROM_PARAMETER, (origin.name, positions))
    return result


_WEIGHT_NORMS = {"batch_norm", "layer_norm", "instance_norm", "normalize"}
"""Weight standardization: a norm of a weight is the identity too, so the positions of the weight stay known."""


def plain_name(func: Callable[..., Any]) -> tuple[str, bool]:
    """Return the bare name of a torch function, and whether it writes to its first argument."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return f"get_{getattr(func, '__self__').__name__}", False  # noqa: B009
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        in_place = name.startswith("i") and name[1:] in _IN_PLACE_OPERATORS
        name = name[1:] if in_place else name
        return _OPERATORS.get(name, name), in_place
    in_place = name.endswith("_") and not name.startswith("_")
    return name.removesuffix("_") if in_place else name, in_place


_IN_PLACE_OPERATORS = {"add", "sub", "mul", "truediv", "matmul", "pow"}
_OPERATORS = {"truediv": "div", "rtruediv": "rdiv"}


def _embedded(tracer: Tracer, tokens: Tensor, weight: Tensor) -> Tensor:
    """Begin paths at the embedding, with the mean over the vocabulary: no single token decides."""
    tracer.tokens_in = True
    mean = tracer.coefficient(weight).mean(0)
    if not bool(mean.any()):
        mean = torch.ones_like(mean)
    values = mean.expand(*tokens.shape, mean.shape[0]).contiguous()
    return tracer.source(values, values.ndim - 1)


# -- elementwise -----------------------------------------------------------------------------------------------------


def _identity(call: Call) -> Any:
    """Handle norms, dropout, casts, signs and roots: the identity."""
    x = call.traced[0]
    return call.tracer.same(x, known_label(x))


def _as(strength: int) -> Handler:
    """Return the handler of nonlinearities of this strength: the identity on values."""

    def handler(call: Call) -> Any:
        x = call.traced[0]
        label = known_label(x)
        gate = 1.0
        if call.name in ("softmax", "softmin"):
            axis = call.get(1, "dim", -1)
            gate = 1.0 / x.shape[-1 if axis is None else axis]
        return call.tracer.same(x, replace(label, strength=strength, gate=gate, statistic=False))

    return handler


def _batch_norm(call: Call) -> Any:
    """Handle batch norm: the identity, or the scale |gamma| / sqrt(var + eps) after training."""
    x, variance, gamma = call.args[0], call.get(2, "running_var"), call.get(3, "weight")
    label = known_label(x)
    if call.tracer.batch_norm == "identity" or variance is None:
        return call.tracer.same(x, label)
    eps = call.get(7, "eps", 1e-5)
    scale = 1.0 / torch.sqrt(variance.detach().to(call.tracer.dtype) + eps)
    if gamma is not None:
        scale = scale * gamma.detach().to(call.tracer.dtype).abs()
    shape = [1, -1] + [1] * (x.ndim - 2)
    return labeled(x * (scale**call.tracer.power).view(shape), label)


def _add(call: Call) -> Any:
    """Add paths; biases, position embeddings and other constants vanish."""
    a, b = call.args[0], call.get(1, "other")
    a, b = (b, a) if call.name == "rsub" else (a, b)
    la, lb = label_of(a), label_of(b)
    factor = abs(float(call.kwargs.get("alpha", 1))) ** call.tracer.power
    if la is not None and lb is not None:
        if call.name in ("sub", "subtract") and lb.statistic:
            return _identity(call)
        b = b if factor == 1 else labeled(b * factor, lb)
        return call.tracer.join(a, b)
    x, other = (a, b) if la is not None else (b, a)
    label = known_label(x)
    if isinstance(other, (int, float)) and label.strength:
        label = replace(label, gate=label.gate + abs(other))
    x = x if factor == 1 or x is a else x * factor
    x = x.expand(torch.broadcast_shapes(x.shape, other.shape)) if isinstance(other, Tensor) else x
    return call.tracer.same(x, label)


def _mul(call: Call) -> Any:
    """Scale paths by the magnitude of a factor; of two activations the more gate-like one counts as an open gate."""
    a, b = call.args[0], call.get(1, "other")
    x, other = (a, b) if label_of(a) is not None else (b, a)
    if label_of(other) is not None:
        return ops_matmul.gated(call.tracer, a, b)
    label = known_label(x)
    if isinstance(other, Tensor):
        return labeled(x * call.tracer.coefficient(other), label)
    scale = abs(float(other)) ** call.tracer.power
    return labeled(x * scale, replace(label, gate=label.gate * scale))


def _div(call: Call) -> Any:
    """Divide by a constant, which scales paths, or by an activation: a normalization, hence the identity."""
    a, b = call.args[0], call.get(1, "other")
    la = label_of(a)
    if la is None:  # a constant over an activation is a normalizer
        return _as(GATE)(call)
    if label_of(b) is not None:
        return labeled(a.expand(torch.broadcast_shapes(a.shape, b.shape)), la)
    inverse = 1.0 / b.to(call.tracer.dtype) if isinstance(b, Tensor) else 1.0 / b
    return _mul(replace(call, args=(a, inverse), kwargs={}))


def _where(call: Call) -> Any:
    a, b = call.args[1], call.args[2]
    if label_of(a) is not None and label_of(b) is not None:
        return call.tracer.join(a, b)
    x = call.traced[0]
    shape = torch.broadcast_shapes(*(v.shape for v in call.args if isinstance(v, Tensor)))
    return labeled(x.expand(shape), known_label(x))


def _addcmul(call: Call) -> Any:
    start, *factors = call.args[:3]
    return call.tracer.call(torch.add, start, call.tracer.call(torch.mul, *factors))


def _reduce(call: Call) -> Any:
    """Reduce axes, or take the maximum of two activations: either may be the larger one, so paths add up."""
    x, other = call.args[0], call.get(1, "other")
    if label_of(x) is None or isinstance(other, Tensor):
        return _add(replace(call, name="add"))
    return ops_shape.reduce(call)


# -- weight layers ---------------------------------------------------------------------------------------------------


def _linear(tracer: Tracer, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Handle `y = x W^T`."""
    if label_of(weight) is not None:
        raise untraceable("a linear layer whose weight is an activation")
    return tracer.layer(input, tracer.weight(weight), F.linear, unit_axis=input.ndim - 1)


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
    """Handle a convolution over `axes` spatial axes."""
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    kernel, sizes_in = weight.shape[2:], input.shape[-axes:]
    if padding == "same":  # torch pads the odd element at the end
        pads = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    elif padding == "valid":
        pads = (0,) * axes
    else:
        padding = pads = per_axis(padding, axes)
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return convolve(x, w, None, stride, padding, dilation, groups)

    window = tuple(
        Axis(k, s, p, d, size, size if padding == "same" else (size + 2 * p - d * (k - 1) - 1) // s + 1)
        for k, s, p, d, size in zip(kernel, stride, pads, dilation, sizes_in, strict=True)
    )
    unit_axis = input.ndim - axes - 1
    return tracer.layer(
        input, tracer.weight(weight), compute, unit_axis=unit_axis, groups=groups, window=Window(window)
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
    """Handle a weight laid out `[in, out / groups, *kernel]`, recorded as `[out, in / groups, *kernel]`."""
    sizes_in = input.shape[-axes:]
    convolve: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]

    def swap(w: Tensor) -> Tensor:
        return w.reshape(groups, -1, *w.shape[1:]).transpose(1, 2).flatten(0, 1)

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return convolve(x, swap(w), None, stride, padding, output_padding, groups, dilation)

    each = [per_axis(value, axes) for value in (stride, padding, dilation, output_padding)]
    window = tuple(
        Axis(k, s, p, d, size, (size - 1) * s - 2 * p + d * (k - 1) + extra + 1)
        for k, s, p, d, extra, size in zip(weight.shape[2:], *each, sizes_in, strict=True)
    )
    return tracer.layer(
        input, tracer.weight(weight).moved(swap), compute, unit_axis=input.ndim - axes - 1, groups=groups,
        window=Window(window, transposed=True), positions=prod(sizes_in),
    )  # fmt: skip


# -- table -----------------------------------------------------------------------------------------------------------


def _unpacked(function: Callable[..., Any]) -> Handler:
    """Return the handler that passes the arguments of a call on to a function with the signature of torch's."""

    def handler(call: Call) -> Any:
        return function(call.tracer, *call.args, **call.kwargs)

    return handler


def _rows(handler: Handler, names: str) -> dict[str, Handler]:
    return dict.fromkeys(names.split(), handler)


HANDLERS: dict[str, Handler] = {
    **_rows(
        _identity,
        "layer_norm group_norm instance_norm rms_norm local_response_norm normalize native_layer_norm dropout "
        "dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout to float double half "
        "bfloat16 type type_as cpu cuda contiguous detach requires_grad neg rneg negative positive pos abs "
        "absolute square sqrt exp expm1 log log1p log2 pow masked_fill nan_to_num fill_diagonal log_softmax clone "
        "get_data",
    ),
    **_rows(
        _as(ACTIVATED),
        "relu relu6 gelu silu elu celu selu leaky_relu prelu rrelu hardtanh hardswish mish softplus softsign "
        "logsigmoid tanhshrink softshrink hardshrink threshold clamp clamp_min clamp_max clip",
    ),
    **_rows(_as(SQUASHED), "tanh erf"),
    **_rows(_as(GATE), "sigmoid hardsigmoid rsqrt reciprocal rdiv special_expit expit"),
    **_rows(_as(ATTENTION), "softmax softmin"),
    **_rows(_batch_norm, "batch_norm"),
    **_rows(_add, "add radd sub rsub subtract"),
    **_rows(_mul, "mul rmul multiply"),
    **_rows(_div, "div divide true_divide"),
    **_rows(_where, "where"),
    **_rows(_addcmul, "addcmul"),
    **_rows(
        ops_shape.move,
        "view reshape flatten unflatten permute transpose swapaxes swapdims t squeeze unsqueeze expand expand_as "
        "view_as reshape_as repeat repeat_interleave tile chunk split split_with_sizes tensor_split unsafe_chunk "
        "unbind narrow select index_select getitem roll flip rot90 movedim moveaxis pixel_shuffle pixel_unshuffle "
        "channel_shuffle unfold broadcast_to diagonal ravel get_T get_mT get_H get_mH",
    ),
    **_rows(ops_shape.pad, "pad"),
    **_rows(ops_shape.concatenate, "cat concat concatenate stack hstack vstack dstack"),
    **_rows(_reduce, "mean sum amax amin max min maximum minimum median norm vector_norm var std logsumexp"),
    **_rows(ops_shape.var_mean, "var_mean std_mean"),
    **_rows(
        ops_shape.pool,
        "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    **_rows(ops_shape.interpolate, "interpolate upsample"),
    **_rows(_unpacked(_linear), "linear"),
    **{f"conv{axes}d": _unpacked(partial(_conv, axes)) for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d": _unpacked(partial(_conv_transpose, axes)) for axes in (1, 2, 3)},
    **_rows(_unpacked(ops_matmul.matmul), "matmul mm bmm"),
    **_rows(_unpacked(lambda tracer, b, a: ops_matmul.matmul(tracer, a, b)), "rmatmul"),
    **_rows(_unpacked(ops_matmul.addmm), "addmm baddbmm"),
    **_rows(_unpacked(ops_matmul.einsum), "einsum"),
    **_rows(_unpacked(ops_matmul.glu), "glu"),
    **_rows(_unpacked(ops_matmul.scaled_dot_product_attention), "scaled_dot_product_attention"),
    **_rows(_unpacked(ops_matmul.multi_head_attention_forward), "multi_head_attention_forward"),
}
