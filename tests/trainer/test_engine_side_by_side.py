"""Which of several trainings goes on: the device is never left without work, and none is left behind."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pathgrow import attach, data, models
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.trainer import EngineOptions, Trainer, trainer
from pathgrow.trainer.cuda_graph_step import CudaGraphStep
from pathgrow.trainer.interface import Job
from pathgrow.trainer.loop import Training
from pathgrow.trainer.recipes import Recipe

MOST_QUEUED = 8
REPLAY, CHANGE, LOOK = 8.0, 60.0, 0.1
"""How long the device works on a step, and the process on a change and on a look at the device; queueing takes 1."""


class Device:
    """A clock, and work that is shared out equally to the streams that have any."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.now = self.idle = 0.0

    def go_on(self, time: float) -> None:
        self.now += time
        while time > 0:
            busy = [stream for stream in self.streams if stream.left > 0]
            if not busy:
                self.idle += time
                return
            part = min(time, len(busy) * min(stream.left for stream in busy))
            for stream in busy:
                stream.left = max(0.0, stream.left - part / len(busy))
            time -= part


class Stream:
    def __init__(self, device: Device) -> None:
        self.left = 0.0
        device.streams.append(self)


class Simulated:
    """A training whose replays are queued, and whose changes of masks come after everything before them."""

    def __init__(self, device: Device, every: int) -> None:
        self.num_samples = 0
        self.most_queued = 0.0
        self._stream, self._device, self._every = Stream(device), device, every

    @property
    def would_wait(self) -> bool:
        self._device.go_on(LOOK)
        return self._stream.left > (0 if self._changes else (MOST_QUEUED - 1) * REPLAY)

    @property
    def _changes(self) -> bool:
        return self.num_samples > 0 and self.num_samples % self._every == 0

    def steps(self) -> Iterator[None]:
        for _ in range(LENGTH):
            if self._changes:
                while self._stream.left > 0:
                    self._device.go_on(1.0)
                self._device.go_on(CHANGE)
            self._device.go_on(1.0)
            self._stream.left += REPLAY
            self.most_queued = max(self.most_queued, self._stream.left / REPLAY)
            self.num_samples += 1
            yield


LENGTH = 240
EVERY = [20, 20, 10_000, 30]


def simulate(monkeypatch: pytest.MonkeyPatch) -> tuple[Device, list[Simulated]]:
    """Trainings side by side by the trainer's own loop."""
    device, over = Device(), list[int]()
    simulated = [Simulated(device, every) for every in EVERY]
    engine = Trainer(data.load("digits"), Recipe(), EngineOptions(device="cpu"))
    engine.plan = dataclasses.replace(engine.plan, cuda_graphs=True)
    monkeypatch.setattr(engine, "_training", lambda job: simulated[job])
    monkeypatch.setattr(trainer.time, "sleep", lambda seconds: device.go_on(LOOK))
    assert engine.train(range(4), on_done=over.append) == [LENGTH] * 4  # type: ignore[arg-type]
    assert sorted(over) == [0, 1, 2, 3]
    return device, simulated


def test_the_device_works_for_others_while_one_changes_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    device, simulated = simulate(monkeypatch)
    assert all(one.most_queued <= MOST_QUEUED for one in simulated)
    with monkeypatch.context() as context:
        context.setattr(trainer, "_ready", lambda running: list(running.items()))
        in_turn, _ = simulate(context)
    num_changes = sum((LENGTH - 1) // every for every in EVERY)
    assert in_turn.idle > num_changes * CHANGE / 2
    assert device.idle < in_turn.idle / 4
    assert device.now < 0.95 * in_turn.now


def test_a_training_that_is_alone_goes_on() -> None:
    alone = SimpleNamespace(would_wait=True)
    running: Any = {3: (alone, iter([None]))}
    assert trainer._ready(running) == [(3, running[3])]


@pytest.mark.parametrize("has_work", [True, False])
@pytest.mark.parametrize("is_well_ahead", [True, False])
@pytest.mark.parametrize(
    ("done", "update_is_due", "comes_last"),
    [(0, False, True), (7, False, False), (7, True, True), (30, False, True)],
)
def test_what_would_wait(has_work: bool, is_well_ahead: bool, done: int, update_is_due: bool, comes_last: bool) -> None:
    captured: Any = object.__new__(CudaGraphStep)
    captured.stream = SimpleNamespace(query=lambda: not has_work)
    captured._events = deque([SimpleNamespace(query=lambda: False)] * 4 if is_well_ahead else [])
    job: Any = SimpleNamespace(attached=SimpleNamespace(update_is_due=update_is_due), epochs=9, first_step=done)
    feed: Any = SimpleNamespace(num_steps=10)
    anything: Any = None
    training = Training(job, feed, anything, captured, lambda *told: None)
    assert training.would_wait == (has_work if comes_last else is_well_ahead)
    assert not Training(job, feed, anything, anything, lambda *told: None).would_wait


def test_a_save_waits_as_a_change_does() -> None:
    """The step before a save is followed by a stop of its own, in which others go on."""
    engine = Trainer(data.load("digits"), Recipe(batch_size=128), EngineOptions(device="cpu"))
    model, optimizer = engine.place(models.create("mlp", 10, seed=0, widths=[8]))
    attached = attach(model, optimizer, fixed(Masks.full(model)), scope=Masks.full(model))
    saves = list[int]()
    progress: Any = SimpleNamespace(
        load=lambda attached: None,
        is_due=lambda step, seconds: step == 3,
        is_worth=lambda seconds: False,
        save=lambda attached, step, noise: saves.append(step),
    )
    training = engine._training(Job(attached=attached, epochs=1, seed=0, progress=progress))
    stops = [(training._saves_next, list(saves)) for _ in training.steps()]
    assert stops[:5] == [(False, []), (False, []), (True, []), (False, [3]), (False, [3])]


@pytest.mark.parametrize("places", [1, 2, 5])
def test_no_more_networks_are_at_work_than_asked_for(places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, most = set[int](), list[int]()

    def steps(job: int) -> Iterator[None]:
        for _ in range(3 + job):
            at_work.add(job)
            most.append(len(at_work))
            yield
        at_work.remove(job)

    engine = Trainer(data.load("digits"), Recipe(), EngineOptions(device="cpu", max_concurrent=places))
    engine.plan = dataclasses.replace(engine.plan, cuda_graphs=True)
    made: Any = lambda job: SimpleNamespace(steps=lambda: steps(job), would_wait=False, num_samples=job)  # noqa: E731
    monkeypatch.setattr(engine, "_training", made)
    assert engine.train(range(4)) == [0, 1, 2, 3]  # type: ignore[arg-type]
    assert max(most) == min(places, 4)
