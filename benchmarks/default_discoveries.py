"""Discoveries with default settings on the bundled digits: returned density, accuracy lost and cost.

    python -m benchmarks.default_discoveries --folds 0 1 2 3 --seeds 3 4 5

Every discovery and every dense training of the same length is a line of JSON; the means are printed last. It takes
about eight seconds per discovery on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from pathgrow.report.schema import RunReport
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.runs.discovery import run_discovery
from pathgrow.runs.training import train


def line(report: RunReport, **more: Any) -> dict[str, Any]:
    """What is kept of a run."""
    assert report.network.test is not None
    values = {
        **more,
        "density": report.network.density,
        "val": report.network.val.score,
        "test": report.network.test.score,
        "relative": report.ledger.relative,
    }
    if report.answer is not None:
        check = report.answer.check
        values |= {
            "answer": report.answer.operating_density,
            "interval": report.answer.interval,
            "status": report.answer.status,
            "check": None if check is None else dataclasses.asdict(check),
            "trained": [(point.density, point.epochs, point.score) for point in report.curve.rounds],
            "pruned": [(point.density, point.score) for point in report.curve.probes],
            "finished": [(point.density, point.score) for point in report.curve.finished],
        }
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=80)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("results/digits_mlp_discoveries.jsonl"))
    chosen = parser.parse_args()
    found, dense = [], []
    with chosen.results.open("a") as file:
        for fold in chosen.folds:
            for seed in chosen.seeds:
                shared = {"data": "digits", "model": "mlp", "fold": fold, "seed": seed}
                with tempfile.TemporaryDirectory() as place:
                    search = DiscoverConfig.from_dict({**shared, "budget": chosen.budget})
                    found.append(line(run_discovery(search, Path(place, "found")), kind="discover", **shared))
                    training = TrainConfig.from_dict({**shared, "method": "dense", "epochs": chosen.budget})
                    dense.append(line(train(training, Path(place, "dense")), kind="dense", **shared))
                for values in (found[-1], dense[-1]):
                    file.write(json.dumps({**values, "budget": chosen.budget}) + "\n")
    lost = [100 * (b["test"] - a["test"]) for a, b in zip(found, dense, strict=True)]
    densities, costs = ([values[name] for values in found] for name in ("density", "relative"))
    print(f"{len(found)} discoveries: density {mean(densities):.1%} (median {median(densities):.1%}), ", end="")
    print(f"{mean(lost):.2f} +- {stdev(lost) / len(lost) ** 0.5:.2f} points below dense, cost {mean(costs):.2f}")


if __name__ == "__main__":
    main()
