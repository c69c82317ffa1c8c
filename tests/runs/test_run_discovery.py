"""`run`: a discovery from a config, in a run directory."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.run_discovery import expected_epochs, run
from pathgrow.trainer import EngineOptions

SMALL = {"budget": 4, "model_options": {"widths": [12]}, "start_density": 0.2, "rule": "exponential"}


def test_a_run_with_a_recipe_of_another_dataset_and_bfloat16(tmp_path: Path) -> None:
    """All of the recipe is used: AdamW, soft targets, a policy and erasing on eight by eight gray pixels."""
    config = DiscoverConfig.from_dict(
        {
            **SMALL,
            "recipe_name": "cifar-vit",
            "recipe": {"augment": {"crop_padding": 1}, "accumulate": 2, "clip_norm": 1.0},
            "engine": {"device": "cpu", "precision": "bf16"},
            "method": "gradient_growth",
            "delta": 0.5,
        }
    )
    report = run(config, tmp_path / "run")
    assert report.config["recipe"]["augment"]["policy"] == "autoaugment-cifar"
    assert report.method.name == "gradient_growth"
    assert report.ledger.samples % 128 == 0  # whole batches only


def test_the_environment_names_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, config: dict[str, Any], *, device: str) -> None:
        raise UserError(f"opened for {device}")

    config = DiscoverConfig.from_dict(SMALL)
    monkeypatch.setattr(RunDir, "open", opened)
    cuda = dataclasses.replace(config.engine.resolve(), device=torch.device("cuda", 1))
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: cuda)
    with pytest.raises(UserError, match=r"opened for cuda$"):
        run(config, tmp_path / "run")


def test_a_run_leaves_its_files_and_is_not_repeated(tmp_path: Path) -> None:
    config, out = DiscoverConfig.from_dict(SMALL).resolved(), tmp_path / "run"
    before = expected_epochs(config, out)
    with RunDir.open(out, config.as_dict()) as folder:  # as a kill may leave it, its stage being stored
        folder.stages.save("partial-probe-099-0", {"step": 1}, {"noise/0": torch.zeros(1)})
    report = run(config, out)
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

    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    assert run(config, out) == report
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}

    # Killed after the report was written: figure and page are made up for.
    (out / "report.html").unlink()
    run(config, out)
    assert (out / "report.html").exists()


def test_a_delta_below_one_validation_image_is_a_warning(tmp_path: Path) -> None:
    coarse = {**SMALL, "delta": 0.0022}
    with pytest.warns(UserWarning, match="450 validation"):
        run(DiscoverConfig.from_dict(coarse), tmp_path / "coarse")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*450 validation")
        run(DiscoverConfig.from_dict({**coarse, "delta": 0.0023}), tmp_path / "fine")


def test_a_tolerance_that_every_density_meets_is_a_flat_curve(tmp_path: Path) -> None:
    config = DiscoverConfig.from_dict({"budget": 4, "model_options": {"widths": [12]}, "delta": 0.99})
    report = run(config, tmp_path / "run")
    assert report.answer is not None
    assert report.answer.interval is not None
    assert (report.answer.status, report.answer.interval[0]) == ("flat", 0.0)
