"""What the run loop asks of a training function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from pathgrow.sparse.attach import Attached
from pathgrow.sparse.partial import Partial

Fit = Callable[[nn.Module, Optimizer, int], Any]
Evaluate = Callable[[nn.Module], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A network to be trained."""

    attached: Attached
    epochs: int
    """In all; with `length`, as far as is known when the training begins."""
    length: Callable[[int], int] | None = None
    """Given the number of epochs done, returns how many there are to be in all. It is called before each epoch and at
    the end, and the learning rate goes on at its place in a schedule of the latest length. A training that is resumed
    in the middle of an epoch calls it again, so an answer that depends on the network is kept in `Attached.memory`."""
    seed: int
    """Decides everything random about the training."""
    first_step: int = 0
    """Steps of the training to skip, where the network was set back to a step in the middle of it."""
    progress: Partial | None = None
    """Where a long training may save its state, and finds it again after a kill."""


@runtime_checkable
class JobTrainer(Protocol):
    """A `fit` that can do more: train several networks side by side, and go on in the middle of a training."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> Any: ...

    def train(self, jobs: Sequence[Job]) -> list[int]:
        """Train every job to its end; returns the number of samples that each took."""
