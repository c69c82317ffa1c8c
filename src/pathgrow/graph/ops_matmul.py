"""Op handlers of products of activations: gates, matrix products, einsum and attention.

These functions take the tracer and then the arguments of the torch function of the same name.
"""

import inspect
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathgrow.graph.faults import untraceable
from pathgrow.graph.graph import GATE, PLAIN, known_label, label_of, labeled
from pathgrow.graph.tracer import Tracer


def gated(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    """Multiply elementwise: paths run through the less gate-like operand, or through both if neither is a gate.

    An input is only a factor of what a layer made of another one, as the mask of a padded set is.
    """
    la, lb = known_label(a), known_label(b)
    if la.strength != lb.strength and (x := _beside_an_input(tracer, a, b)) is not None:
        return labeled(x.expand(torch.broadcast_shapes(a.shape, b.shape)), known_label(x))
    if la.strength == lb.strength and (la.strength == PLAIN or la.node != lb.node):
        return a if a is b else tracer.join(a, b)
    (x, label), gate = ((a, la), lb.gate) if la.strength <= lb.strength else ((b, lb), la.gate)
    return labeled((x * gate**tracer.power).expand(torch.broadcast_shapes(a.shape, b.shape)), label)


def _beside_an_input(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor | None:
    """Return the operand that comes from a layer, without being a gate, if the other one does not come from any."""
    is_made = [tracer.is_made_by_layers(known_label(x)) for x in (a, b)]
    if is_made[0] == is_made[1]:
        return None
    x = a if is_made[0] else b
    return x if known_label(x).strength < GATE else None


def glu(tracer: Tracer, input: Tensor, dim: int = -1) -> Tensor:
    """Handle `a * sigmoid(b)`: the gate is open."""
    half: Tensor = tracer.call(torch.chunk, input, 2, dim)[0]
    return half


def matmul(tracer: Tracer, input: Any, other: Any) -> Tensor:
    """Run a layer if one side is a weight; mix positions if one side is a gate (attention) or a constant."""
    a, b = input, other
    la, lb = label_of(a), label_of(b)
    if la is not None and lb is not None:
        return _activations_matmul(tracer, a, b)
    if lb is None:
        if b.ndim == 2:
            weight = tracer.weight(b).moved(Tensor.t)  # `y = x W` with a weight laid out `[in, out]`
            return tracer.layer(a, weight, F.linear, unit_axis=a.ndim - 1)
        assert la is not None
        if b.ndim > 2 and la.units.shape[-1] == 1:
            return labeled(a @ tracer.coefficient(b), la.plain())
        raise untraceable(f"a product with a constant of shape {tuple(b.shape)}")
    if a.ndim == 2 and tracer.weight(a).name is not None:
        turned = tracer.call(torch.transpose, b, -1, -2)
        out: Tensor = tracer.call(torch.transpose, tracer.call(F.linear, turned, a), -1, -2)
        return out
    return _mixed(tracer, tracer.coefficient(a), b)


def addmm(
    tracer: Tracer, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Tensor:
    """Handle `beta * input + alpha * (mat1 @ mat2)`, batched or not."""

    def times(x: Tensor, factor: float) -> Tensor:
        scaled: Tensor = x if factor == 1 else tracer.call(torch.mul, x, factor)
        return scaled

    product = times(matmul(tracer, mat1, mat2), alpha)
    return tracer.join(product, times(input, beta)) if label_of(input) is not None else product


def _mixed(tracer: Tracer, mixing: Tensor, values: Tensor) -> Tensor:
    """Mix positions by fixed coefficients: `mixing @ values`."""
    label = tracer.reduced(values, [values.ndim - 2])
    if tracer.gradients:
        out = mixing @ values
    else:
        batch = torch.broadcast_shapes(mixing.shape[:-2], values.shape[:-2])
        out = tracer.placeholder((*batch, mixing.shape[-2], values.shape[-1]), values)
    return labeled(out, label)


def _activations_matmul(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    la, lb = known_label(a), known_label(b)
    tracer.product_macs += (
        a.shape[-1] * torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]).numel() * a.shape[-2] * b.shape[-1]
    )
    if (x := _beside_an_input(tracer, a, b)) is not None:  # a graph that is an input mixes its nodes
        inner = (1.0 / a.shape[-1]) ** tracer.power
        if x is b:
            return _mixed(tracer, torch.full_like(a, inner).detach(), b)
        return labeled(a @ torch.full_like(b, inner).detach(), tracer.reduced(a, [a.ndim - 1]))
    if la.strength > lb.strength:
        tracer.attention = True
        return _mixed(tracer, torch.full_like(a, la.gate**tracer.power).detach(), b)
    if lb.strength > la.strength:  # the gates are on the right: (v^T softmax(...))
        tracer.attention = True
        return labeled(a @ torch.full_like(b, lb.gate**tracer.power).detach(), tracer.reduced(a, [a.ndim - 1]))
    # Neither is a gate: paths run through both sides, mixed uniformly over the inner axis.
    inner = (1.0 / a.shape[-1]) ** tracer.power
    left = labeled(a.sum(-1, keepdim=True) * inner, tracer.reduced(a, [a.ndim - 1]))
    right = labeled(b.sum(-2, keepdim=True) * inner, tracer.reduced(b, [b.ndim - 2]))
    return tracer.join(left, right)


def einsum(tracer: Tracer, equation: str, *operands: Any) -> Tensor:
    """Handle two operands, rewritten as a layer or as mixing of positions."""
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if len(operands) != 2:
        raise untraceable(f"einsum {equation!r}", "it must have two operands")
    a, b = operands
    (left, right), out = _letters(equation, a.ndim, b.ndim)
    if label_of(a) is None:
        a, b, left, right = b, a, right, left
    lb = label_of(b)
    if lb is not None:
        sizes = dict(zip(left + right, (*a.shape, *b.shape), strict=True))
        tracer.product_macs += prod(sizes[letter] for letter in set(left + right))
        la = known_label(a)
        if la.strength > lb.strength:
            a, b, left, right, la, lb = b, a, right, left, lb, la
        gate = lb.gate if lb.strength > la.strength else 1.0
        tracer.attention |= lb.strength > la.strength
        ones = torch.full_like(b, gate**tracer.power).detach()
        through_a = _contracted(tracer, a, left, ones, right, out)
        if lb.strength > la.strength:
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
    unnamed = [ndim - len(term.replace("...", "")) for term, ndim in zip(terms, ndims, strict=True)]
    dots = "".join(spare[: max(unnamed)])
    named = [term.replace("...", dots[len(dots) - num :]) for term, num in zip(terms, unnamed, strict=True)]
    return named, out.replace("...", dots)


def _contracted(tracer: Tracer, x: Tensor, own: str, factor: Tensor, other: str, out: str) -> Tensor:
    """Return the `einsum` of a traced activation and fixed coefficients."""
    label = tracer.reduced(x, [axis for axis, letter in enumerate(own) if letter not in out])
    value = torch.einsum(f"{own},{other}->{out}", x, factor)
    # Axes that are summed have size 1 now, so this only moves units; axes of the other operand get size 1.
    units = torch.einsum(f"{own}->{''.join(letter for letter in out if letter in own)}", label.units)
    units = units[tuple(slice(None) if letter in own else None for letter in out)]
    return labeled(value, replace(label, units=units))


def _einsum_layer(
    tracer: Tracer, x: Tensor, own: str, weight: Tensor, other: str, out: str, shared: list[str], new: list[str]
) -> Tensor:
    """Run a weight that sums over `shared` letters and adds `new` ones, which is a linear layer."""
    rest = [letter for letter in own if letter not in shared]
    x = tracer.call(torch.permute, x, [own.index(letter) for letter in [*rest, *shared]])
    x = tracer.call(torch.flatten, x, len(rest), -1)
    matrix = tracer.call(torch.permute, weight, [other.index(letter) for letter in [*new, *shared]])
    sizes = [weight.shape[other.index(letter)] for letter in new]
    matrix = tracer.call(torch.reshape, matrix, (prod(sizes), -1))
    y = tracer.call(F.linear, x, matrix)
    y = tracer.call(torch.unflatten, y, -1, sizes)
    have = [*rest, *new]
    result: Tensor = tracer.call(torch.permute, y, [have.index(letter) for letter in out])
    return result


# -- attention ------------------------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    tracer: Tracer, query: Tensor, key: Tensor, value: Tensor, *args: Any, enable_gqa: bool = False, **kwargs: Any
) -> Tensor:
    """Handle attention: every query attends to every position equally."""
    heads = query.shape[:-2].numel()
    if enable_gqa and value.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // value.shape[-3]
        value = tracer.call(torch.repeat_interleave, value, times, -3)
    return _attended(tracer, query, key, value, axis=value.ndim - 2, heads=heads)


def _attended(tracer: Tracer, query: Tensor, key: Tensor, value: Tensor, *, axis: int, heads: int = 1) -> Tensor:
    """Return the mean of the values over the positions along `axis`, for every query."""
    length, keys = query.shape[axis], key.shape[axis]
    tracer.product_macs += heads * length * keys * (query.shape[-1] + value.shape[-1])
    tracer.attention = True
    label = tracer.reduced(value, [axis])
    mean = value.sum(axis, keepdim=True) * (1.0 / keys) ** tracer.power
    return labeled(mean.expand(*mean.shape[:axis], length, *mean.shape[axis + 1 :]), label)


def multi_head_attention_forward(tracer: Tracer, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Handle `nn.MultiheadAttention`: value projection, uniform mixing over positions, output projection."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments

    if given["use_separate_proj_weight"]:
        weights = [given[f"{which}_proj_weight"] for which in "qkv"]
    else:
        weights = tracer.call(torch.chunk, given["in_proj_weight"], 3)
    sides = (given["query"], given["key"], given["value"])
    query, key, value = (tracer.call(F.linear, x, w) for x, w in zip(sides, weights, strict=True))
    mixed = _attended(tracer, query, key, value, axis=0)  # positions come first here, with `batch_first` too
    out = tracer.call(F.linear, mixed, given["out_proj_weight"])
    if not given["need_weights"]:
        return out, None
    length, keys = query.shape[0], key.shape[0]
    shape = (query.shape[1], length, keys) if query.ndim == 3 else (length, keys)
    return out, torch.full(shape, 1.0 / keys, dtype=tracer.dtype, device=out.device)
