"""Random erasing: one box of an image becomes the mean colour.

The law of boxes is timm's. Its other fill, fresh noise in every pixel, is not offered: it would need as many random
numbers as the batch has pixels, drawn on the CPU and copied, or a random generator inside the captured graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathgrow.augment import boxes

AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)


def draw(
    batches: tuple[int, int], probability: float, height: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """`erase_box` (..., 4), without area for those who are spared."""
    drawn, found = boxes.draw(
        batches, height, width, area=AREA, aspect=ASPECT, largest=(height - 1, width - 1), generator=generator
    )
    chosen = torch.rand(batches, generator=generator, dtype=torch.float64) < probability
    return {"erase_box": drawn * (found & chosen)[..., None]}


def blank(pixels: Tensor, box: Tensor) -> Tensor:
    """Zero in the boxes, which is the mean colour once pixels are normalised."""
    return pixels.masked_fill(boxes.inside(box, pixels.shape[2], pixels.shape[3]), 0.0)
