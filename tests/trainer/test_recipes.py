"""Recipes: learning-rate schedules, optimizers, and invalid values."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW

from pathgrow import data, models
from pathgrow.augment import Augment
from pathgrow.errors import UserError
from pathgrow.trainer import recipes
from pathgrow.trainer.recipes import Recipe, default_name, recipe
from pathgrow.trainer.trainer import make_optimizer

# Schedules


def test_a_cosine_warms_up_and_decays_to_zero() -> None:
    factors = [Recipe(warmup=0.1).lr_factor(step, 100) for step in range(100)]
    assert factors[:3] == pytest.approx([1 / 11, 2 / 11, 3 / 11])
    assert factors[10] == 1
    assert all(a > b for a, b in pairwise(factors[10:]))
    assert factors[55] == pytest.approx(0.5)
    assert 0 < factors[-1] < 1e-3
    assert Recipe(warmup=0.1).lr_factor(0, 5) == 1  # too short for a warmup


def test_a_cosine_stays_above_its_floor() -> None:
    factors = [Recipe(warmup=0.0, floor=0.2).lr_factor(step, 50) for step in range(50)]
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * step / 50)) / 2 for step in range(50)]
    assert factors == pytest.approx(expected)


def test_milestones_do_not_depend_on_the_warmup() -> None:
    factors = [Recipe(schedule="step", warmup=0.1, factor=0.2).lr_factor(step, 40) for step in range(40)]
    assert factors[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert factors[4:] == pytest.approx([1.0] * 16 + [0.2] * 10 + [0.04] * 10)


def test_a_constant_schedule_is_constant_after_the_warmup() -> None:
    factors = [Recipe(schedule="constant", warmup=0.5).lr_factor(step, 6) for step in range(6)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


@given(
    num_steps=st.integers(1, 400),
    schedule=st.sampled_from(["cosine", "step", "constant"]),
    warmup=st.floats(0, 0.9),
    floor=st.floats(0, 0.9),
)
def test_factors_are_in_0_1_and_never_rise_after_the_warmup(
    num_steps: int, schedule: str, warmup: float, floor: float
) -> None:
    plan = Recipe(schedule=schedule, warmup=warmup, floor=floor)  # type: ignore[arg-type]
    factors = [plan.lr_factor(step, num_steps) for step in range(num_steps)]
    assert all(0 < rate <= 1 for rate in factors)
    peak = factors.index(max(factors))
    assert all(a < b for a, b in pairwise(factors[: peak + 1]))
    assert all(a >= b for a, b in pairwise(factors[peak:]))


@pytest.mark.parametrize(
    ("name", "num_steps", "changes"),
    [
        ("cifar-he", 64_000, [(32_000, 0.1), (48_000, 0.01)]),
        ("wrn-rigl", 97_656, [(30_000, 0.2), (60_000, 0.04), (90_000, 0.008)]),
        ("cifar-step", 1_000, [(500, 0.1), (750, 0.01)]),
    ],
)
def test_published_schedules_decay_at_the_published_steps(
    name: str, num_steps: int, changes: list[tuple[int, float]]
) -> None:
    plan, before = recipe(name), 1.0
    for step, after in changes:
        assert plan.lr_factor(step - 1, num_steps) == pytest.approx(before)
        assert plan.lr_factor(step, num_steps) == pytest.approx(after)
        before = after
    assert plan.lr_factor(num_steps - 1, num_steps) == pytest.approx(before)


@pytest.mark.parametrize(
    ("name", "epochs", "batch_size", "optimizer", "lr", "last_lr", "weight_decay", "label_smoothing"),
    [
        ("cifar-step", 160, 128, "sgd", 0.1, 1e-3, 1e-4, 0.0),
        ("cifar-he", 182, 128, "sgd", 0.1, 1e-3, 1e-4, 0.0),
        ("wrn-rigl", 250, 128, "sgd", 0.1, 8e-4, 5e-4, 0.0),
        ("tiny-resnet", 200, 256, "sgd", 0.2, 2e-3, 1e-4, 0.0),
        ("tiny-resnet-long", 400, 100, "sgd", 0.2, 0.0, 1e-4, 0.0),
        ("tiny-vit", 300, 128, "adamw", 1e-3, 1e-6, 0.05, 0.1),
        ("cifar-vit", 300, 128, "adamw", 1e-3, 1e-6, 0.05, 0.1),
        ("imagenet", 100, 4096, "sgd", 1.6, 1.6e-3, 1e-4, 0.1),
    ],
)
def test_recipes_have_the_published_values(
    name: str,
    epochs: int,
    batch_size: int,
    optimizer: str,
    lr: float,
    last_lr: float,
    weight_decay: float,
    label_smoothing: float,
) -> None:
    plan = recipe(name)
    assert (plan.epochs, plan.batch_size, plan.optimizer) == (epochs, batch_size, optimizer)
    assert (plan.lr, plan.weight_decay, plan.label_smoothing) == (lr, weight_decay, label_smoothing)
    assert (plan.momentum, plan.second_beta, plan.decay_all) == (0.9, 0.999, optimizer == "sgd")
    assert plan.lr * plan.lr_factor(999_999, 1_000_000) == pytest.approx(last_lr, rel=1e-4, abs=1e-9)


# Optimizers


class SmallViT(nn.Module):
    """All kinds of parameters that a transformer has."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.places = nn.Parameter(torch.zeros(1, 5, 4))
        self.norm = nn.LayerNorm(4)
        self.patches = nn.Conv2d(3, 4, 2)
        self.head = nn.Linear(4, 3)


