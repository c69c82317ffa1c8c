"""Random boxes inside an image: a uniform share of its area, a log-uniform aspect, a uniform place.

A box is four int32: top, left, height, width; one without area is no box.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_TRIES = 10
"""Boxes tried per sample before it goes without, as everywhere where this law is in use."""


def draw(
    batches: tuple[int, ...],
    height: int,
    width: int,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
    largest: tuple[int, int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Boxes (..., 4), each the first of ten tries that is not larger than `largest`, and whether there was one.

    A try that is too large is thrown away, not shrunk, which makes extreme shapes rarer.
    """
    boxes = torch.zeros(*batches, 4, dtype=torch.float64)
    found = torch.zeros(batches, dtype=torch.bool)
    for _ in range(NUM_TRIES):  # one after the other: an epoch of a million images is drawn in one go
        uniform = torch.rand(4, *batches, generator=generator, dtype=torch.float64)
        side = ((area[0] + (area[1] - area[0]) * uniform[0]) * height * width).sqrt()
        slant = (aspect[0] * (aspect[1] / aspect[0]) ** uniform[1]).sqrt()
        tall, wide = (side * slant).round(), (side / slant).round()
        fits = (tall > 0) & (tall <= largest[0]) & (wide > 0) & (wide <= largest[1])
        top, left = (uniform[2] * (height - tall + 1)).floor(), (uniform[3] * (width - wide + 1)).floor()
        boxes = torch.where((fits & ~found)[..., None], torch.stack([top, left, tall, wide], -1), boxes)
        found |= fits
    return boxes.to(torch.int32), found


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """Which pixels lie in the boxes (B, 4): bool (B, 1, height, width).

    >>> inside(torch.tensor([[0, 1, 1, 2]]), 2, 3).int().tolist()
    [[[[0, 1, 1], [0, 0, 0]]]]
    """
    top, left, tall, wide = (number[:, None] for number in boxes.unbind(1))
    y, x = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    rows, columns = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
    return (rows[:, :, None] & columns[:, None, :])[:, None]
