"""Eight commands give the results that were recorded: a refactoring must not change a bit.

The last bits depend on torch and on the instruction set of the CPU. Where these are the recorded ones, files are
compared by hash; on other x86-64 CPUs the evaluated networks are compared. To record, after a change that is meant to
change results: `python -m tests.e2e.test_golden`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command import leave

FILE = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, Any] = json.loads(FILE.read_text())
HASHED = ("network.safetensors", "network_masks.safetensors", "curve.csv")
EXACT = ("kind", "round", "density", "density_model", "epochs", "score")


def cpu() -> str:
    """Vendor and instruction set, which choose the kernels of torch and of its math library."""
    info = Path("/proc/cpuinfo")
    vendor = re.search(r"vendor_id\s*: (\w+)", info.read_text()) if info.exists() else None
    return f"{vendor[1] if vendor else 'unknown'} {torch.backends.cpu.get_cpu_capability()}"


def environment() -> dict[str, str]:
    return {"torch": torch.__version__.partition("+")[0], "machine": platform.machine()}


def results(command: str, out: Path) -> dict[str, Any]:
    """Run a command; hashes of its files, and the networks it evaluated."""
    assert leave(*command.split(), "--quiet", "--device", "cpu", "--threads", "1", "--out", str(out)) == 0
    with (out / "curve.csv").open() as file:
        rows = [{**{name: row[name] for name in EXACT}, "loss": float(row["loss"])} for row in csv.DictReader(file)]
    hashes = {name: hashlib.sha256((out / name).read_bytes()).hexdigest()[:16] for name in HASHED}
    return {"command": command, "hashes": hashes, "networks": rows}


@pytest.mark.skipif(
    environment() != {name: GOLDEN[name] for name in environment()},
    reason=f"recorded with torch {GOLDEN['torch']} on {GOLDEN['machine']}",
)
@pytest.mark.parametrize("name", GOLDEN["commands"])
def test_results_are_those_recorded(name: str, tmp_path: Path) -> None:
    expected = GOLDEN["commands"][name]
    found = results(expected["command"], tmp_path / "run")
    for here, there in zip(found["networks"], expected["networks"], strict=True):
        assert here == {**there, "loss": pytest.approx(there["loss"], rel=1e-3)}
    if cpu() == GOLDEN["cpu"]:
        assert found["hashes"] == expected["hashes"]


def record() -> None:
    commands = {}
    for name, expected in GOLDEN["commands"].items():
        with tempfile.TemporaryDirectory() as folder:
            commands[name] = results(expected["command"], Path(folder) / "run")
    values = {**environment(), "cpu": cpu(), "commands": commands}
    FILE.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    record()
