"""SIGKILL at random moments of the real `pathgrow train`: once resumed, it ends like an undisturbed run."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.support.command import assert_same, kill_when, start

COMMAND = (
    "train --quiet --method imp --density 0.5 --epochs 3 --method-option rewind_step=9 --batch-size 64 "
    "--model-option widths=16,16 --seed 1 --threads 1"
)
NUM_KILLS = 2
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


def num_writes(out: Path) -> int:
    """A number that rises while the run writes stages."""
    steps = 0
    for record in (out / "stages").glob("*.json"):
        steps += 1 + int(json.loads(record.read_text())["metadata"].get("step", 0))
    return steps


def test_killed_at_random_moments_a_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(undisturbed, COMMAND).wait(timeout=300) == 0
    draw = random.Random(0)
    before = 0
    for _ in range(NUM_KILLS):
        process = start(disturbed, COMMAND, impatient=True)
        alive = kill_when(process, lambda before=before: num_writes(disturbed) > before + 3, draw.uniform(0, 0.2))
        assert alive, "it was over before it could be killed"
        assert num_writes(disturbed) > before, "it went on where it was, and not from the beginning"
        before = num_writes(disturbed)
    assert start(disturbed, COMMAND).wait(timeout=300) == 0
    assert_same(disturbed, undisturbed)
