"""Starting weights. Without a generator torch's global one is used, as by every torch module."""

from __future__ import annotations

import torch
from torch import nn


def kaiming_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """He-normal weights by fan-in and zero biases for every convolution and linear layer, in place.

    Fan-in, because it keeps the size of activations over the layers whatever the stride; fan-out shrinks them at every
    layer that halves the resolution and doubles the channels. It is also what the pruning literature trains from, so
    magnitudes and path products start on the scale its results were obtained at.
    """
    for layer in _layers(model):
        nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu", generator=generator)


def xavier_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Xavier-normal weights and zero biases for every convolution and linear layer, in place (transformers)."""
    for layer in _layers(model):
        nn.init.xavier_normal_(layer.weight, generator=generator)


def _layers(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layers
