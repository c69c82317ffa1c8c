"""AutoAugment (Cubuk et al., CVPR 2019): the two published policies, drawn and applied to whole batches.

A policy has 25 sub-policies of two steps; every image gets one of them, with equal probability. A step is an operation,
the probability of applying it, and its level from 0 to 9 (0 for operations without strength).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pathgrow.augment.image_ops import FIXED_POINT_BITS, Op, blend, remap, warp

SubPolicy = tuple[tuple[str, float, int], tuple[str, float, int]]

_NUM_STEPS = 2
_MAX_LEVEL = 9

IMAGENET_POLICY: tuple[SubPolicy, ...] = (
    (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
    (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("equalize", 0.4, 0), ("rotate", 0.8, 8)),
    (("solarize", 0.6, 3), ("equalize", 0.6, 0)),
    (("posterize", 0.8, 5), ("equalize", 1.0, 0)),
    (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
    (("equalize", 0.6, 0), ("posterize", 0.4, 6)),
    (("rotate", 0.8, 8), ("color", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalize", 0.6, 0)),
    (("equalize", 0.0, 0), ("equalize", 0.8, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("color", 1.0, 2)),
    (("color", 0.8, 8), ("solarize", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 0)),
    (("shear_x", 0.6, 5), ("equalize", 1.0, 0)),
    (("color", 0.4, 0), ("equalize", 0.6, 0)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
)

CIFAR_POLICY: tuple[SubPolicy, ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)

POLICIES = {"autoaugment-imagenet": IMAGENET_POLICY, "autoaugment-cifar": CIFAR_POLICY}


class Operation(NamedTuple):
    """The parameters of an operation; at most one of `warp` and `op` is not the identity."""

    warp: tuple[int, int, int, int, int, int]
    """Matrix of `image_ops.warp`."""
    op: int
    """A value of `Op`."""
    level: float
    """Threshold of solarize, bit mask of posterize, or weight of the image in a blend."""


def draw_policy(
    batches: tuple[int, int], name: str, height: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw the operations of both steps: `policy_warp` (..., 2, 6), `policy_op` and `policy_level` (..., 2)."""
    pairs = POLICIES[name]
    probability = torch.tensor([[step[1] for step in pair] for pair in pairs], dtype=torch.float64)
    choice = torch.randint(len(pairs), batches, generator=generator)
    negative = torch.randint(2, (*batches, _NUM_STEPS), generator=generator)
    happens = torch.rand(*batches, _NUM_STEPS, generator=generator, dtype=torch.float64) < probability[choice]
    # Each step with either sign is a row of a small table; the last row is the identity.
    rows = [
        operation(kind, level, sign, height, width) for pair in pairs for kind, _, level in pair for sign in (1, -1)
    ]
    which = (choice[..., None] * _NUM_STEPS + torch.arange(_NUM_STEPS)) * 2 + negative
    return pack_operations([*rows, IDENTITY], torch.where(happens, which, len(rows)))


def pack_operations(rows: list[Operation], which: Tensor) -> dict[str, Tensor]:
    """Return the operations with the indices `which` as tensors for `apply_policy`."""
    return {
        "policy_warp": torch.tensor([row.warp for row in rows], dtype=torch.int32)[which],
        "policy_op": torch.tensor([row.op for row in rows], dtype=torch.int32)[which],
        "policy_level": torch.tensor([row.level for row in rows], dtype=torch.float32)[which],
    }


def apply_policy(images: Tensor, matrix: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """Apply both steps to a batch of bytes; the other arguments are the rows of one batch from `draw_policy`."""
    for step in range(_NUM_STEPS):
        images = warp(images, matrix[:, step])
        images = remap(images, op[:, step], level[:, step])
        images = blend(images, op[:, step], level[:, step])
    return images


def operation(kind: str, level: int, sign: int, height: int, width: int) -> Operation:
    """Return the parameters of an operation for images of this size; `sign` is 1 or -1.

    >>> operation("solarize", 0, 1, 32, 32)
    Operation(warp=(65536, 0, 32768, 0, 65536, 32768), op=2, level=255.0)
    """
    strength = level / _MAX_LEVEL
    match kind:
        case "shear_x":
            return _warp(1, 0.3 * strength * sign, 0, 0, 1, 0)
        case "shear_y":
            return _warp(1, 0, 0, 0.3 * strength * sign, 1, 0)
        case "translate_x":  # up to 150 of 331 pixels, the size of the images used in the policy search
            return _warp(1, 0, -sign * math.floor(150 / 331 * width * strength), 0, 1, 0)
        case "translate_y":
            return _warp(1, 0, 0, 0, 1, -sign * math.floor(150 / 331 * height * strength))
        case "rotate":
            return _rotation(30 * strength * sign, height, width)
        case "solarize":
            return _color(Op.SOLARIZE, math.ceil(255 * (_MAX_LEVEL - level) / _MAX_LEVEL))
        case "posterize":
            return _color(Op.POSTERIZE, 256 - 2 ** round(4 * strength))
        case "invert" | "autocontrast" | "equalize":
            return _color(Op[kind.upper()], 0)
        case "brightness" | "contrast" | "color" | "sharpness":
            return _color(Op[kind.upper()], 1 + 0.9 * strength * sign)
    raise AssertionError(f"unknown operation {kind!r}")


def _color(op: Op, level: float) -> Operation:
    return Operation(IDENTITY.warp, int(op), float(level))


def _rotation(degrees: float, height: int, width: int) -> Operation:
    """Rotate counterclockwise around the center of the image."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return _warp(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def _warp(a: float, b: float, c: float, d: float, e: float, f: float) -> Operation:
    """Return a warp that reads the point (x, y) from (a x + b y + c, d x + e y + f), in fixed point for pixel indices.

    The center of pixel i is at i + 1/2, which is added to the constants.
    """

    def fixed(value: float) -> int:
        return math.floor(value * (1 << FIXED_POINT_BITS) + 0.5)

    constants = fixed(c + (a + b) / 2), fixed(f + (d + e) / 2)
    return Operation((fixed(a), fixed(b), constants[0], fixed(d), fixed(e), constants[1]), int(Op.NOTHING), 0.0)


IDENTITY = _warp(1, 0, 0, 0, 1, 0)
