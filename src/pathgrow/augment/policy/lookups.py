"""Operations that send every byte of a channel to another byte: one table of 256 per image and channel."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgrow.augment.policy.operations import Op

NUM_BYTES = 256


def remap(images: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """Invert, solarize, posterize, stretch or equalize the images whose `op` (B,) says so; leave the others."""
    pixels = images.flatten(2).long()
    value = torch.arange(NUM_BYTES, device=images.device, dtype=torch.int32)
    strength = level.to(torch.int32)[:, None, None]
    low, high = (bound.to(torch.int32)[..., None] for bound in torch.aminmax(images.flatten(2), dim=2))

    op = op[:, None, None]
    table = value.expand(*images.shape[:2], NUM_BYTES)
    table = torch.where(op == int(Op.INVERT), 255 - value, table)
    table = torch.where((op == int(Op.SOLARIZE)) & (value >= strength), 255 - value, table)
    table = torch.where(op == int(Op.POSTERIZE), value & strength, table)
    table = torch.where(op == int(Op.AUTOCONTRAST), _stretched(value, low, high), table)
    table = torch.where(op == int(Op.EQUALIZE), _equalized(value, pixels, high), table)
    return table.to(torch.uint8).gather(2, pixels).view(images.shape)


def _stretched(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The darkest byte to 0, the brightest to 255; a channel of one byte stays.

    Division of integers. Pillow multiplies by the rounded quotient, which now and then ends one lower.
    """
    span = high - low
    stretched = (255 * (value - low)).div(span.clamp(min=1), rounding_mode="floor").clamp(0, 255)
    return torch.where(span > 0, stretched, value)


def _equalized(value: Tensor, pixels: Tensor, high: Tensor) -> Tensor:
    """Every byte to the share of pixels darker than it, in steps of 1/255 of all but the brightest ones."""
    counts = _histogram(pixels)
    brightest = counts.gather(2, high.long())
    step = (pixels.shape[2] - brightest).div(255, rounding_mode="floor")
    darker = counts.cumsum(2, dtype=torch.int32) - counts
    half = step.div(2, rounding_mode="floor")
    equalized = (half + darker).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return torch.where(step > 0, equalized, value)


def _histogram(pixels: Tensor) -> Tensor:
    """How often each byte occurs, (B, C, 256). Counts are integers: no order of additions can change them."""
    batch, channels, num_pixels = pixels.shape
    num_rows = batch * channels
    first = torch.arange(num_rows, device=pixels.device)[:, None] * NUM_BYTES
    bins = (pixels.reshape(num_rows, num_pixels) + first).flatten()
    counts = torch.zeros(num_rows * NUM_BYTES, device=pixels.device, dtype=torch.int32)
    one = torch.ones((), device=pixels.device, dtype=torch.int32)
    return counts.scatter_add(0, bins, one.expand(bins.shape)).view(batch, channels, NUM_BYTES)
