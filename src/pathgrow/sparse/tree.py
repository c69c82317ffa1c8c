"""Nested state (dicts, lists, tensors, plain values) as flat tensors and JSON, and back.

The round trip is exact, bit for bit and type for type: tuples stay tuples, integer keys stay integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pathgrow.errors import UserError

FlatState = tuple[dict[str, Tensor], dict[str, Any]]


def flatten_state(value: Any) -> FlatState:
    """Split a nested value into (tensors, metadata). The tensors are not copied.

    >>> tensors, metadata = flatten_state({"betas": (0.9, 0.99), "state": {0: {"step": torch.tensor(3.0)}}})
    >>> list(tensors)
    ['state.0.step']
    >>> unflatten_state(tensors, metadata)
    {'betas': (0.9, 0.99), 'state': {0: {'step': tensor(3.)}}}
    """
    tensors: dict[str, Tensor] = {}
    return tensors, {"nested": _flattened(value, (), tensors)}


def unflatten_state(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Any:
    """The nested value that `flatten_state` split."""
    return _unflattened(metadata["nested"], tensors)


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _flattened(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """JSON in which a value that JSON lacks is a dict of one entry, whose key names its type."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Tensor():
            key = _unused(".".join(path) or "value", tensors)
            tensors[key] = value
            return {"tensor": key}
        case list():
            return [_flattened(item, (*path, str(index)), tensors) for index, item in enumerate(value)]
        case tuple():
            return {"tuple": [_flattened(item, (*path, str(index)), tensors) for index, item in enumerate(value)]}
        case Mapping():
            if odd := [key for key in value if not isinstance(key, int | str)]:
                raise UserError(f"keys of state must be strings or integers, got {odd[0]!r} at {'.'.join(path)}")
            return {"dict": [[key, _flattened(item, (*path, str(key)), tensors)] for key, item in value.items()]}
        case _:
            raise UserError(
                f"state must consist of tensors, numbers, strings, lists, tuples and dicts, "
                f"got {type(value).__name__} at {'.'.join(path)}"
            )


def _unflattened(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unflattened(item, tensors) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return float(content)
        case "tensor":
            return tensors[content]
        case "tuple":
            return tuple(_unflattened(item, tensors) for item in content)
        case "dict":
            return {key: _unflattened(item, tensors) for key, item in content}
        case _:
            raise UserError(f"stored state has an unknown type {kind!r}; it was written by a newer version")


def _unused(key: str, taken: Mapping[str, Tensor]) -> str:
    """A key that is not taken: names may contain dots, so two paths can have the same key."""
    while key in taken:
        key += "'"
    return key
