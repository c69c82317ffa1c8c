"""Residual blocks shared by the two families of ResNets; parameter names are torchvision's."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion: ClassVar[int] = 1

    def __init__(self, channels_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1. The stride sits in the 3x3: in the first 1x1 it would throw three of four pixels away."""

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
        self.downsample = shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Sequential | None:
    """A projection where the shape changes; None: the identity."""
    if stride == 1 and channels_in == channels_out:
        return None
    projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(channels_out))


def stage(block: type[BasicBlock | Bottleneck], channels_in: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """`depth` blocks of one resolution; the first may change it."""
    channels_out = width * block.expansion
    first = block(channels_in, width, stride)
    return nn.Sequential(first, *(block(channels_out, width) for _ in range(depth - 1)))
