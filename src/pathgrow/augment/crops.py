"""Random crops and flips, and the random boxes that crops, erasing and CutMix share.

A box is four int32: top, left, height, width; an empty box has area 0.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_NUM_TRIES = 10
"""Boxes drawn per sample before giving up, as in torchvision and timm."""
_CROP_AREA = (0.08, 1.0)
_CROP_ASPECT = (3 / 4, 4 / 3)


def draw_boxes(
    batches: tuple[int, ...],
    height: int,
    width: int,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
    largest: tuple[int, int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draw boxes (..., 4) with a uniform share of the area, a log-uniform aspect ratio and a uniform position.

    Each is the first of ten tries that is not larger than `largest`; the second result says whether there was one.
    Larger boxes are discarded, not shrunk, which makes extreme shapes rarer.
    """
    boxes = torch.zeros(*batches, 4, dtype=torch.float64)
    found = torch.zeros(batches, dtype=torch.bool)
    for _ in range(_NUM_TRIES):  # one try at a time bounds the memory: an epoch of a million images is drawn at once
        uniform = torch.rand(4, *batches, generator=generator, dtype=torch.float64)
        side = ((area[0] + (area[1] - area[0]) * uniform[0]) * height * width).sqrt()
        slant = (aspect[0] * (aspect[1] / aspect[0]) ** uniform[1]).sqrt()
        tall, wide = (side * slant).round(), (side / slant).round()
        fits = (tall > 0) & (tall <= largest[0]) & (wide > 0) & (wide <= largest[1])
        top, left = (uniform[2] * (height - tall + 1)).floor(), (uniform[3] * (width - wide + 1)).floor()
        boxes = torch.where((fits & ~found)[..., None], torch.stack([top, left, tall, wide], -1), boxes)
        found |= fits
    return boxes.to(torch.int32), found


def inside_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Return which pixels are in the boxes (B, 4): bool (B, 1, height, width).

    >>> inside_boxes(torch.tensor([[0, 1, 1, 2]]), 2, 3).int().tolist()
    [[[[0, 1, 1], [0, 0, 0]]]]
    """
    top, left, tall, wide = (number[:, None] for number in boxes.unbind(1))
    y, x = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    rows, columns = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


# Pad, crop and flip.


def draw_padded_crop(
    batches: tuple[int, int], padding: int, flip: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw `shift`, the top left corner of the window in the padded image, and `flip`."""
    drawn: dict[str, Tensor] = {}
    if padding:
        drawn["shift"] = torch.randint(2 * padding + 1, (*batches, 2), generator=generator)
    if flip:
        drawn["flip"] = torch.randint(2, batches, generator=generator).bool()
    return drawn


def padded_crop(
    images: Tensor, padding: int, shift: Tensor | None, flip: Tensor | None, *, mirrored: bool = False
) -> Tensor:
    """Cut a window from every padded image and flip it, in one gather.

    Padding is black, or the image reflected at its edge without repeating the outermost pixels.
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
            rows, columns = _reflected(rows - padding, height), _reflected(columns - padding, width)
        else:
            # On the CPU this copy is cheaper than clamping and masking every pixel; inductor never materializes it.
            images = F.pad(images, (padding, padding, padding, padding))
    pixels = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = pixels.view(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view(batch, channels, height, width)


def _reflected(place: Tensor, size: int) -> Tensor:
    """Reflect positions outside of the image at its first or last pixel."""
    last = size - 1
    return last - (last - place.abs()).abs()


# Random resized crop.


def draw_resized_crop(
    batches: tuple[int, int], height: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw `crop_box` (..., 4); if no try fits, it is the largest central box with an allowed aspect ratio."""
    boxes, found = draw_boxes(
        batches, height, width, area=_CROP_AREA, aspect=_CROP_ASPECT, largest=(height, width), generator=generator
    )
    tall = min(height, round(width / _CROP_ASPECT[0]))
    wide = min(width, round(height * _CROP_ASPECT[1]))
    fallback = torch.tensor([(height - tall) // 2, (width - wide) // 2, tall, wide], dtype=torch.int32)
    return {"crop_box": torch.where(found[..., None], boxes, fallback)}


def resized_crop(images: Tensor, box: Tensor, flip: Tensor | None) -> Tensor:
    """Resize a box of every image (bytes) to the size of the image by bilinear interpolation.

    Boxes are never larger than the image, so no antialiasing is needed.
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
    """Return the source coordinates of the centers of `size` new pixels, (B, size).

    They are clamped to the pixels of the box, so the surroundings do not bleed in at its border.
    """
    centers = (torch.arange(size, device=device) + 0.5) * (length / size) - 0.5
    return start + torch.minimum(centers.clamp(min=0), length - 1)
