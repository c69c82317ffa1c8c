"""The real command in a process of its own: what it leaves behind, what it says, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pathgrow import data, models
from pathgrow.cli import main
from pathgrow.masks import Masks
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.recipes import recipe

QUICK = ["--finish", "static", "--budget", "8", "--model-option", "widths=16,16", "--start-density", "0.05"]


def pathgrow(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    source = str(Path(main.__file__).parents[2])
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": source}
    command = [sys.executable, "-m", "pathgrow", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment, check=False
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("e2e")
    done = pathgrow("discover", *QUICK, "--reference", "dense", "--seed", "3", folder=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    return run, done


def test_it_answers_and_shows_the_curve(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run, done = finished
    assert run.name.startswith("digits-mlp-")
    assert run.name.endswith("-seed3")
    assert "accuracy" in done.stdout
    assert str(run.relative_to(run.parents[1])) in done.stdout
    assert "round 0: density" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_network_file_is_the_reported_network(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run, _ = finished
    report = json.loads((run / "report.json").read_text())
    model = models.create("mlp", 10, widths=(16, 16))
    model.load_state_dict(load_file(run / "network.safetensors"))
    masks = Masks.load(run / "network_masks.safetensors")
    masks.check(model)
    assert masks.num_on == report["network"]["num_on"]
    assert all(bool((model.get_parameter(name)[~mask] == 0).all()) for name, mask in masks.items())
    digits = data.load("digits")
    trainer = Trainer(digits, recipe("digits"), EngineOptions(device="cpu"))
    torch.set_num_threads(1)
    for split, expected in ((digits.val, report["network"]["val"]), (digits.test, report["network"]["test"])):
        accuracy, loss = trainer.evaluate(split)(model)
        assert accuracy == expected["score"]
        assert loss == pytest.approx(expected["loss"])
    assert report["answer"]["reference"]["kind"] == "dense"
    assert report["answer"]["dense"]["score"] > 0.9
    assert report["answer"]["dense_test"]["score"] > 0.9


def test_a_finished_run_is_shown_not_repeated(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run, done = finished
    before = (run / "report.json").stat().st_mtime_ns
    again = pathgrow("discover", *QUICK, "--reference", "dense", "--seed", "3", folder=run.parents[1])
    assert again.returncode == 0
    assert again.stdout.startswith("This run was already finished; ")
    assert again.stdout.partition("\n")[2] == done.stdout.partition("\n")[2]
    assert "Wrote" not in again.stdout
    assert "round 0: density" not in again.stderr
    assert (run / "report.json").stat().st_mtime_ns == before
    shown = pathgrow("show", run)
    assert shown.returncode == 0
    assert done.stdout.endswith(shown.stdout)


def test_a_diverging_training_fails_in_one_sentence(tmp_path: Path) -> None:
    failed = pathgrow("discover", *QUICK, "--lr", "1000", "--quiet", "--out", tmp_path / "run")
    assert failed.returncode == 1
    assert "lower the learning rate" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert (tmp_path / "run" / "config.json").exists()
    assert not (tmp_path / "run" / "report.json").exists()


def test_several_methods_finish_one_search(tmp_path: Path) -> None:
    """On the built-in trainer: every kind of method, with the cost that `train` reports for the same training."""
    names = ["set", "gmp:start_fraction=0.1", "rigl", "granet", "snip", "acdc"]
    flags = [word for name in names for word in ("--finish", name)]
    small = ["--quiet", "--model-option", "widths=16,16", "--threads", "1"]
    done = pathgrow("discover", *flags, "--budget", "4", "--start-density", "0.2", "--delta", "0.2", *small,
                    "--out", tmp_path / "found")  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "found" / "report.json").read_text())
    assert [each["name"] for each in report["finishers"]] == names == report["config"]["finish"]
    assert len({each["score"] for each in report["finishers"]}) > 1
    finals = {phase["phase"]: phase for phase in report["ledger"]["phases"] if phase["phase"].startswith("final")}
    gmp = finals["final--gmp_start_fraction_0_1"]
    trained = pathgrow("train", "--method", "gmp", "--method-option", "start_fraction=0.1", "--density", gmp["density"],
                       "--epochs", "4", *small, "--out", tmp_path / "gmp")  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    # Weights of linear layers cost the same in every layer, so it does not matter which ones were pruned.
    alone = json.loads((tmp_path / "gmp" / "report.json").read_text())
    assert alone["network"]["density"] == gmp["density"]
    assert alone["ledger"]["training_flops"] == gmp["training_flops"]
    shown = pathgrow("show", tmp_path / "found").stdout
    assert "networks of other finishers" in shown
    assert all(name in shown for name in names)
