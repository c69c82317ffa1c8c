"""JSON that any reader of any language accepts, and that comes back equal.

Python writes `NaN` and `Infinity`, which are not JSON. Here they are either refused, with the place of the first one
(in stages: a resumed run must see what was saved), or replaced by null (in metrics and reports: the diary of a
diverging run must stay readable).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text; a value that is not JSON raises TypeError, a number that is not finite ValueError.

    >>> dumps({"score": 0.5, "rounds": [1, 2]})
    '{"score": 0.5, "rounds": [1, 2]}'
    """
    return json.dumps(value, allow_nan=False, indent=indent)


def loads(text: str | bytes) -> Any:
    """The value of a strict JSON text; anything else (also `NaN`, also bytes that are not UTF-8) raises ValueError."""
    return json.loads(text, parse_constant=_refuse_constant)


def fault(value: Any, where: str) -> str | None:
    """What keeps `value` from coming back equal from JSON, with its place, or None.

    >>> fault({"points": [{"loss": float("nan")}]}, "facts")
    'facts.points[0].loss is nan'
    >>> fault({"interval": (0.1, 0.2)}, "facts")
    'facts.interval is a tuple'
    """
    match value:
        case None | bool() | int() | str():
            return None
        case float():
            return None if math.isfinite(value) else f"{where} is {value}"
        case list():
            inside = (fault(item, f"{where}[{index}]") for index, item in enumerate(value))
            return next((found for found in inside if found), None)
        case dict():
            if odd := [key for key in value if not isinstance(key, str)]:
                return f"{where} has the key {odd[0]!r}, which is not a string"
            inside = (fault(item, f"{where}.{key}") for key, item in value.items())
            return next((found for found in inside if found), None)
        case _:
            return f"{where} is a {type(value).__name__}"


def nulled(value: Any) -> Any:
    """A copy of `value` with None in the place of every number that is not finite, and tuples as lists.

    >>> nulled({"loss": float("inf"), "interval": (0.1, 0.2)})
    {'loss': None, 'interval': [0.1, 0.2]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: nulled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nulled(item) for item in value]
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
