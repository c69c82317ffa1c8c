"""Ledgers, timings and forecasts add up."""

from __future__ import annotations

import pytest

from pathgrow.density.types import Point
from pathgrow.runs.records import PlannedStage, Record, SearchForecast, ledger_report, timing_report


def record(stage: str, *, num_epochs: int, num_samples: int, num_on: int, **costs: float) -> Record:
    point = Point(round=0, density=num_on / 100, epochs=num_epochs, score=0.5)
    return Record(
        stage=stage,
        point=point,
        density_model=0.5,
        num_on=num_on,
        num_epochs=num_epochs,
        num_samples=num_samples,
        **{"training_flops": 60 * num_samples, "seconds": 0.0, **costs},  # type: ignore[arg-type]
    )


def test_phases_add_up() -> None:
    records = [
        record("seed", num_epochs=4, num_samples=400, num_on=10, seconds=1.5),
        record(
            "round-001", num_epochs=2, num_samples=200, num_on=20, training_flops=24_000, update_flops=600, seconds=0.5
        ),
    ]
    ledger = ledger_report(records, num_prunable=100, num_parameters=130, dense_training_flops=1_200_000)
    assert [phase.training_flops for phase in ledger.phases] == [24_000, 24_600]
    assert ledger.training_flops == 48_600
    assert ledger.relative == 48_600 / 1_200_000
    assert (ledger.samples, ledger.epochs_trained) == (600, 6)
    assert ledger.epochs_times_prunable == 4 * 10 + 2 * 20
    assert ledger.epochs_times_parameters == 4 * 40 + 2 * 50
    timing = timing_report(records)
    assert timing.seconds == 2.0
    assert [(phase.phase, phase.seconds) for phase in timing.phases] == [("seed", 1.5), ("round-001", 0.5)]


def test_epochs_trained_follow_from_the_samples() -> None:
    records = [record("training", num_epochs=4, num_samples=300, num_on=10)]
    ledger = ledger_report(
        records, num_prunable=100, num_parameters=100, dense_training_flops=None, samples_per_epoch=100
    )
    assert (ledger.epochs_trained, ledger.phases[0].epochs_trained, ledger.phases[0].epochs) == (3, 3, 4)
    assert ledger.relative is None


def planned(kind: str, count: int, epochs: int, density: float = 1.0) -> PlannedStage:
    return PlannedStage(kind=kind, count=count, epochs=epochs, density=density)


PRUNING = SearchForecast(
    stages=(
        planned("train", 1, 8),
        planned("train", 1, 10),
        planned("shrink", 3, 1, 0.5),
        planned("final", 2, 10, 0.2),
    ),
    budget=40,
    dense_flops=600,
    fixed_flops=120,
)


def test_a_forecast_is_relative_to_one_dense_training() -> None:
    assert (PRUNING.num_stages, PRUNING.num_epochs) == (7, 41)
    cost = (18 * 600 + 3 * (120 + 0.5 * 480) + 20 * (120 + 0.2 * 480)) / (40 * 600)
    assert PRUNING.cost == pytest.approx(cost)
    done = record("train-1", num_epochs=8, num_samples=800, num_on=100, training_flops=800 * 600, update_flops=2400)
    assert PRUNING.cost_of_record(done) == pytest.approx((8 + 2400 / (100 * 600)) / 40)
    assert PRUNING.cost_of_record(record("given", num_epochs=0, num_samples=0, num_on=100)) == 0
    assert PRUNING.cost_of_record(record("train-1", num_epochs=8, num_samples=0, num_on=100)) is None


@pytest.mark.parametrize(
    ("stages", "left"),
    [
        ([], (7, 41)),
        (["train-1"], (6, 33)),
        (["train-1", "train-2", "shrink-1"], (4, 22)),
        (["train-1", "train-2", *(f"shrink-{k}" for k in range(1, 7))], (2, 20)),
        (["train-1", "train-2", "shrink-1", "final-1"], (1, 10)),
        (["train-1", "train-2", "shrink-1", "shrink-2", "shrink-3", "final-1", "final-2", "final-3"], (0, 0)),
    ],
)
def test_what_is_left_counts_each_kind_of_stage(stages: list[str], left: tuple[int, int]) -> None:
    """A search with more rounds than usual still has all its final trainings to come."""
    assert PRUNING.left(stages) == left
