"""The augmentation pipeline and its settings: crop and flip, policy, normalize, erase, mix.

Pixels stay bytes until they are normalized, which takes a quarter of the memory traffic, and the operations of a policy
are defined on bytes. Only the settings decide which steps run, so one recipe is one static graph.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pathgrow.augment import Augment
from pathgrow.augment.autoaugment import apply_policy, draw_policy
from pathgrow.augment.crops import draw_padded_crop, draw_resized_crop, padded_crop, resized_crop
from pathgrow.augment.mix import draw_erasing, draw_mixing, erase_boxes, mix_images, mix_targets
from pathgrow.errors import UserError


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
