"""The command in this process, or in a process that can be killed, and everything that a run leaves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from pathgrow.cli import main
from pathgrow.runs import stages
from tests.support.ranks import CONTEXT


def leave(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as exit:
        main.main(list(arguments))
    return int(exit.value.code or 0)


def start(out: Path, command: str, *, saves_often: bool = False) -> BaseProcess:
    """Start a command in a process of its own; with `saves_often` it saves its training after every step."""
    process = CONTEXT.Process(target=_run, args=([*command.split(), "--out", str(out)], saves_often), daemon=True)
    process.start()
    return process


def _run(arguments: list[str], saves_often: bool) -> None:
    torch.set_num_threads(1)
    if saves_often:
        stages.SECONDS_BETWEEN_SAVES = 0.0
    main.main(arguments)


def finish(process: BaseProcess) -> None:
    """Wait until a command has succeeded."""
    process.join(300)
    assert process.exitcode == 0


def kill_when(process: BaseProcess, is_time: Callable[[], bool], delay: float = 0.0) -> None:
    """Kill a command with SIGKILL as soon as `is_time`, or `delay` seconds later."""
    while process.is_alive() and not is_time():
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it was still running"


@contextmanager
def unprivileged(folder: Path) -> Iterator[None]:
    """Without the rights of root, to whom everything is readable and writable; what is in `folder` can be reached."""
    is_root = os.geteuid() == 0
    if is_root:
        for parent in (folder, *list(folder.parents)[:3]):  # pytest's own directories are private
            parent.chmod(parent.stat().st_mode | 0o055)
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


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


def assert_same(resumed: Path, uninterrupted: Path) -> None:
    """Two runs left the same, to the bit."""
    got, expected = everything(resumed), everything(uninterrupted)
    assert got.keys() == expected.keys()
    assert [name for name in expected if got[name] != expected[name]] == []
