"""Random resized crop: a box of the image, enlarged to the whole of it by linear interpolation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pathgrow.augment import boxes

AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)


def draw(batches: tuple[int, int], height: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """`crop_box` (..., 4); where ten tries do not fit, the largest centred box of an allowed aspect."""
    drawn, found = boxes.draw(
        batches, height, width, area=AREA, aspect=ASPECT, largest=(height, width), generator=generator
    )
    tall = min(height, round(width / ASPECT[0]))
    wide = min(width, round(height * ASPECT[1]))
    fallback = torch.tensor([(height - tall) // 2, (width - wide) // 2, tall, wide], dtype=torch.int32)
    return {"crop_box": torch.where(found[..., None], drawn, fallback)}


def crop(images: Tensor, box: Tensor, flip: Tensor | None) -> Tensor:
    """Bytes in, bytes out.

    Boxes are never larger than the image, so this only enlarges and needs no low-pass filter.
    """
    height, width = images.shape[2:]
    top, left, tall, wide = (number[:, None] for number in box.float().unbind(1))
    y = _sources(top, tall, height, images.device)
    x = _sources(left, wide, width, images.device)
    if flip is not None:
        x = torch.where(flip[:, None], x.flip(1), x)
    # grid_sample counts from -1 at the outer edge of the first pixel to 1 at that of the last.
    x, y = (2 * x + 1) / width - 1, (2 * y + 1) / height - 1
    grid = torch.stack([x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], 3)
    sampled = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return (sampled + 0.5).to(torch.uint8)


def _sources(start: Tensor, length: Tensor, size: int, device: torch.device) -> Tensor:
    """Where the centres of `size` new pixels lie on the old ones, (B, size).

    Kept within the box's own pixels: what was cropped away must not shine in at the border.
    """
    centres = (torch.arange(size, device=device) + 0.5) * (length / size) - 0.5
    return start + torch.minimum(centres.clamp(min=0), length - 1)
