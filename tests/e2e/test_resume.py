"""The real commands, killed with SIGKILL and rerun: they end with the bits of an uninterrupted run.

Tests in the process (`tests/runs`) break off at every single save; these prove that a kill is no different.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.discovery import run_discovery
from tests.support.catalogue import Trials
from tests.support.command import assert_same, finish, kill_when, start
from tests.support.faults import Kill, kill_and_resume

SMALL = "--quiet --model-option widths=16,16 --seed 1 --threads 1"
DISCOVER = f"discover --finish static --budget 8 --start-density 0.05 --delta 0.03 {SMALL}"
IMP = f"train --method imp --density 0.6 --epochs 2 --method-option rewind_step=3 --batch-size 128 {SMALL}"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


def stages(out: Path) -> list[str]:
    return sorted(path.stem for path in (out / "stages").glob("*.json"))


def test_a_discovery_killed_in_growth_and_among_its_probes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole, DISCOVER))
    assert "probe-dense" in stages(whole)
    num_rounds = sum(name.startswith("round-") for name in stages(whole))
    draw = random.Random(0)
    # Each round stores two stages, its weights and its record: the second kill comes among the probes.
    for num_before in (4, 2 * num_rounds + 4):
        process = start(killed, DISCOVER)
        kill_when(process, lambda n=num_before: len(stages(killed)) >= n, draw.uniform(0, 0.01))
        assert not (killed / "report.json").exists()
    finish(start(killed, DISCOVER))
    assert_same(killed, whole)


@pytest.mark.item(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"finish": "static", "start_density": 0.05, "delta": 0.03}, marks=pytest.mark.slow)],
    ids=["gts", "static"],
)
def test_a_discovery_killed_at_random_points(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    """In steps, inside changes of masks and inside saves; no finished stage runs again."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a kill loses nothing that the kernel has
    values = {"budget": 6, "model_options": {"widths": [12]}, "threads": 1, "seed": 1, **options}
    config = DiscoverConfig.from_dict(values)
    run, counting = functools.partial(run_discovery, config), Kill()
    with counting.patched():
        run(tmp_path / "undisturbed")
    for number in range(trials.count(quick=1, full=15)):
        path = tmp_path / str(number)
        with trials.one(f"discovery {number}"):
            kill_and_resume(run, path, counting.num_events, trials, num_kills=3)
            assert_same(path, tmp_path / "undisturbed")


def num_steps(out: Path, stage: str) -> int:
    """Steps of a stage that its training checkpoint holds."""
    record = out / "stages" / f"partial-{stage}-0.json"
    return json.loads(record.read_text())["metadata"]["step"] if record.exists() else 0


def test_a_training_killed_in_the_middle_of_two_levels(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole, IMP))
    for stage, step in (("level-1", 3), ("level-2", 5)):
        process = start(killed, IMP, saves_often=True)
        kill_when(process, lambda stage=stage, step=step: num_steps(killed, stage) >= step)
        assert stage not in stages(killed), "in the middle of the level"
    finish(start(killed, IMP))
    assert_same(killed, whole)
    assert list((killed / "stages").glob("partial-*.safetensors")) == []
