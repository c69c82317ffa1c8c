"""Affine warps by nearest neighbour: one integer matrix per image, one gather for the batch."""

from __future__ import annotations

import torch
from torch import Tensor

FIXED_POINT_BITS = 16
FIXED_POINT = 1 << FIXED_POINT_BITS


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Each pixel (x, y) from pixel (a x + b y + c, d x + e y + f) / 2^16, rounded down; black from outside.

    `matrix` is int32 (B, 6), the rows a-f. In integers every device and compiler finds the same neighbour, and the
    same as Pillow, which counts like this; floats would disagree wherever a source falls between two pixels.
    """
    batch, channels, height, width = images.shape
    a, b, c, d, e, f = (number[:, None, None] for number in matrix.unbind(1))
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    column = (a * x + b * y + c) >> FIXED_POINT_BITS
    row = (d * x + e * y + f) >> FIXED_POINT_BITS
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row * width + column).masked_fill(~inside, 0).long()
    index = source.view(batch, 1, -1).expand(-1, channels, -1)
    found = images.flatten(2).gather(2, index).view(images.shape)
    return found * inside[:, None]
