"""Runs in their directories: what they write, how they resume, and what they say about it."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow.checkpoint import RunDir, StageFiles
from pathgrow.errors import UserError
from pathgrow.report.formats import stage_label
from pathgrow.runs import stages
from pathgrow.runs.config import DiscoverConfig, RunConfig, TrainConfig
from pathgrow.runs.discovery import expected_epochs, run_discovery
from pathgrow.runs.training import train
from pathgrow.sparse.training_state import unfinished_steps
from pathgrow.trainer import EngineOptions
from tests.support.command import leave

SMALL = "--model-option widths=12,8 --batch-size 64"
DISCOVER = f"discover --finish static --budget 4 {SMALL} --start-density 0.2 --delta 0.3"
TRAIN = f"train --method rigl --density 0.3 --epochs 4 {SMALL}"
STEPS_PER_EPOCH = 14
RESUMING = re.compile(r"\[.*\] Resuming: (.*)\.")


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
    monkeypatch.setattr(stages, "SECONDS_BETWEEN_SAVES", 0.0)


@pytest.mark.parametrize(
    ("command", "stage", "before"),
    [(DISCOVER, "seed", ""), (DISCOVER, "round-001", "1 stage done, "), (TRAIN, "training", "")],
)
def test_a_killed_run_says_where_it_resumes(
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
    assert "Resuming" not in capsys.readouterr().err, "it starts"
    seconds = RunDir(tmp_path / "run").seconds
    assert seconds > 0
    assert leave(*arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [RESUMING.fullmatch(line) is not None for line in lines[:2]] == [True, False]
    assert (
        RESUMING.fullmatch(lines[0])[1]
        == f"{before}{stage_label(stage)} continues after {7 / STEPS_PER_EPOCH:g} epochs"
    )  # type: ignore[index]
    timing = RunDir(tmp_path / "run").report()["timing"]
    assert timing["run_seconds"] > seconds + timing["phases"][-1]["seconds"], "the time before the kill counts too"
    assert leave(*arguments) == 0
    assert capsys.readouterr().err == "", "a finished run is only shown"


def test_a_run_killed_between_stages_names_the_next_one(
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
    assert RESUMING.fullmatch(first)[1] == "2 stages done"  # type: ignore[index]
    assert "round 2 starts: density 31.2%, 1 epoch" in second


def test_partial_trainings_of_unfinished_stages_are_listed(tmp_path: Path) -> None:
    some = {"weight": torch.ones(2)}
    with RunDir.open(tmp_path, {}) as run_dir:
        run_dir.stages.save("seed", {"score": 0.5})
        run_dir.stages.save("partial-seed-0", {"step": 99}, some)  # killed before it was cleared
        run_dir.stages.save("partial-round-001-0", {"step": 20}, some)
        run_dir.stages.save("partial-round-001-1", {"step": 3}, some)
        run_dir.stages.save("partial-probe-dense-0", {"step": 5}, some)
        run_dir.stages.save("partial-final-0", {"step": 8}, some)
        run_dir.stages.delete_tensors("partial-final-0")
        assert unfinished_steps(run_dir) == {"round-001": 23, "probe-dense": 5}


@pytest.mark.parametrize("command", ["train", "discover"])
def test_leftover_partial_trainings_are_deleted_at_the_end(command: str, tmp_path: Path) -> None:
    """A kill may come between storing a stage and deleting its partial training."""
    shared: dict[str, Any] = {"model_options": {"widths": [16]}, "threads": 1}
    if command == "train":
        trained = TrainConfig.from_dict({**shared, "method": "random", "density": 0.3, "epochs": 1})
        config: RunConfig = trained.resolved()
        run = partial(train, trained, tmp_path / "run")
    else:
        searched = DiscoverConfig.from_dict({**shared, "budget": 1, "finish": "static", "start_density": 0.9})
        config = searched.resolved()
        run = partial(run_discovery, searched, tmp_path / "run")
    first = run()
    (tmp_path / "run" / "report.json").unlink()
    with RunDir.open(tmp_path / "run", config.as_dict(), device="cpu") as run_dir:
        run_dir.stages.save("partial-training-0", {"step": 3}, {"weights": torch.zeros(3)})
    again = run()
    assert dataclasses.replace(again, timing=first.timing) == first
    assert list((tmp_path / "run" / "stages").glob("partial-*.safetensors")) == []


# `pathgrow discover`

DEMO = {
    "finish": "static", "budget": 4, "model_options": {"widths": [12]}, "start_density": 0.2, "rule": "exponential",
}  # fmt: skip


def test_a_run_with_a_recipe_of_another_dataset_and_bfloat16(tmp_path: Path) -> None:
    """All of the recipe is used: AdamW, soft targets, a policy and erasing on eight by eight gray pixels."""
    config = DiscoverConfig.from_dict(
        {
            **DEMO,
            "recipe_name": "cifar-vit",
            "recipe": {"augment": {"crop_padding": 1}, "accumulate": 2, "clip_norm": 1.0},
            "engine": {"device": "cpu", "precision": "bf16"},
            "method": "gradient_growth",
            "delta": 0.5,
        }
    )
    report = run_discovery(config, tmp_path / "run")
    assert report.config["recipe"]["augment"]["policy"] == "autoaugment-cifar"
    assert report.method.name == "gradient_growth"
    assert report.ledger.samples % 128 == 0  # whole batches only


def test_the_environment_names_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, config: dict[str, Any], *, device: str) -> None:
        raise UserError(f"opened for {device}")

    config = DiscoverConfig.from_dict(DEMO)
    monkeypatch.setattr(RunDir, "open", opened)
    cuda = dataclasses.replace(config.engine.resolve(), device=torch.device("cuda", 1))
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: cuda)
    with pytest.raises(UserError, match=r"opened for cuda$"):
        run_discovery(config, tmp_path / "run")


def test_a_run_leaves_its_files_and_is_not_repeated(tmp_path: Path) -> None:
    config, out = DiscoverConfig.from_dict(DEMO).resolved(), tmp_path / "run"
    before = expected_epochs(config, out)
    with RunDir.open(out, config.as_dict()) as folder:  # as a kill may leave it, its stage being stored
        folder.stages.save("partial-probe-099-0", {"step": 1}, {"noise/0": torch.zeros(1)})
    report = run_discovery(config, out)
    assert not list((out / "stages").glob("partial-*.safetensors"))
    assert expected_epochs(config, out) < before
    assert report.as_json() == json.loads((out / "report.json").read_text())
    assert report.config == config.as_dict() == json.loads((out / "config.json").read_text())
    assert report.network.test is not None
    assert report.network.test.score > 0.2
    num_rounds = len(report.curve.rounds)
    assert len(list((out / "masks").iterdir())) == num_rounds
    assert len((out / "curve.csv").read_text().splitlines()) == 1 + num_rounds + len(report.curve.probes)
    for name in ("network.safetensors", "network_masks.safetensors", "curve.png", "report.html", "metrics.jsonl"):
        assert (out / name).stat().st_size > 0

    stamps = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    assert run_discovery(config, out) == report
    assert stamps == {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}

    # Killed after the report was written: figure, page and manifest are made up for.
    for name in ("report.html", "manifest.sha256"):
        (out / name).unlink()
    run_discovery(config, out)
    assert (out / "report.html").exists()
    assert RunDir(out).damage() == {}


def test_a_delta_below_one_validation_image_is_a_warning(tmp_path: Path) -> None:
    coarse = {**DEMO, "delta": 0.0022}
    with pytest.warns(UserWarning, match="450 validation"):
        run_discovery(DiscoverConfig.from_dict(coarse), tmp_path / "coarse")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*450 validation")
        run_discovery(DiscoverConfig.from_dict({**coarse, "delta": 0.0023}), tmp_path / "fine")


def test_a_tolerance_that_every_density_meets_is_a_flat_curve(tmp_path: Path) -> None:
    config = DiscoverConfig.from_dict({"budget": 16, "model_options": {"widths": [12]}, "delta": 0.99})
    report = run_discovery(config, tmp_path / "run")
    assert report.answer is not None
    assert report.answer.interval is not None
    assert (report.answer.status, report.answer.interval[0]) == ("flat", 0.0)
