"""How much code a reader opens to understand one operation: `python -m benchmarks.reading`.

Each operation runs once under `sys.setprofile`; the table lists how many source files of the package, and how many of
their lines, hold a function that ran. Fewer files means that an idea lives in fewer places. `errors.py` is not counted:
an argument check that passes says all at the place of its call.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import pathgrow
from pathgrow import methods
from pathgrow.density import rules
from pathgrow.density.types import Curve, Point

PACKAGE = Path(pathgrow.__file__).parent
LIMITS = {"RigL mask update": 7, "growth step": 12, "density answer": 5, "default discover": 69}
"""The most files that each operation may take."""


def import_all() -> None:
    """Import every module, so that class bodies and decorators of later imports are not mistaken for visits."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "pathgrow."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def visited(work: Callable[[], object]) -> list[str]:
    """The source files of the package whose functions run during `work`, in order of first visit."""
    files: dict[str, None] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)) and name != str(PACKAGE / "errors.py"):
            files.setdefault(str(Path(name).relative_to(PACKAGE)))

    sys.setprofile(profile)
    threading.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(files)


def _network() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.randn(32, 64)


def rigl_update() -> list[str]:
    """An optimizer step with a mask update."""
    model, optimizer, inputs = _network()
    sparse = pathgrow.attach(model, optimizer, _rigl_with_frequent_updates(), inputs[:1])
    before = sparse.masks.clone()
    files: list[str] = []
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.arange(32) % 10).backward()
        files = visited(optimizer.step)
        if sparse.masks != before:
            break
    assert sparse.masks != before, "no mask update happened"
    return files


def _rigl_with_frequent_updates() -> pathgrow.Method:
    return methods.create("rigl", density=0.2, update_interval=1)


def growth_step() -> list[str]:
    """The observation of a score that makes the network grow."""
    model, optimizer, inputs = _network()
    sparse = pathgrow.attach(model, optimizer, methods.create("gcg"), inputs[:1])
    num_on = sparse.masks.num_on
    files = visited(lambda: sparse.observe(0.5))
    assert sparse.masks.num_on > num_on, "the network did not grow"
    return files


def density_answer() -> list[str]:
    """The answer of the default rule to a curve of rounds and probes."""
    densities = [0.05 * 1.25**k for k in range(12)]
    scores = [0.95 - 0.3 * 0.6**k for k in range(12)]
    points = [Point(round=k, density=densities[k], epochs=10 + k, score=scores[k]) for k in range(12)]
    probes = [Point(round=k, density=densities[k], epochs=20, score=scores[k] + 0.02) for k in (0, 4, 8, 11)]
    curve = Curve(rough=tuple(points), probes=tuple(probes), full_epochs=80)
    rule = rules.create("probe", delta=0.01)
    return visited(lambda: rule.answer(curve))


def default_discover() -> list[str]:
    """`pathgrow discover --data digits --model mlp --budget 20`, from the command line to the report."""
    from pathgrow.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        arguments = ["discover", "--data", "digits", "--model", "mlp", "--budget", "20", "--out", f"{folder}/run"]
        before, sys.argv = sys.argv, ["pathgrow", *arguments]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                return visited(lambda: _ended(main))
        finally:
            sys.argv = before


def _ended(main: Callable[[], object]) -> None:
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"the command failed with exit code {end.code}") from end


def measure() -> dict[str, list[str]]:
    """Files visited by each operation."""
    import_all()
    return {
        "RigL mask update": rigl_update(),
        "growth step": growth_step(),
        "density answer": density_answer(),
        "default discover": default_discover(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", action="store_true", help="list the files of each operation")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    found = measure()
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'operation':<20}{'files':>6}{'lines':>8}{'limit':>7}")
    for name, files in found.items():
        lines = sum(len((PACKAGE / file).read_text().splitlines()) for file in files)
        print(f"{name:<20}{len(files):>6}{lines:>8}{LIMITS[name]:>7}")
        if chosen.files:
            print("\n".join(f"    {file}" for file in files))


if __name__ == "__main__":
    main()
