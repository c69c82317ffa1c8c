"""State made of dicts, lists, tensors and plain values, taken apart into flat tensors and JSON, and put together again.

What comes back is equal, bit for bit, and of the same type: tuples stay tuples, integer keys stay integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pathgrow.errors import UserError

Flat = tuple[dict[str, Tensor], dict[str, Any]]


def take_apart(value: Any) -> Flat:
    """(tensors, facts) of a nested value. Tensors are handed over as they are, not copied.

    >>> import torch
    >>> tensors, metadata = take_apart({"betas": (0.9, 0.99), "state": {0: {"step": torch.tensor(3.0)}}})
    >>> list(tensors)
    ['state.0.step']
    >>> put_together(tensors, metadata)
    {'betas': (0.9, 0.99), 'state': {0: {'step': tensor(3.)}}}
    """
    tensors: dict[str, Tensor] = {}
    return tensors, {"nested": _apart(value, (), tensors)}


def put_together(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Any:
    """The nested value that `take_apart` was given."""
    return _together(metadata["nested"], tensors)


def _apart(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """JSON in which whatever JSON lacks is a dict of one entry, whose key names its kind."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Tensor():
            key = _free(".".join(path) or "value", tensors)
            tensors[key] = value
            return {"tensor": key}
        case list():
            return [_apart(item, (*path, str(index)), tensors) for index, item in enumerate(value)]
        case tuple():
            return {"tuple": [_apart(item, (*path, str(index)), tensors) for index, item in enumerate(value)]}
        case Mapping():
            if odd := [key for key in value if not isinstance(key, int | str)]:
                raise UserError(f"state at {'.'.join(path)} has the key {odd[0]!r}: use texts or whole numbers as keys")
            return {"dict": [[key, _apart(item, (*path, str(key)), tensors)] for key, item in value.items()]}
        case _:
            raise UserError(
                f"state at {'.'.join(path)} is a {type(value).__name__}: only tensors, numbers, texts, lists, tuples "
                "and dicts can be stored, so keep it out of the optimizer's state"
            )


def _together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_together(item, tensors) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return float(content)
        case "tensor":
            return tensors[content]
        case "tuple":
            return tuple(_together(item, tensors) for item in content)
        case "dict":
            return {key: _together(item, tensors) for key, item in content}
        case _:
            raise UserError(
                f"stored state holds a {kind!r}, which this version does not know: read it with the newer one"
            )


def _free(key: str, taken: Mapping[str, Tensor]) -> str:
    """A key that is not taken: names may contain dots themselves, so two paths can give the same key."""
    while key in taken:
        key += "'"
    return key
