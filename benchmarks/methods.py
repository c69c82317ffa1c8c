"""Sanity check: accuracy and cost of every method on the bundled data.

    python -m benchmarks.methods [--density 0.1] [--seeds 0 1 2 3 4] [--out FILE]

An MLP on digits, trained for the epochs of its recipe (at every level, for methods that prune between trainings).
Growth starts at 3%. Printed: mean test accuracy with its standard error, density, training FLOPs relative to dense.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from pathgrow import methods
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.training import train

START = 0.03


def config(name: str, density: float, seed: int) -> TrainConfig:
    """Return the config of one training, with a density if the method has one."""
    known = methods.defaults(name)
    given: dict[str, Any] = {"method": name, "data": "digits", "model": "mlp", "seed": seed}
    if "density" in known or "target_density" in known:
        given["density"] = density
    if "target_density" in known and "start_density" in known:
        given["method_options"] = {"start_density": START}
    return TrainConfig.from_dict(given)


def trained(name: str, density: float, seed: int) -> dict[str, Any]:
    """Train and return the results."""
    with tempfile.TemporaryDirectory() as folder:
        report = train(config(name, density, seed), folder)
    network = report.network
    assert network.test is not None
    return {
        "method": name,
        "seed": seed,
        "density": network.density,
        "val": network.val.score,
        "test": network.test.score,
        "relative_flops": report.ledger.relative,
    }


def row(runs: list[dict[str, Any]]) -> str:
    """Return the runs of one method as a row of the table."""
    test, density, flops = ([run[name] for run in runs] for name in ("test", "density", "relative_flops"))
    error = stdev(test) / len(test) ** 0.5 if len(test) > 1 else float("nan")
    accuracy = f"{100 * mean(test):.2f} +- {100 * error:.2f}"
    return f"| {runs[0]['method']} | {accuracy} | {mean(density):.3f} | {mean(flops):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", choices=methods.names(), default=methods.names())
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all trainings")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| method | test accuracy | density | FLOPs / dense |\n|---|---|---|---|")
    runs = []
    for name in chosen.methods:
        runs.append([trained(name, chosen.density, seed) for seed in chosen.seeds])
        print(row(runs[-1]), flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps([run for of_one in runs for run in of_one]) + "\n")


if __name__ == "__main__":
    main()
