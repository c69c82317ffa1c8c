"""A training whose length is decided on the way: its learning rates, its samples, and that a kill changes nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathgrow.checkpoint import MemoryStore
from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.runs.pace import Pace, PacedTrainer, lengths, paced
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.partial import Partial
from pathgrow.sparse.snapshot import digest
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from tests.runs.test_training_broken_off import (
    CASES,
    STEPS_PER_EPOCH,
    Killed,
    Mortal,
    data,
    network,
)
from tests.support.swapping import swapping

RECIPE = CASES["sgd"]
BATCH = 8
FIRST = 6


def make(epochs: int) -> Method:
    """Swaps weights at every `epochs`-th step, so that each length of a training is a method of its own."""
    return swapping(density=0.3, every=epochs, num=4)


class Run:
    """A process of its own: trains, and notes the learning rate of every step and what was told of every epoch."""

    def __init__(self, method: Method) -> None:
        self.rates: list[float] = []
        self.told: list[tuple[int, int]] = []
        self.trainer = Trainer(
            data(), RECIPE, EngineOptions(device="cpu"), on_epoch=lambda done, of, loss: self.told.append((done, of))
        )
        model, optimizer = self.trainer.place(network())
        optimizer.register_step_pre_hook(self._note)
        self.attached = attach(model, optimizer, method, scope=Masks.full(model), seed=1)

    def _note(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.rates.append(float(optimizer.param_groups[0]["lr"]))

    def job(self, **given: Any) -> Job:
        return Job(attached=self.attached, epochs=FIRST, seed=5, **given)


def rates_by_hand(over: list[int], first_step: int = 0) -> list[float]:
    """Cosine with a linear rise at its beginning, written out; `over`: the length that is thought of in each epoch."""
    rates = []
    for step in range(first_step, len(over) * STEPS_PER_EPOCH):
        num_steps = over[step // STEPS_PER_EPOCH] * STEPS_PER_EPOCH
        num_rising = num_steps // 5
        if step < num_rising:
            rates.append(0.1 * (step + 1) / (num_rising + 1))
        else:
            rates.append(0.1 * 0.5 * (1 + np.cos(np.pi * (step - num_rising) / (num_steps - num_rising))))
    return rates


@settings(max_examples=20)
@given(
    said=st.lists(st.integers(1, 7), min_size=1, max_size=7),
    first_step=st.integers(0, 2 * STEPS_PER_EPOCH),
)
def test_the_engine_trains_as_long_as_is_said_and_stretches_the_rate_over_it(said: list[int], first_step: int) -> None:
    asked: list[int] = []

    def length(done: int) -> int:
        asked.append(done)
        return said[min(done, len(said) - 1)]

    run = Run(make(FIRST))
    (num_samples,) = run.trainer.train([run.job(length=length, first_step=first_step)])
    first_epoch = first_step // STEPS_PER_EPOCH
    end = first_epoch
    while end < said[min(end, len(said) - 1)]:
        end += 1
    assert asked == list(range(first_epoch, end + 1))
    over = [said[min(epoch, len(said) - 1)] for epoch in range(end)]
    wanted = rates_by_hand(over, first_step)
    assert run.rates == pytest.approx(wanted, rel=1e-6)
    assert num_samples == BATCH * len(wanted)
    assert run.told == [(epoch + 1, over[epoch]) for epoch in range(first_epoch, end)]


def test_without_a_question_the_length_is_that_of_the_job() -> None:
    run, asked = Run(make(FIRST)), Run(make(FIRST))
    assert run.trainer.train([run.job()]) == asked.trainer.train([asked.job(length=lambda done: FIRST)])
    assert run.rates == asked.rates == pytest.approx(rates_by_hand([FIRST] * FIRST), rel=1e-6)
    ours, theirs = everything_of(run), everything_of(asked)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def everything_of(run: Run) -> dict[str, Tensor]:
    """All that a network has; there is no average here."""
    attached = run.attached
    slots = {
        f"{name} {key}": value
        for name, parameter in attached.model.named_parameters()
        for key, value in attached.optimizer.state[parameter].items()
    }
    masks = {f"mask {name}": mask for name, mask in attached.masks.items()}
    return {**attached.model.state_dict(), **slots, **masks, "step": torch.tensor(attached.step)}


LATER = [8, 5, 7, 7, 6]
"""The lengths that are decided after the first epoch, the second and so on."""


def paced_run(progress: Partial | None) -> tuple[Run, int, dict[int, str]]:
    """The run, its samples, and the network as it stood when its length was asked for, by the step."""
    pace, stood = Pace(FIRST), {}
    run = Run(paced(make, pace))

    def how_long(attached: Attached, before: int) -> int:
        stood[attached.step] = digest(attached.model.state_dict())
        return LATER[attached.step // STEPS_PER_EPOCH - 1]

    (num_samples,) = PacedTrainer(run.trainer, pace, how_long).train([run.job(progress=progress)])
    return run, num_samples, stood


@cache
def undisturbed() -> tuple[Run, int, dict[int, str]]:
    return paced_run(None)


def test_lengths_rates_and_samples_of_a_paced_training() -> None:
    run, num_samples, stood = undisturbed()
    assert list(stood) == [epoch * STEPS_PER_EPOCH for epoch in (1, 2, 3, 4, 5)]
    assert lengths(run.attached.method_state) == [[0, 6], [1, 8], [2, 5], [3, 7], [5, 6]]
    assert run.rates == pytest.approx(rates_by_hand([6, 8, 5, 7, 7, 6]), rel=1e-6)
    assert num_samples == BATCH * STEPS_PER_EPOCH * 6


NUM_STEPS = 6 * STEPS_PER_EPOCH
ENDS = st.integers(1, 6).map(lambda epoch: epoch * STEPS_PER_EPOCH)
"""Of epochs, where lengths are decided."""


@settings(max_examples=20)
@given(kills=st.sets(st.one_of(st.integers(1, NUM_STEPS), ENDS), min_size=1, max_size=3), noise=st.integers(0, 9))
def test_killed_anywhere_it_finds_the_same_lengths_and_ends_with_the_same_bits(kills: set[int], noise: int) -> None:
    expected, num_samples, stood = undisturbed()
    store = MemoryStore()
    for dies in sorted(kills):
        torch.manual_seed(noise)
        with pytest.raises(Killed):
            paced_run(Mortal(store, {dies}, dies))
    last = Mortal(store, set(), None)
    run, counted, stood_then = paced_run(last)
    ours, theirs = everything_of(run), everything_of(expected)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert lengths(run.attached.method_state) == lengths(expected.attached.method_state)
    assert counted == num_samples, "those before the kills among them"
    died = max(kills)
    assert run.rates == expected.rates[died:]
    assert stood_then == {step: seen for step, seen in stood.items() if step >= died}, "asked where it was asked before"
    assert last.asked == [*range(died + 1, NUM_STEPS + 1), NUM_STEPS], "stored as one training is"
