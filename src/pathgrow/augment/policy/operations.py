"""What an operation of a policy at a level amounts to, in numbers that need no further thought on the device."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from pathgrow.augment.policy.warps import FIXED_POINT

NUM_LEVELS = 9
"""Levels count from 0 to this, in equal steps of strength."""


class Op(IntEnum):
    """What is done to colours. From `BRIGHTNESS` on: blends."""

    NOTHING = 0
    INVERT = 1
    SOLARIZE = 2
    POSTERIZE = 3
    AUTOCONTRAST = 4
    EQUALIZE = 5
    BRIGHTNESS = 6
    CONTRAST = 7
    COLOR = 8
    SHARPNESS = 9


Warp = tuple[int, int, int, int, int, int]


class Operation(NamedTuple):
    """At most one of `warp` and `op` does anything."""

    warp: Warp
    """See `warps.warp`."""
    op: int
    level: float
    """Solarize: the threshold; posterize: the mask of bits kept; blends: the weight of the image."""


def operation(kind: str, level: int, sign: int, height: int, width: int) -> Operation:
    """An operation for images of this size; `sign` (1 or -1) matters where both directions are alike.

    >>> operation("solarize", 0, 1, 32, 32)
    Operation(warp=(65536, 0, 32768, 0, 65536, 32768), op=2, level=255.0)
    """
    strength = level / NUM_LEVELS
    match kind:
        case "shear_x":
            return _warp(1, 0.3 * strength * sign, 0, 0, 1, 0)
        case "shear_y":
            return _warp(1, 0, 0, 0.3 * strength * sign, 1, 0)
        case "translate_x":  # 150 of 331 pixels, the size of the images the policies were searched on
            return _warp(1, 0, -sign * math.floor(150 / 331 * width * strength), 0, 1, 0)
        case "translate_y":
            return _warp(1, 0, 0, 0, 1, -sign * math.floor(150 / 331 * height * strength))
        case "rotate":
            return _rotation(30 * strength * sign, height, width)
        case "solarize":
            return _colours(Op.SOLARIZE, math.ceil(255 * (NUM_LEVELS - level) / NUM_LEVELS))
        case "posterize":
            return _colours(Op.POSTERIZE, 256 - 2 ** round(4 * strength))
        case "invert" | "autocontrast" | "equalize":
            return _colours(Op[kind.upper()], 0)
        case "brightness" | "contrast" | "color" | "sharpness":
            return _colours(Op[kind.upper()], 1 + 0.9 * strength * sign)
    raise AssertionError(f"policy operation {kind!r} is not known")


def _colours(op: Op, level: float) -> Operation:
    return Operation(IDENTITY.warp, int(op), float(level))


def _rotation(degrees: float, height: int, width: int) -> Operation:
    """Counter-clockwise on the screen, about the middle of the image."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return _warp(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def _warp(a: float, b: float, c: float, d: float, e: float, f: float) -> Operation:
    """Source (a x + b y + c, d x + e y + f) of the point (x, y), in fixed point for pixel numbers.

    Pixel i has its centre at i + 1/2: the half goes into the constants.
    """

    def fixed(value: float) -> int:
        return math.floor(value * FIXED_POINT + 0.5)

    constants = fixed(c + (a + b) / 2), fixed(f + (d + e) / 2)
    return Operation((fixed(a), fixed(b), constants[0], fixed(d), fixed(e), constants[1]), int(Op.NOTHING), 0.0)


IDENTITY = _warp(1, 0, 0, 0, 1, 0)
