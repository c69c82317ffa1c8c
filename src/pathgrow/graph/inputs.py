"""A guess at the input of a model whose example input is not given."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.graph.running import MISFITS, check_initialized, undisturbed


def guess_example_input(model: nn.Module) -> Any:
    """Return an input that a model declares (ours, timm's, transformers'), or one that fits its first layer."""
    own = getattr(model, "example_input", None)
    if callable(own):
        return own()
    size = (getattr(model, "default_cfg", None) or {}).get("input_size")
    if size:
        return torch.ones(1, *size)
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, Mapping):
        accepted = set(inspect.signature(model.forward).parameters)
        named = {name: value for name, value in dummy.items() if name in accepted and isinstance(value, Tensor)}
        if named:
            return named
    check_initialized(model)  # trying a guess would fix the shape of a lazy layer for good
    for guess in _guesses(model):
        with suppress(*MISFITS), undisturbed(model):
            model(guess)
            return guess
    raise UserError(
        f"cannot guess the input of {type(model).__name__}: pass example_input, one batch as the model accepts it"
    )


def _guesses(model: nn.Module) -> Iterator[Tensor]:
    """Yield inputs that fit the first layer: usual image sizes for a convolution, tokens for an embedding."""
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
