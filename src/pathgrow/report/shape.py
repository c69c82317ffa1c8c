"""Shapes of JSON values: what a file has to hold before its values are computed with.

A shape is a function of a value and of its place; it returns what is wrong there, in words, or None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any, str], str | None]

_LARGEST = 1e300
"""Whole numbers of JSON have no limit; those beyond this could not be divided."""


def number(least: float = -math.inf, most: float = math.inf, *, above: float | None = None) -> Shape:
    """A finite number from `least` to `most`, or one `above` some other.

    >>> number(0, 1)(1.5, "network.density")
    "has 1.5 as 'network.density', wanted a number from 0 to 1"
    """
    told = f"a number above {above:g}" if above is not None else f"a number{_limits(least, most)}"

    def check(value: Any, at: str) -> str | None:
        fits = _is_number(value) and least <= value <= most and (above is None or value > above)
        return None if fits else _wrong(value, at, told)

    return check


def whole(least: int) -> Shape:
    """A whole number that is not smaller than `least`."""

    def check(value: Any, at: str) -> str | None:
        fits = _is_number(value) and isinstance(value, int) and value >= least
        return None if fits else _wrong(value, at, f"a whole number{_limits(least, math.inf)}")

    return check


def text(value: Any, at: str) -> str | None:
    """Any string."""
    return None if isinstance(value, str) else _wrong(value, at, "a text")


def nullable(shape: Shape) -> Shape:
    """The shape, or null."""
    return lambda value, at: None if value is None else shape(value, at)


def listing(shape: Shape, length: int | None = None) -> Shape:
    """A list of values of one shape."""

    def check(value: Any, at: str) -> str | None:
        if not isinstance(value, list) or length not in (None, len(value)):
            return _wrong(value, at, "a list" if length is None else f"a list of {length}")
        return next((found for i, item in enumerate(value) if (found := shape(item, f"{at}[{i}]"))), None)

    return check


def table(entries: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these entries; others may stand beside them.

    >>> table({"seed": whole(0)})({"data": "digits"}, "config")
    "lacks 'config.seed'"
    """

    def check(value: Any, at: str) -> str | None:
        if not isinstance(value, dict):
            return _wrong(value, at, "a JSON object")
        places = {name: f"{at}.{name}" if at else name for name in (*entries, *(optional or {}))}
        if missing := next((name for name in entries if name not in value), None):
            return f"lacks '{places[missing]}'"
        checks = ((shape, name) for name, shape in {**entries, **(optional or {})}.items() if name in value)
        return next((found for shape, name in checks if (found := shape(value[name], places[name]))), None)

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _limits(least: float, most: float) -> str:
    if math.isinf(least) and math.isinf(most):
        return ""
    return f" from {least:g} up" if math.isinf(most) else f" from {least:g} to {most:g}"


def _wrong(value: Any, at: str, wanted: str) -> str:
    told = json.dumps(value)
    return f"has {told if len(told) <= 40 else f'{told[:37]}...'} as '{at}', wanted {wanted}"
