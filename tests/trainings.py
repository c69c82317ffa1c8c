"""Runs of `pathgrow train` for tests: each made once, and read."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pathgrow.training import TrainRun, train


def trained_once(tmp_path_factory: pytest.TempPathFactory, config: Callable[[str], TrainRun]) -> Callable[[str], Path]:
    """The folder of an undisturbed run of a method, trained when it is first asked for."""

    @functools.cache
    def folder(method: str) -> Path:
        out = tmp_path_factory.mktemp("undisturbed") / method
        train(config(method), out)
        return out

    return folder


def report(folder: Path) -> dict[str, Any]:
    """What a finished run has written last."""
    return json.loads((folder / "report.json").read_text())
