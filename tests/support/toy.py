"""A small model with its data and functions, a rule that follows a script, a store that dies: to test the loop with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from pathgrow.checkpoint.store import MemoryStore
from pathgrow.density.types import Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.runs.api import discover
from pathgrow.runs.result import Discovery

INPUTS = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] * INPUTS[:, 1] > 0).long()


@dataclass(frozen=True)
class Script:
    """Probes the given rounds when they are reached, grows to the last of them, gives the configured answer."""

    probe: tuple[int, ...] = (0, 2)
    last: int = 3
    density: float | None = 0.2
    gain_density: float | None = 0.3
    status: str = "found"
    delta: float = 0.01
    name: str = "script"

    def decide(self, curve: Curve) -> Verdict:
        here = curve.rough[-1].round
        done = {point.round for point in curve.probes}
        if here in self.probe and here not in done:
            return Probe(rounds=(here,), reason="asked")
        return Stop(reason="the script ends") if here == self.last else Grow(reason="not yet")

    def answer(self, curve: Curve) -> Answer:
        return Answer(
            rule=self.name,
            delta=self.delta,
            status=self.status,  # type: ignore[arg-type]
            density=self.density,
            gain_density=self.gain_density,
            reference=curve.reference,
        )


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )


@dataclass
class Call:
    """One call of the user's `fit`."""

    model: nn.Module
    epochs: int
    lr: float
    num_slots: int
    draw: float


@dataclass
class World:
    """Somebody's model, optimizer and functions, with notes of every call."""

    make_optimizer: Callable[[nn.Module], Optimizer] = lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9)
    seed: int = 0
    fits: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = network(self.seed)
        self.optimizer = self.make_optimizer(self.model)

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        lr = optimizer.param_groups[0]["lr"]
        self.fits.append(Call(model, epochs, lr, len(optimizer.state), float(torch.rand(()))))
        model.train()
        for epoch in range(epochs):
            batch = torch.randperm(32)[:16]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(INPUTS[batch]), TARGETS[batch]).backward()
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - (epoch + 1) / epochs)  # left at 0, as schedules do

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            logits = model(INPUTS)
        return float((logits.argmax(1) == TARGETS).double().mean()), float(nn.functional.cross_entropy(logits, TARGETS))

    def discover(self, **options: object) -> Discovery:
        settings = {"finish": "static", "rule": Script(), "start_density": 0.1, "budget": 16, **options}
        settings.setdefault("seed_epochs", max(1, settings["budget"] // 8))
        return discover(self.model, self.optimizer, self.fit, self.evaluate, INPUTS[:1], **settings)


class Loss(World):
    """Scored by its validation loss."""

    def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
        return super().evaluate(model)[1]


class NegativeLoss(Loss):
    def evaluate(self, model: nn.Module) -> float:  # type: ignore[override]
        return -super().evaluate(model)


def without_timing(found: Discovery) -> dict:
    return {key: value for key, value in found.report().as_json().items() if key != "timing"}


def stage_lengths(found: Discovery) -> list[tuple[str, int]]:
    return [(phase.phase, phase.epochs) for phase in found.ledger.phases]


class Killed(BaseException):
    """What a kill looks like from inside."""


class MortalStore(MemoryStore):
    """Dies before or after its n-th save."""

    def __init__(self, num_saves: int, saves_the_last: bool) -> None:
        super().__init__()
        self.left, self._saves_the_last = num_saves, saves_the_last

    def save(self, stage: str, metadata: object, tensors: object = None) -> None:
        self.left -= 1
        if self.left == 0 and not self._saves_the_last:
            raise Killed
        super().save(stage, metadata, tensors)  # type: ignore[arg-type]
        if self.left == 0:
            raise Killed


def killed_at_every_save(saves_the_last: bool, world: type[World] = World, **options: Any) -> int:
    """Interrupt a discovery at each of its saves and resume it, with the same result; returns the number of saves."""
    uninterrupted = without_timing(world().discover(**options))
    for num_saves in range(1, 100):
        store = MortalStore(num_saves, saves_the_last)
        try:
            world().discover(store=store, **options)
        except Killed:
            assert without_timing(world().discover(store=store, **options)) == uninterrupted
        else:
            return num_saves - 1
    raise AssertionError("a discovery of a hundred saves")


class Mortal(World):
    """Dies in the first evaluation after a training."""

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        if self.fits:
            raise Killed
        return super().evaluate(model)


def killed_after_every_training(store: Any, num_trainings: int, **options: Any) -> Discovery:
    """Interrupt a discovery after each of its trainings, which are all kept, and return what it ends with."""
    for number in range(num_trainings):
        world = Mortal()
        try:
            world.discover(store=store, **options)
        except Killed:
            assert len(world.fits) == 1, f"training {number} ran {len(world.fits)} times"
        else:
            raise AssertionError(f"only {number} of {num_trainings} trainings ran")
    world = Mortal()  # the same functions, or their change would be noted
    found = world.discover(store=store, **options)
    assert world.fits == []
    return found
