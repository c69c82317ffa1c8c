"""Workers: every cell is run once, a failed one stops no other, and locked ones are left to their owners."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from pathgrow import checkpoint
from pathgrow.checkpoint import RunDir
from pathgrow.errors import RunFailed, UserError
from pathgrow.studies import worker
from pathgrow.studies.definition import Cell, load_study, parse_study
from pathgrow.studies.results import load_results
from pathgrow.studies.worker import MAX_ATTEMPTS, failure, forget_failures, state, work

THREE = 'question = "?"\nset = {method = "set", epochs = 1}\ngrid.density = [0.1, 0.2, 0.3]'
MATCHED = """
question = "?"
set.epochs = 1
[[part]]
set = {method = "phew", density = 0.3, match = "parameters", match_run = {method = "set"}}
[[part]]
set = {method = "set", density = 0.3}
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that were run, in order; a run is just a report."""
    names: list[str] = []

    def train(config: Any, out: Path) -> None:
        names.append(Path(out).name)
        if config.density == 0.2:
            raise RunFailed("the loss is not finite")
        Path(out).mkdir()
        (Path(out) / "report.json").write_text(json.dumps({"match": config.match_run}))
        (Path(out) / "manifest.sha256").touch()

    monkeypatch.setattr(worker, "train", train)
    return names


def cells_of(text: str, out: Path) -> list[Cell]:
    cells = parse_study("mine", text).cells()
    forget_failures(out, cells)
    return cells


def test_each_cell_runs_once_and_a_failed_one_stops_no_other(tmp_path: Path, ran: list[str]) -> None:
    cells = cells_of(THREE, tmp_path)
    assert work(tmp_path, cells) == "done"
    assert work(tmp_path, cells) == "done"  # finished and failed cells are not run again
    assert ran == [cell.name for cell in cells]
    assert [state(tmp_path, cell) for cell in cells] == ["finished", "failed", "finished"]
    assert failure(tmp_path, cells[1]) == "the loss is not finite"
    forget_failures(tmp_path, cells)
    assert state(tmp_path, cells[1]) == "free"


def test_a_cell_whose_worker_was_killed_before_its_manifest_gets_it_without_training(tmp_path: Path) -> None:
    [cell] = cells_of('question = "?"\nset = {method = "set", epochs = 1, density = 0.3}', tmp_path)
    work(tmp_path, [cell])
    run_dir = RunDir(tmp_path / cell.name)
    rows = run_dir.metrics
    (run_dir.path / "manifest.sha256").unlink()
    assert state(tmp_path, cell) == "free"
    work(tmp_path, [cell])
    assert run_dir.damage() == {}
    assert run_dir.metrics == rows


def test_a_result_counts_although_its_manifest_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [cell] = cells_of('question = "?"\nset = {method = "set", epochs = 1, density = 0.3}', tmp_path)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(checkpoint.run_dir, "write_manifest", full)
    assert work(tmp_path, [cell]) == "done"
    assert not RunDir(tmp_path / cell.name).has_manifest
    assert state(tmp_path, cell) == "finished"
    assert failure(tmp_path, cell) is None


def test_a_cell_that_another_worker_has_just_taken_counts_no_attempt(tmp_path: Path, ran: list[str]) -> None:
    """Otherwise it has failed as soon as five workers try to take it at once."""
    cell = cells_of(THREE, tmp_path)[0]
    with FileLock(tmp_path / ".study" / f"{cell.name}.claim"):
        for _ in range(MAX_ATTEMPTS):
            worker._run(tmp_path, cell, False)
        assert (ran, worker._num_attempts(tmp_path, cell), state(tmp_path, cell)) == ([], 0, "free")


def test_a_link_in_place_of_a_claim_fails_its_cell_and_stops_no_other(tmp_path: Path, ran: list[str]) -> None:
    first, _, third = cells_of(THREE, tmp_path)
    (tmp_path / "thesis.txt").write_text("the only copy")
    worker._file(tmp_path, first.name, "claim").symlink_to(tmp_path / "thesis.txt")
    assert work(tmp_path, [first, third]) == "done"
    assert ran == [third.name]
    assert "cannot access" in (failure(tmp_path, first) or "")
    assert (tmp_path / "thesis.txt").read_text() == "the only copy"


def test_workers_do_not_wait_for_a_cell_that_another_one_has_just_taken(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner locks the run directory only after it has loaded the data."""
    first, _, third = cells_of(THREE, tmp_path)

    def wait(seconds: float) -> None:
        taken.release()

    monkeypatch.setattr(worker.time, "sleep", wait)
    taken = FileLock(tmp_path / ".study" / f"{first.name}.claim")
    taken.acquire()
    assert work(tmp_path, [first, third]) == "done"
    assert ran == [third.name, first.name]


