"""What may be chosen about augmentation: a value that fits into a JSON file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pathgrow.augment.policy.tables import POLICIES
from pathgrow.errors import UserError, is_number, unknown_name

Policy = Literal["none", "autoaugment-imagenet", "autoaugment-cifar"]


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The augmentation of a training set; everything is off unless asked for.

    >>> Augment(crop_padding=4, flip=True).mixes
    False
    """

    crop_padding: int = 0
    """Pad by this many black pixels on every side, then cut the old size at a random place; 0: off."""
    crop_mirrored: bool = False
    """Pad by the image as a mirror at its edge would show it, instead of by black."""
    flip: bool = False
    """Mirror left and right with probability 1/2."""
    resized_crop: bool = False
    """A random box of 8-100% of the area and aspect 3/4-4/3, enlarged to the whole image."""
    policy: Policy = "none"
    """An AutoAugment policy: one of 25 pairs of operations per image."""
    erase: float = 0.0
    """Probability that a box of 2-33% of an image is set to the mean colour."""
    mixup: float = 0.0
    """Both parameters of the Beta law of MixUp's weight; 0: off."""
    cutmix: float = 0.0
    """The same for the share of the image that CutMix leaves in place; 0: off."""
    mix_probability: float = 0.5
    """Probability that a batch is mixed at all; shared evenly where MixUp and CutMix are both on."""

    def __post_init__(self) -> None:
        if type(self.crop_padding) is not int or self.crop_padding < 0:
            raise UserError(f"crop_padding={self.crop_padding!r} is not a whole number of pixels: give 0, 1, 2, ...")
        for name in ("crop_mirrored", "flip", "resized_crop"):
            if type(getattr(self, name)) is not bool:
                raise UserError(f"{name}={getattr(self, name)!r} is neither true nor false: give one of them")
        if self.policy != "none" and self.policy not in POLICIES:
            raise unknown_name("augmentation policy", str(self.policy), ("none", *POLICIES))
        for name in ("erase", "mix_probability"):
            if not (is_number(getattr(self, name)) and 0 <= getattr(self, name) <= 1):
                raise UserError(f"{name}={getattr(self, name)!r} is not a probability: give a number from 0 to 1")
        for name in ("mixup", "cutmix"):
            if not (is_number(getattr(self, name)) and getattr(self, name) >= 0):
                raise UserError(
                    f"{name}={getattr(self, name)!r} is no Beta parameter: give a number above 0, or 0 for off"
                )
        if self.crop_mirrored and not self.crop_padding:
            raise UserError("crop_mirrored is on and there is no border to mirror into: give crop_padding too")
        if self.crop_padding and self.resized_crop:
            raise UserError(
                "crop_padding and resized_crop are both on, and an image is cropped once: choose one of them"
            )

    @property
    def mixes(self) -> bool:
        """Whether targets are soft: rows of class shares instead of labels."""
        return self.mixup > 0 or self.cutmix > 0
