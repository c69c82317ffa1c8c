"""The augmentation pipeline and its settings: crop and flip, policy, normalize, erase, mix.

Pixels stay bytes until they are normalized, which takes a quarter of the memory traffic, and the operations of a policy
are defined on bytes. Only the settings decide which steps run, so one recipe is one static graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pathgrow.augment.autoaugment import apply_policy, draw_policy
from pathgrow.augment.crops import draw_padded_crop, draw_resized_crop, padded_crop, resized_crop
from pathgrow.augment.mix import draw_erasing, draw_mixing, erase_boxes, mix_images, mix_targets
from pathgrow.config import check, option
from pathgrow.errors import UserError

_setting = partial(option, is_flag=False)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The augmentation of a training set; everything is off by default.

    >>> Augment(crop_padding=4, flip=True).mixes
    False
    """

    crop_padding: int = _setting(0, "Pad each side by this many pixels and crop to the original size.", at_least=0)
    crop_mirrored: bool = _setting(False, "Pad by reflecting the image instead of with black.")
    flip: bool = _setting(False, "Flip horizontally with probability 1/2.")
    resized_crop: bool = _setting(False, "Resize a random box (8-100% of the area, aspect 3/4-4/3) to the image size.")
    policy: Literal["none", "autoaugment-imagenet", "autoaugment-cifar"] = _setting("none", "AutoAugment policy.")
    erase: float = _setting(0.0, "Probability of erasing a box of 2-33% of the image.", at_least=0, at_most=1)
    mixup: float = _setting(0.0, "Both parameters of the Beta distribution of MixUp's weight; 0 is off.", at_least=0)
    cutmix: float = _setting(
        0.0, "Both parameters of the Beta distribution of the area that CutMix keeps; 0 is off.", at_least=0
    )
    mix_probability: float = _setting(
        0.5, "Probability of mixing a batch, split evenly if MixUp and CutMix are both on.", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        check(self)
        if self.crop_mirrored and not self.crop_padding:
            raise UserError("crop_mirrored requires crop_padding >= 1, got 0")
        if self.crop_padding and self.resized_crop:
            raise UserError("crop_padding and resized_crop are mutually exclusive")

    @property
    def mixes(self) -> bool:
        """Whether targets are soft: class probabilities instead of labels."""
        return self.mixup > 0 or self.cutmix > 0


def draw(
    augment: Augment,
    num_batches: int,
    batch_size: int,
    shape: tuple[int, ...],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Draw all random numbers that `apply` needs for `num_batches` batches, on the CPU.

    Row k of each tensor belongs to batch k. The numbers depend on all arguments: with more batches, the first ones
    differ too, so a resumed epoch draws the whole epoch again and uses its rows.

    Parameters
    ----------
    shape
        Channels, height and width of one image.
    generator
        A CPU generator, which is advanced.
    """
    channels, height, width = shape
    if augment.policy != "none" and channels not in (1, 3):
        raise UserError(f"policy {augment.policy!r} requires gray or RGB images, got {channels} channels")
    if augment.crop_mirrored and augment.crop_padding >= min(height, width):
        raise UserError(
            f"crop_padding must be < {min(height, width)} to mirror images of {height}x{width}, "
            f"got {augment.crop_padding}"
        )
    batches = (num_batches, batch_size)
    drawn: dict[str, Tensor] = {}
    if augment.crop_padding or augment.flip:
        drawn = draw_padded_crop(batches, augment.crop_padding, augment.flip, generator)
    if augment.resized_crop:
        drawn |= draw_resized_crop(batches, height, width, generator)
    if augment.policy != "none":
        drawn |= draw_policy(batches, augment.policy, height, width, generator)
    if augment.erase:
        drawn |= draw_erasing(batches, augment.erase, height, width, generator)
    if augment.mixes:
        drawn |= draw_mixing(num_batches, augment, height, width, generator)
    return drawn


def apply(
    augment: Augment,
    images: Tensor,
    labels: Tensor,
    drawn: Mapping[str, Tensor],
    *,
    mean: Tensor,
    std: Tensor,
    classes: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Augment and normalize one batch.

    A pure function with static shapes and without copies to or from the device, so it works in
    `torch.compile(fullgraph=True)` and in a CUDA graph.

    Parameters
    ----------
    images
        Bytes (B, C, H, W).
    drawn
        The rows of this batch from `draw`, on the same device.
    mean, std
        Mean and standard deviation per channel, in units of bytes.
    dtype
        Data type of the returned images; all computations are in float32.

    Returns
    -------
    Images (B, C, H, W), and the labels, or float32 class probabilities (B, classes) if the batch is mixed.
    """
    assert images.dtype == torch.uint8
    if augment.resized_crop:
        images = resized_crop(images, drawn["crop_box"], drawn.get("flip"))
    elif augment.crop_padding or augment.flip:
        images = padded_crop(
            images, augment.crop_padding, drawn.get("shift"), drawn.get("flip"), mirrored=augment.crop_mirrored
        )
    if augment.policy != "none":
        images = apply_policy(images, drawn["policy_warp"], drawn["policy_op"], drawn["policy_level"])
    pixels = (images.float() - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    if augment.erase:
        pixels = erase_boxes(pixels, drawn["erase_box"])
    if not augment.mixes:
        return pixels.to(dtype), labels
    pixels = mix_images(pixels, drawn.get("mix_weight"), drawn.get("mix_box"))
    return pixels.to(dtype), mix_targets(labels, drawn["mix_share"], classes)
