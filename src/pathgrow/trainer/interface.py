"""What a run requires of a training function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from pathgrow.sparse.attach import Attached
from pathgrow.sparse.training_state import TrainingCheckpoint

Fit = Callable[[nn.Module, Optimizer, int], Any]
"""`fit(model, optimizer, epochs)` trains a model in place."""
Evaluate = Callable[[nn.Module], Any]
"""`evaluate(model)` returns a score, or a pair (score, loss) (see `parse_evaluation`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A network to train."""

    attached: Attached
    epochs: int
    """Total number of epochs, over which the learning-rate schedule is stretched."""
    seed: int
    """Seed of everything random about the training."""
    first_step: int = 0
    """Number of steps to skip, for a network that was rewound to the middle of its training."""
    progress: TrainingCheckpoint | None = None
    """Mid-training checkpoint of a long training, loaded after a kill."""
    on_epoch: Callable[[int, int, float], None] | None = None
    """Called after every epoch with its number, the total number and its loss; None: the callback of the trainer."""


@runtime_checkable
class JobTrainer(Protocol):
    """A `fit` that can also train several networks concurrently, and resume in the middle of a training."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> Any: ...

    def train(self, jobs: Sequence[Job]) -> list[int]:
        """Train every job to its end and return the number of samples each was trained on."""
