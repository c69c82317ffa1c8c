"""Calls of the user's own functions: seeded by name, begun at the user's learning rates, with checked results."""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from pathgrow.checkpoint.store import Store
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import RunFailed, UserError
from pathgrow.graph.sample_counter import counting
from pathgrow.report.schema import Score
from pathgrow.rng import derive
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.hooks import parse_evaluation
from pathgrow.sparse.partial import PREFIX, Partial
from pathgrow.sparse.snapshot import digest
from pathgrow.trainer.interface import Evaluate, Fit, Job, JobTrainer


def check_calls(fit: Any, evaluate: Any) -> None:
    """Refuse functions that cannot be called as they will be, before anything is trained."""
    check_call(fit, "fit", "model", "optimizer", "epochs")
    check_call(evaluate, "evaluate", "model")


def check_call(function: Any, name: str, *wanted: str) -> None:
    """Refuse a function, passed under this name, that cannot be called with these arguments."""
    call = f"{name}({', '.join(wanted)})"
    if not callable(function):
        raise UserError(f"{name} is a {type(function).__name__}, a function is wanted: give one that takes {call}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # functions written in C need not have one
    try:
        signature.bind(*wanted)
    except TypeError as fault:
        raise UserError(f"{name} takes {signature}, but it will be called as {call} ({fault})") from fault


@contextmanager
def seeded(seed: int, *name: str | int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python for one named use, and restore the caller's states after.

    User functions may draw from any of them; a call then depends on its name alone, not on what ran before it.
    """
    derived = derive(seed, *name)
    python, arrays = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derived)
        random.seed(derived)
        np.random.seed(derived % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


class OptimizerSettings:
    """The learning rates and other settings of the parameter groups as the user set them; every phase begins with them.

    A schedule inside `fit` may leave them anywhere; without this a second phase would begin where the first ended.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._groups = [_settings(group) for group in optimizer.param_groups]

    def restore_(self, optimizer: Optimizer) -> None:
        """Put them back into this optimizer or into a copy of it."""
        for group, settings in zip(optimizer.param_groups, self._groups, strict=True):
            for name in [name for name in group if name not in settings and name != "params"]:
                del group[name]
            for name, value in settings.items():
                if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
                    group[name].copy_(value)  # a captured step reads this very tensor
                else:
                    group[name] = copy.deepcopy(value)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The outcome of a phase."""

    num_epochs: int
    num_samples: int
    score: Score


class Phases:
    """Trains and scores networks with the user's functions, each phase under the name of its stage.

    Parameters
    ----------
    optimizer
        Every phase begins with the settings that it has now.
    average
        Score the running average of the weights instead of the weights.
    store
        Where a `JobTrainer` may save half-done trainings.
    team
        The processes that train together.
    """

    patience = 3
    """An adaptive phase ends when the validation loss has not improved for this many epochs,"""
    longest = 40
    """or after this many."""

    def __init__(
        self,
        fit: Fit,
        evaluate: Evaluate,
        optimizer: Optimizer,
        *,
        seed: int,
        average: bool,
        store: Store,
        comm: Communicator = SINGLE_PROCESS,
    ) -> None:
        self._fit = fit
        self._store = store
        self._comm = comm
        self._partials: dict[str, list[Partial]] = {}
        self._evaluate = evaluate
        self.settings = OptimizerSettings(optimizer)
        self._seed = seed
        self._average = average

    def train_(self, attached: Attached, stage: str, epochs: int | None, first_step: int = 0) -> Trained:
        """Train for a number of epochs (None: until the validation loss rests) and score the result.

        `first_step`: the step of these epochs that a `JobTrainer` begins with, for a network that was set back to it.
        """
        if epochs is None:
            return self._train_adaptively_(attached, stage)
        num_samples = self._fit_(attached, stage, epochs, first_step=first_step)
        return Trained(num_epochs=epochs, num_samples=num_samples, score=self.score(attached, stage))

    def train_together_(self, networks: Sequence[tuple[Attached, str]], epochs: Sequence[int]) -> list[Trained]:
        """Train several networks, side by side where the training functions can; then score each."""
        if isinstance(self._fit, JobTrainer):
            counts = self._train_jobs_([(a, stage, n, 0, 0) for (a, stage), n in zip(networks, epochs, strict=True)])
        else:
            counts = [self._fit_(a, stage, n) for (a, stage), n in zip(networks, epochs, strict=True)]
        return [
            Trained(num_epochs=n, num_samples=count, score=self.score(attached, stage))
            for (attached, stage), n, count in zip(networks, epochs, counts, strict=True)
        ]

    def forget_partials(self, stage: str) -> None:
        """Delete the half-done trainings of a stage that is stored now."""
        for partial in self._partials.pop(stage, []):
            partial.forget()

    def train_to_plateau_(self, attached: Attached, stage: str, epochs: int, more: int, gain: float) -> Trained:
        """Train `epochs`, then `more` at a time while each time gains more than `gain`, to at most twice `epochs`."""
        num_samples, num_epochs = self._fit_(attached, stage, epochs), epochs
        score = self.score(attached, stage)
        for part in range(1, 1 + epochs // more):
            before = score
            num_samples += self._fit_(attached, stage, more, part)
            num_epochs += more
            score = self.score(attached, stage, part)
            if score.score - before.score <= gain:
                break
        return Trained(num_epochs=num_epochs, num_samples=num_samples, score=score)

    def _train_adaptively_(self, attached: Attached, stage: str) -> Trained:
        best, num_since, num_samples = math.inf, 0, 0
        for epoch in range(1, self.longest + 1):
            num_samples += self._fit_(attached, stage, 1, epoch)
            score = self.score(attached, stage, epoch)
            loss = score.loss if score.loss is not None else -score.score
            num_since = 0 if loss < best else num_since + 1
            best = min(best, loss)
            if num_since == self.patience:
                break
        return Trained(num_epochs=epoch, num_samples=num_samples, score=score)

    def _fit_(self, attached: Attached, stage: str, epochs: int, part: int = 0, first_step: int = 0) -> int:
        if isinstance(self._fit, JobTrainer):
            return self._train_jobs_([(attached, stage, epochs, part, first_step)])[0]
        assert first_step == 0, "a function that trains whole epochs cannot begin in the middle"
        self.settings.restore_(attached.optimizer)
        with seeded(self._seed, stage, "fit", part), counting(attached.model) as counter:
            self._fit(attached.model, attached.optimizer, epochs)
        self._end_fit(attached, stage)
        return sum(self._comm.gather(counter.samples))

    def _train_jobs_(self, asked: Sequence[tuple[Attached, str, int, int, int]]) -> list[int]:
        assert isinstance(self._fit, JobTrainer)
        jobs = []
        for attached, stage, epochs, part, first_step in asked:
            self.settings.restore_(attached.optimizer)
            partial = Partial(self._store, f"{PREFIX}{stage}-{part}", comm=self._comm)
            self._partials.setdefault(stage, []).append(partial)
            seed = derive(self._seed, stage, "fit", part)
            jobs.append(Job(attached=attached, epochs=epochs, seed=seed, first_step=first_step, progress=partial))
        counts = self._fit.train(jobs)
        for attached, stage, *_ in asked:
            self._end_fit(attached, stage)
        return counts

    def _end_fit(self, attached: Attached, stage: str) -> None:
        self.settings.restore_(attached.optimizer)
        # In training each process has batch-norm statistics of its own: from here on those of the first count.
        self._comm.broadcast_(attached.model.buffers())
        self._comm.check_equal("trained weights", lambda: digest(dict(attached.model.named_parameters())))
        for name, parameter in attached.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise RunFailed(
                    f"{name} is no longer finite after training in stage {stage}: training has diverged, "
                    "so lower the learning rate; the stages before it are kept"
                )

    def score(self, attached: Attached, stage: str, part: int = 0, evaluate: Evaluate | None = None) -> Score:
        """The network's score now, by the user's evaluation or by another one."""
        weights = attached.ema_weights() if self._average else nullcontext()
        with weights, seeded(self._seed, stage, "evaluate", part):
            value = (evaluate or self._evaluate)(attached.model)
            score, loss = self._comm.broadcast_from_rank0(lambda: parse_evaluation(value, f"evaluate in stage {stage}"))
            return Score(score=score, loss=loss)
