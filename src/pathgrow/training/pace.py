"""A training whose length is decided on the way, so that what it spends is what it was given.

Where weights move between layers, nobody knows beforehand what a step will cost. So such a training is looked at again
after every sixteenth of its way: what it has spent is known, the rest is forecast from the masks that are there, and
learning rate and method are stretched over the number of epochs that comes out. Guesses are about ever less, and what
is left in the end is that epochs are whole. The length lies in the memory that is saved with the attachment, so a
training that is killed goes on with the one it had.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.attach import Attached
from pathgrow.discovery.partial import Partial
from pathgrow.discovery.phases import Job
from pathgrow.engine import Trainer
from pathgrow.errors import RunFailed
from pathgrow.masks import Masks
from pathgrow.method import Change, Memory, Method, Progress
from pathgrow.net import Net
from pathgrow.recipes import Recipe

LOOKS = 16
"""A training is looked at again after each such part of it."""
_NOTES = "pace"


@dataclass
class Pace:
    """How long a training is, as far as is known now; shared by all that is stretched over it."""

    epochs: int


@dataclass(frozen=True, kw_only=True)
class PacedRecipe(Recipe):
    """A recipe whose schedule is stretched over the length of the pace, wherever the part of it ends that is trained.

    >>> pace = Pace(2)
    >>> recipe = PacedRecipe.of(Recipe(schedule="step", warmup=0.0), pace, 4)
    >>> recipe.rate(4, 4), recipe.rate(3, 4)
    (0.1, 1.0)
    >>> pace.epochs = 3
    >>> recipe.rate(4, 4)
    1.0
    """

    pace: Pace
    steps_per_epoch: int

    @classmethod
    def of(cls, recipe: Recipe, pace: Pace, steps_per_epoch: int) -> PacedRecipe:
        values = {each.name: getattr(recipe, each.name) for each in dataclasses.fields(recipe)}
        return cls(**values, pace=pace, steps_per_epoch=steps_per_epoch)

    def rate(self, step: int, num_steps: int) -> float:
        return super().rate(step, self.pace.epochs * self.steps_per_epoch)


def paced(make: Callable[[int], Method], pace: Pace) -> Method:
    """The method for a training as long as the pace says at the moment; `make` gives it for a number of epochs."""
    made = cache(make)
    first = made(pace.epochs)

    def remember(net: Net) -> Memory:
        own = first.remember(net) if first.remember is not None else {}
        return {**own, _NOTES: _notes(pace.epochs, 0, [])}

    def schedule(progress: Progress) -> Change | None:
        return made(pace.epochs).schedule(progress)

    def revise(net: Net, change: Change, progress: Progress, draw: torch.Generator) -> Masks:
        now = made(pace.epochs).revise
        assert now is not None
        return now(net, change, progress, draw)

    return dataclasses.replace(
        first, remember=remember, schedule=schedule, revise=None if first.revise is None else revise
    )


def lengths(memory: Memory) -> list[list[int]]:
    """The epochs after which a training got a length, and that length."""
    return [list(pair) for pair in memory[_NOTES]["lengths"]] if _NOTES in memory else []


def _notes(length: int, done: int, before: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The length from now on, and the epoch after which to look at it again."""
    length = max(length, done)
    part = LOOKS * done // length + 1 if done < length else LOOKS
    until = -(-part * length // LOOKS)
    changed = not before or before[-1][1] != length
    return {"length": length, "until": until, "lengths": [*before, [done, length]] if changed else list(before)}


class PacedTrainer:
    """Trains part by part, and asks `how_long` between them; a `discovery.phases.Trainer`.

    Parameters
    ----------
    trainer
        Whose recipe is stretched by `pace`.
    how_long
        The epochs that the training is to have in all, seen from where its network stands.
    """

    def __init__(
        self,
        trainer: Trainer,
        pace: Pace,
        how_long: Callable[[Attached], int],
        *,
        steps_per_epoch: int,
        batch_size: int,
    ) -> None:
        self._trainer = trainer
        self._pace = pace
        self._how_long = how_long
        self._steps_per_epoch = steps_per_epoch
        self._batch_size = batch_size

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        self._trainer(model, optimizer, epochs)

    def train(self, jobs: Sequence[Job]) -> list[int]:
        """Train every job to the end that is found for it; the samples that each took."""
        return [self._train(job) for job in jobs]

    def _train(self, job: Job) -> int:
        assert job.progress is not None and job.first_step == 0
        attached = job.attached
        progress = _Unbroken.of(job.progress)
        found = job.progress.load(attached)
        if found is not None:
            progress.found.append(found)
        if _NOTES not in attached.memory:
            raise RunFailed(
                "this training was begun by a version that fixed its length beforehand: "
                "resume with that version, or choose another --out"
            )
        done = 0 if found is None else found[0]
        while True:
            notes: dict[str, Any] = attached.memory[_NOTES]
            self._pace.epochs = notes["length"]
            self._trainer.train([dataclasses.replace(job, epochs=notes["until"], first_step=done, progress=progress)])
            done = int(notes["until"]) * self._steps_per_epoch
            if notes["until"] == notes["length"]:
                return done * self._batch_size
            length = self._how_long(attached)
            attached.memory[_NOTES] = _notes(length, notes["until"], notes["lengths"])


class _Clock:
    """When a training was stored last."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@dataclass(frozen=True)
class _Unbroken(Partial):
    """Where all parts of a training leave their state: stored as seldom, and found once, as if they were one."""

    clock: _Clock = field(default_factory=_Clock)
    found: list[tuple[int, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, progress: Partial) -> _Unbroken:
        return cls(progress.store, progress.name, progress.seconds, progress.team)

    def is_worth(self, seconds: float) -> bool:
        return super().is_worth(self.clock.seconds)

    def save(self, attached: Attached, step: int, noise: Tensor) -> None:
        super().save(attached, step, noise)
        self.clock.began = time.monotonic()

    def load(self, attached: Attached) -> tuple[int, Tensor] | None:
        return self.found.pop() if self.found else None
