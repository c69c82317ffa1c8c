"""What each torch function means for paths: one literal table.

A function is known by its name, whether it was called as `torch.f`, `torch.nn.functional.f` or as a tensor method.
A function that is not in the table and returns a float tensor is refused by name: a wrong path sum would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.graph import ops_matmul, ops_spatial
from pathgrow.graph.call import Call
from pathgrow.graph.graph import Axis, Window
from pathgrow.graph.inputs import tensors_in
from pathgrow.graph.labels import (
    ACTIVATED,
    ATTENTION,
    GATE,
    SQUASHED,
    Label,
    aligned,
    compact,
    known_label,
    label_of,
    put,
)
from pathgrow.graph.tracer import ALIAS, FROM_PARAMETER, TOKENS, Tracer


def follow(tracer: Tracer, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a torch function returns in the path network."""
    name, in_place = plain_name(func)
    # Constants that the model makes to go with this activation get the device and dtype of its parameters.
    if name == "get_device":
        return tracer.device
    if name == "get_dtype":
        return tracer.model_dtype
    call = Call(tracer, func, name, args, kwargs)
    meaning = MEANING.get(name)
    if meaning is None:
        result = func(*args, **kwargs)
        if any(tensor.is_floating_point() for tensor in tensors_in(result)):
            raise UserError(
                f"paths cannot be followed through torch function {name!r} in {type(tracer.model).__name__}: "
                "express it with known functions, or give attach a scope of your own and a method that reads no paths"
            )
        return result
    result = meaning(call)
    if in_place and isinstance(args[0], Tensor) and result is not args[0]:
        setattr(args[0], ALIAS, result)
    return result


