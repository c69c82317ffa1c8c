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
    pixels = images.to(torch.int32)
    grey = _grey(pixels)
    dull = torch.where(op == int(Op.SHARPNESS), _smooth(pixels), 0)
    dull = torch.where(op == int(Op.COLOR), grey, dull)
    dull = torch.where(op == int(Op.CONTRAST), _rounded_mean(grey), dull)
    weight = torch.where(op >= int(Op.BRIGHTNESS), weight[:, None, None, None], 1.0)
    return (dull + weight * (pixels - dull)).clamp(0, 255).to(torch.uint8)


def _grey(pixels: Tensor) -> Tensor:
    """ITU-R 601 luma (B, 1, H, W), in 16-bit fixed point."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    luma: Tensor = 19595 * red + 38470 * green + 7471 * blue + (1 << 15)
    return luma >> 16


def _rounded_mean(grey: Tensor) -> Tensor:
    """(B, 1, 1, 1), halves up."""
    num = grey.shape[2] * grey.shape[3]
    total = grey.sum((2, 3), keepdim=True, dtype=torch.int32)
    return (2 * total + num).div(2 * num, rounding_mode="floor")


def _smooth(pixels: Tensor) -> Tensor:
    """Means over 3 x 3 pixels in which the middle one counts five times; the outermost pixels stay."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13).div(26, rounding_mode="floor")
    return smooth
