"""Runs of `pathgrow train` for tests: each made once, and read."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pathgrow import methods
from pathgrow.distributed.comm import SINGLE_PROCESS
from pathgrow.report.progress import ProgressBar
from pathgrow.runs.command import open_session
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.iso_flop import Workload
from pathgrow.runs.training import train


def trained_once(
    tmp_path_factory: pytest.TempPathFactory, config: Callable[[str], TrainConfig]
) -> Callable[[str], Path]:
    """The run directory of an uninterrupted run of a method, trained on first use."""

    @functools.cache
    def folder(method: str) -> Path:
        out = tmp_path_factory.mktemp("uninterrupted") / method
        train(config(method), out)
        return out

    return folder


def report(folder: Path) -> dict[str, Any]:
    """What a finished run has written last."""
    return json.loads((folder / "report.json").read_text())


def workload(method: str, **given: Any) -> Workload:
    """A training that is not begun, of linear layers where a weight is a multiply-add; the output layer stays dense."""
    known = methods.defaults(method)
    options = {name: value for name, value in {"update_interval": 7, "rewind_step": 4}.items() if name in known}
    if "target_density" in known:
        options |= {"start_density": 0.1, "gamma": 0.5}
    values = {
        "method": method,
        "method_options": options,
        "epochs": 3,
        "model_options": {"widths": [16, 12]},
        "recipe": {"batch_size": 64},
        "threads": 1,
    }
    if {"density", "target_density"} & known.keys():
        values["density"] = 0.25
    config = TrainConfig.from_dict({**values, **given}).resolved()
    session, trainer = open_session(
        config, None, ProgressBar(), SINGLE_PROCESS, num_epochs=config.epochs, scope=config.scope
    )
    return Workload(session=session, config=config, trainer=trainer)
