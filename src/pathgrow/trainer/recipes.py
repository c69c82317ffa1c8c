"""Training recipes: optimizer, schedule, augmentation. They say what is trained, not on which device or how fast."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pathgrow import config
from pathgrow.augment import Augment
from pathgrow.config import MAX_EPOCHS, option
from pathgrow.errors import UserError
from pathgrow.registry import lookup

UNAUGMENTED = Augment()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained. The learning-rate schedule is stretched over each training, whatever its length.

    >>> recipe = Recipe(schedule="step", warmup=0.0)
    >>> [round(recipe.lr_factor(step, 8), 3) for step in range(8)]
    [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """

    epochs: int = option(160, "Epochs of a dense training.", at_least=1, limit=MAX_EPOCHS, is_flag=False)
    optimizer: Literal["sgd", "adamw"] = option("sgd", "Optimizer.", is_flag=False)
    lr: float = option(0.1, "Learning rate (default: the recipe's).", above=0, limit=1000, example="0.1", metavar="LR")
    momentum: float = option(
        0.9, "Nesterov momentum of SGD, or the first beta of AdamW.", at_least=0, below=1, example="0.9", is_flag=False
    )
    second_beta: float = option(0.999, "Second beta of AdamW.", at_least=0, below=1, example="0.999", is_flag=False)
    weight_decay: float = option(
        5e-4, "Weight decay (default: the recipe's).", at_least=0, limit=1000, example="5e-4", metavar="WD"
    )
    decay_all: bool = option(True, "Whether biases, norms and tokens decay as well.", is_flag=False)
    """Common with SGD, uncommon with AdamW."""
    schedule: Literal["cosine", "step", "constant"] = option("cosine", "Learning-rate schedule.", is_flag=False)
    """Half a cosine from `lr` to `floor * lr`, steps at `milestones`, or constant."""
    milestones: tuple[float, ...] = option(
        (0.5, 0.75), "Fractions of the training at which a step schedule decays.", above=0, below=1, is_flag=False
    )
    factor: float = option(
        0.1, "Factor of each decay of a step schedule.", above=0, at_most=1, example="0.1", is_flag=False
    )
    floor: float = option(
        0.0, "Final learning rate of the cosine, as a fraction.", at_least=0, below=1, example="0.0", is_flag=False
    )
    warmup: float = option(
        0.05, "Fraction of the training with linear warmup.", at_least=0, below=1, example="0.05", is_flag=False
    )
    """Less than one step means no warmup."""
    batch_size: int = option(
        128, "Batch size (default: the recipe's).", at_least=1, limit=2**20, example="128", metavar="N"
    )
    accumulate: int = option(
        1,
        "Microbatches over which the gradients of a batch are accumulated, to save memory.",
        at_least=1,
        is_flag=False,
    )
    clip_norm: float | None = option(
        None, "Maximum norm of the gradient of the active weights.", above=0, example="1.0", is_flag=False
    )
    density_scaling: Literal["none", "supar"] = option(
        "none",
        "Whether learning rate and initialization depend on density; supar: both grow as it falls (AdamW only).",
    )
    """With "supar", each prunable weight tensor has the learning rate divided by its density at the start of a
    training, and initial weights of a sparse network keep the variance of pre-activations."""
    label_smoothing: float = option(0.0, "Label smoothing.", at_least=0, below=1, example="0.0", is_flag=False)
    augment: Augment = UNAUGMENTED

    def __post_init__(self) -> None:
        config.check(self)
        if list(self.milestones) != sorted(set(self.milestones)):
            raise UserError(f"milestones must be increasing, got {self.milestones} (e.g. (0.5, 0.75))")
        if self.density_scaling == "supar" and self.optimizer != "adamw":
            raise UserError(f"density_scaling='supar' is a rule for AdamW, got optimizer={self.optimizer!r}")
        if self.batch_size % self.accumulate:
            raise UserError(f"accumulate must divide batch_size {self.batch_size}, got {self.accumulate}")

    def lr_factor(self, step: int, num_steps: int) -> float:
        """Return the factor of the learning rate at one of `num_steps` steps."""
        num_warmup = int(self.warmup * num_steps)
        if step < num_warmup:
            return (step + 1) / (num_warmup + 1)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":
            return self.factor ** sum(step >= round(milestone * num_steps) for milestone in self.milestones)
        done = (step - num_warmup) / max(1, num_steps - num_warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))

    def override(self, values: Mapping[str, Any]) -> Self:
        """Return this recipe with some values replaced, as a config holds them; unknown names are refused."""
        return config.override(self, values, where="recipe")


_CIFAR = Augment(crop_padding=4, flip=True)
# Lee et al. 2021. Their 100 "epochs" pass the data three times each; here an epoch is one pass.
_LEE_VIT = Recipe(
    epochs=300,
    optimizer="adamw",
    lr=1e-3,
    weight_decay=0.05,
    decay_all=False,
    floor=1e-3,
    warmup=0.1,
    label_smoothing=0.1,
    augment=Augment(
        crop_padding=4, flip=True, policy="autoaugment-imagenet", erase=0.25, mixup=1.0, cutmix=1.0, mix_probability=0.5
    ),
)

