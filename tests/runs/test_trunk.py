"""The trunk: growth counts, seed training, resuming from stored weights, and stages of another run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow import methods
from pathgrow.checkpoint import MemoryStore
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.errors import UserError
from pathgrow.runs.discovery import discover
from tests.support.toy import (
    INPUTS,
    TARGETS,
    Killed,
    MortalStore,
    Script,
    World,
    without_timing,
)


@pytest.mark.parametrize(("time", "expected"), [(1.0, 30), (1e9, 40), (25.0, 40)])
def test_the_seed_is_trained_to_its_plateau(time: float, expected: int) -> None:
    """A settled score is checked once more; a rising one is trained twice as long."""
    epochs_had = [0]

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        epochs_had[0] += epochs

    def evaluate(model: nn.Module) -> float:
        return epochs_had[0] / 100 if time == 1e9 else 0.9 * (1 - math.exp(-epochs_had[0] / time))

    world = World()
    found = discover(
        world.model, world.optimizer, fit, evaluate, INPUTS[:1],
        rule=Script(), start_density=0.1, budget=160, delta=0.01,
    )  # fmt: skip
    assert found.rounds[0].point.epochs == expected


@pytest.mark.parametrize(("rule", "goes_on"), [("probe", False), ("exponential", True), ("trajectory", True)])
def test_only_rules_that_use_the_score_of_the_seed_train_it_to_its_plateau(rule: str, goes_on: bool) -> None:
    """An eighth of 32 epochs; half of it more at a time, where the score rises."""
    world, scores = World(), iter(range(1000))
    world.evaluate = lambda model: 0.001 * next(scores)  # type: ignore[method-assign, assignment, return-value]
    found = world.discover(rule=rule, seed_epochs=None, budget=32, start_density=0.8, gamma=0.1, delta=0.001)
    assert found.rounds[0].num_epochs == (8 if goes_on else 4)


def test_rough_training_in_epochs_or_as_a_fraction() -> None:
    assert [p.epochs for p in World().discover(rough=3).curve.rough] == [2, 5, 8, 11]
    assert [p.epochs for p in World().discover(rough=0.5).curve.rough] == [2, 10, 18, 26]


def test_growth_adds_a_fraction_rounded_down_and_removes_nothing() -> None:
    found = World().discover(rule=Script(last=5), gamma=0.5)
    counts = [record.num_on for record in found.rounds]
    assert all(after == before + int(0.5 * before) for before, after in pairwise(counts))
    for round in range(5):
        before, after = found.masks_at(round), found.masks_at(round + 1)
        assert (before - after).num_on == 0


def test_growth_counts_are_those_of_the_method_schedule() -> None:
    """0.29 * 100 is 28.999999999999996 in floating point and 29 in both loops."""
    found = World().discover(start_density=100 / 384, gamma=0.29, rule=Script(probe=(), last=1, density=None))
    assert [record.num_on for record in found.rounds] == [100, 129]


def test_growth_ends_at_full_density() -> None:
    found = World().discover(start_density=0.7, gamma=0.4, rule=Script(probe=(), last=2, density=None))
    assert [record.num_on for record in found.rounds] == [269, 376, 384]
    assert found.curve.at_ceiling


NUM, OUTPUT = 8 * 16 + 16 * 16, 16 * 2
"""Prunable and output weights of the toy network."""


def test_the_method_owns_the_growth_rate() -> None:
    doubling = methods.create("gcg", gamma=1.0)
    for options in ({"method": doubling}, {"method": doubling, "gamma": 1.0}, {"gamma": 1.0}):
        found = World().discover(rule=Script(probe=(), last=2), **options)
        assert [record.num_on for record in found.rounds] == [38, 76, 152]
        assert found.report().method.options["gamma"] == 1.0


@dataclass(frozen=True)
class Beside(Script):
    """Three rounds, then all probes at once, then growth up to each of the given densities."""

    probe: tuple[int, ...] = (0, 2, DENSE)
    last: int = 3
    up_to: tuple[float, ...] = ()
    allowed: float | None = None

    def decide(self, curve: Curve) -> Verdict:
        here = curve.rough[-1].round
        if here < self.last:
            return Grow(reason="not yet")
        if not curve.probes and self.probe:
            return Probe(rounds=self.probe, reason="all at once")
        if here - self.last < len(self.up_to):
            return Grow(reason="up to the answer", up_to=self.up_to[here - self.last])
        return Stop(reason="the script ends")

    def answer(self, curve: Curve) -> Answer:
        return replace(super().answer(curve), allowed=self.allowed)


def test_growth_stops_at_the_requested_weight() -> None:
    asked = (0.2, 77 / NUM, 0.1, 0.26, math.inf, 0.3)
    found = World().discover(rule=Beside(probe=(), up_to=asked))
    counts = [record.num_on for record in found.rounds][3:]
    # 76.8 weights are 77; where that many are there, one more; never fewer; a whole step is 25% at most.
    assert counts == [72, 77, 78, 79, 98, 122, 123]
    assert [record.point.density for record in found.rounds][3:] == [count / NUM for count in counts]


def test_growth_beyond_full_density_stops_there() -> None:
    found = World().discover(start_density=0.9, rule=Beside(probe=(), last=0, up_to=(7.0,)))
    assert [record.num_on for record in found.rounds] == [346, NUM]
    assert found.curve.at_ceiling


def test_gradient_growth_is_charged_at_the_masks_before_it() -> None:
    inputs, targets = torch.randn(8, 8), torch.zeros(8, dtype=torch.long)
    found = World().discover(
        method="gradient_growth",
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        batches=[(inputs, targets)],
    )
    for before, record in zip(found.rounds, found.rounds[1:], strict=False):
        sparse = before.num_on + OUTPUT  # forward and to the inputs; to the weights all of them
        assert record.update_flops == 8 * 2 * (2 * sparse + NUM + OUTPUT)


def test_gradient_growth_uses_the_given_loss() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    found = World().discover(method="gradient_growth", loss=loss, batches=[(INPUTS, TARGETS)])
    assert found.rounds[1].update_flops > found.rounds[0].update_flops == 0
    with pytest.raises(UserError, match="loss"):
        World().discover(method="gradient_growth")


def test_momentum_carries_over_in_the_trunk_but_not_into_probes() -> None:
    world = World()
    world.discover()
    slots = [(call.model is world.model, call.num_slots > 0) for call in world.fits]
    #          seed           probe-000       round-001      round-002     probe-002       round-003     final
    assert slots == [
        (True, False),
        (False, False),
        (True, True),
        (True, True),
        (False, False),
        (True, True),
        (False, False),
    ]


def test_lost_weights_are_trained_again() -> None:
    options = {"rule": Script(probe=(1,), last=2)}
    undisturbed = without_timing(World().discover(**options))
    store = MortalStore(6, saves_the_last=True)
    with pytest.raises(Killed):
        World().discover(store=store, **options)
    for stage in ("weights-000", "weights-001"):
        store.delete_tensors(stage)
    assert without_timing(World().discover(store=store, **options)) == undisturbed


def test_stages_of_another_model_are_refused() -> None:
    store = MemoryStore()
    World().discover(store=store)
    with pytest.raises(UserError, match="started from other initial weights"):
        World(seed=1).discover(store=store)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.05), "its lr was 0.1, now 0.05"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), "its kind was SGD, now AdamW"),
        (lambda p: torch.optim.SGD([{"params": [x]} for x in p], lr=0.1), "it had 1 groups of parameters, now"),
        (lambda p: torch.optim.SGD(p, lr=torch.tensor(0.5)), "its lr was 0.1, now 0.5"),
    ],
)
def test_stages_of_another_optimizer_are_refused(make: Any, change: str) -> None:
    def world(optimizer: Any) -> World:
        made = World()
        made.optimizer = optimizer(made.model.parameters())
        return made

    store = MemoryStore()
    world(lambda p: torch.optim.SGD(p, lr=0.1)).discover(store=store)
    world(lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)).discover(store=store)  # how, not what
    with pytest.raises(UserError, match=change):
        world(make).discover(store=store)
