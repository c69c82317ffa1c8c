"""Every operation of the policies against Pillow, image by image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from pathgrow.augment import Augment, draw
from pathgrow.augment.autoaugment import (
    CIFAR_POLICY,
    IDENTITY,
    IMAGENET_POLICY,
    POLICIES,
    apply_policy,
    operation,
    pack_operations,
)
from pathgrow.augment.crops import draw_resized_crop, resized_crop
from pathgrow.rng import generator

ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "color": ImageEnhance.Color,
    "sharpness": ImageEnhance.Sharpness,
}
SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate", *ENHANCERS)
TUNED = (*SIGNED, "solarize", "posterize")
KINDS = (*TUNED, "invert", "autocontrast", "equalize")
SHAPES = ((3, 32, 32), (3, 64, 47), (1, 33, 20), (3, 8, 8))
# Pillow stretches in floats and may end one lower. Blends cut float32 to bytes: equal here, but on a machine whose
# compiler fuses multiplication and addition a product of tenths may land on the other side of a whole number.
TOLERANCE = {"autocontrast": 1, **dict.fromkeys(ENHANCERS, 1)}


def example_images(shape: tuple[int, int, int]) -> torch.Tensor:
    """Noise, smooth slopes, a narrow range of grays, two colors, one color, black and white."""
    _, height, width = shape
    noise = np.random.default_rng(0)
    slope = np.add.outer(np.linspace(0, 200, height), np.linspace(0, 55, width))
    pictures = [
        noise.integers(0, 256, shape),
        np.clip(slope + noise.normal(0, 4, shape), 0, 255),
        noise.integers(90, 141, shape),
        np.where(noise.random(shape) < 0.3, 17, 230),
        np.full(shape, 77),
        np.zeros(shape),
        np.full(shape, 255),
        np.clip(noise.gamma(2.0, 20.0, shape), 0, 255),
    ]
    return torch.from_numpy(np.stack(pictures).astype(np.uint8))


def to_pillow(image: torch.Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def from_pillow(image: Image.Image) -> torch.Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def with_pillow(image: Image.Image, kind: str, level: int, sign: int) -> Image.Image:
    """Apply the operation as in the paper's appendix and the usual implementations with Pillow."""
    width, height = image.size
    strength = level / 9 * sign
    affine, nearest = Image.Transform.AFFINE, Image.Resampling.NEAREST
    match kind:
        case "shear_x":
            return image.transform(image.size, affine, (1, 0.3 * strength, 0, 0, 1, 0), nearest)
        case "shear_y":
            return image.transform(image.size, affine, (1, 0, 0, 0.3 * strength, 1, 0), nearest)
        case "translate_x":
            return image.transform(image.size, affine, (1, 0, -int(150 / 331 * width * strength), 0, 1, 0), nearest)
        case "translate_y":
            return image.transform(image.size, affine, (1, 0, 0, 0, 1, -int(150 / 331 * height * strength)), nearest)
        case "rotate":
            return image.rotate(30 * strength, nearest)
        case "invert":
            return ImageOps.invert(image)
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "solarize":
            return ImageOps.solarize(image, 255 - 255 * level / 9)
        case "posterize":
            return ImageOps.posterize(image, 8 - round(level / (9 / 4)))
    return ENHANCERS[kind](image).enhance(1 + 0.9 * strength)


