"""Standard-conforming JSON that loads back equal.

Python writes `NaN` and `Infinity`, which are not JSON. Stages refuse them, since a resumed run must see what was saved;
metrics and reports replace them by null, since those of a diverged run must stay readable.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathgrow import atomic
from pathgrow.errors import UserError, short

_MAX_DEPTH = 64
_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep"


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return strict JSON text; raise TypeError for a value that is not JSON, ValueError for a non-finite number.

    >>> dumps({"score": 0.5, "rounds": [1, 2]})
    '{"score": 0.5, "rounds": [1, 2]}'
    """
    return json.dumps(value, allow_nan=False, indent=indent)


def loads(text: str | bytes) -> Any:
    """Parse strict JSON; raise ValueError for anything else.

    That includes `NaN`, numbers beyond the range of a float, bytes that are not UTF-8, and values nested so deeply that
    walking through them would fail.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    inside = [value]
    for _ in range(_MAX_DEPTH):
        inside = [
            item
            for outer in inside
            for item in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(item, dict | list)
        ]
        if not inside:
            return value
    raise ValueError(_TOO_DEEP)


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """Return the JSON object in a file; `advice` completes the message about a file that holds none."""
    try:
        value = loads(atomic.read_bytes(path))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): {advice}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, got a {type(value).__name__}: {advice}")
    return value


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error for a file of a run directory that cannot be read."""
    return UserError(f"cannot read {path} ({error.strerror or error}); expected a file of a pathgrow run")


def fault(value: Any, where: str) -> str | None:
    """Describe what keeps `value` from loading back equal from JSON, and where; None if nothing does.

    >>> fault({"points": [{"loss": float("nan")}]}, "metadata")
    'metadata.points[0].loss is nan'
    >>> fault({"interval": (0.1, 0.2)}, "metadata")
    'metadata.interval is a tuple'
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
    """Return a copy of `value` with None for every non-finite number, and tuples as lists.

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


def differences(found: Any, expected: Any, key: str = "") -> list[str]:
    """Describe every key in which two JSON values differ, in the order of `expected`.

    >>> differences({"seed": 0, "recipe": {"lr": 0.1}}, {"recipe": {"lr": 0.2}, "seed": 0})
    ['recipe.lr was 0.1, now 0.2']
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        inside = (
            differences(found.get(name, _ABSENT), expected.get(name, _ABSENT), f"{key}.{name}" if key else name)
            for name in dict.fromkeys([*expected, *found])
        )
        return [difference for differing in inside for difference in differing]
    # 1, True and 1.0 are equal in Python, but different configs.
    same = found is expected or (type(found) is type(expected) and found == expected)
    return [] if same else [f"{key} was {_show(found)}, now {_show(expected)}"]


_ABSENT = object()


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else dumps(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)  # 1e999 is infinite, which no JSON text can hold
    if math.isinf(value):
        raise ValueError(f"{short(text)} is out of range")
    return value
