"""Count the samples that a model is trained on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pathgrow.graph.running import num_samples


class SampleCounter:
    """A forward hook that counts the samples a model is trained on."""

    def __init__(self) -> None:
        self._by_mode = {True: 0, False: 0}

    @property
    def samples(self) -> int:
        """Those in training mode, or without any, as in a loop that never calls `train()`, those in evaluation mode."""
        return self._by_mode[True] or self._by_mode[False]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._by_mode[module.training] += num_samples([*args, *kwargs.values()])


@contextmanager
def counting(model: nn.Module) -> Iterator[SampleCounter]:
    """Count the samples of forward passes with gradients enabled.

    >>> model = nn.Linear(2, 1)
    >>> with counting(model) as counter:
    ...     _ = model(torch.zeros(8, 2))
    ...     with torch.no_grad():
    ...         _ = model(torch.zeros(100, 2))
    >>> counter.samples
    8
    """
    counter = SampleCounter()
    handle = model.register_forward_pre_hook(counter, with_kwargs=True)
    try:
        yield counter
    finally:
        handle.remove()
