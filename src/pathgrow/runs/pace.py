"""A training whose length is decided on the way, so that it spends the budget it was given.

Where weights move between layers, nobody knows beforehand what a step will cost. So the length of such a training is
decided again after every sixteenth of it: what it has spent is known, the rest is forecast from the present masks, and
learning rate and method are stretched over the resulting number of epochs. As there is ever less to forecast, the only
error in the end is that epochs are whole. The length is part of the memory that is saved with the attachment, so a
training that is killed goes on with the length it had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pathgrow.errors import RunFailed
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, Method, MethodState, NetworkView, Progress
from pathgrow.sparse.attach import Attached
from pathgrow.trainer import Trainer
from pathgrow.trainer.interface import Job

LOOKS = 16
"""Into how many parts a training is divided; after each of them its length is decided again."""
_NOTES = "pace"


@dataclass
class Pace:
    """How long a training is, as far as is known now; written by its trainer, read by its method."""

    epochs: int


def paced(make: Callable[[int], Method], pace: Pace) -> Method:
    """A method that always acts as `make(epochs)` does, for the epochs that the pace says at that moment."""
    made = cache(make)
    first = made(pace.epochs)

    def init_state(net: NetworkView) -> MethodState:
        own = first.init_state(net) if first.init_state is not None else {}
        return {**own, _NOTES: _notes(pace.epochs, 0, [])}

    def schedule(progress: Progress) -> MaskUpdate | None:
        return made(pace.epochs).schedule(progress)

    def update(net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        now = made(pace.epochs).update
        assert now is not None
        return now(net, change, progress, draw)

    return dataclasses.replace(
        first, init_state=init_state, schedule=schedule, update=None if first.update is None else update
    )


def lengths(method_state: MethodState) -> list[list[int]]:
    """Pairs of the epoch after which the length of a training was decided, and that length."""
    return [list(pair) for pair in method_state[_NOTES]["lengths"]] if _NOTES in method_state else []


def _notes(length: int, done: int, before: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The length from now on, and the epoch after which to decide on it again."""
    length = max(length, done)
    part = LOOKS * done // length + 1 if done < length else LOOKS
    until = -(-part * length // LOOKS)
    changed = not before or before[-1][1] != length
    return {"length": length, "until": until, "lengths": [*before, [done, length]] if changed else list(before)}


class PacedTrainer:
    """Trains as another trainer does, but asks between epochs how long to go on; a `discovery.phases.Trainer`.

    Parameters
    ----------
    pace
        Gets every length that is decided.
    how_long
        Returns the epochs that the training is to have in all, given its network as it stands and the last number.
    """

    def __init__(self, trainer: Trainer, pace: Pace, how_long: Callable[[Attached, int], int]) -> None:
        self._trainer = trainer
        self._pace = pace
        self._how_long = how_long

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        self._trainer(model, optimizer, epochs)

    def train(self, jobs: Sequence[Job]) -> list[int]:
        """Train every job to the end that is decided for it; returns the samples that each took."""
        counts = []
        for job in jobs:  # one after the other, since they share the pace
            counts += self._trainer.train([dataclasses.replace(job, length=partial(self._length, job.attached))])
        return counts

    def _length(self, attached: Attached, done: int) -> int:
        if _NOTES not in attached.method_state:
            raise RunFailed(
                "this training was begun by a version that fixed its length beforehand: "
                "resume with that version, or choose another --out"
            )
        notes: dict[str, Any] = attached.method_state[_NOTES]
        if done == notes["until"] != notes["length"]:
            notes = _notes(self._how_long(attached, notes["length"]), done, notes["lengths"])
            attached.method_state[_NOTES] = notes
        self._pace.epochs = notes["length"]
        return self._pace.epochs
