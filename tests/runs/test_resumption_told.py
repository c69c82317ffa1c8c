"""A run that goes on where it was says so, in one line at its beginning; one that begins does not."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow.checkpoint import RunDir, StageFiles
from pathgrow.report.formats import stage_label
from pathgrow.runs import phases
from pathgrow.sparse.training_state import TrainingCheckpoint, unfinished_steps
from tests.support.command import leave

SMALL = "--model-option widths=12,8 --batch-size 64"
DISCOVER = f"discover --budget 4 {SMALL} --start-density 0.2 --target-density 0.3"
TRAIN = f"train --method rigl --density 0.3 --epochs 4 {SMALL}"
STEPS_PER_EPOCH = 14  # of 897 training images
TOLD = re.compile(r"\[.*\] Resuming: (.*)\.")


class Killed(BaseException):
    pass


def die_in(monkeypatch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    """Trainings are stored after every step; the process dies when this many steps of one of them are stored."""
    save = StageFiles.save

    def dying(self: StageFiles, name: str, metadata: Any, *tensors: Any) -> None:
        save(self, name, metadata, *tensors)
        if name == f"partial-{stage}-0" and metadata["step"] == step:
            raise Killed

    monkeypatch.setattr(StageFiles, "save", dying)
    monkeypatch.setattr(phases, "TrainingCheckpoint", functools.partial(TrainingCheckpoint, seconds=0.0))


@pytest.mark.parametrize(
    ("command", "stage", "before"),
    [(DISCOVER, "seed", ""), (DISCOVER, "final", "3 stages done, "), (TRAIN, "level-000", "")],
)
def test_a_killed_run_says_where_it_goes_on(
    command: str,
    stage: str,
    before: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [*command.split(), "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patched:
        die_in(patched, stage, 7)
        with pytest.raises(Killed):
            leave(*arguments)
    assert "Resuming" not in capsys.readouterr().err, "it began"
    seconds = RunDir(tmp_path / "run").seconds
    assert seconds > 0
    assert leave(*arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [TOLD.fullmatch(line) is not None for line in lines[:2]] == [True, False]
    assert TOLD.fullmatch(lines[0])[1] == f"{before}{stage_label(stage)} continues after {7 / STEPS_PER_EPOCH:g} epochs"  # type: ignore[index]
    assert not any("starts" in line for line in lines), "it began before"
    timing = RunDir(tmp_path / "run").report()["timing"]
    assert timing["run_seconds"] > seconds + timing["phases"][-1]["seconds"], "the time before the kill counts too"
    assert leave(*arguments) == 0
    assert capsys.readouterr().err == "", "a finished run is only shown"


def test_a_run_killed_between_stages_names_the_one_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*DISCOVER.split(), "--out", str(tmp_path / "run")]
    save = StageFiles.save

    def dying(self: StageFiles, name: str, *stored: Any) -> None:
        save(self, name, *stored)
        if name == "round-001":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StageFiles, "save", dying)
        with pytest.raises(Killed):
            leave(*arguments)
    capsys.readouterr()
    assert leave(*arguments) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert TOLD.fullmatch(first)[1] == "2 stages done"  # type: ignore[index]
    assert "round 2 starts: density 30.0%, 1 epoch" in second


def test_what_is_half_done_is_what_need_not_be_trained_again(tmp_path: Path) -> None:
    some = {"weight": torch.ones(2)}
    with RunDir.open(tmp_path, {}) as folder:
        folder.stages.save("seed", {"score": 0.5})
        folder.stages.save("partial-seed-0", {"step": 99}, some)  # killed before it was cleared
        folder.stages.save("partial-round-001-0", {"step": 20}, some)
        folder.stages.save("partial-round-001-1", {"step": 3}, some)
        folder.stages.save("partial-probe-dense-0", {"step": 5}, some)
        folder.stages.save("partial-final-0", {"step": 8}, some)
        folder.stages.delete_tensors("partial-final-0")
        assert unfinished_steps(folder) == {"round-001": 23, "probe-dense": 5}
