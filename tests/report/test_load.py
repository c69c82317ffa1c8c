"""Reading run directories: a report, the progress of an unfinished run, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.load import StageResult, Unfinished, load_finished, load_run
from pathgrow.report.schema import RunReport


def test_a_finished_run_is_its_report(tmp_path: Path, sample_report: RunReport) -> None:
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        run_dir.write_report(sample_report.as_json())
    assert load_run(run_dir.path) == load_finished(run_dir.path) == sample_report


def test_an_unfinished_run_is_its_results_and_current_stage(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", {"data": "digits"}) as run_dir:
        run_dir.stages.save("seed", {"round": 0, "density": 0.02, "score": 0.81})
        run_dir.stages.save("trunk-000", {"other": 1})
        run_dir.log("round-001", event="begin")
    seed = StageResult(stage="seed", density=0.02, score=0.81)
    assert load_run(run_dir.path) == Unfinished(current="round-001", worker=None, results=(seed,))
    with pytest.raises(UserError, match=r"is unfinished \(1 stage done\); rerun it to resume"):
        load_finished(run_dir.path)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run directory: it has no config\.json"):
        load_run(tmp_path)
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        run_dir.write_report({"format": 1})
        with pytest.raises(UserError, match=r"report\.json has report format 1"):
            load_run(run_dir.path)
