"""Ledgers, timings and forecasts add up."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from pathgrow.checkpoint import RunDir
from pathgrow.density.types import Point
from pathgrow.report.progress import LogProgress
from pathgrow.runs.records import (
    MetricsLogger,
    PlannedStage,
    ProgressCallback,
    Record,
    SearchForecast,
    ledger_report,
    timing_report,
)


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


def of(finisher: str, *stages: PlannedStage) -> list[PlannedStage]:
    return [replace(stage, finisher=finisher) for stage in stages]


_GROWTH = (planned("seed", 1, 4), planned("round", 3, 1), planned("probe", 2, 8), planned("final", 1, 20))
SEVERAL = SearchForecast(
    stages=(*of("set:drop_fraction=0.2", *_GROWTH), *of("gmp", *_GROWTH), planned("dense", 1, 40)),
    budget=40,
    dense_flops=600,
    fixed_flops=120,
)


@pytest.mark.parametrize(
    ("stages", "left"),
    [
        ([], (15, 126)),
        (["seed--set_drop_fraction_0_2", "dense"], (13, 82)),
        (["seed--set_drop_fraction_0_2", "dense", "final--set_drop_fraction_0_2"], (7, 43)),  # the second search
        (["seed--set_drop_fraction_0_2", "dense", "seed--gmp"], (6, 39)),  # the first one needed no final training
        (["seed--set_drop_fraction_0_2", "dense", "final--set_drop_fraction_0_2", "seed--gmp", "final--gmp"], (0, 0)),
    ],
)
def test_several_finishers_search_one_after_the_other(stages: list[str], left: tuple[int, int]) -> None:
    assert SEVERAL.left(stages) == left


def test_a_kind_may_have_the_whole_name_of_a_stage() -> None:
    stages = (planned("probe", 2, 8), planned("probe-dense", 1, 8))
    forecast = replace(PRUNING, stages=stages)
    assert forecast.left(["probe-003", "probe-007", "probe-011"]) == (1, 8)
    assert forecast.left(["probe-003", "probe-dense"]) == (1, 8)


def positions(forecast: SearchForecast, stages: list[str]) -> list[str]:
    """Where the run is, as it is shown when each of these stages ends."""
    lines: list[str] = []
    callback = ProgressCallback(LogProgress(lines.append, lambda: 0.0))
    callback.on_run_start(forecast)
    for stage in stages:
        callback.on_stage_start(stage, epochs=1, density=0.5)
        callback.on_stage_end(record(stage, num_epochs=1, num_samples=8, num_on=10), resumed=False)
    return [line.rpartition("(")[2].split(",")[0] for line in lines if "score" in line]


def test_the_number_of_stages_does_not_grow_along() -> None:
    """Planned are two trainings, three rounds and two finished networks; then the rule wants more rounds."""
    usual = ["train-1", "train-2", "shrink-1", "shrink-2", "shrink-3", "final-1", "final-2"]
    assert positions(PRUNING, usual) == [f"stage {k} of about 7" for k in range(1, 8)]
    more = [*usual[:5], "shrink-4", "final-1", "final-2", "final-3"]
    longer = [f"stage {k}" for k in range(6, 10)]
    assert positions(PRUNING, more) == [*(f"stage {k} of about 7" for k in range(1, 6)), *longer]
    assert positions(PRUNING, [*usual, "final-3"])[-1] == "stage 8"
    fewer = positions(PRUNING, ["train-1", "train-2", "shrink-1", "final-1", "final-2"])
    assert fewer[2:] == ["stage 3 of about 7", "stage 4 of about 5", "stage 5 of about 5"]


def test_the_stages_of_a_later_finisher_are_expected_from_the_start() -> None:
    names = ["seed", "round-001", "probe-001", "final"]
    first, *others = positions(SEVERAL, [*(f"{name}--set" for name in names), *(f"{name}--gmp" for name in names)])
    assert first == "stage 1 of about 15"
    totals = [int(position.rpartition(" ")[2]) for position in others]
    assert totals == sorted(totals, reverse=True)
    assert totals[2] == 4 + 7 + 1, "what the first search has not trained is dropped when the second one starts"


def test_a_shared_baseline_counts_once() -> None:
    lines: list[str] = []
    callback = ProgressCallback(LogProgress(lines.append, lambda: 0.0))
    callback.on_run_start(SEVERAL)
    for stage, resumed in (("dense", False), ("dense", True), ("seed--gmp", False)):
        if not resumed:
            callback.on_stage_start(stage, epochs=40, density=1.0)
        ended = record(stage, num_epochs=40, num_samples=400, num_on=100, training_flops=400 * 600)
        callback.on_stage_end(ended, resumed=resumed)
    assert "stage 2 of about 15, cost so far 2.00 dense trainings" in lines[-1]


# Metrics


@pytest.mark.item(10)
@pytest.mark.parametrize("damage", ["missing", "cut", "other number", "not JSON"])
def test_lost_metrics_of_stored_stages_are_written_again(tmp_path: Path, damage: str) -> None:
    records = [record(f"train-{number}", num_epochs=number, num_samples=9, num_on=10 * number) for number in (1, 2, 3)]
    path = tmp_path / "run" / "metrics.jsonl"
    with RunDir.open(path.parent, {}) as run_dir:
        logger = MetricsLogger(run_dir)
        for one in records:
            logger.on_stage_start(one.stage, epochs=one.num_epochs, density=one.point.density)
            logger.on_stage_end(one, resumed=False)
            run_dir.stages.save(one.stage, one.metadata())
        rows = run_dir.metrics
    lines = path.read_text().splitlines(keepends=True)
    if damage == "missing":
        path.unlink()
    else:
        last = {"cut": "", "other number": lines[5].replace("0.5", "0.7"), "not JSON": "x" + lines[5]}[damage]
        path.write_text("".join([*lines[:5], last]))
    with RunDir.open(path.parent, {}) as run_dir:
        logger = MetricsLogger(run_dir)
        for one in records[: 0 if damage == "missing" else 2]:
            logger.on_stage_end(one, resumed=True)
        for one in records[0 if damage == "missing" else 2 :]:
            with pytest.warns(UserWarning, match=f"metrics of stage '{one.stage}' were lost or damaged, and"):
                logger.on_stage_end(one, resumed=True)
        assert run_dir.metrics == rows
    with RunDir.open(path.parent, {}) as run_dir, warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in records:
            MetricsLogger(run_dir).on_stage_end(one, resumed=True)
        assert run_dir.metrics == rows
