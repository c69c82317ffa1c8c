"""A long training half done: kept so that a killed run repeats a minute of it and not all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pathgrow.attach import Attached
from pathgrow.discovery.snapshot import put_back_, take
from pathgrow.runs import RunFolder, Store
from pathgrow.team import ALONE, Team

PREFIX = "partial-"
"""Of the names under which trainings half done are stored."""
_NOISE = "noise/"
_STEPS_BETWEEN_QUESTIONS = 64
"""Processes that train together have to agree on when to save, which would hold them up if asked at every step."""


def clear_partials(folder: RunFolder) -> None:
    """Free what a finished run left half done: a kill may have come between the end of a stage and its clearing up."""
    for stage in folder.stages:
        if stage.startswith(PREFIX):
            folder.forget_tensors(stage)


@dataclass(frozen=True)
class Partial:
    """Where one training leaves its whole state now and then; trainers decide when, `seconds` says how often.

    What comes back is what was left, bit for bit: weights, optimizer state, masks, clock, average, the number of steps
    done and the state of the generator that dropout draws from, which is another one in every process of a team.
    """

    store: Store
    name: str
    seconds: float = 60.0
    team: Team = ALONE

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether to save after this step of the training, `seconds` after the last time."""
        if self.team.size > 1 and step % _STEPS_BETWEEN_QUESTIONS:
            return False
        return self.is_worth(seconds)

    def is_worth(self, seconds: float) -> bool:
        """Whether so much work is to be kept; the clock of the first decides."""
        return self.team.from_first(lambda: seconds > self.seconds)

    def save(self, attached: Attached, step: int, noise: Tensor) -> None:
        """The state after `step` steps."""
        tensors, facts = take(attached)
        noises = {f"{_NOISE}{rank}": state for rank, state in enumerate(self.team.gather(noise))}
        self.store.save(self.name, {"step": step, "state": facts}, {**tensors, **noises})

    def load(self, attached: Attached) -> tuple[int, Tensor] | None:
        """Bring the network to the state that was left last; the steps it had then, and its noise. None: no such."""
        found = self.store.load(self.name)
        if found is None or not found.tensors:
            return None
        tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith(_NOISE)}
        put_back_(attached, tensors, found.facts["state"])
        return int(found.facts["step"]), found.tensors[f"{_NOISE}{self.team.rank}"]

    def forget(self) -> None:
        """The stage is stored: what was half done is no longer needed."""
        self.store.forget_tensors(self.name)
