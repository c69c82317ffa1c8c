"""Overhead of the study runner, and what it loses when workers are killed: `python -m benchmarks.studies`.

Overhead: wall time of the command for 200 cells of a smoke study in one worker process, from its start to its end,
relative to the sum of the times that the runs themselves report (which leave out resolving their configs).
Kills: a fifth of the cells have their worker killed with SIGKILL at a random time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from pathgrow.checkpoint import RunDir
from pathgrow.report.loading import load_finished
from pathgrow.studies.definition import Cell, load_study
from pathgrow.studies.pools import LocalPool
from pathgrow.studies.runner import run_study

STUDY = """
asks = "How much time does the runner take?"
set.epochs = 20
grid.density = [0.1, 0.2, 0.3, 0.5]
grid.seed = [{seeds}]
grid.method = ["set", "rigl", "gmp", "random", "magnitude"]
"""


def overhead(study: Path, cells: list[Cell], out: Path) -> dict[str, object]:
    """Run the command as a user would, and compare its time with that of its runs."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pathgrow", "study", str(study), "--jobs", "1", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    wall = time.perf_counter() - began
    reports = [load_finished(out / cell.name) for cell in cells]
    own = sum(report.timing.run_seconds or 0.0 for report in reports)
    return {
        "cells": len(cells), "wall, s": wall, "time of the runs, s": own, "overhead": wall / own - 1,
        "MLP on digits, CPU, images/s": sum(report.ledger.samples for report in reports) / own,
    }  # fmt: skip


def kills(cells: list[Cell], out: Path, share: float = 0.2) -> dict[str, object]:
    """Kill the workers of a random fifth of the cells, and count the results."""
    draw, victims = random.Random(0), set[str]()
    chosen = set(draw.sample([cell.name for cell in cells], round(share * len(cells))))
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(0.02):
            for name in chosen - victims:
                holder = (RunDir(out / name).worker or "").partition("pid ")[2].rstrip(")")
                if holder.isdecimal():
                    time.sleep(draw.random() * 0.2)
                    if f"pid {holder})" in (RunDir(out / name).worker or ""):  # it still holds this cell
                        os.kill(int(holder), signal.SIGKILL)
                        victims.add(name)

    thread = threading.Thread(target=kill)
    thread.start()
    outcome = run_study(cells, out, LocalPool(2))
    is_over.set()
    thread.join()
    damaged = sum(bool(RunDir(out / cell.name).damage()) for cell in cells)
    return {
        "cells": len(cells), "workers killed": len(victims), "workers replaced": outcome.num_lost,
        "results": outcome.num_finished, "failed": len(outcome.failed), "damaged": damaged,
        "directories": sum((path / "report.json").exists() for path in out.iterdir()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["overhead", "killed"])
    parser.add_argument("--seeds", type=int, default=10, help="20 cells for each (default: 10)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "overhead.toml"
        study.write_text(STUDY.format(seeds=", ".join(map(str, range(chosen.seeds)))))
        cells = load_study(str(study)).cells()
        found: dict[str, object] = {
            "machine": platform.processor() or "CPU", "torch": torch.__version__, "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }  # fmt: skip
        if chosen.only != "killed":
            found |= overhead(study, cells, Path(folder) / "study")
        if chosen.only != "overhead":
            found["killed"] = kills(cells, Path(folder) / "killed")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
