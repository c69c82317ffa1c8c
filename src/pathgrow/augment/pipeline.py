"""The order of things: crop and flip, policy, normalise, erase, mix.

Pixels stay bytes until they are normalised: a quarter of the memory traffic, and the policy's operations are defined
on bytes. Which parts run is decided by the settings alone, never by a tensor, so one recipe is one static graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pathgrow.augment import erase, mix, policy, resized, shift
from pathgrow.augment.settings import Augment
from pathgrow.errors import UserError


def draw(
    augment: Augment,
    num_batches: int,
    batch_size: int,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Every random number that `apply` needs for `num_batches` batches, on the CPU.

    Row k of each tensor belongs to batch k. The numbers depend on the arguments alone, on all of them: asking for
    more batches changes the first ones too, so a resumed epoch draws the whole epoch again and takes its rows.

    Parameters
    ----------
    shape
        Channels, height and width of one image.
    classes
        Number of classes; nothing random depends on it, mixing needs at least one.
    generator
        A CPU generator, advanced by the call.
    """
    channels, height, width = shape
    if augment.policy != "none" and channels not in policy.CHANNELS:
        raise UserError(
            f"policy {augment.policy!r} is for grey or RGB images, got {channels} channels: use policy 'none'"
        )
    if augment.mixes and classes < 1:
        raise UserError(f"MixUp and CutMix need the number of classes, got {classes}: give at least 1")
    if augment.crop_mirrored and augment.crop_padding >= min(height, width):
        raise UserError(
            f"a border of {augment.crop_padding} pixels cannot be mirrored from images of {height}x{width}: "
            "give a smaller crop_padding, or leave crop_mirrored out"
        )
    batches = (num_batches, batch_size)
    drawn = shift.draw(batches, augment.crop_padding, augment.flip, generator)
    if augment.resized_crop:
        drawn |= resized.draw(batches, height, width, generator)
    if augment.policy != "none":
        drawn |= policy.draw(batches, augment.policy, height, width, generator)
    if augment.erase:
        drawn |= erase.draw(batches, augment.erase, height, width, generator)
    if augment.mixes:
        drawn |= mix.draw(num_batches, augment, height, width, generator)
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
    """One batch, augmented and normalised, with its targets.

    Pure, of static shape, without a copy to or from the device: fit for `torch.compile(fullgraph=True)` and for a
    captured CUDA graph.

    Parameters
    ----------
    images
        Bytes (B, C, H, W).
    drawn
        This batch's rows of `draw`, on the same device.
    mean, std
        Per channel, in units of bytes.
    dtype
        Of the images returned; the arithmetic is float32 whatever it is.

    Returns
    -------
    Images (B, C, H, W), and the labels themselves where nothing mixes, else float32 shares (B, classes).
    """
    assert images.dtype == torch.uint8
    if augment.resized_crop:
        images = resized.crop(images, drawn["crop_box"], drawn.get("flip"))
    else:
        images = shift.crop(
            images, augment.crop_padding, drawn.get("shift"), drawn.get("flip"), mirrored=augment.crop_mirrored
        )
    if augment.policy != "none":
        images = policy.apply(images, drawn["policy_warp"], drawn["policy_op"], drawn["policy_level"])
    pixels = (images.float() - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    if augment.erase:
        pixels = erase.blank(pixels, drawn["erase_box"])
    if not augment.mixes:
        return pixels.to(dtype), labels
    pixels = mix.images(pixels, drawn.get("mix_weight"), drawn.get("mix_box"))
    return pixels.to(dtype), mix.targets(labels, drawn["mix_share"], classes)
