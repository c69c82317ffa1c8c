"""The command, in this process or in one of its own that can be killed, and everything that a run of it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pathgrow.cli import main

_IMPATIENT = """
import functools, sys
from pathgrow.cli import main
from pathgrow.runs import session
session.TrainingCheckpoint = functools.partial(session.TrainingCheckpoint, seconds=0.0)
main.main(sys.argv[1:])
"""
"""The same command, but for one thing: trainings are stored after every step, and not after every minute."""


def leave(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as exit:
        main.main(list(arguments))
    return int(exit.value.code or 0)


def start(out: Path, command: str, *, impatient: bool = False) -> subprocess.Popen[bytes]:
    """A command in a process of its own; an impatient one stores trainings after every step."""
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    program = ["-c", _IMPATIENT] if impatient else ["-m", "pathgrow"]
    return subprocess.Popen([sys.executable, *program, *command.split(), "--out", str(out)], env=environment)


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
    files += [f"masks/{path.name}" for path in sorted((out / "masks").glob("*"))]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # Stages that are trained together begin together, unless a kill came between their ends: each has its own rows.
    metrics: dict[str, list[object]] = {}
    for row in rows:
        metrics.setdefault(row["stage"], []).append({key: value for key, value in row.items() if key != "time"})
    parts = {f"report.{name}": part for name, part in report.items()}
    return {**parts, "metrics": metrics, **{name: (out / name).read_bytes() for name in files}}


def assert_same(disturbed: Path, undisturbed: Path) -> None:
    """Two runs left the same, to the bit."""
    got, wanted = everything(disturbed), everything(undisturbed)
    assert got.keys() == wanted.keys()
    assert [name for name in wanted if got[name] != wanted[name]] == []
