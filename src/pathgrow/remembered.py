"""What is kept aside of a training: weights to come back to, what a method remembers, optimizer state made new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from pathgrow.method import Memory


def weights_and_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All that is put back where a training begins again from an earlier moment."""
    yield from model.named_parameters()
    yield from model.named_buffers()


@torch.no_grad()
def forget_slots_(optimizer: Optimizer) -> None:
    """As new. In place where zero is what a new optimizer has, since a captured step holds these very tensors."""
    if not isinstance(optimizer, SGD | Adam):
        optimizer.state.clear()
        return
    for slots in optimizer.state.values():
        for value in slots.values():
            if isinstance(value, Tensor):
                value.zero_()


def copied(memory: Any) -> Any:
    """For a state that training must not change any more."""
    if isinstance(memory, Mapping):
        return {name: copied(value) for name, value in memory.items()}
    return memory.detach().clone() if isinstance(memory, Tensor) else memory


def load_(memory: Memory, stored: Mapping[str, Any]) -> None:
    """Into the same tensors where there are such: a captured step holds them."""
    for name in [name for name in memory if name not in stored]:
        del memory[name]
    for name, value in stored.items():
        here = memory.get(name)
        if isinstance(value, Mapping):
            load_(memory.setdefault(name, {}), value)
        elif isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
            with torch.no_grad():
                here.copy_(value)
        else:
            memory[name] = value.clone() if isinstance(value, Tensor) else value
