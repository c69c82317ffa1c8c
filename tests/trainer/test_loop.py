"""Which of several trainings advances: the device always has work queued, and no training is left behind."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
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

MAX_QUEUED = 8
REPLAY, UPDATE, QUERY = 8.0, 60.0, 0.1
"""Time of a step on the device, of a mask update on the host, and of a query of the device; queueing takes 1."""


class Device:
    """A clock, and a device that shares its time equally among the streams with work."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.now = self.idle = 0.0

    def run_for(self, time: float) -> None:
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
    """A training that queues replays; a mask update waits for everything before it."""

    def __init__(self, device: Device, every: int) -> None:
        self.num_samples = 0
        self.max_queued = 0.0
        self._stream, self._device, self._every = Stream(device), device, every

    @property
    def would_wait(self) -> bool:
        self._device.run_for(QUERY)
        return self._stream.left > (0 if self.needs_idle_stream else (MAX_QUEUED - 1) * REPLAY)

    @property
    def needs_idle_stream(self) -> bool:
        return self.num_samples > 0 and self.num_samples % self._every == 0

    def steps(self) -> Iterator[None]:
        for _ in range(LENGTH):
            if self.needs_idle_stream:
                while self._stream.left > 0:
                    self._device.run_for(1.0)
                self._device.run_for(UPDATE)
            self._device.run_for(1.0)
            self._stream.left += REPLAY
            self.max_queued = max(self.max_queued, self._stream.left / REPLAY)
            self.num_samples += 1
            yield


LENGTH = 240
EVERY = [20, 20, 10_000, 30]


def simulate(monkeypatch: pytest.MonkeyPatch, every: Sequence[int] = EVERY) -> tuple[Device, list[Simulated]]:
    """Run concurrent trainings in the loop of the trainer."""
    device, done, num = Device(), list[int](), len(every)
    simulated = [Simulated(device, steps) for steps in every]
    engine = Trainer(data.load("digits"), Recipe(), EngineOptions(device="cpu"))
    engine.plan = dataclasses.replace(engine.plan, cuda_graphs=True)
    monkeypatch.setattr(engine, "_training", lambda job: simulated[job])
    monkeypatch.setattr(trainer.time, "sleep", lambda seconds: device.run_for(QUERY))
    assert engine.train(range(num), on_done=done.append) == [LENGTH] * num  # type: ignore[arg-type]
    assert sorted(done) == list(range(num))
    return device, simulated


def test_the_device_works_for_others_during_a_mask_update(monkeypatch: pytest.MonkeyPatch) -> None:
    device, simulated = simulate(monkeypatch)
    assert all(one.max_queued <= MAX_QUEUED for one in simulated)
    with monkeypatch.context() as context:
        context.setattr(trainer, "_ready", lambda running: list(running.items()))
        in_turn, _ = simulate(context)
    num_updates = sum((LENGTH - 1) // every for every in EVERY)
    assert in_turn.idle > num_updates * UPDATE / 2
    assert device.idle < in_turn.idle / 4
    assert device.now < 0.95 * in_turn.now


def test_networks_with_the_same_schedule_do_not_update_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is without work during the first updates, but not later."""
    device, _ = simulate(monkeypatch, [40] * 6)

    def all_ready(running: Any) -> list[Any]:
        ready = [(number, pair) for number, pair in running.items() if not pair[0].would_wait]
        if not ready:
            trainer.time.sleep(0)
        return ready

    with monkeypatch.context() as context:
        context.setattr(trainer, "_ready", all_ready)
        at_once, _ = simulate(context, [40] * 6)
    num_rounds = (LENGTH - 1) // 40
    assert at_once.idle > 0.75 * num_rounds * 6 * UPDATE
    assert device.idle < 1.5 * UPDATE


def test_a_single_training_always_advances() -> None:
    alone = SimpleNamespace(would_wait=True)
    running: Any = {3: (alone, iter([None]))}
    assert trainer._ready(running) == [(3, running[3])]


@pytest.mark.parametrize("has_work", [True, False])
@pytest.mark.parametrize("is_well_ahead", [True, False])
@pytest.mark.parametrize(
    ("done", "works_on_host", "needs_idle_device"),
    [(0, False, True), (7, False, False), (7, True, True), (30, False, True)],
)
def test_which_steps_would_wait(
    has_work: bool, is_well_ahead: bool, done: int, works_on_host: bool, needs_idle_device: bool
) -> None:
    step: Any = object.__new__(CudaGraphStep)
    step.stream = SimpleNamespace(query=lambda: not has_work)
    step._events = deque([SimpleNamespace(query=lambda: False)] * 4 if is_well_ahead else [])
    job: Any = SimpleNamespace(attached=SimpleNamespace(works_on_host=works_on_host), epochs=9, first_step=done)
    feed: Any = SimpleNamespace(num_steps=10)
    anything: Any = None
    training = Training(job, feed, anything, step, lambda *epoch: None)
    assert training.would_wait == (has_work if needs_idle_device else is_well_ahead)
    assert not Training(job, feed, anything, anything, lambda *epoch: None).would_wait


def test_a_save_waits_as_a_mask_update_does() -> None:
    """The step before a save yields once more, so that others can advance."""
    engine = Trainer(data.load("digits"), Recipe(batch_size=128), EngineOptions(device="cpu"))
    model, optimizer = engine.place(models.create("mlp", 10, seed=0, widths=[8]))
    attached = attach(model, optimizer, fixed(Masks.full(model)), scope=Masks.full(model))
    saves = list[int]()
    progress: Any = SimpleNamespace(
        name="made",
        load=lambda attached: None,
        is_due=lambda step, seconds: step == 3,
        is_worth_saving=lambda seconds: False,
        save=lambda attached, step, rng_state: saves.append(step),
    )
    training = engine._training(Job(attached=attached, epochs=1, seed=0, progress=progress))
    stops = [(training._saves_next, list(saves)) for _ in training.steps()]
    assert stops[:5] == [(False, []), (False, []), (True, []), (False, [3]), (False, [3])]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_at_most_max_concurrent_networks_train_at_once(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    running, counts = set[int](), list[int]()

    def steps(job: int) -> Iterator[None]:
        for _ in range(3 + job):
            running.add(job)
            counts.append(len(running))
            yield
        running.remove(job)

    engine = Trainer(data.load("digits"), Recipe(), EngineOptions(device="cpu", max_concurrent=limit))
    engine.plan = dataclasses.replace(engine.plan, cuda_graphs=True)

    def made(job: int) -> Any:
        return SimpleNamespace(steps=lambda: steps(job), would_wait=False, needs_idle_stream=False, num_samples=job)

    monkeypatch.setattr(engine, "_training", made)
    assert engine.train(range(4)) == [0, 1, 2, 3]  # type: ignore[arg-type]
    assert max(counts) == min(limit, 4)
