"""SIGKILL at random moments of the real command: once resumed, its report is an undisturbed run's, bit for bit."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.support.command import assert_same, kill_when, start

COMMAND = "discover --quiet --budget 8 --model-option widths=16,16 --start-density 0.05 --reference dense --seed 1"
WITH_A_DENSE_COPY = (
    "discover --quiet --budget 20 --model-option widths=16,16 --start-density 0.05 --delta 0.03 --seed 1"
)
ONE_LONG_STAGE = "train --quiet --method gcg --density 0.06 --method-option start_density=0.05 --epochs 12 --seed 1"
NUM_KILLS = 5
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


def stages(out: Path) -> list[str]:
    return sorted(path.stem for path in (out / "stages").glob("*.json"))


@pytest.mark.parametrize("command", [COMMAND, WITH_A_DENSE_COPY], ids=["dense reference", "dense copy"])
def test_killed_at_random_moments_and_resumed(command: str, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(undisturbed, command).wait(timeout=300) == 0
    assert ("probe-dense" in stages(undisturbed)) == (command == WITH_A_DENSE_COPY)
    total = len(stages(undisturbed))
    draw = random.Random(0)
    # Random moments of random stages: somewhere in the work, in a save, or between two.
    num_killed = 0
    for num_before in sorted(draw.sample(range(total - 1), NUM_KILLS)):
        process = start(disturbed, command)
        num_killed += kill_when(process, lambda n=num_before: len(stages(disturbed)) >= n, draw.uniform(0, 0.03))
        assert not (disturbed / "report.json").exists() or process.returncode == 0
    assert num_killed >= NUM_KILLS - 1
    assert start(disturbed, command).wait(timeout=300) == 0
    assert_same(disturbed, undisturbed)


def test_killed_twice_in_the_middle_of_a_stage_and_resumed_there(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(undisturbed, ONE_LONG_STAGE).wait(timeout=300) == 0
    record = disturbed / "stages" / "partial-final-0.json"
    draw = random.Random(1)

    def num_steps() -> int:
        return json.loads(record.read_text())["metadata"]["step"] if record.exists() else 0

    for _ in range(2):
        before = num_steps()
        process = start(disturbed, ONE_LONG_STAGE, impatient=True)
        # Somewhere in the training, most likely in one of its saves.
        assert kill_when(process, lambda before=before: num_steps() != before, draw.uniform(0, 0.2))
        assert num_steps() > before, "it went on where it was, and not from the beginning"
    assert "final" not in stages(disturbed)
    assert start(disturbed, ONE_LONG_STAGE).wait(timeout=300) == 0
    assert_same(disturbed, undisturbed)
    assert list((disturbed / "stages").glob("partial-*.safetensors")) == [], "what was half done is done"
