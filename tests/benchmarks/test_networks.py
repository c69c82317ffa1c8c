"""Published networks: each loads with one call and scores what its report says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

import pathgrow
from benchmarks import networks
from pathgrow.cli.main import parse
from pathgrow.errors import UserError
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.training import train

FOLDERS = networks.published()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_network_scores_what_its_report_says(folder: Path) -> None:
    report, config = (json.loads((folder / name).read_text()) for name in ("report.json", "config.json"))
    classes = {"digits": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}[config["data"]]
    model = pathgrow.models.create(config["model"], classes=classes, **config["model_options"])
    masks = pathgrow.load_network(folder, model)
    assert masks.num_on / masks.num == report["network"]["density"]
    parameters = dict(model.named_parameters())
    assert all((parameters[name][~mask] == 0).all() for name, mask in masks.items())
    if config["data"] != "digits":
        return  # other datasets are not at hand everywhere
    data = pathgrow.data.load("digits", fold=config["fold"])
    for part in ("val", "test"):
        split = getattr(data, part)
        with torch.no_grad():
            correct = model.eval()(split.normalized()).argmax(1) == split.labels
        assert correct.double().mean().item() == pytest.approx(report["network"][part]["score"], abs=1e-12)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_command_of_a_network_is_accepted(folder: Path) -> None:
    program, *words = shlex.split((folder / "command.txt").read_text())
    assert program == "pathgrow"
    parse(words)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--density", "0.2", "--model-option", "widths=16,8"], None),
        (["--density", "0.3", "--model-option", "widths=16,8"], "density was 0.2, not 0.3"),
        (["--density", "0.2", "--model-option", "widths=8,8"], "model_options.widths"),
    ],
)
def test_a_network_is_published_with_the_command_of_its_run_only(
    options: list[str], wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"method": "random", "density": 0.2, "epochs": 1, "model_options": {"widths": [16, 8]}}
    train(TrainConfig.from_dict(values), tmp_path / "run")
    monkeypatch.setattr(networks, "FOLDER", tmp_path / "networks")
    command = ["train", "--data", "digits", "--method", "random", "--epochs", "1", *options]
    if wrong is not None:
        with pytest.raises(UserError, match=wrong):
            networks.publish(tmp_path / "run", "mine", command)
        return
    folder = networks.publish(tmp_path / "run", "mine", command)
    masks = pathgrow.load_network(folder, pathgrow.models.create("mlp", 10, widths=(16, 8)))
    assert masks.num_on == round(0.2 * masks.num)
    assert networks.published() == [folder]


def test_there_are_networks_and_they_are_small() -> None:
    assert len(FOLDERS) >= 2
    assert all(path.stat().st_size < 2**21 for folder in FOLDERS for path in folder.iterdir())
