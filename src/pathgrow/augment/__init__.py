"""Augmentation of whole batches, on any device.

Randomness and computation are separate: `draw` draws all random numbers of many batches on the CPU, and `apply` is a
pure function of images and these numbers. The same numbers therefore give the same images on every device, in eager
mode, compiled and in a CUDA graph, without synchronizing with the device.

>>> import torch
>>> from pathgrow import augment
>>> from pathgrow.rng import generator
>>> recipe = augment.Augment(crop_padding=4, flip=True)
>>> drawn = augment.draw(recipe, 2, 8, (3, 32, 32), generator(0, "augment"))
>>> images, labels = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
>>> first = {name: numbers[0] for name, numbers in drawn.items()}
>>> images, targets = augment.apply(recipe, images, labels, first, mean=torch.ones(3), std=torch.ones(3), classes=10)
>>> images.shape, images.dtype, targets is labels
(torch.Size([8, 3, 32, 32]), torch.float32, True)
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from pathgrow.config import check, option
from pathgrow.errors import UserError
from pathgrow.registry import lazy_attributes

if TYPE_CHECKING:
    from pathgrow.augment.pipeline import apply, draw

__all__ = ["Augment", "apply", "draw"]

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


__getattr__ = lazy_attributes(__name__, {"apply": "pipeline", "draw": "pipeline"})
