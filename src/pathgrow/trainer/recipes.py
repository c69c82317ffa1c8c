"""Training recipes: typed values, by name. What a network is trained with, but not how fast or on what."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from pathgrow.augment import Augment
from pathgrow.config import option
from pathgrow.errors import UserError, is_int, is_number, unknown_name

OptimizerName = Literal["sgd", "adamw"]
ScheduleName = Literal["cosine", "step", "constant"]


def _want(fine: bool, name: str, got: object, wanted: str, example: str) -> None:
    if not fine:
        raise UserError(f"{name} {got!r} was given in a recipe, {wanted} is wanted: give for example {example}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained. A schedule is stretched over a phase, however long it is.

    >>> recipe = Recipe(schedule="step", warmup=0.0)
    >>> [round(recipe.rate(step, 8), 3) for step in range(8)]
    [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """

    epochs: int = 160
    """The usual length of a dense training."""
    optimizer: OptimizerName = "sgd"
    lr: float = option(0.1, "Learning rate (default: the recipe's).", above=0, metavar="LR")
    momentum: float = 0.9
    """SGD's (with Nesterov's look-ahead), or the first beta of AdamW."""
    second_beta: float = 0.999
    """Of AdamW."""
    weight_decay: float = option(5e-4, "Weight decay (default: the recipe's).", at_least=0, metavar="WD")
    decay_all: bool = True
    """Whether biases, norms and tokens decay too; usual with SGD, not with AdamW."""
    schedule: ScheduleName = "cosine"
    """From `lr` down to `floor` of it along half a cosine, in steps at `milestones`, or not at all."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Shares of the phase after which the steps of a step schedule come,"""
    factor: float = 0.1
    """and what each of them multiplies the learning rate by."""
    floor: float = 0.0
    warmup: float = 0.05
    """Share of a phase over which the learning rate rises; less than one step means none."""
    batch_size: int = option(128, "Batch size (default: the recipe's).", at_least=1, metavar="N")
    accumulate: int = 1
    """Parts that a batch is computed in, one after the other, to save memory."""
    clip_norm: float | None = None
    """Largest norm of the gradient over the weights that are on."""
    label_smoothing: float = 0.0
    augment: Augment = dataclasses.field(default_factory=Augment)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            value = getattr(self, name)
            _want(is_int(value) and value >= 1, name, value, "a whole number from 1 up", "1")
        for name, allowed in (("optimizer", OptimizerName), ("schedule", ScheduleName)):
            if getattr(self, name) not in get_args(allowed):
                raise unknown_name(name, str(getattr(self, name)), get_args(allowed))
        _want(is_number(self.lr) and self.lr > 0, "lr", self.lr, "a number above 0", "0.1")
        for name in ("momentum", "second_beta", "warmup", "label_smoothing", "floor"):
            value, usual = getattr(self, name), getattr(Recipe, name)
            _want(is_number(value) and 0 <= value < 1, name, value, "a number in [0, 1)", str(usual))
        _want(is_number(self.factor) and 0 < self.factor <= 1, "factor", self.factor, "a number in (0, 1]", "0.1")
        decay, clip, marks = self.weight_decay, self.clip_norm, self.milestones
        _want(is_number(decay) and decay >= 0, "weight_decay", decay, "a number from 0 up", "5e-4")
        _want(clip is None or (is_number(clip) and clip > 0), "clip_norm", clip, "a number above 0", "1.0")
        listed: object = marks
        rising = isinstance(listed, tuple) and all(is_number(mark) and 0 < mark < 1 for mark in marks)
        _want(
            rising and list(marks) == sorted(set(marks)), "milestones", marks, "rising shares in (0, 1)", "(0.5, 0.75)"
        )
        mixed: object = self.augment
        _want(isinstance(mixed, Augment), "augment", mixed, "an Augment", "Augment(flip=True)")
        _want(isinstance(self.decay_all, bool), "decay_all", self.decay_all, "true or false", "true")
        if self.batch_size % self.accumulate:
            raise UserError(
                f"batch_size {self.batch_size} cannot be cut into {self.accumulate} equal parts: "
                "choose an `accumulate` that divides it"
            )

    def rate(self, step: int, num_steps: int) -> float:
        """Share of the learning rate at one of `num_steps` steps."""
        num_warmup = int(self.warmup * num_steps)
        if step < num_warmup:
            return (step + 1) / (num_warmup + 1)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":
            return self.factor ** sum(step >= round(mark * num_steps) for mark in self.milestones)
        done = (step - num_warmup) / max(1, num_steps - num_warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))

    def override(self, values: Mapping[str, Any]) -> Recipe:
        """This recipe with other values, as a config gives them; an unknown name is refused."""
        known = {field.name for field in dataclasses.fields(self)}
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise unknown_name("recipe key", name, known)
            given[name] = self._as_wanted(name, value)
        return dataclasses.replace(self, **given)

    def _as_wanted(self, name: str, value: Any) -> Any:
        if name == "augment" and not isinstance(value, Augment):
            if not isinstance(value, Mapping):
                raise UserError(f"augment {value!r} was given in a recipe, a table is wanted: as {{'flip': true}}")
            fields = {field.name for field in dataclasses.fields(Augment)}
            for key in value:
                if key not in fields:
                    raise unknown_name("augment key", str(key), fields)
            return dataclasses.replace(self.augment, **value)
        default = getattr(self, name)
        if name == "milestones":
            if not isinstance(value, list | tuple):
                raise UserError(f"milestones {value!r} was given in a recipe, a list is wanted: give for example [0.5]")
            return tuple(value)  # JSON gives lists back
        if isinstance(default, float) and is_int(value):
            return float(value)
        return value


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    """The recipe's optimizer over all parameters, fit to be captured where they lie on a GPU."""
    parameters = list(model.named_parameters())
    on_gpu = any(parameter.is_cuda for _, parameter in parameters)
    groups: list[dict[str, Any]] = [{"params": [p for _, p in parameters]}]
    if not recipe.decay_all:
        decaying = [p for _, p in parameters if p.dim() > 1 and p.shape[0] > 1]
        still = [p for _, p in parameters if not (p.dim() > 1 and p.shape[0] > 1)]
        groups = [{"params": decaying}, {"params": still, "weight_decay": 0.0}]
    if recipe.optimizer == "adamw":
        return AdamW(
            groups,
            lr=recipe.lr,
            betas=(recipe.momentum, recipe.second_beta),
            weight_decay=recipe.weight_decay,
            fused=on_gpu or None,
            capturable=on_gpu,
        )
    return SGD(
        groups,
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        fused=on_gpu or None,
    )


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
    # Half a cosine at the length of the lottery-ticket recipe: it anneals phases of any length alike.
    "cifar": Recipe(epochs=160, augment=_CIFAR),
    # Lottery tickets, PHEW, GraSP: ten times less at half and at three quarters.
    "cifar-step": Recipe(epochs=160, schedule="step", warmup=0.0, weight_decay=1e-4, augment=_CIFAR),
    # He et al. 2016: 64,000 steps of 128 images, less at 32,000 and 48,000.
    "cifar-he": Recipe(epochs=182, schedule="step", warmup=0.0, weight_decay=1e-4, augment=_CIFAR),
    # RigL's wide residual nets: 97,656 steps, five times less every 30,000.
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
    # RigL's ResNet-50: base rate 0.1 for every 256 images.
    "imagenet": Recipe(
        epochs=100,
        lr=1.6,
        batch_size=4096,
        weight_decay=1e-4,
        schedule="step",
        milestones=(0.3, 0.7, 0.9),
        warmup=0.05,
        label_smoothing=0.1,
        augment=Augment(flip=True),  # resized crops are made where images are decoded
    ),
}

_USUAL = {
    "digits": "digits",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "tiny-imagenet": "tiny-resnet",
    "imagenet": "imagenet",
}
_USUAL_VIT = {"cifar10": "cifar-vit", "cifar100": "cifar-vit", "tiny-imagenet": "tiny-vit"}
_TRANSFORMERS = ("vit", "deit", "pit", "cait", "beit", "xcit", "eva")
"""What names of transformers begin with, ours and timm's; nets with convolutions inside are trained as such."""


def names() -> list[str]:
    """Every recipe that `recipe` knows."""
    return list(RECIPES)


def recipe(name: str) -> Recipe:
    """A recipe by name.

    >>> recipe("cifar").batch_size
    128
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]


def default_name(data: str, model: str = "") -> str:
    """The name of the recipe that this data set and model are trained with unless another is asked for."""
    if model.removeprefix("timm:").startswith(_TRANSFORMERS) and data in _USUAL_VIT:
        return _USUAL_VIT[data]
    return _USUAL.get(data, "cifar")
