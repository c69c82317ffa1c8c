"""Nested state (dicts, lists, tensors, plain values): flattened for storage, copied, loaded, shared between ranks.

Flattening is exact, bit for bit and type for type: tuples stay tuples, integer keys stay integers.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError, is_number, require, short
from pathgrow.masks import Masks
from pathgrow.methods.method import MethodState, ScoringCost

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


def unflatten_state(tensors: Mapping[str, Tensor], metadata: Any) -> Any:
    """The nested value that `flatten_state` split; anything else is a `UserError`."""
    if not isinstance(metadata, Mapping) or "nested" not in metadata:
        raise UserError("the stored state is damaged: it has no entry 'nested'")
    return _unflattened(metadata["nested"], tensors)


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


# Between ranks


def decide_on_rank0(
    comm: Communicator, scope: Masks, decide: Callable[[], tuple[Masks, ScoringCost]]
) -> tuple[Masks, ScoringCost]:
    """Call `decide` on rank 0; returns its masks and their scoring cost on all ranks."""
    if comm.size == 1:
        return decide()

    def sent() -> tuple[dict[str, Tensor], ScoringCost]:
        masks, cost = decide()
        return {name: mask.cpu() for name, mask in masks.items()}, cost

    tensors, cost = comm.broadcast_from_rank0(sent)
    return Masks.restored(tensors, scope), cost


# The state of a method


@contextmanager
def shared_(state: MethodState, comm: Communicator) -> Iterator[None]:
    """Broadcast what rank 0 writes to the state inside the block.

    `Method.update` runs on rank 0 only. Without this the other ranks would keep another state, unnoticed until one of
    them uses or saves it.
    """
    # The tensors themselves are kept, not their addresses: a new one might be allocated where an old one was.
    before = {name: (tensor, tensor._version) for name, tensor in flatten_state(state)[0].items()}
    yield

    def written() -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, metadata = flatten_state(state)
        unchanged = {
            name
            for name, tensor in tensors.items()
            if name in before and tensor is before[name][0] and tensor._version == before[name][1]
        }
        return {name: tensor.cpu() for name, tensor in tensors.items() if name not in unchanged}, metadata

    changed, metadata = comm.broadcast_from_rank0(written)
    if comm.rank > 0:
        load_method_state_(state, unflatten_state({**flatten_state(state)[0], **changed}, metadata))


def copy_method_state(state: Any) -> Any:
    """A deep copy, which training does not change."""
    if isinstance(state, Mapping):
        return {name: copy_method_state(value) for name, value in state.items()}
    return state.detach().clone() if isinstance(state, Tensor) else state


def layout(state: Any) -> Any:
    """A copy of a state whose tensors have shapes but no values."""
    if isinstance(state, Mapping):
        return {name: layout(value) for name, value in state.items()}
    return state.to("meta") if isinstance(state, Tensor) else state


def check_method_state(stored: object, initial: Mapping[str, Any], at: str = "method_state") -> None:
    """Refuse a stored state that lacks a part of the method's initial one, or has something else in its place."""
    if not isinstance(stored, Mapping):
        raise UserError(f"{at} of the state dict must be a mapping, got {short(stored)}")
    for name, value in initial.items():
        here, found = f"{at}.{name}", stored.get(name)
        if isinstance(value, Mapping):
            check_method_state(found, value, here)
        elif isinstance(value, Tensor):
            is_alike = isinstance(found, Tensor) and found.shape == value.shape
            require(is_alike, here, found, f"a tensor of shape {tuple(value.shape)}")
        else:
            is_alike = is_number(found) if is_number(value) else type(found) is type(value)
            require(is_alike, here, found, f"like {short(value)}")


def load_method_state_(state: MethodState, stored: Mapping[str, Any]) -> None:
    """Load a stored state, into the existing tensors where they fit: a CUDA graph holds them."""
    for name in [name for name in state if name not in stored]:
        del state[name]
    for name, value in stored.items():
        here = state.get(name)
        if isinstance(value, Mapping):
            load_method_state_(state.setdefault(name, {}), value)
        elif isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
            with torch.no_grad():
                here.copy_(value)
        else:
            state[name] = value.clone() if isinstance(value, Tensor) else value


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
    match dict(value):
        case {"float": "nan" | "inf" | "-inf" as text, **more} if not more:
            return float(text)
        case {"tensor": str(name), **more} if not more and name in tensors:
            return tensors[name]
        case {"tuple": list(items), **more} if not more:
            return tuple(_unflattened(item, tensors) for item in items)
        case {"dict": list(items), **more} if not more and all(map(_is_item, items)):
            return {key: _unflattened(item, tensors) for key, item in items}
    raise UserError(f"the stored state is damaged, or was written by a newer version: it holds {short(value)}")


def _is_item(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], int | str)


def _unused(key: str, taken: Mapping[str, Tensor]) -> str:
    """A key that is not taken: names may contain dots, so two paths can have the same key."""
    while key in taken:
        key += "'"
    return key
