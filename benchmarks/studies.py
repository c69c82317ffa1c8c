"""Overhead of the study runner, and what it loses when workers are killed: `python -m benchmarks.studies`.

Overhead: wall time of the command for 200 cells of a smoke study in one worker process, from its start to its end,
relative to the sum of the times that the runs themselves report (which leave out resolving their configs, and writing
the report and the hashes of all files). Start, gaps between runs and end add up to the difference. All of them grow
with the load of the machine; CPU seconds of all processes of the command do less. With `--before SRC`, the study is run
with another version of the package, in the directory SRC, and with this one again; then small studies alternate between
both and a loop over the same runs in one process.
Kills: a fifth of the cells have their worker killed with SIGKILL at a random time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch

from pathgrow.checkpoint import RunDir
from pathgrow.report.loading import load_finished
from pathgrow.studies.definition import Cell, load_study
from pathgrow.studies.pools import LocalPool
from pathgrow.studies.runner import run_study

STUDY = """
question = "How much time does the runner take?"
set.epochs = 20
grid.density = [0.1, 0.2, 0.3, 0.5]
grid.seed = [{seeds}]
grid.method = ["set", "rigl", "gmp", "random", "magnitude"]
"""
SOURCE = Path(__file__).parents[1] / "src"
_LOOP = """
import sys
from pathlib import Path
from pathgrow.runs.training import train
from pathgrow.studies.definition import load_study
for cell in load_study(sys.argv[1]).cells():
    train(cell.config(), Path(sys.argv[2]) / cell.name)
"""
_PR_SET_CHILD_SUBREAPER = 36


def overhead(
    study: Path, cells: list[Cell], out: Path, source: Path = SOURCE, *, loop: bool = False
) -> dict[str, float]:
    """Run the command as a user would, or its runs in a loop, and compare its time with that of the runs."""
    arguments = ["-c", _LOOP, study, out] if loop else ["-m", "pathgrow", "study", study, "--jobs", "1", "--out", out]
    load, began, cpu = os.getloadavg()[0], time.time(), _cpu_of_children()
    # Not into pipes, which are open until the server of the workers has ended, after the command.
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    ended = time.time()
    cpu = _cpu_of_children() - cpu
    runs = {(out / cell.name / "report.json").stat().st_mtime: load_finished(out / cell.name) for cell in cells}
    own = {at: report.timing.run_seconds or 0.0 for at, report in sorted(runs.items())}
    start, end = min(own) - own[min(own)] - began, ended - max(own)
    wall, total = ended - began, sum(own.values())
    return {
        "load": load, "load at the end": os.getloadavg()[0], "cells": len(cells),
        "wall, s": wall, "time of the runs, s": total, "overhead": wall / total - 1,
        "until the first run, s": start, "between runs, ms": 1000 * (wall - total - start - end) / (len(cells) - 1),
        "after the last run, s": end, "CPU of all processes, s": cpu,
        "MLP on digits, CPU, images/s": sum(report.ledger.samples for report in runs.values()) / total,
    }  # fmt: skip


def _cpu_of_children() -> float:
    """CPU seconds of all processes that this one has started, directly or not, after waiting for them to end."""
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compared(folder: Path, before: Path, repeats: int) -> dict[str, object]:
    """Alternate between two versions and a loop; medians, and the medians of their ratios within a repeat."""
    kinds = {"before": (before, False), "now": (SOURCE, False), "loop": (SOURCE, True)}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for repeat in range(repeats):
        study = folder / f"repeat{repeat}.toml"
        study.write_text(STUDY.format(seeds=repeat))
        cells = load_study(str(study)).cells()
        for kind, (source, loop) in kinds.items():
            found[kind].append(overhead(study, cells, folder / kind, source, loop=loop))
            print(f"load {os.getloadavg()[0]:.1f}, {kind}: {found[kind][-1]}", file=sys.stderr)
    keys = list(found["now"][0])
    ratios = {
        f"{one} / {other}": {
            key: median(a[key] / b[key] for a, b in zip(found[one], found[other], strict=True))
            for key in ("wall, s", "until the first run, s", "between runs, ms", "CPU of all processes, s")
        }
        for one, other in (("now", "before"), ("now", "loop"))
    }  # fmt: skip
    medians = {kind: {key: median(each[key] for each in own) for key in keys} for kind, own in found.items()}
    return {"repeats": repeats, **medians, **ratios}


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
    parser.add_argument("--before", type=Path, metavar="SRC", help="directory of another version of the package")
    parser.add_argument("--repeats", type=int, default=6, help="of the comparison with it, 20 cells each (default: 6)")
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
            if sys.platform == "linux":  # what the command leaves running when it ends becomes a child of this process
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            found["overhead"] = overhead(study, cells, Path(folder) / "study")
            if chosen.before is not None:
                found["overhead before"] = overhead(study, cells, Path(folder) / "other", chosen.before)
                found["overhead again"] = overhead(study, cells, Path(folder) / "again")
                found["alternating"] = compared(Path(folder), chosen.before, chosen.repeats)
        if chosen.only != "overhead":
            found["killed"] = kills(cells, Path(folder) / "killed")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
