"""Resetting optimizer state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer


def weights_and_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers of a model, by name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


@torch.no_grad()
def reset_optimizer_state_(optimizer: Optimizer) -> None:
    """Reset the optimizer state; in place where a fresh state is all zeros, since CUDA graphs hold the tensors."""
    if not isinstance(optimizer, SGD | Adam):
        clear_optimizer_state_(optimizer)
        return
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()


def clear_optimizer_state_(optimizer: Optimizer) -> None:
    """Clear the optimizer state, as it is before the first step."""
    optimizer.state.clear()
    if isinstance(optimizer, Adagrad):
        # The one optimizer of torch that creates its state when it is built, and in older versions misses it later.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                total = torch.full_like(parameter, group["initial_accumulator_value"])
                optimizer.state[parameter] = {"step": torch.tensor(0.0), "sum": total}