RECIPES: dict[str, Recipe] = {
    "digits": Recipe(epochs=80, lr=0.05, weight_decay=1e-3, batch_size=32),
    # A cosine with the length of the lottery-ticket recipe: it anneals trainings of any length alike.
    "cifar": Recipe(epochs=160, augment=_CIFAR),
    # Lottery tickets, PHEW, GraSP: divided by ten at half and at three quarters.
    "cifar-step": Recipe(epochs=160, schedule="step", warmup=0.0, weight_decay=1e-4, augment=_CIFAR),
    # He et al. 2016: 64,000 steps at batch size 128, decayed at 32,000 and 48,000.
    "cifar-he": Recipe(epochs=182, schedule="step", warmup=0.0, weight_decay=1e-4, augment=_CIFAR),
    # RigL's wide ResNets: 97,656 steps, divided by five every 30,000.
    "wrn-rigl": Recipe(
        epochs=250,
        schedule="step",
        milestones=(30_000 / 97_656, 60_000 / 97_656, 90_000 / 97_656),
        factor=0.2,
        warmup=0.0,
        augment=_CIFAR,
    ),
    # Tiny ImageNet, ResNet-18 with a 3x3 stem (the open lottery-ticket fork of "sparse double descent").
    "tiny-resnet": Recipe(
        epochs=200, lr=0.2, batch_size=256, weight_decay=1e-4, schedule="step", warmup=0.025, augment=_CIFAR
    ),
    # OpenMixup: a long cosine with resized crops.
    "tiny-resnet-long": Recipe(
        epochs=400, lr=0.2, batch_size=100, weight_decay=1e-4, warmup=0.0, augment=Augment(resized_crop=True, flip=True)
    ),
    "tiny-vit": _LEE_VIT,
    "cifar-vit": dataclasses.replace(
        _LEE_VIT, augment=dataclasses.replace(_LEE_VIT.augment, policy="autoaugment-cifar")
    ),
    # RigL's ResNet-50: learning rate 0.1 per 256 images.
    "imagenet": Recipe(
        epochs=100,
        lr=1.6,
        batch_size=4096,
        weight_decay=1e-4,
        schedule="step",
        milestones=(0.3, 0.7, 0.9),
        warmup=0.05,
        label_smoothing=0.1,
        augment=Augment(flip=True),  # resized crops are part of decoding
    ),
    # nanoGPT's settings for Tiny Shakespeare: 5,000 steps of 64 windows, here 4,880.
    "gpt": Recipe(
        epochs=80,
        optimizer="adamw",
        lr=1e-3,
        second_beta=0.99,
        weight_decay=0.1,
        decay_all=False,
        floor=0.1,
        warmup=0.02,
        batch_size=64,
        clip_norm=1.0,
    ),
}

_DEFAULTS = {
    "text": "gpt",
    "digits": "digits",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "tiny-imagenet": "tiny-resnet",
    "imagenet": "imagenet",
}
_DEFAULTS_VIT = {"cifar10": "cifar-vit", "cifar100": "cifar-vit", "tiny-imagenet": "tiny-vit"}
_TRANSFORMERS = ("vit", "deit", "pit", "cait", "beit", "xcit", "eva")
"""Prefixes of the names of transformers, ours and timm's; hybrids with convolutions use recipes of ConvNets."""


def names() -> list[str]:
    """Return the names of all recipes."""
    return list(RECIPES)


def recipe(name: str) -> Recipe:
    """Return a recipe by name.

    >>> recipe("cifar").batch_size
    128
    """
    return lookup("recipe", name, RECIPES)


def default_name(data: str, model: str = "") -> str:
    """Return the name of the default recipe for a dataset and a model."""
    if model.removeprefix("timm:").startswith(_TRANSFORMERS) and data in _DEFAULTS_VIT:
        return _DEFAULTS_VIT[data]
    return _DEFAULTS.get(data, "cifar")


def check_batch_split(batch_size: int, accumulate: int, num_ranks: int) -> None:
    """Require that all ranks compute the same number of rows, so that the mean of their means is the batch mean.

    >>> check_batch_split(128, 2, 4)
    >>> check_batch_split(100, 1, 8)
    Traceback (most recent call last):
    pathgrow.errors.UserError: batch_size must be a multiple of 8, got 100 (split over 8 processes)
    """
    if batch_size % (num_ranks * accumulate):
        parts = f" and {accumulate} microbatches" if accumulate > 1 else ""
        raise UserError(
            f"batch_size must be a multiple of {num_ranks * accumulate}, got {batch_size} "
            f"(split over {num_ranks} processes{parts})"
        )
