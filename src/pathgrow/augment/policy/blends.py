"""Operations that move an image away from, or towards, a duller version of itself.

Brightness: black. Contrast: its mean grey. Colour: its grey version. Sharpness: a smoothed one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathgrow.augment.policy.operations import Op


def blend(images: Tensor, op: Tensor, weight: Tensor) -> Tensor:
    """`dull + weight (image - dull)`, cut to bytes, where `op` (B,) is a blend; weight 1 changes nothing."""
    op = op[:, None, None, None]
    pixels = images.short()  # two bytes hold every sum below but the grey's: half the memory of int32
    grey = _grey(images)
    dull = _smooth(pixels).masked_fill(op != int(Op.SHARPNESS), 0)
    dull = torch.where(op == int(Op.COLOR), grey, dull)
    dull = torch.where(op == int(Op.CONTRAST), _rounded_mean(grey), dull)
    weight = weight[:, None, None, None].masked_fill(op < int(Op.BRIGHTNESS), 1.0)
    return (dull.float() + weight * (pixels - dull).float()).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """ITU-R 601 luma, int16 (B, 1, H, W), in 16-bit fixed point."""
    if images.shape[1] == 1:
        return images.short()
    red, green, blue = images.int().split(1, 1)
    luma: Tensor = 19595 * red + 38470 * green + 7471 * blue + (1 << 15)
    return (luma >> 16).short()


def _rounded_mean(grey: Tensor) -> Tensor:
    """(B, 1, 1, 1), halves up."""
    num = grey.shape[2] * grey.shape[3]
    total = grey.sum((2, 3), keepdim=True, dtype=torch.int32)
    return (2 * total + num).div(2 * num, rounding_mode="floor").short()


def _smooth(pixels: Tensor) -> Tensor:
    """Means over 3 x 3 pixels in which the middle one counts five times; the outermost pixels stay."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13).div(26, rounding_mode="floor")
    return smooth
