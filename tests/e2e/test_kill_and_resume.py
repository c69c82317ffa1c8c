"""SIGKILL at random moments of the real command: once resumed, its report is an undisturbed run's, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pathgrow import cli

COMMAND = "discover --quiet --budget 8 --model-option widths=16,16 --start-density 0.05 --reference dense --seed 1"
WITH_A_DENSE_COPY = (
    "discover --quiet --budget 20 --model-option widths=16,16 --start-density 0.05 --delta 0.03 --seed 1"
)
ONE_LONG_STAGE = "discover --quiet --budget 12 --start-density 0.05 --target-density 0.06 --observe average --seed 1"
NUM_KILLS = 5
IMPATIENT = """
import functools, sys
from pathgrow import cli
from pathgrow.discovery import phases
phases.Partial = functools.partial(phases.Partial, seconds=0.0)
cli.main(sys.argv[1:])
"""
"""The same command, but for one thing: trainings are stored after every step, and not after every minute."""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


def start(out: Path, command: str = COMMAND, *, impatient: bool = False) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    program = ["-c", IMPATIENT] if impatient else ["-m", "pathgrow"]
    return subprocess.Popen([sys.executable, *program, *command.split(), "--out", str(out)], env=environment)


def stages(out: Path) -> list[str]:
    return sorted(path.stem for path in (out / "stages").glob("*.json"))


def kill_when(process: subprocess.Popen[bytes], is_time: Callable[[], bool], delay: float) -> bool:
    """Wait, kill; whether it was still alive."""
    while process.poll() is None and not is_time():
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def everything(out: Path) -> dict[str, object]:
    """What must be equal: the report without its clock, and the bytes of every file but those that hold one."""
    report = json.loads((out / "report.json").read_text())
    del report["timing"]
    files = ["curve.csv", "network.safetensors", "network_masks.safetensors", "config.json"]
    files += [f"masks/{path.name}" for path in sorted((out / "masks").iterdir())]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # Stages that are trained together begin together, unless a kill came between their ends: each has its own rows.
    metrics: dict[str, list[object]] = {}
    for row in rows:
        metrics.setdefault(row["stage"], []).append({key: value for key, value in row.items() if key != "time"})
    parts = {f"report.{name}": part for name, part in report.items()}
    return {**parts, "metrics": metrics, **{name: (out / name).read_bytes() for name in files}}


def assert_same(disturbed: Path, undisturbed: Path) -> None:
    got, wanted = everything(disturbed), everything(undisturbed)
    assert got.keys() == wanted.keys()
    assert [name for name in wanted if got[name] != wanted[name]] == []


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
        return json.loads(record.read_text())["facts"]["step"] if record.exists() else 0

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
