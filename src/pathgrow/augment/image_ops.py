"""The image operations of AutoAugment on whole batches of bytes.

Every operation is a warp, a lookup table per channel, or a blend with a degenerate image. Every image passes through
all three functions, and the ones that do not apply to it are the identity. No image is selected, so shapes are static
and nothing synchronizes with the device.
"""

from enum import IntEnum

import torch
from torch import Tensor

FIXED_POINT_BITS = 16
_NUM_BYTES = 256


class Op(IntEnum):
    """Color operations; those from `BRIGHTNESS` on are blends."""

    NOTHING = 0
    INVERT = 1
    SOLARIZE = 2
    POSTERIZE = 3
    AUTOCONTRAST = 4
    EQUALIZE = 5
    BRIGHTNESS = 6
    CONTRAST = 7
    COLOR = 8
    SHARPNESS = 9


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Apply an affine warp by nearest neighbor: pixel (x, y) is read from (a x + b y + c, d x + e y + f) / 2^16.

    `matrix` is int32 (B, 6), the rows a-f; outside of the image is black. Integers select the same neighbor as Pillow
    on every device and with every compiler; floats would disagree wherever a source falls between two pixels.
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


# Lookup tables: one of 256 bytes per image and channel.


def remap(images: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """Invert, solarize, posterize, autocontrast or equalize each image according to `op` (B,)."""
    pixels = images.flatten(2).long()
    value = torch.arange(_NUM_BYTES, device=images.device, dtype=torch.int32)
    strength = level.to(torch.int32)[:, None, None]
    low, high = (bound.to(torch.int32)[..., None] for bound in torch.aminmax(images.flatten(2), dim=2))

    op = op[:, None, None]
    table = value.expand(*images.shape[:2], _NUM_BYTES)
    table = torch.where(op == int(Op.INVERT), 255 - value, table)
    table = torch.where((op == int(Op.SOLARIZE)) & (value >= strength), 255 - value, table)
    table = torch.where(op == int(Op.POSTERIZE), value & strength, table)
    table = torch.where(op == int(Op.AUTOCONTRAST), _stretched(value, low, high), table)
    table = torch.where(op == int(Op.EQUALIZE), _equalized(value, pixels, high), table)
    return table.to(torch.uint8).gather(2, pixels).view(images.shape)


def _stretched(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map the darkest byte to 0 and the brightest to 255; a constant channel stays.

    This divides integers. Pillow multiplies by the rounded quotient, so its result is occasionally one lower.
    """
    span = high - low
    stretched = (255 * (value - low)).div(span.clamp(min=1), rounding_mode="floor").clamp(0, 255)
    return torch.where(span > 0, stretched, value)


def _equalized(value: Tensor, pixels: Tensor, high: Tensor) -> Tensor:
    """Map every byte to the share of darker pixels, in steps of 1/255 of all but the brightest ones."""
    counts = _histogram(pixels)
    brightest = counts.gather(2, high.long())
    step = (pixels.shape[2] - brightest).div(255, rounding_mode="floor")
    darker = counts.cumsum(2, dtype=torch.int32) - counts
    half = step.div(2, rounding_mode="floor")
    equalized = (half + darker).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return torch.where(step > 0, equalized, value)


def _histogram(pixels: Tensor) -> Tensor:
    """Count each byte, (B, C, 256), in integers, so the order of additions does not matter."""
    batch, channels, num_pixels = pixels.shape
    num_rows = batch * channels
    first = torch.arange(num_rows, device=pixels.device)[:, None] * _NUM_BYTES
    bins = (pixels.reshape(num_rows, num_pixels) + first).flatten()
    counts = torch.zeros(num_rows * _NUM_BYTES, device=pixels.device, dtype=torch.int32)
    one = torch.ones((), device=pixels.device, dtype=torch.int32)
    return counts.scatter_add(0, bins, one.expand(bins.shape)).view(batch, channels, _NUM_BYTES)


# Blends with a degenerate image: black (brightness), its mean gray (contrast), gray (color) or smoothed (sharpness).


def blend(images: Tensor, op: Tensor, weight: Tensor) -> Tensor:
    """Return `dull + weight (image - dull)` as bytes where `op` (B,) is a blend; weight 1 is the identity."""
    op = op[:, None, None, None]
    pixels = images.short()  # two bytes hold every sum below except that of gray: half the memory of int32
    gray = _gray(images)
    dull = _smooth(pixels).masked_fill(op != int(Op.SHARPNESS), 0)
    dull = torch.where(op == int(Op.COLOR), gray, dull)
    dull = torch.where(op == int(Op.CONTRAST), _rounded_mean(gray), dull)
    weight = weight[:, None, None, None].masked_fill(op < int(Op.BRIGHTNESS), 1.0)
    return (dull.float() + weight * (pixels - dull).float()).clamp(0, 255).to(torch.uint8)


def _gray(images: Tensor) -> Tensor:
    """Return the ITU-R 601 luma, int16 (B, 1, H, W), computed in 16-bit fixed point."""
    if images.shape[1] == 1:
        return images.short()
    red, green, blue = images.int().split(1, 1)
    luma: Tensor = 19595 * red + 38470 * green + 7471 * blue + (1 << 15)
    return (luma >> 16).short()


def _rounded_mean(gray: Tensor) -> Tensor:
    """Return the mean (B, 1, 1, 1), with halves rounded up."""
    num = gray.shape[2] * gray.shape[3]
    total = gray.sum((2, 3), keepdim=True, dtype=torch.int32)
    return (2 * total + num).div(2 * num, rounding_mode="floor").short()


def _smooth(pixels: Tensor) -> Tensor:
    """Return means over 3 x 3 pixels with weight 5 for the center; the outermost pixels stay."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13).div(26, rounding_mode="floor")
    return smooth
