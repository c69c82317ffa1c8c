"""Augmentation settings and what they refuse."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pathgrow.augment import Augment
from pathgrow.augment.autoaugment import POLICIES
from pathgrow.errors import UserError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop_padding": -1}, "crop_padding must be >= 0, got -1"),
        ({"crop_padding": 1.5}, "crop_padding must be an integer >= 0, got 1.5"),
        ({"crop_padding": True}, "crop_padding must be an integer >= 0, got True"),
        ({"flip": 1}, "flip must be .*, got 1"),
        ({"resized_crop": "yes"}, "resized_crop must be .*, got 'yes'"),
        ({"policy": "autoaugment-cifar10"}, "policy .*'autoaugment-cifar10'"),
        ({"policy": None}, "policy .*None"),
        ({"erase": 1.1}, r"erase must be in \[0, 1\], got 1.1"),
        ({"erase": float("nan")}, "erase must be .*, got nan"),
        ({"mixup": -0.1}, "mixup must be >= 0, got -0.1"),
        ({"cutmix": float("inf")}, "cutmix must be .*, got inf"),
        ({"cutmix": "1"}, "cutmix must be .*, got '1'"),
        ({"mix_probability": -0.5}, r"mix_probability must be in \[0, 1\], got -0.5"),
        ({"crop_padding": 4, "resized_crop": True}, "crop_padding and resized_crop are mutually exclusive"),
        ({"crop_padding": 4, "crop_mirrored": 1}, "crop_mirrored must be .*, got 1"),
        ({"crop_mirrored": True}, "crop_mirrored requires crop_padding >= 1"),
    ],
)
def test_invalid_settings_are_refused_in_one_sentence(values, message):
    with pytest.raises(UserError, match=message) as refusal:
        Augment(**values)
    assert "\n" not in str(refusal.value)


def test_settings_survive_json():
    every = Augment(crop_padding=2, flip=True, policy="autoaugment-cifar", erase=0.5, mixup=0.8, cutmix=1.0)
    assert Augment(**json.loads(json.dumps(dataclasses.asdict(every)))) == every


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_selected(name):
    assert Augment(policy=name).policy == name