def apply_rows(images: torch.Tensor, first: list, second: list) -> torch.Tensor:
    rows = [row for pair in zip(first, second, strict=True) for row in pair]
    drawn = pack_operations(rows, torch.arange(len(rows)).view(-1, 2))
    return apply_policy(images, drawn["policy_warp"], drawn["policy_op"], drawn["policy_level"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_and_sign_equals_pillow(kind, shape):
    _, height, width = shape
    pictures = example_images(shape)
    levels = range(10) if kind in TUNED else (0,)
    signs = (1, -1) if kind in SIGNED else (1,)
    cases = [(image, level, sign) for image in pictures for level in levels for sign in signs]
    ours = [operation(kind, level, sign, height, width) for _, level, sign in cases]
    expected = torch.stack([from_pillow(with_pillow(to_pillow(image), kind, *rest)) for image, *rest in cases])
    images = torch.stack([image for image, _, _ in cases])
    untouched = [IDENTITY] * len(cases)
    for got in (apply_rows(images, ours, untouched), apply_rows(images, untouched, ours)):
        off = (got.int() - expected.int()).abs()
        assert off.max() <= TOLERANCE.get(kind, 0)
        assert (off > 0).double().mean() < 0.005  # one off is the exception
    if kind in SIGNED and shape == SHAPES[0] and kind != "color":
        assert not torch.equal(expected, images)  # the operation is not the identity


def test_two_rounds_of_mixed_operations_in_one_batch_equal_pillow_in_sequence():
    shape = (3, 32, 32)
    steps = [("rotate", 7, -1), ("equalize", 0, 1), ("color", 8, 1), ("posterize", 8, 1), ("shear_y", 8, 1)]
    pairs = [(a, b) for a in steps for b in steps]
    images = torch.randint(256, (len(pairs), *shape), dtype=torch.uint8, generator=generator(0, "pairs"))
    got = apply_rows(images, *([operation(*step, 32, 32) for step in side] for side in zip(*pairs, strict=True)))
    for image, (first, second), ours in zip(images, pairs, got, strict=True):
        expected = from_pillow(with_pillow(with_pillow(to_pillow(image), *first), *second))
        # An off-by-one of the color blend can be stretched or cut by the operation after it.
        exact = "color" not in (first[0], second[0])
        assert torch.equal(ours, expected) if exact else (ours == expected).double().mean() > 0.98


@pytest.mark.parametrize("size", [(32, 32), (40, 24)])
def test_resized_crop_equals_cropping_and_resizing_with_pillow(size):
    height, width = size
    images = example_images((3, height, width))
    box = draw_resized_crop((1, len(images)), height, width, generator(1, "boxes"))["crop_box"][0]
    box[0] = torch.tensor([0, 0, height, width])
    box[1] = torch.tensor([height - 1, width - 1, 1, 1])  # one pixel becomes the whole image
    flip = torch.arange(len(images)) % 2 == 1
    got = resized_crop(images, box, flip)
    for image, (top, left, tall, wide), mirrored, ours in zip(images, box.tolist(), flip, got, strict=True):
        area = (left, top, left + wide, top + tall)
        expected = to_pillow(image).crop(area).resize((width, height), Image.Resampling.BILINEAR)
        if mirrored:
            expected = ImageOps.mirror(expected)
        assert (ours.int() - from_pillow(expected).int()).abs().max() <= 1
    assert torch.equal(got[0], images[0])


def test_tables_and_levels_are_those_of_torchvision():
    autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
    snake = {"ShearX": "shear_x", "ShearY": "shear_y", "TranslateX": "translate_x", "TranslateY": "translate_y"}
    for ours, theirs in ((IMAGENET_POLICY, "IMAGENET"), (CIFAR_POLICY, "CIFAR10")):
        published = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy[theirs])
        rows = [tuple((snake.get(k, k.lower()), p, m or 0) for k, p, m in pair) for pair in published.policies]
        assert ours == tuple(rows)
    space = published._augmentation_space(10, (64, 48))
    for level in range(10):
        solarize, posterize = (operation(kind, level, 1, 64, 48).level for kind in ("solarize", "posterize"))
        assert solarize == math.ceil(round(space["Solarize"][0][level].item(), 3))
        assert posterize == 256 - 2 ** (8 - int(space["Posterize"][0][level]))


@pytest.mark.parametrize("name", ["autoaugment-imagenet", "autoaugment-cifar"])
def test_a_drawn_policy_equals_its_steps_in_pillow(name):
    """End to end: brute force finds the steps of the published table that explain each image."""
    pairs = POLICIES[name]
    shape = (3, 24, 24)
    images = torch.randint(256, (60, *shape), dtype=torch.uint8, generator=generator(2, "images"))
    drawn = draw(Augment(policy=name), 1, 60, shape, generator(2, "policy"))
    got = apply_policy(images, *(drawn[f"policy_{part}"][0] for part in ("warp", "op", "level")))
    for image, ours in zip(images, got, strict=True):
        possible = []
        for pair in pairs:
            ways = []
            for kind, probability, level in pair:
                signs = (1, -1) if kind in SIGNED else (1,)
                ways.append([(kind, level, sign) for sign in signs if probability > 0])
                if probability < 1:
                    ways[-1].append(None)
            possible += [(a, b) for a in ways[0] for b in ways[1]]
        best = max(
            (ours == from_pillow(_through(to_pillow(image), steps))).double().mean().item() for steps in set(possible)
        )
        assert best > 0.98


def _through(image: Image.Image, steps: tuple) -> Image.Image:
    for step in steps:
        if step is not None:
            image = with_pillow(image, *step)
    return image
