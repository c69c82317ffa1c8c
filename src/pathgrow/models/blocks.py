"""Building blocks shared by the models: their base class, weight initialization and residual blocks."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError


class ReferenceModel(nn.Module):
    """A module that knows the shape of one sample."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.input_shape = input_shape

    def example_input(self) -> Tensor:
        """Return a batch of one sample, filled with ones, on the model's device and in its dtype."""
        return next(self.parameters()).new_ones(1, *self.input_shape)


def kaiming_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Initialize every convolution and linear layer with He-normal weights (fan-in) and zero biases, in place.

    Fan-in preserves the scale of activations for any stride; fan-out shrinks them wherever a layer halves the
    resolution and doubles the channels. The pruning literature also starts from fan-in, so weight magnitudes and path
    products begin on the scale of its results.
    """
    for layer in _layers(model):
        nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu", generator=generator)


def xavier_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Initialize every convolution and linear layer with Xavier-normal weights and zero biases, in place."""
    for layer in _layers(model):
        nn.init.xavier_normal_(layer.weight, generator=generator)


def _layers(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layers


def check_drop_rate(name: str, value: float) -> None:
    """Refuse a dropout or drop-path probability outside of [0, 1)."""
    if not 0 <= value < 1:
        raise UserError(f"{name} must be in [0, 1), got {value}")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; parameter names are those of torchvision."""

    expansion: ClassVar[int] = 1

    def __init__(self, channels_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(channels_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1. The 3x3 has the stride: in the first 1x1 it would skip 3 of 4 pixels."""

    expansion: ClassVar[int] = 4

    def __init__(self, channels_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.downsample = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Sequential | None:
    """Return a projection if the shape changes, None for the identity."""
    if stride == 1 and channels_in == channels_out:
        return None
    projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(channels_out))


def residual_stage(
    block: type[BasicBlock | Bottleneck], channels_in: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """Return `depth` blocks, the first of which may change resolution and channels."""
    channels_out = width * block.expansion
    first = block(channels_in, width, stride)
    return nn.Sequential(first, *(block(channels_out, width) for _ in range(depth - 1)))
