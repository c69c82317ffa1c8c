"""MixUp and CutMix: every image meets its partner, the one at the mirrored place in the batch.

One weight, one box and one choice per batch. A batch that is not mixed has weight 1 and an empty box: the same graph.
"""

from __future__ import annotations

import torch
from scipy.special import betaincinv
from torch import Tensor

from pathgrow.augment import boxes
from pathgrow.augment.settings import Augment


def draw(num_batches: int, augment: Augment, height: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """`mix_weight` of MixUp and `mix_box` of CutMix where they are on; `mix_share`: what is left of the own label."""
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
        # The box may hang over the edge: what counts is the area that was really pasted.
        share = torch.where(cut, 1 - box[:, 2] * box[:, 3] / (height * width), share)
        drawn["mix_box"] = box.to(torch.int32)
    return drawn | {"mix_share": share.float()}


def images(pixels: Tensor, weight: Tensor | None, box: Tensor | None) -> Tensor:
    """`weight` of the image and the rest of its partner; the partner's pixels inside `box`."""
    mixed, partner = pixels, pixels.flip(0)
    if weight is not None:
        mixed = weight * mixed + (1 - weight) * partner
    if box is not None:
        mixed = torch.where(boxes.inside(box[None], pixels.shape[2], pixels.shape[3]), partner, mixed)
    return mixed


def targets(labels: Tensor, share: Tensor, classes: int) -> Tensor:
    """Class shares (B, classes): `share` of the own label, the rest of the partner's."""
    # Not F.one_hot: on the CPU it looks at the labels, which would break the graph.
    own = (labels[:, None] == torch.arange(classes, device=labels.device)).float()
    return share * own + (1 - share) * own.flip(0)


def _beta(alpha: float, uniform: Tensor) -> Tensor:
    """Beta(alpha, alpha) by inverting its distribution: the exact law from one uniform number, no second generator."""
    return torch.as_tensor(betaincinv(alpha, alpha, uniform.numpy()), dtype=torch.float64)


def _cut_boxes(kept: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Boxes (N, 4) of the image's aspect and `1 - kept` of its area, centred on any pixel and cut at the edges."""
    ends = []
    for size, where in ((height, place[0]), (width, place[1])):
        half = ((1 - kept).sqrt() * size).floor().div(2).floor()
        centre = (where * size).floor()
        start, end = (centre - half).clamp(min=0), (centre + half).clamp(max=size)
        ends.append((start, end - start))
    (top, tall), (left, wide) = ends
    return torch.stack([top, left, tall, wide], 1)
