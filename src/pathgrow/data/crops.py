"""Parts of pictures: which box of an image a sample shows, and that box scaled to the size a network takes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pathgrow.data.decode import opened
from pathgrow.errors import UserError

AREA = (0.08, 1.0)
"""Shares of the image that a random box covers ..."""
ASPECT = (3 / 4, 4 / 3)
"""... and its width over its height: the Inception crop that ImageNet results are obtained with."""
MARGIN = 256 / 224
"""In evaluation the shorter side is scaled to this multiple of the size that is cut out of its centre."""
_ATTEMPTS = 10
_ADVICE = "replace it, or delete it to leave it out"


class Box(NamedTuple):
    """A part of an image, in pixels from its top left corner; need not end on whole ones."""

    left: float
    top: float
    right: float
    bottom: float


Choose = Callable[[int, int], Box]
"""From the height and width of an image to the part of it that is wanted."""
Decoder = Callable[[Path], Tensor]
"""From a file to its image, uint8 (C, H, W)."""


def random_box(height: int, width: int, generator: torch.Generator) -> Box:
    """A part of random area, shape and place; where ten draws do not fit, the largest central one.

    >>> random_box(300, 400, torch.Generator().manual_seed(0))
    Box(left=32, top=4, right=268, bottom=260)
    """
    # All numbers at once: the generator ends where it ends, however many attempts are needed.
    area, aspect, down, right = torch.rand(4, _ATTEMPTS, dtype=torch.float64, generator=generator).tolist()
    low, high = map(math.log, ASPECT)
    for attempt in range(_ATTEMPTS):
        pixels = height * width * (AREA[0] + (AREA[1] - AREA[0]) * area[attempt])
        ratio = math.exp(low + (high - low) * aspect[attempt])
        wide, tall = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top, left = int(down[attempt] * (height - tall + 1)), int(right[attempt] * (width - wide + 1))
            return Box(left, top, left + wide, top + tall)
    wide = min(width, max(1, round(height * ASPECT[1])))
    tall = min(height, max(1, round(width / ASPECT[0])))
    left, top = (width - wide) // 2, (height - tall) // 2
    return Box(left, top, left + wide, top + tall)


def centre_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """What is left of an image scaled by its shorter side and cropped at the centre, without scaling the rest.

    >>> centre_box(256, 512, (224, 224))
    Box(left=144.0, top=16.0, right=368.0, bottom=240.0)
    """
    scale = MARGIN * max(size[0] / height, size[1] / width)
    wide, tall = round(width * scale), round(height * scale)
    left, top = round((wide - size[1]) / 2), round((tall - size[0]) / 2)
    across, down = width / wide, height / tall
    return Box(left * across, top * down, (left + size[1]) * across, (top + size[0]) * down)


def read_part(path: Path, choose: Choose, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A part of an image file in the wanted shape (C, H, W), by Pillow."""
    channels, height, width = shape
    with opened(path, _ADVICE) as image:
        full = image.size
        box = choose(full[1], full[0])
        shrink = min((box.bottom - box.top) / height, (box.right - box.left) / width)
        if shrink >= 2:
            # A JPEG decodes at half, a quarter or an eighth of its size for a fraction of the time.
            image.draft(None, (math.ceil(full[0] / shrink), math.ceil(full[1] / shrink)))
            across, down = image.width / full[0], image.height / full[1]
            box = Box(box.left * across, box.top * down, box.right * across, box.bottom * down)
        plain = image.convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(plain.resize((width, height), Image.Resampling.BILINEAR, box=box))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_part(path: Path, choose: Choose, shape: tuple[int, int, int], decoder: Decoder) -> NDArray[np.uint8]:
    """The same from a decoder that gives whole images."""
    channels, height, width = shape
    try:
        image = decoder(path)
    except (RuntimeError, ValueError, OSError) as fault:
        said = " ".join(str(fault).split()) or type(fault).__name__
        raise UserError(f"{path} cannot be read as an image ({said}): {_ADVICE}") from fault
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, channels):
        raise UserError(
            f"the decoder gave {image.dtype} of shape {tuple(image.shape)} for {path}: it must give torch.uint8 of "
            f"shape ({channels}, height, width)"
        )
    box = choose(image.shape[1], image.shape[2])
    left, top, right, bottom = math.floor(box.left), math.floor(box.top), math.ceil(box.right), math.ceil(box.bottom)
    part = image[None, :, top:bottom, left:right]
    scaled = F.interpolate(part, (height, width), mode="bilinear", antialias=True)[0].expand(shape)
    pixels: NDArray[np.uint8] = scaled.numpy()
    return pixels


def torchvision_decoder() -> Decoder:
    """torchvision's decoder (the `torchvision` extra)."""
    try:
        importlib.import_module("torchvision.io")
    except ImportError as fault:
        raise UserError(
            "the torchvision decoder was asked for, but torchvision is not installed: pip install "
            "'pathgrow[torchvision]', or use the decoder pillow"
        ) from fault
    except RuntimeError as fault:  # beside another build of torch
        raise UserError(
            f"torchvision is installed but cannot be imported ({fault}): install the one that belongs to torch "
            f"{torch.__version__}, or use the decoder pillow"
        ) from fault
    return _decode_by_torchvision


def _decode_by_torchvision(path: Path) -> Tensor:
    io = importlib.import_module("torchvision.io")  # not handed over: worker processes get functions by their names
    image: Tensor = io.decode_image(io.read_file(str(path)), mode=io.ImageReadMode.RGB)
    return image
