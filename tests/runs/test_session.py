"""How a phase is trained and evaluated: seeds, optimizer settings, length, distribution over jobs, checks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from pathgrow.checkpoint import MemoryStore
from pathgrow.density.types import Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.errors import RunFailed, UserError
from pathgrow.runs.api import discover
from pathgrow.runs.records import Callback, Record
from pathgrow.runs.result import Discovery
from pathgrow.sparse.training_state import OptimizerSettings
from pathgrow.trainer.interface import Job
from tests.support.toy import (
    INPUTS,
    TARGETS,
    Killed,
    MortalStore,
    Script,
    World,
    killed_after_every_training,
    without_timing,
)


def test_numpy_and_python_generators_are_seeded_and_restored() -> None:
    """As torch is: draws depend on seed and stage, and the caller's generators are unaffected."""

    def drawn(state: int, seed: int = 0) -> tuple[list[tuple[float, float]], tuple[float, float]]:
        random.seed(state)
        np.random.seed(state)
        draws: list[tuple[float, float]] = []
        world = World()
        fit = world.fit

        def drawing(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            draws.append((random.random(), float(np.random.rand())))
            fit(model, optimizer, epochs)

        world.fit = drawing  # type: ignore[method-assign]
        world.discover(seed=seed)
        return draws, (random.random(), float(np.random.rand()))

    first, second, other = drawn(1), drawn(2), drawn(1, seed=7)
    assert first[0] == second[0]
    assert len(set(first[0])) == len(first[0])
    assert not set(first[0]) & set(other[0])
    random.seed(1)
    np.random.seed(1)
    assert first[1] == other[1] == (random.random(), float(np.random.rand()))


def test_evaluation_is_seeded_by_seed_stage_and_part() -> None:
    def drawn(seed: int) -> list[float]:
        draws: list[float] = []
        world = World()

        def evaluate(model: nn.Module) -> float:
            draws.append(float(torch.rand(())))
            return 0.5

        world.evaluate = evaluate  # type: ignore[method-assign, assignment]
        world.discover(rule=Script(probe=(), last=1), rough="adaptive", seed=seed)
        return draws

    assert drawn(0) == drawn(0)
    assert len(set(drawn(0))) == len(drawn(0)) > 4
    assert not set(drawn(0)) & set(drawn(1))


def test_calls_are_seeded_by_stage_and_leave_the_callers_generators_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = World(), World()
    first.discover()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(77)
    second.discover()
    draws = [call.draw for call in first.fits]
    assert draws == [call.draw for call in second.fits]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("make", [lambda m: SGD(m.parameters(), lr=0.05), lambda m: Adam(m.parameters(), lr=0.05)])
def test_every_phase_starts_at_the_users_learning_rate(make: Callable[[nn.Module], Optimizer]) -> None:
    world = World(make_optimizer=make)
    world.discover(reference="dense")
    assert {call.lr for call in world.fits} == {0.05}


def test_every_phase_starts_with_the_original_optimizer_settings() -> None:
    """A schedule writes `initial_lr` into the groups: left there, it would be the peak of every later phase."""
    seen: list[dict[str, Any]] = []
    world = World()
    world.optimizer = SGD(world.model.parameters(), lr=0.1, momentum=0.9)
    came = {name: value for name, value in world.optimizer.param_groups[0].items() if name != "params"}

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        seen.append({name: value for name, value in optimizer.param_groups[0].items() if name != "params"})
        schedule = CosineAnnealingLR(optimizer, epochs)
        for _ in range(epochs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(INPUTS), TARGETS).backward()
            optimizer.step()
            schedule.step()
        optimizer.param_groups[0]["momentum"] = 0.5

    world.fit = fit  # type: ignore[method-assign]
    world.discover(reference="dense")
    assert len(seen) > 5
    assert all(settings == came for settings in seen)
    assert {name: value for name, value in world.optimizer.param_groups[0].items() if name != "params"} == came


def test_settings_changed_by_evaluate_do_not_persist() -> None:
    """Like a scheduler that receives the score there."""
    world = World()
    evaluate = world.evaluate

    def meddling(model: nn.Module) -> tuple[float, float]:
        world.optimizer.param_groups[0]["lr"] *= 0.1
        return evaluate(model)

    world.evaluate = meddling  # type: ignore[method-assign]
    world.discover(final="grown")
    assert {call.lr for call in world.fits} == {0.1}
    assert world.optimizer.param_groups[0]["lr"] == 0.1


def test_tensor_settings_are_restored_in_place() -> None:
    """A CUDA graph reads the tensor it was captured with, so values are written into it."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = Adam([weight], lr=torch.tensor(0.1), capturable=True)
    settings, place = OptimizerSettings(optimizer), optimizer.param_groups[0]["lr"]
    for _ in range(2):
        place.fill_(0.007)
        settings.restore_(optimizer)
        assert optimizer.param_groups[0]["lr"] is place
        assert float(place) == pytest.approx(0.1)


def test_an_adaptive_phase_stops_early() -> None:
    losses = iter([9.0, 5.0, 4.0, 4.5, 4.1, 4.0, 0.0])
    world = World()
    found = discover(
        world.model,
        world.optimizer,
        world.fit,
        lambda model: (0.5, next(losses)),
        INPUTS[:1],
        rule=Script(probe=(), last=1, density=None),
        rough="adaptive",
        budget=8,
        finish="static",
        start_density=0.1,
    )
    assert [call.epochs for call in world.fits] == [1] + [1] * 5 + [8]
    assert found.curve.rough[1].loss == 4.0
    draws = [call.draw for call in world.fits]
    assert len(set(draws)) == len(draws)  # every epoch is seeded by its own name


def test_an_adaptive_phase_has_a_maximum_length() -> None:
    world = World()
    falling = iter(range(1000, 0, -1))
    discover(
        world.model,
        world.optimizer,
        world.fit,
        lambda model: (0.5, float(next(falling))),
        INPUTS[:1],
        rule=Script(probe=(), last=1),
        rough="adaptive",
        budget=8,
        finish="static",
        seed_epochs=1,
        start_density=0.1,
    )
    assert sum(call.epochs for call in world.fits) == 1 + 40 + 8


def test_an_adaptive_phase_without_a_loss_uses_the_score() -> None:
    """It stops after three epochs without a higher score; an equal one is not higher."""
    scores = iter([0.5, 0.6, 0.7, 0.7, 0.65, 0.7, 0.9, 0.9])
    world = World()
    world.evaluate = lambda model: next(scores)  # type: ignore[method-assign, assignment, return-value]
    found = world.discover(rule=Script(probe=(), last=1), rough="adaptive")
    assert found.rounds[1].num_epochs == 5
    assert found.rounds[1].point.score == 0.7


def test_ema_evaluation_scores_the_ema() -> None:
    plain, ema_weights = World().discover(), World().discover(eval_weights="ema")
    assert ema_weights.masks_at(0) == plain.masks_at(0)
    assert ema_weights.network.point.loss != plain.network.point.loss
    world = World()
    found = world.discover(eval_weights="ema")
    assert found.examine(world.evaluate)[0].loss == found.network.point.loss


@dataclass(frozen=True)
class AllAtOnce(Script):
    """Grows first, then probes several rounds with one verdict."""

    def decide(self, curve: Curve) -> Verdict:
        if curve.rough[-1].round < self.last:
            return Grow(reason="not yet")
        return Stop(reason="the script ends") if curve.probes else Probe(rounds=self.probe, reason="all at once")


TOGETHER = AllAtOnce(probe=(3, 0, 2))


class Engine:
    """A `JobTrainer` that records the jobs it receives together, and trains with the toy `fit`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: list[list[Job]] = []

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        raise AssertionError("a trainer is given jobs")

    def train(self, jobs: Sequence[Job]) -> list[int]:
        self.batches.append(list(jobs))
        for job in jobs:
            with torch.random.fork_rng():
                torch.manual_seed(job.seed)
                self.world.fit(job.attached.model, job.attached.optimizer, job.epochs)
        return [1000 * job.epochs for job in jobs]

    def discover(self, **options: object) -> Discovery:
        settings = {
            "finish": "static",
            "rule": TOGETHER,
            "start_density": 0.1,
            "budget": 16,
            "seed_epochs": 2,
            **options,
        }
        world = self.world
        return discover(world.model, world.optimizer, self, world.evaluate, INPUTS[:1], **settings)


def test_a_trainer_receives_the_probes_of_a_verdict_together() -> None:
    engine = Engine(World())
    found = engine.discover()
    assert [len(jobs) for jobs in engine.batches] == [1, 1, 1, 1, 3, 1]
    probes = engine.batches[4]
    assert [job.attached.masks.num_on for job in probes] == [found.rounds[round].num_on for round in (3, 0, 2)]
    assert len({id(job.attached.model) for job in probes} | {id(engine.world.model)}) == 4
    jobs = [job for batch in engine.batches for job in batch]
    assert len({job.seed for job in jobs}) == len(jobs)
    assert [job.progress.name for job in jobs if job.progress is not None] == [
        "partial-seed-0", "partial-round-001-0", "partial-round-002-0", "partial-round-003-0",
        "partial-probe-003-0", "partial-probe-000-0", "partial-probe-002-0", "partial-final-0",
    ]  # fmt: skip
    assert found.ledger.samples == 1000 * sum(job.epochs for job in jobs)
    assert all(job.attached.optimizer.param_groups[0]["lr"] == 0.1 for job in jobs)


def test_seeds_of_jobs_depend_on_seed_and_stage_only() -> None:
    def seeds(**options: object) -> dict[str, int]:
        engine = Engine(World())
        engine.discover(**options)
        return {job.progress.name: job.seed for batch in engine.batches for job in batch if job.progress}

    first = seeds()
    fewer = seeds(rule=AllAtOnce(probe=(2,)))
    assert fewer.items() <= first.items()
    assert not set(seeds(seed=1).values()) & set(first.values())


def test_stored_probes_are_not_trained_again() -> None:
    expected = without_timing(Engine(World()).discover())
    # functions, start, four rounds with their weights, and then the first, or the first two, of the probes
    for num_stored in (1, 2):
        store = MortalStore(10 + num_stored, saves_the_last=True)
        with pytest.raises(Killed):
            Engine(World()).discover(store=store)
        engine = Engine(World())
        assert without_timing(engine.discover(store=store)) == expected
        assert [len(jobs) for jobs in engine.batches] == [3 - num_stored, 1]


def test_the_callback_is_called_for_every_stage() -> None:
    events: list[str] = []

    class Recorder(Callback):
        def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
            events.append(f"begin {stage} {epochs}")

        def on_stage_end(self, record: Record, *, resumed: bool) -> None:
            events.append(f"end {record.stage}{' resumed' if resumed else ''}")

        def on_decision(self, verdict: Verdict, answer: Answer) -> None:
            events.append(type(verdict).__name__)

    store, rule = MemoryStore(), Script(probe=(0,), last=1)
    World().discover(rule=rule, store=store, callback=Recorder())
    assert events == [
        *["begin seed 2", "end seed", "Probe", "begin probe-000 5", "end probe-000", "Grow"],
        *["begin round-001 1", "end round-001", "Stop", "begin final 16", "end final"],
    ]
    events.clear()
    World().discover(rule=rule, store=store, callback=Recorder())
    assert events == [
        *["end seed resumed", "Probe", "end probe-000 resumed", "Grow", "end round-001 resumed", "Stop"],
        "end final resumed",
    ]


@pytest.mark.parametrize("bad", [math.nan, (0.5, math.inf)])
def test_a_score_that_is_not_finite_fails_and_keeps_earlier_stages(bad: object) -> None:
    world, store = World(), MemoryStore()
    scores = iter([(0.5, 1.0), (0.6, 1.0), bad])
    with pytest.raises(RunFailed, match=r"evaluate \(round 1\): the (score|loss) is "):
        discover(
            world.model,
            world.optimizer,
            world.fit,
            lambda model: next(scores),
            INPUTS[:1],
            rule=Script(),
            store=store,
            budget=8,
            finish="static",
            seed_epochs=1,
            start_density=0.1,
        )
    assert store.load("probe-000") is not None
    assert store.load("round-001") is None


def test_weights_that_are_not_finite_fail() -> None:
    world = World()

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        with torch.no_grad():
            model[0].weight.fill_(math.nan)

    with pytest.raises(RunFailed, match="stage seed"):
        discover(
            world.model,
            world.optimizer,
            fit,
            lambda model: 0.5,
            INPUTS[:1],
            budget=8,
            start_density=0.1,
            finish="static",
        )


@pytest.mark.parametrize("bad", ["high", None, (1, 2, 3)])
def test_an_invalid_score_is_refused(bad: object) -> None:
    world = World()
    with pytest.raises(UserError, match="a score or a pair"):
        discover(
            world.model,
            world.optimizer,
            world.fit,
            lambda model: bad,
            INPUTS[:1],
            budget=8,
            start_density=0.1,
            finish="static",
        )


# Nothing finished is trained twice

PRUNED = {"finish": "gts", "rule": "probe", "start_density": None, "seed_epochs": None, "budget": 8, "delta": 0.05}
GROWN = {"rule": "probe", "start_density": 0.2, "gamma": 0.6, "budget": 10}


@pytest.mark.parametrize(
    "options",
    [
        PRUNED,
        {**PRUNED, "max_density": 0.5, "start_density": 0.3},
        {**PRUNED, "reference": "dense"},
        {**PRUNED, "start": "pretrained"},
        {**PRUNED, "eval_weights": "ema"},
        GROWN,
        {**GROWN, "reference": "dense", "budget": 3},
        {**GROWN, "final": "grown", "budget": 3},
        {**GROWN, "rule": "trajectory", "seed_epochs": None, "budget": 32},
        {**GROWN, "rough": "adaptive", "rule": Script(probe=(1,), last=1)},
    ],
    ids=["pruned", "limited", "reference", "pretrained", "ema", "probed", "dense", "grown", "plateau", "adaptive"],
)
@pytest.mark.filterwarnings("ignore:training improved no network")
@pytest.mark.filterwarnings("error::pathgrow.checkpoint.stage_files.DamagedStageWarning")
def test_a_run_killed_after_every_training_trains_nothing_twice(options: dict[str, Any]) -> None:
    world, store = World(), MemoryStore()
    expected = without_timing(world.discover(**options))
    assert len(world.fits) >= 4
    assert without_timing(killed_after_every_training(store, len(world.fits), **options)) == expected
    assert not [name for name, stage in store._stages.items() if name.startswith("partial-") and stage.tensors]
