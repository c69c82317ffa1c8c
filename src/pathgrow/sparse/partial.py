"""The state of a long training that is half done, kept so that a killed run repeats a minute of it and not all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pathgrow.checkpoint import RunDir, Store
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.snapshot import put_back_, take

PREFIX = "partial-"
"""Begins the names under which half-done trainings are stored."""
_NOISE = "noise/"
_STEPS_BETWEEN_QUESTIONS = 64
"""Processes that train together have to agree on when to save, which would hold them up if asked at every step."""


def clear_partials(folder: RunDir) -> None:
    """Free half-done trainings in a finished run: a kill may have come between storing a stage and clearing up."""
    for stage in folder.stages.names():
        if stage.startswith(PREFIX):
            folder.stages.delete_tensors(stage)


def half_done(folder: RunDir) -> dict[str, int]:
    """The stages of a run in whose middle it will go on, and how many steps of each need not be trained again."""
    stored = folder.stages.names()
    steps: dict[str, int] = {}
    for name in stored:
        if name.startswith(PREFIX):
            stage = name.removeprefix(PREFIX).rpartition("-")[0]  # what is left out is the part of its training
            if stage not in stored and folder.stages.has_tensors(name):
                steps[stage] = steps.get(stage, 0) + int((folder.stages.metadata(name) or {}).get("step", 0))
    return steps


@dataclass(frozen=True)
class Partial:
    """Where one training saves its whole state now and then; trainers decide when, `seconds` says how often.

    What is loaded is what was saved, bit for bit: weights, optimizer state, masks, clock, average, the number of steps
    done and the state of the generator that dropout draws from, of which every process of a team has its own.
    """

    store: Store
    name: str
    seconds: float = 60.0
    comm: Communicator = SINGLE_PROCESS

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether to save after this step of the training, `seconds` after the last time."""
        if self.comm.size > 1 and step % _STEPS_BETWEEN_QUESTIONS:
            return False
        return self.is_worth(seconds)

    def is_worth(self, seconds: float) -> bool:
        """Return whether this much work is worth saving; the clock of rank 0 decides."""
        due = seconds > self.seconds
        return due if self.comm.size == 1 else self.comm.broadcast_from_rank0(lambda: due)

    def save(self, attached: Attached, step: int, noise: Tensor) -> None:
        """Save the state after `step` steps; `noise` is that of the generator for dropout."""
        tensors, metadata = take(attached)
        noises = {f"{_NOISE}{rank}": state for rank, state in enumerate(self.comm.gather(noise))}
        self.store.save(self.name, {"step": step, "state": metadata}, {**tensors, **noises})

    def load(self, attached: Attached) -> tuple[int, Tensor] | None:
        """Bring the network to the state saved last; returns its steps and its noise, or None if nothing was saved."""
        found = self.store.load(self.name)
        if found is None or not found.tensors:
            return None
        tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith(_NOISE)}
        put_back_(attached, tensors, found.metadata["state"])
        return int(found.metadata["step"]), found.tensors[f"{_NOISE}{self.comm.rank}"]

    def forget(self) -> None:
        """The stage is stored: what was half done is no longer needed."""
        self.store.delete_tensors(self.name)
