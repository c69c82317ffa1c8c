"""SIGKILL at random moments of the real `pathgrow train`: once resumed, it ends like an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pathgrow import cli

COMMAND = (
    "train --quiet --method imp --density 0.5 --epochs 3 --method-option rewind_step=9 --batch-size 64 "
    "--model-option widths=16,16 --seed 1 --threads 1"
)
NUM_KILLS = 2
IMPATIENT = """
import functools, sys
from pathgrow import cli
from pathgrow.discovery import phases
phases.Partial = functools.partial(phases.Partial, seconds=0.0)
cli.main(sys.argv[1:])
"""
"""The same command, but for one thing: trainings are stored after every step, and not after every minute."""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


def start(out: Path, *, impatient: bool = False) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    program = ["-c", IMPATIENT] if impatient else ["-m", "pathgrow"]
    return subprocess.Popen([sys.executable, *program, *COMMAND.split(), "--out", str(out)], env=environment)


def num_writes(out: Path) -> int:
    """A number that rises while the run writes stages."""
    steps = 0
    for record in (out / "stages").glob("*.json"):
        steps += 1 + int(json.loads(record.read_text())["facts"].get("step", 0))
    return steps


def test_killed_at_random_moments_a_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(undisturbed).wait(timeout=300) == 0
    draw = random.Random(0)
    before = 0
    for _ in range(NUM_KILLS):
        process = start(disturbed, impatient=True)
        while process.poll() is None and num_writes(disturbed) <= before + 3:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
        assert num_writes(disturbed) > before, "it went on where it was, and not from the beginning"
        before = num_writes(disturbed)
    assert start(disturbed).wait(timeout=300) == 0
    for name in ("network.safetensors", "network_masks.safetensors", "config.json", "curve.csv"):
        assert (disturbed / name).read_bytes() == (undisturbed / name).read_bytes(), name
    got, wanted = (json.loads((out / "report.json").read_text()) for out in (disturbed, undisturbed))
    del got["timing"], wanted["timing"]
    assert got == wanted