def decays(plan: Recipe) -> dict[str, float]:
    model = SmallViT()
    optimizer = make_optimizer(model, plan)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == dict(model.named_parameters()).keys()
    return found


def test_sgd_decays_all_parameters_with_nesterov_momentum() -> None:
    plan = Recipe(lr=0.3, momentum=0.8, weight_decay=0.02)
    assert set(decays(plan).values()) == {0.02}
    optimizer = make_optimizer(SmallViT(), plan)
    assert type(optimizer) is SGD
    [group] = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.3, 0.8, True)
    [plain] = make_optimizer(SmallViT(), Recipe(momentum=0.0)).param_groups
    assert (plain["momentum"], plain["nesterov"]) == (0.0, False)


def test_adamw_does_not_decay_biases_norms_and_tokens() -> None:
    plan = Recipe(optimizer="adamw", lr=1e-3, momentum=0.8, second_beta=0.95, weight_decay=0.05, decay_all=False)
    found = decays(plan)
    assert {name for name, decay in found.items() if decay} == {"patches.weight", "head.weight"}
    assert {found["patches.weight"], found["head.weight"]} == {0.05}
    optimizer = make_optimizer(SmallViT(), plan)
    assert type(optimizer) is AdamW
    assert [(group["lr"], group["betas"]) for group in optimizer.param_groups] == [(1e-3, (0.8, 0.95))] * 2
    assert set(decays(dataclasses.replace(plan, decay_all=True)).values()) == {0.05}


# Names.


def test_every_name_is_a_recipe_and_every_dataset_has_a_default() -> None:
    assert recipes.names() == list(recipes.RECIPES)
    for name in recipes.names():
        assert recipe(name) == recipes.RECIPES[name]
    for dataset in data.names():
        for model in models.names():
            assert default_name(dataset, model) in recipes.names()


@pytest.mark.parametrize(
    ("dataset", "model", "name"),
    [
        ("digits", "mlp", "digits"),
        ("digits", "vit", "digits"),
        ("cifar10", "resnet32", "cifar"),
        ("cifar100", "vit", "cifar-vit"),
        ("tiny-imagenet", "resnet18", "tiny-resnet"),
        ("tiny-imagenet", "pit", "tiny-vit"),
        ("imagenet", "resnet50", "imagenet"),
        ("folder", "resnet18", "cifar"),
        ("cifar10", "timm:vit_tiny_patch16_224", "cifar-vit"),
        ("cifar10", "timm:resnet18", "cifar"),
    ],
)
def test_the_default_recipe_depends_on_dataset_and_model(dataset: str, model: str, name: str) -> None:
    assert default_name(dataset, model) == name


def test_an_unknown_recipe_is_refused_with_suggestions() -> None:
    with pytest.raises(UserError, match="unknown recipe 'cifr': did you mean cifar"):
        recipe("cifr")


# Invalid values


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 2.0},
        {"optimizer": "sdg"},
        {"lr": 0.0},
        {"lr": math.nan},
        {"lr": True},
        {"lr": "fast"},
        {"momentum": 1.0},
        {"second_beta": -0.1},
        {"weight_decay": -1.0},
        {"weight_decay": math.inf},
        {"decay_all": 1},
        {"schedule": "linear"},
        {"milestones": (0.5, 0.5)},
        {"milestones": (0.75, 0.5)},
        {"milestones": (0.0,)},
        {"milestones": (1.0,)},
        {"factor": 0.0},
        {"floor": 1.0},
        {"warmup": 1.5},
        {"batch_size": 0},
        {"accumulate": 0},
        {"accumulate": 3},
        {"clip_norm": 0.0},
        {"label_smoothing": 1.0},
    ],
)
def test_invalid_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Recipe(**wrong)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight_dekay": 0.1}, "unknown recipe key 'weight_dekay': did you mean weight_decay"),
        ({"augment": {"flp": True}}, "unknown recipe.augment key 'flp': did you mean flip"),
        ({"augment": {"flip": 3}}, "recipe.augment.flip must be true or false, got 3"),
        ({"augment": True}, "recipe.augment must be a JSON object, got True"),
        ({"milestones": 0.5}, "recipe.milestones must be a list, got 0.5"),
        ({"milestones": ["half"]}, r"recipe.milestones\[0\] must be a number in \(0, 1\), got 'half'"),
        ({"milestones": [0.75, 0.5]}, "milestones must be increasing"),
        ({"lr": "fast"}, r"recipe.lr must be a number > 0, got 'fast' \(e.g. 0.1\)"),
        ({"optimizer": "adam"}, "recipe.optimizer must be one of 'sgd', 'adamw', got 'adam'"),
        ({"label_smoothing": 1.0}, r"recipe.label_smoothing must be in \[0, 1\), got 1.0 \(e.g. 0.0\)"),
        ({"accumulate": 3}, "accumulate must divide batch_size 128, got 3"),
    ],
)
def test_invalid_overrides_are_refused(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        Recipe().override(values)


# Overrides


def test_overrides_keep_the_rest_and_merge_augmentation() -> None:
    plan = recipe("cifar").override({"lr": 1, "milestones": [0.25], "augment": {"erase": 0.5}})
    assert plan == dataclasses.replace(
        recipe("cifar"), lr=1.0, milestones=(0.25,), augment=Augment(crop_padding=4, flip=True, erase=0.5)
    )
    assert isinstance(plan.lr, float)
    assert recipe("cifar").override({}) == recipe("cifar")


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_back_from_json(name: str) -> None:
    values = json.loads(json.dumps(dataclasses.asdict(recipe(name))))
    assert Recipe().override(values) == recipe(name)
