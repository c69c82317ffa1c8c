"""The state of a method: copied, loaded and kept equal on all ranks, like the masks that rank 0 decides on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pathgrow.distributed.comm import Communicator
from pathgrow.masks import Masks
from pathgrow.methods.method import MethodState, ScoringCost
from pathgrow.sparse.tree import flatten_state, unflatten_state


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
