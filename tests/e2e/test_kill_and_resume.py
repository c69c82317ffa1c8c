"""SIGKILL at random moments of the real command: once resumed, its report is an undisturbed run's, bit for bit."""

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
    "discover --quiet --budget 8 --model-option widths=16,16 --start-density 0.05 --reference dense --seed 1 --out"
)
NUM_KILLS = 5


def start(out: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-m", "pathgrow", *COMMAND.split(), str(out)], env=environment)


def num_stages(out: Path) -> int:
    return len(list((out / "stages").glob("*.json")))


def everything(out: Path) -> dict[str, object]:
    """What must be equal: the report without its clock, and the bytes of every file but those that hold one."""
    report = json.loads((out / "report.json").read_text())
    del report["timing"]
    files = ["curve.csv", "network.safetensors", "network_masks.safetensors", "config.json"]
    files += [f"masks/{path.name}" for path in sorted((out / "masks").iterdir())]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("time", None)
    parts = {f"report.{name}": part for name, part in report.items()}
    return {**parts, "metrics": rows, **{name: (out / name).read_bytes() for name in files}}


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_at_random_moments_and_resumed(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(undisturbed).wait(timeout=300) == 0
    total = num_stages(undisturbed)
    draw = random.Random(0)
    # Random moments of random stages: somewhere in the work, in a save, or between two.
    moments = sorted(draw.sample(range(total - 1), NUM_KILLS))
    num_killed = 0
    for stages_before in moments:
        process = start(disturbed)
        while process.poll() is None and num_stages(disturbed) < stages_before:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        num_killed += process.wait() == -signal.SIGKILL
        assert not (disturbed / "report.json").exists() or process.returncode == 0
    assert num_killed >= NUM_KILLS - 1
    assert start(disturbed).wait(timeout=300) == 0
    got, wanted = everything(disturbed), everything(undisturbed)
    assert got.keys() == wanted.keys()
    assert [name for name in wanted if got[name] != wanted[name]] == []
