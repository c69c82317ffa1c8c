"""The queue of cells for one GPU: what it holds, in which order, and what it hands over to another machine."""

from __future__ import annotations

import json
import re
import signal
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import networks, study_queue
from benchmarks.study_queue import SCALE, groups, queue
from pathgrow.report.loading import load_finished
from pathgrow.runs.session import Session
from pathgrow.studies.definition import Cell, load_study
from pathgrow.studies.worker import forget_failures, work


def test_the_cells_of_the_queue_are_those_of_the_studies_and_come_once() -> None:
    cells = queue(list(groups()))
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    for study in ("growth-rules", "topology", "growth-timing"):
        assert {cell.name for cell in load_study(study).cells(SCALE)} <= set(names)
    curves = {cell.name for cell in load_study("density-curves").cells(SCALE)}
    assert curves <= set(names)


def test_the_long_run_is_first_and_one_seed_of_all_rules_comes_before_the_next() -> None:
    first, *rest = queue(["imp", "growth", "rules", "curves", "dense"])
    assert first.values["method"] == "imp_c"
    seeds = [cell.values["seed"] for cell in rest]
    assert seeds == sorted(seeds) == [0] * 10 + [1] * 10 + [2] * 10


@pytest.mark.parametrize("name", list(groups()))
def test_a_cell_that_another_one_needs_is_in_the_queue(name: str) -> None:
    """A worker would wait for it forever."""
    cells = queue([name])
    assert {cell.needs for cell in cells} - {None} <= {cell.name for cell in cells}


def test_a_signal_stops_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handler the process just ends, and its workers go on."""
    monkeypatch.setattr(study_queue, "run_study", lambda *_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr("sys.argv", ["study_queue", "run", "dense", "--out", str(tmp_path), "--jobs", "1"])
    with pytest.raises(SystemExit, match="143"):
        study_queue.main()


def test_a_cell_is_published_by_a_finished_line(tmp_path: Path) -> None:
    lines = {
        "one": [{"cell": "a"}, {"cell": "b", "unfinished": True}, {"cell": "c", "unfinished": True}],
        "two": [{"cell": "c"}, {"cell": "d", "unfinished": False}],
    }
    for name, rows in lines.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "notes.txt").write_text("no line")
    assert study_queue.published(tmp_path) == {"a", "c", "d"}
    assert study_queue.published(tmp_path / "none") == set()


def test_published_cells_are_left_out_unless_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def run_study(cells: list[Cell], *_: object) -> SimpleNamespace:
        started[:] = [cell.name for cell in cells]
        return SimpleNamespace(num_finished=0, failed=[])

    def run(*more: str) -> set[str]:
        given = ["run", "dense", "growth", "--scale", "smoke", "--out", str(tmp_path), *more]
        monkeypatch.setattr("sys.argv", ["study_queue", *given])
        study_queue.main()
        return {re.sub(r"-[0-9a-f]{8}(?=-seed)", "", name) for name in started}

    monkeypatch.setattr(study_queue, "run_study", run_study)
    cells = {f"digits-mlp-{kind}-seed{seed}" for kind in ("dense", "gcg-0.1", "gcg-0.3") for seed in (0, 1)}
    [done] = [cell.name for cell in queue(["dense"], "smoke") if cell.values["seed"] == 0]
    monkeypatch.setattr(study_queue, "published", lambda: {done, "of another study"})
    assert run() == cells - {"digits-mlp-dense-seed0"}
    assert run("--again") == cells
    assert run("--only", "seed0") == {"digits-mlp-gcg-0.1-seed0", "digits-mlp-gcg-0.3-seed0"}
    assert run("--only", "dense", "gcg-0.1", "--again") == {name for name in cells if "0.3" not in name}
    assert run("--only", "resnet") == set()


def test_finished_cells_are_exported_as_lines_and_as_runs(tmp_path: Path) -> None:
    [cell] = [cell for cell in queue(["dense"], "smoke") if cell.values["seed"] == 0]
    forget_failures(tmp_path / "runs", [cell])
    work(tmp_path / "runs", [cell])
    study_queue.export(tmp_path / "runs", tmp_path / "out", "smoke")
    lines = [json.loads(line) for line in (tmp_path / "out" / "cells.jsonl").read_text().splitlines()]
    assert [(line["study"], line["cell"]) for line in lines] == [
        ("growth-rules", cell.name),
        ("density-curves", cell.name),
    ]
    with tarfile.open(tmp_path / "out" / "runs.tar") as tar:
        tar.extractall(tmp_path / "elsewhere", filter="data")
    study_queue.export(tmp_path / "elsewhere", tmp_path / "again", "smoke")
    assert (tmp_path / "again" / "cells.jsonl").read_text() == (tmp_path / "out" / "cells.jsonl").read_text()


def test_networks_of_an_export_can_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [next(cell for cell in queue([name], "smoke") if cell.values["seed"] == 0) for name in ("growth", "dense")]
    forget_failures(tmp_path / "runs", cells)
    work(tmp_path / "runs", cells)
    study_queue.export(tmp_path / "runs", tmp_path / "out", "smoke")
    for name in ("runs.tar", "networks.tar.gz"):
        with tarfile.open(tmp_path / "out" / name) as tar:
            tar.extractall(tmp_path / "elsewhere", filter="data")
    sparse, dense = (tmp_path / "elsewhere" / cell.name for cell in cells)
    assert not (dense / "network.safetensors").exists()
    monkeypatch.setattr(networks, "FOLDER", tmp_path / "networks")
    command = ["train", "--data", "digits", "--model", "mlp", "--method", "gcg", "--density", "0.1", "--epochs", "8"]
    assert networks.published() == []
    networks.publish(sparse, "mine", command)
    assert networks.published() == [tmp_path / "networks" / "mine"]


def test_an_unfinished_run_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [cell, *_] = queue(["imp"], "smoke")
    forget_failures(tmp_path / "runs", [cell])
    trained: list[str] = []

    def train_(self: Session, *args: object, **more: object) -> object:
        trained.append("level")
        if len(trained) == 3:
            raise KeyboardInterrupt
        return whole(self, *args, **more)

    whole = Session.train_
    monkeypatch.setattr(Session, "train_", train_)
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "runs", [cell])
    study_queue.export(tmp_path / "runs", tmp_path / "out", "smoke", num_started=1)
    exported = [json.loads(line) for line in (tmp_path / "out" / "cells.jsonl").read_text().splitlines()]
    assert [(line["study"], len(line["points"]), line["unfinished"]) for line in exported] == [
        ("density-curves", 2, True)
    ]
    with tarfile.open(tmp_path / "out" / f"started-{cell.name}.tar") as tar:
        tar.extractall(tmp_path / "elsewhere", filter="data")
    forget_failures(tmp_path / "elsewhere", [cell])
    work(tmp_path / "elsewhere", [cell])
    num_levels = len(load_finished(tmp_path / "elsewhere" / cell.name).curve.rounds)
    assert len(trained) == num_levels + 1  # the third one twice
