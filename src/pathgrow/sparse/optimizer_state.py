"""What is kept aside in training: weights to come back to, what a method remembers, and optimizer state made new."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer

from pathgrow.distributed.comm import Communicator
from pathgrow.methods.method import MethodState
from pathgrow.sparse.tree import put_together, take_apart


def weights_and_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All tensors that make up the state of a model, by name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


@torch.no_grad()
def reset_optimizer_state_(optimizer: Optimizer) -> None:
    """Make the optimizer's state as new; in place where that is all zeros, since captured steps hold the tensors."""
    if not isinstance(optimizer, SGD | Adam):
        empty_slots_(optimizer)
        return
    for slots in optimizer.state.values():
        for value in slots.values():
            if isinstance(value, Tensor):
                value.zero_()


def empty_slots_(optimizer: Optimizer) -> None:
    """Empty the optimizer's state, down to what it has before its first step."""
    optimizer.state.clear()
    if isinstance(optimizer, Adagrad):
        # The one optimizer of torch that makes its state when it is built, and in older versions misses it later.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                total = torch.full_like(parameter, group["initial_accumulator_value"])
                optimizer.state[parameter] = {"step": torch.tensor(0.0), "sum": total}


def held(optimizer: Optimizer) -> Callable[[], None]:
    """Copy everything that a step of the optimizer writes; the returned function puts it back.

    State that the step creates is removed: a first step that does not count must leave the optimizer as new.
    """
    weights = [(weight, weight.detach().clone()) for group in optimizer.param_groups for weight in group["params"]]
    state = {
        parameter: {key: (value, copied(value)) for key, value in slots.items()}
        for parameter, slots in optimizer.state.items()
    }

    @torch.no_grad()
    def put_back() -> None:
        for weight, before in weights:
            weight.copy_(before)
        for parameter in [parameter for parameter in optimizer.state if parameter not in state]:
            del optimizer.state[parameter]
        for parameter, slots in state.items():
            optimizer.state[parameter].clear()
            for key, (value, before) in slots.items():
                optimizer.state[parameter][key] = value.copy_(before) if isinstance(value, Tensor) else before

    return put_back


def copied(method_state: Any) -> Any:
    """A copy of what a method remembers, which training does not change any more."""
    if isinstance(method_state, Mapping):
        return {name: copied(value) for name, value in method_state.items()}
    return method_state.detach().clone() if isinstance(method_state, Tensor) else method_state


@contextmanager
def shared_(method_state: MethodState, comm: Communicator) -> Iterator[None]:
    """What the first of a team writes to its memory inside the block, all of them have afterwards.

    A method's `revise` runs in the first process only. Without this the others would remember something else, which
    nobody would notice until one of them is asked, saves its own state, or becomes the first.
    """
    if comm.size == 1:
        yield
        return
    # The tensors themselves are kept, not their addresses: a new one might be allocated where an old one was.
    before = {name: (tensor, tensor._version) for name, tensor in take_apart(method_state)[0].items()}
    yield

    def written() -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, metadata = take_apart(method_state)
        known = {
            name
            for name, tensor in tensors.items()
            if name in before and tensor is before[name][0] and tensor._version == before[name][1]
        }
        return {name: tensor.cpu() for name, tensor in tensors.items() if name not in known}, metadata

    changed, metadata = comm.broadcast_from_rank0(written)
    if comm.rank > 0:
        load_(method_state, put_together({**take_apart(method_state)[0], **changed}, metadata))


def load_(method_state: MethodState, stored: Mapping[str, Any]) -> None:
    """Load a stored memory, into the existing tensors where they fit: a captured step holds them."""
    for name in [name for name in method_state if name not in stored]:
        del method_state[name]
    for name, value in stored.items():
        here = method_state.get(name)
        if isinstance(value, Mapping):
            load_(method_state.setdefault(name, {}), value)
        elif isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
            with torch.no_grad():
                here.copy_(value)
        else:
            method_state[name] = value.clone() if isinstance(value, Tensor) else value
