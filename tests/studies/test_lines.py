"""Lines of cells: the points of finished runs, and of the levels of a run that is not finished."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pathgrow.runs import training
from pathgrow.runs.session import Session
from pathgrow.studies.definition import Cell, parse_study
from pathgrow.studies.lines import load_lines, points_of
from pathgrow.studies.results import load_results
from pathgrow.studies.worker import forget_failures, work
from tests.support.sample_report import discovery_report, training_report

PRUNING = """
question = "How far?"
set = {method = "imp_c", density = 0.5, epochs = 1, model_options = {widths = [16]}}
grid.seed = [0]
[[part]]
points = "rounds"
"""


def test_rounds_carry_the_cost_of_everything_before_them() -> None:
    report = training_report()
    cell = Cell(name="x", command="train", values={}, axes={"seed": 0}, points="rounds")
    points = points_of(cell, report)
    phases, dense = report.ledger.phases, report.ledger.dense_training_flops or 1
    assert [point["density"] for point in points] == [point.density for point in report.curve.rounds]
    spent = [sum(phase.training_flops for phase in phases[: number + 1]) / dense for number in range(len(points))]
    assert [point["flops"] for point in points] == spent


def test_answers_and_topology_of_a_discovery() -> None:
    report = discovery_report()
    assert report.answer is not None
    cell = Cell(name="x", command="discover", values={}, axes={"search": "default"}, points="answer")
    [point] = points_of(cell, report)
    assert (point["answer"], (point["low"], point["high"])) == (report.answer.operating_density, report.answer.interval)
    rows = points_of(dataclasses.replace(cell, points="topology"), report)
    assert [row["mean_tau_core_ratio"] for row in rows] == [row.mean_tau_core_ratio for row in report.topology]


def test_levels_of_an_unfinished_run_are_those_of_the_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parse_study("mine", PRUNING)
    trained = list[str]()

    def train_(self: Session, *args: Any, **more: Any) -> Any:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append("level")
        return whole(self, *args, **more)

    whole = Session.train_
    forget_failures(tmp_path, study.cells())
    assert load_lines(study, None, tmp_path) == []
    monkeypatch.setattr(Session, "train_", train_)
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, study.cells())
    monkeypatch.setattr(Session, "train_", whole)
    last_only = parse_study("mine", PRUNING.replace("rounds", "network"))
    assert load_lines(last_only, None, tmp_path) == [], "the network that this cell asks for is not there yet"
    [started] = load_lines(study, None, tmp_path)
    assert load_results(study, None, tmp_path).caption.endswith(
        "0 of 1 cell finished, 1 unfinished (levels or rounds so far)."
    )
    work(tmp_path, study.cells())
    [finished] = load_lines(study, None, tmp_path)
    assert load_results(study, None, tmp_path).caption.endswith("1 of 1 cell finished.")
    assert started.pop("unfinished")
    assert [point.pop("unfinished") for point in started["points"]] == [True] * 3
    assert [round(point["density"], 2) for point in finished["points"]] == [1, 0.8, 0.64, 0.51, 0.5]
    assert started["points"] == [pytest.approx(point) for point in finished["points"][:3]]
    for line in (started, finished):
        del line["points"], line["hardware"]  # the number of threads is only in the report
    assert started == finished


GROWTH = """
question = "How?"
set = {method = "gcg", density = 0.1, epochs = 4, model_options = {widths = [16]}}
grid.seed = [0]
[[part]]
points = "topology"
"""


def test_the_topology_of_growth_does_not_wait_for_the_final_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parse_study("mine", GROWTH)
    forget_failures(tmp_path, study.cells())
    with monkeypatch.context() as patched:
        patched.setattr(training, "train_copies", stop)
        with pytest.raises(KeyboardInterrupt):
            work(tmp_path, study.cells())
    [started] = load_lines(study, None, tmp_path)
    work(tmp_path, study.cells())
    [finished] = load_lines(study, None, tmp_path)
    assert started.pop("unfinished")
    assert [point.pop("unfinished") for point in started["points"]] == [True] * len(finished["points"])
    assert started["points"] == finished["points"]
    assert len(finished["points"]) > 2


def stop(*_: object) -> None:
    raise KeyboardInterrupt