def test_a_matched_cell_waits_for_the_run_it_matches_and_gets_its_path(tmp_path: Path, ran: list[str]) -> None:
    matched, other = cells_of(MATCHED, tmp_path)
    assert state(tmp_path, matched) == "blocked"
    work(tmp_path, [matched, other])
    assert ran == [other.name, matched.name]
    assert json.loads((tmp_path / matched.name / "report.json").read_text())["match"] == str(tmp_path / other.name)


def test_a_matched_cell_fails_with_the_run_it_matches(tmp_path: Path, ran: list[str]) -> None:
    matched, other = cells_of(MATCHED.replace("0.3", "0.2"), tmp_path)
    work(tmp_path, [matched, other])
    assert ran == [other.name]
    assert failure(tmp_path, matched) == f"it needs {other.name}, which failed"


def test_a_cell_that_keeps_killing_its_worker_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def train(config: Any, out: Path) -> None:
        raise Killed

    monkeypatch.setattr(worker, "train", train)
    cells = cells_of(THREE, tmp_path)[:1]
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(Killed):
            work(tmp_path, cells)
    assert work(tmp_path, cells) == "done"
    assert failure(tmp_path, cells[0]) == f"its worker died {MAX_ATTEMPTS} times"


def test_out_of_memory_ends_a_worker_unless_it_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: Any, out: Path) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(worker, "train", train)
    cells = cells_of(THREE, tmp_path)[:1]
    assert work(tmp_path, cells) == "out of memory"
    assert state(tmp_path, cells[0]) == "free"
    assert work(tmp_path, cells, is_alone=True) == "done"
    assert "out of memory" in str(failure(tmp_path, cells[0]))


def test_a_locked_cell_is_busy_and_does_not_count_as_an_attempt(tmp_path: Path) -> None:
    [cell, *_] = cells_of(THREE, tmp_path)
    folder = tmp_path / cell.name
    folder.mkdir()
    with open(folder / ".lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state(tmp_path, cell) == "busy"
        worker._run(tmp_path, cell, is_alone=False)  # as if it had been free a moment ago
        assert (state(tmp_path, cell), failure(tmp_path, cell), worker._num_attempts(tmp_path, cell)) == (
            "busy",
            None,
            0,
        )
    assert state(tmp_path, cell) == "free"


def test_the_imagenet_study_runs_on_a_small_folder_of_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From image files to the table, which says that it is not ImageNet."""
    draw = np.random.default_rng(0)
    for part, label in itertools.product(("train", "val"), range(2)):
        folder = tmp_path / "data" / part / f"n{label}"
        folder.mkdir(parents=True)
        for number in range(40):
            pixels = draw.integers(0, 128, (16, 16, 3)) + 100 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    monkeypatch.setenv("PATHGROW_DATA", str(tmp_path / "data"))
    study = load_study("imagenet")
    cells = study.cells("smoke")
    forget_failures(tmp_path, cells)
    assert work(tmp_path, cells) == "done"
    assert [(state(tmp_path, cell), failure(tmp_path, cell)) for cell in cells] == [("finished", None)] * 4
    results = load_results(study, "smoke", tmp_path)
    assert "4 of 4 cells finished. NOT ImageNet" in results.caption
    assert [(row.series, row.x) for row in results.rows] == [
        ("gcg", 0.1), ("gcg", 0.2), ("rigl", 0.1), ("rigl", 0.2),
    ]  # fmt: skip


# A directory of somebody else


@pytest.mark.item(25)
def test_a_link_in_place_of_the_notes_of_workers_is_refused(tmp_path: Path) -> None:
    cells, outside, out = parse_study("mine", THREE).cells(), tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    kept = [outside / f"{cells[0].name}.{kind}" for kind in ("failed", "attempts")]
    for path in kept:
        path.write_text("mine")
    (out / ".study").symlink_to(outside)
    with pytest.raises(RunFailed, match="it is a symbolic link"):
        forget_failures(out, cells)
    assert [path.read_text() for path in kept] == ["mine", "mine"]


@pytest.mark.item(25)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_notes_that_are_links_or_pipes_are_not_read_or_written(tmp_path: Path, kind: str) -> None:
    cells, outside = parse_study("mine", THREE).cells(), tmp_path / "outside"
    forget_failures(tmp_path, cells)
    outside.write_text("mine")
    for note in ("failed", "attempts"):
        path = tmp_path / ".study" / f"{cells[0].name}.{note}"
        path.symlink_to(outside) if kind == "link" else os.mkfifo(path)
    with pytest.raises(UserError, match=r"^cannot read .*failed \(it is (a symbolic link|not a regular file)\)"):
        failure(tmp_path, cells[0])
    with pytest.raises(OSError, match=r"it is (a symbolic link|not a regular file)"):
        worker._attempt(tmp_path, cells[0], True)
    assert outside.read_text() == "mine"
