"""Operations on normalized images: random erasing, MixUp and CutMix.

MixUp and CutMix combine every image with a partner, the one at the mirrored position in the batch. There is one weight
and one box per batch; a batch that is not mixed has weight 1 and an empty box, so the graph is the same.
"""

import torch
from scipy.special import betaincinv
from torch import Tensor

from pathgrow.augment import Augment
from pathgrow.augment.crops import draw_boxes, inside_boxes

_ERASE_AREA = (0.02, 1 / 3)
_ERASE_ASPECT = (0.3, 1 / 0.3)


def draw_erasing(
    batches: tuple[int, int], probability: float, height: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw `erase_box` (..., 4) with the distribution of timm; images that are not erased get an empty box."""
    boxes, found = draw_boxes(
        batches,
        height,
        width,
        area=_ERASE_AREA,
        aspect=_ERASE_ASPECT,
        largest=(height - 1, width - 1),
        generator=generator,
    )
    chosen = torch.rand(batches, generator=generator, dtype=torch.float64) < probability
    return {"erase_box": boxes * (found & chosen)[..., None]}


def erase_boxes(pixels: Tensor, box: Tensor) -> Tensor:
    """Set the boxes to zero, the mean color of normalized images.

    timm also offers noise as the fill; it would need as many random numbers as the batch has pixels.
    """
    return pixels.masked_fill(inside_boxes(box, pixels.shape[2], pixels.shape[3]), 0.0)


def draw_mixing(
    num_batches: int, augment: Augment, height: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw `mix_weight` of MixUp, `mix_box` of CutMix, and `mix_share`, the weight of an image's own label."""
    uniform = torch.rand(6, num_batches, generator=generator, dtype=torch.float64)
    mixed = uniform[0] < augment.mix_probability
    if augment.mixup and augment.cutmix:
        cut = mixed & (uniform[1] < 0.5)
    else:
        cut = mixed if augment.cutmix else torch.zeros_like(mixed)
    share = torch.ones(num_batches, dtype=torch.float64)
    drawn: dict[str, Tensor] = {}
    if augment.mixup:
        share = torch.where(mixed & ~cut, _beta(augment.mixup, uniform[2]), share)
        drawn["mix_weight"] = share.float()
    if augment.cutmix:
        box = _cut_boxes(_beta(augment.cutmix, uniform[3]), uniform[4:], height, width) * cut[:, None]
        # Boxes are clipped at the edges, so the share is that of the area actually pasted.
        share = torch.where(cut, 1 - box[:, 2] * box[:, 3] / (height * width), share)
        drawn["mix_box"] = box.to(torch.int32)
    return drawn | {"mix_share": share.float()}


def mix_images(pixels: Tensor, weight: Tensor | None, box: Tensor | None) -> Tensor:
    """Blend every image with its partner by `weight`, and paste the partner's pixels inside `box`."""
    mixed, partner = pixels, pixels.flip(0)
    if weight is not None:
        mixed = weight * mixed + (1 - weight) * partner
    if box is not None:
        mixed = torch.where(inside_boxes(box[None], pixels.shape[2], pixels.shape[3]), partner, mixed)
    return mixed


def mix_targets(labels: Tensor, share: Tensor, classes: int) -> Tensor:
    """Return class probabilities (B, classes): `share` for the own label, the rest for the partner's."""
    # Not F.one_hot, which reads the labels on the CPU and would break the graph.
    own = (labels[:, None] == torch.arange(classes, device=labels.device)).float()
    return share * own + (1 - share) * own.flip(0)


def _beta(alpha: float, uniform: Tensor) -> Tensor:
    """Sample Beta(alpha, alpha) exactly by inverting its CDF, without a second random generator."""
    return torch.as_tensor(betaincinv(alpha, alpha, uniform.numpy()), dtype=torch.float64)


def _cut_boxes(kept: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Return boxes (N, 4) with the image's aspect ratio and `1 - kept` of its area, centered on any pixel, clipped."""
    ends = []
    for size, where in ((height, place[0]), (width, place[1])):
        half = ((1 - kept).sqrt() * size).floor().div(2).floor()
        center = (where * size).floor()
        start, end = (center - half).clamp(min=0), (center + half).clamp(max=size)
        ends.append((start, end - start))
    (top, tall), (left, wide) = ends
    return torch.stack([top, left, tall, wide], 1)
