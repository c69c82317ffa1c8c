"""What goes into a model and what comes out of it, whatever the signature."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.graph.looking import check_shaped, looked_at

OUTPUT_KEYS = ("logits", "last_hidden_state", "pooler_output")
"""Which entry of an output with named parts is read, in this order; without any of them, every float tensor."""


def one_sample(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments, cut to the first sample. A tensor, a tuple of arguments, or a dict of keyword arguments."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example_input, Mapping):
        kwargs = dict(example_input)
    elif isinstance(example_input, (tuple, list)):
        args = tuple(example_input)
    else:
        args = (example_input,)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if not tensors:
        raise UserError(
            f"example_input holds no tensor (got {type(example_input).__name__}): give one batch as the model takes "
            "it, a tensor, a tuple of arguments or a dict of keyword arguments"
        )
    if any(tensor.numel() == 0 for tensor in tensors):
        raise UserError("example_input is empty: give at least one sample")
    batch = tensors[0].shape[0] if tensors[0].ndim else 1

    def first(value: Any) -> Any:
        cut = isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == batch
        return value[:1] if cut else value

    return tuple(map(first, args)), {name: first(value) for name, value in kwargs.items()}


def guess_example_input(model: nn.Module) -> Any:
    """An input for a model that says what it takes (ours, timm's, transformers'), or whose first layer does."""
    own = getattr(model, "example_input", None)
    if callable(own):
        return own()
    size = (getattr(model, "default_cfg", None) or {}).get("input_size")
    if size:
        return torch.ones(1, *size)
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, Mapping):
        wanted = set(inspect.signature(model.forward).parameters)
        named = {name: value for name, value in dummy.items() if name in wanted and isinstance(value, Tensor)}
        if named:
            return named
    check_shaped(model)  # a guess, tried on a lazy layer, would give it a shape for good
    for guess in _guesses(model):
        if _runs_on(model, guess):
            return guess
    raise UserError(
        f"cannot tell what {type(model).__name__} takes as input: pass example_input, one sample as the model takes it"
    )


def _guesses(model: nn.Module) -> Iterator[Tensor]:
    """Inputs that the first layer could take: usual image sizes before a convolution, tokens before an embedding."""
    kinds = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)
    first = next((module for module in model.modules() if isinstance(module, kinds)), None)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if isinstance(first, nn.Linear):
        yield torch.ones(1, first.in_features, device=device)
        yield torch.ones(1, 8, first.in_features, device=device)
    elif isinstance(first, nn.Embedding):
        yield torch.zeros(1, 8, dtype=torch.int64, device=device)
    elif first is not None:
        for size in (32, 28, 64, 224, 8):
            yield torch.ones(1, first.in_channels, *[size] * len(first.kernel_size), device=device)


def _runs_on(model: nn.Module, guess: Tensor) -> bool:
    try:
        with looked_at(model), torch.no_grad():
            model(guess)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


def read_outputs(output: Any) -> list[Tensor]:
    """The tensors whose sum is the network's answer."""
    named = _named_parts(output)
    if named is not None:
        for key in OUTPUT_KEYS:
            if isinstance(named.get(key), Tensor):
                return [named[key]]
    elif isinstance(output, (tuple, list)) and output:
        first = read_outputs(output[0])
        return first or [tensor for item in output[1:] for tensor in read_outputs(item)]
    return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nested value."""
    if isinstance(value, Tensor):
        yield value
    elif (named := _named_parts(value)) is not None:
        for item in named.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def _named_parts(value: Any) -> Mapping[str, Any] | None:
    """The parts of a dict, a dataclass or a namespace by name; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None