def constant(tracer: Tracer, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that touches no followed activation: token ids, weights on their way to a layer, plain constants."""
    name, _ = plain_name(func)
    first = args[0] if args else None
    if not isinstance(first, Tensor):
        return func(*args, **kwargs)
    if TOKENS in first.__dict__:
        if name == "embedding":
            return _embedded(tracer, first, args[1] if len(args) > 1 else kwargs["weight"])
        result = func(*args, **kwargs)
        if MEANING.get(name) in (_shape, _pass):
            for tensor in tensors_in(result):
                setattr(tensor, TOKENS, True)
        return result
    origin = tracer.weight(first)
    if origin.name is not None and name in _WEIGHT_NORMS:
        return first
    result = func(*args, **kwargs)
    if origin.name is not None and MEANING.get(name) in (_shape, _pass):
        where = origin.positions
        moved = where if MEANING[name] is _pass else func(where, *args[1:], **kwargs)
        for tensor, positions in zip(tensors_in(result), tensors_in(moved), strict=True):
            if id(tensor) not in tracer.names:
                setattr(tensor, FROM_PARAMETER, (origin.name, positions))
    return result


_WEIGHT_NORMS = {"batch_norm", "layer_norm", "instance_norm", "normalize"}
"""Weight standardisation: a norm over a weight is the identity too, so the positions of the weight stay known."""


def plain_name(func: Callable[..., Any]) -> tuple[str, bool]:
    """The bare name of a torch function, and whether it writes to its first argument."""
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
_OPERATORS = {"truediv": "div", "rtruediv": "rdiv", "getitem": "getitem"}


def _embedded(tracer: Tracer, tokens: Tensor, weight: Tensor) -> Tensor:
    """Paths begin at the embedding, as the mean over the vocabulary, so that no single token decides."""
    tracer.tokens_in = True
    mean = tracer.coefficient(weight).mean(0)
    if not bool(mean.any()):
        mean = torch.ones_like(mean)
    values = mean.expand(*tokens.shape, mean.shape[0]).contiguous()
    return tracer.source(values, values.ndim - 1)


# -- elementwise ----------------------------------------------------------------------------------------------------


def _pass(call: Call) -> Any:
    """Norms, dropout, casts, sign, roots: the identity."""
    x = call.followed[0]
    label = known_label(x)
    return call.tracer.same(x, label)


def _as(strength: int) -> Callable[[Call], Any]:
    def meaning(call: Call) -> Any:
        x = call.followed[0]
        label = known_label(x)
        gate = 1.0
        if call.name in ("softmax", "softmin"):
            axis = call.get(1, "dim", -1)
            gate = 1.0 / x.shape[-1 if axis is None else axis]
        return call.tracer.same(x, replace(label, strength=strength, gate=gate, statistic=False))

    return meaning


def _batch_norm(call: Call) -> Any:
    """The identity, or the scale of a trained batch norm: |gamma| / sqrt(var + eps)."""
    x, variance, gamma = call.args[0], call.get(2, "running_var"), call.get(3, "weight")
    label = known_label(x)
    if call.tracer.batch_norm == "identity" or variance is None:
        return call.tracer.same(x, label)
    eps = call.get(7, "eps", 1e-5)
    scale = 1.0 / torch.sqrt(variance.detach().to(call.tracer.dtype) + eps)
    if gamma is not None:
        scale = scale * gamma.detach().to(call.tracer.dtype).abs()
    shape = [1, -1] + [1] * (x.ndim - 2)
    return put(x * (scale**call.tracer.power).view(shape), label)


def _add(call: Call) -> Any:
    """Paths add up; biases, position embeddings and other constants vanish."""
    a, b = call.args[0], call.get(1, "other")
    a, b = (b, a) if call.name == "rsub" else (a, b)
    wa, wb = label_of(a), label_of(b)
    factor = abs(float(call.kwargs.get("alpha", 1))) ** call.tracer.power
    if wa is not None and wb is not None:
        if call.name in ("sub", "subtract") and wb.statistic:
            return _pass(call)
        b = b if factor == 1 else put(b * factor, wb)
        return call.tracer.join(a, b)
    x, label, other = (a, wa, b) if wa is not None else (b, wb, a)
    assert label is not None
    x = x if factor == 1 or x is a else x * factor
    gate = label.gate + abs(other) if isinstance(other, (int, float)) and label.strength else label.gate
    x = x.expand(torch.broadcast_shapes(x.shape, other.shape)) if isinstance(other, Tensor) else x
    return call.tracer.same(x, replace(label, units=aligned(label.units, x.ndim), gate=gate))


def _mul(call: Call) -> Any:
    """A factor scales paths by its magnitude; of two activations the more gate-like one counts as open."""
    a, b = call.args[0], call.get(1, "other")
    wa, wb = label_of(a), label_of(b)
    if wa is not None and wb is not None:
        return ops_matmul.gated(call.tracer, a, b)
    x, label, other = (a, wa, b) if wa is not None else (b, wb, a)
    assert label is not None
    if isinstance(other, Tensor):
        factor = call.tracer.coefficient(other)
        out = x * factor
        return put(out, replace(label, units=aligned(label.units, out.ndim)))
    scale = abs(float(other)) ** call.tracer.power
    return put(x * scale, replace(label, gate=label.gate * scale))


def _div(call: Call) -> Any:
    """Dividing by a constant scales; dividing by an activation is normalisation: the identity."""
    a, b = call.args[0], call.get(1, "other")
    wa = label_of(a)
    if wa is None:  # a constant over an activation: a normaliser
        return _as(GATE)(call)
    if label_of(b) is not None:
        shape = torch.broadcast_shapes(a.shape, b.shape)
        return put(a.expand(shape), replace(wa, units=aligned(wa.units, len(shape))))
    inverse = 1.0 / b.to(call.tracer.dtype) if isinstance(b, Tensor) else 1.0 / b
    return _mul(replace(call, args=(a, inverse), kwargs={}))


def _where(call: Call) -> Any:
    a, b = call.args[1], call.args[2]
    if label_of(a) is not None and label_of(b) is not None:
        return call.tracer.join(a, b)
    x = call.followed[0]
    label = known_label(x)
    shape = torch.broadcast_shapes(*(v.shape for v in call.args if isinstance(v, Tensor)))
    return put(x.expand(shape), replace(label, units=aligned(label.units, len(shape))))


def _addcmul(call: Call) -> Any:
    product = _product(call.tracer, call.args[1], call.args[2])
    start = call.args[0]
    if label_of(product) is None:
        return _pass(replace(call, args=(start,), kwargs={}))
    return call.tracer.join(start, product) if label_of(start) is not None else product


def _product(tracer: Tracer, a: Any, b: Any) -> Any:
    if label_of(a) is None and label_of(b) is None:
        return a * b
    return _mul(Call(tracer, torch.mul, "mul", (a, b), {}))


# -- shapes ---------------------------------------------------------------------------------------------------------


def _shape(call: Call) -> Any:
    """Anything that only moves elements: do the same to the labels."""
    x = call.followed[0]
    label = known_label(x)
    if call.name in _COPYING:  # our activations may lie in memory unlike the model's own
        call = replace(call, func=_COPYING[call.name])
    result = call.func(*call.args, **call.kwargs)
    # Labels travel as floats shifted by one: every function that moves elements takes floats, and padding gives 0.
    moved_units = (label.units.expand(x.shape) + 1).to(torch.float64).contiguous()
    args = tuple(moved_units if value is x else value for value in call.args)
    kwargs = {name: moved_units if value is x else value for name, value in call.kwargs.items()}
    moved = call.func(*args, **kwargs)
    for tensor, units in zip(tensors_in(result), tensors_in(moved), strict=True):
        same_map = tensor.ndim == x.ndim and tensor.ndim > 2 and tensor.shape[2:] == x.shape[2:]
        keeps_space = same_map and call.name in _WITHIN_UNITS
        trail = label.trail if keeps_space else (*label.trail, Window())
        put(tensor, replace(label, units=compact(units.to(torch.int64) - 1), trail=trail))
    return result


_WITHIN_UNITS = {"view", "reshape", "chunk", "split", "split_with_sizes", "tensor_split", "narrow", "getitem"}
"""Where the size of the map is unchanged, these moved no position; `flip` and `roll` might have."""
_COPYING: dict[str, Callable[..., Any]] = {"view": Tensor.reshape, "view_as": Tensor.reshape_as}


def _pad(call: Call) -> Any:
    """A border of constants around a map carries no path; it only shifts positions."""
    x, pads = call.args[0], list(call.get(1, "pad"))
    label = known_label(x)
    num_axes = max(x.ndim - 2, 0)
    pads += [0] * (2 * num_axes - len(pads))
    on_map = num_axes > 0 and len(pads) == 2 * num_axes and all(size == 1 for size in label.units.shape[2:])
    if call.get(2, "mode", "constant") != "constant" or not on_map:
        return _shape(call)
    out = F.pad(x, pads)
    before = pads[::2][::-1]  # given from the last axis on
    sizes = zip(before, x.shape[2:], out.shape[2:], strict=True)
    window = Window(tuple(Axis(1, 1, border, 1, i, o) for border, i, o in sizes), pool=True)
    return put(out, replace(label, trail=(*label.trail, window)))


def _cat(call: Call) -> Any:
    """Side by side; pieces that are not followed (a class token) carry no path."""
    tracer = call.tracer
    pieces = [piece for piece in call.args[0] if not (label_of(piece) is None and piece.shape == (0,))]
    labels = [label for piece in pieces if (label := label_of(piece)) is not None]
    top = max(label.exponent for label in labels)
    values, units_of_pieces = [], []
    nodes = list(dict.fromkeys(label.node for label in labels))
    offsets, total = {}, 0
    for node in nodes:
        offsets[node] = total
        total += tracer.channels[node].size
    for piece in pieces:
        label = label_of(piece)
        if label is None:
            values.append(torch.zeros(piece.shape, dtype=tracer.dtype, device=call.followed[0].device))
            units_of_pieces.append(torch.full(piece.shape, -1))
            continue
        values.append(piece * 2.0 ** (label.exponent - top) if label.exponent != top else piece)
        shifted = torch.where(label.units >= 0, label.units + offsets[label.node], -1)
        units_of_pieces.append(shifted.expand(piece.shape))
    rest, kwargs = call.args[1:], call.kwargs
    out = call.func(values, *rest, **kwargs)
    units = compact(call.func(units_of_pieces, *rest, **kwargs))
    if len(nodes) == 1:
        trails = {label.trail for label in labels}
        trail = labels[0].trail if len(trails) == 1 else (Window(),)
        same = {(label.strength, label.gate) for label in labels}
        merged = labels[0] if len(same) == 1 else labels[0].plain()
        return put(out, replace(merged, units=units, trail=trail, exponent=top))
    target = tracer.new_channels(total, *nodes)
    for node in nodes:
        label = next(w for w in labels if w.node == node)
        size = tracer.channels[node].size
        tracer.link(replace(label, units=torch.arange(size)), target, torch.arange(size) + offsets[node])
    return put(out, Label(target, units, (), top))


def _reduced(call: Call) -> Any:
    """A sum, a mean or an extremum over axes; of two activations (`maximum`) either may win, so paths add up."""
    x, other = call.args[0], call.get(1, "other")
    if label_of(x) is None or isinstance(other, Tensor):
        return _add(replace(call, name="add"))
    return ops_spatial.reduce(call)


def _layers(name: str) -> Callable[[Call], Any]:
    compute = getattr(ops_matmul, name)

    def meaning(call: Call) -> Any:
        return compute(call.tracer, *call.args, **call.kwargs)

    return meaning


def _table(meaning: Callable[[Call], Any], names: str) -> dict[str, Callable[[Call], Any]]:
    return dict.fromkeys(names.split(), meaning)


MEANING: dict[str, Callable[[Call], Any]] = {
    **_table(
        _pass,
        "layer_norm group_norm instance_norm rms_norm local_response_norm normalize native_layer_norm dropout "
        "dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout to float double half "
        "bfloat16 type type_as cpu cuda contiguous detach requires_grad neg rneg negative positive pos abs "
        "absolute square sqrt exp expm1 log log1p log2 pow masked_fill nan_to_num fill_diagonal log_softmax clone "
        "get_data",
    ),
    **_table(
        _as(ACTIVATED),
        "relu relu6 gelu silu elu celu selu leaky_relu prelu rrelu hardtanh hardswish mish softplus softsign "
        "logsigmoid tanhshrink softshrink hardshrink threshold clamp clamp_min clamp_max clip",
    ),
    **_table(_as(SQUASHED), "tanh erf"),
    **_table(_as(GATE), "sigmoid hardsigmoid rsqrt reciprocal rdiv special_expit expit"),
    **_table(_as(ATTENTION), "softmax softmin"),
    **_table(_batch_norm, "batch_norm"),
    **_table(_add, "add radd sub rsub subtract"),
    **_table(_mul, "mul rmul multiply"),
    **_table(_div, "div divide true_divide"),
    **_table(_where, "where"),
    **_table(_addcmul, "addcmul"),
    **_table(
        _shape,
        "view reshape flatten unflatten permute transpose swapaxes swapdims t squeeze unsqueeze expand expand_as "
        "view_as reshape_as repeat repeat_interleave tile chunk split split_with_sizes tensor_split unsafe_chunk "
        "unbind narrow select index_select getitem roll flip rot90 movedim moveaxis pixel_shuffle pixel_unshuffle "
        "channel_shuffle unfold broadcast_to diagonal ravel get_T get_mT get_H get_mH",
    ),
    **_table(_pad, "pad"),
    **_table(_cat, "cat concat concatenate stack hstack vstack dstack"),
    **_table(_reduced, "mean sum amax amin max min maximum minimum median norm vector_norm var std logsumexp"),
    **_table(ops_spatial.var_mean, "var_mean std_mean"),
    **_table(
        ops_spatial.pool,
        "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    **_table(ops_spatial.interpolate, "interpolate upsample"),
    **{
        name: _layers(name)
        for name in [
            "linear",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "matmul",
            "rmatmul",
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "einsum",
            "glu",
            "scaled_dot_product_attention",
            "multi_head_attention_forward",
        ]
    },
}
