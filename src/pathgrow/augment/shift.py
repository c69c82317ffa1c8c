"""Pad, crop and flip: one gather whose indices are computed, for all samples at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def draw(batches: tuple[int, int], padding: int, flip: bool, generator: torch.Generator) -> dict[str, Tensor]:
    """`shift`: top and left of the window in the padded image; `flip`: who is mirrored."""
    drawn: dict[str, Tensor] = {}
    if padding:
        drawn["shift"] = torch.randint(2 * padding + 1, (*batches, 2), generator=generator)
    if flip:
        drawn["flip"] = torch.randint(2, batches, generator=generator).bool()
    return drawn


def crop(images: Tensor, padding: int, shift: Tensor | None, flip: Tensor | None, *, mirrored: bool = False) -> Tensor:
    """The window of every padded image, then flipped; where it hangs over the edge black (byte 0), or a mirror image.

    The mirror stands on the outermost pixels, which are not repeated.
    """
    if shift is None and flip is None:
        return images
    batch, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(batch, height)
    columns = torch.arange(width, device=images.device).expand(batch, width)
    if flip is not None:
        columns = torch.where(flip[:, None], width - 1 - columns, columns)
    if shift is not None:
        rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
        if mirrored:
            rows, columns = _inside(rows - padding, height), _inside(columns - padding, width)
        else:
            # On the CPU this copy is cheaper than clamping and masking every pixel; inductor never materialises it.
            images = F.pad(images, (padding, padding, padding, padding))
    pixels = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = pixels.view(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view(batch, channels, height, width)


def _inside(place: Tensor, size: int) -> Tensor:
    """Places up to one size outside, mirrored at the first or the last pixel."""
    last = size - 1
    return last - (last - place.abs()).abs()
