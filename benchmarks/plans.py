"""How far plans are off: what searches cost that grow and probe, relative to what their plans announced.

    python -m benchmarks.plans [--budgets 8 24] [--table]

Each search of the bundled digits is planned, run and appended as a line of JSON: both costs in dense trainings.
`--table` only prints the ratios of the recorded ones. The range that plans print (`pathgrow.runs.plan`) was read from
these.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import warnings
from pathlib import Path
from statistics import mean
from typing import Any

from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.discovery import run_discovery
from pathgrow.runs.plan import plan_command

FINISHERS = (["static"], ["rigl"], ["gmp"], ["rigl", "gmp"], ["auto", "set"])
RANGE = (0.6, 1.3)


def search(**settings: Any) -> dict[str, Any]:
    """Plan a search, then run it."""
    config = DiscoverConfig.from_dict(settings)
    planned = plan_command(config).forecast.cost
    with tempfile.TemporaryDirectory() as place:
        return {**settings, "planned": planned, "cost": run_discovery(config, Path(place, "run")).ledger.relative}


def table(rows: list[dict[str, Any]]) -> str:
    """Ratios of cost and plan by finisher, with and without a reference, and of all."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        name = f"{'+'.join(row['finish'])}, {'no' if row['reference'] is None else 'with a'} reference"
        for group in (name, "all"):
            groups.setdefault(group, []).append(row["cost"] / row["planned"])
    low, high = RANGE
    return "\n".join(
        f"{name}: {len(found)} searches, cost / plan {mean(found):.2f} ({min(found):.2f} - {max(found):.2f}), "
        f"{sum(low <= ratio <= high for ratio in found)} in {low} - {high}"
        for name, found in sorted(groups.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/plans.jsonl"))
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 24, 40, 80])
    parser.add_argument("--table", action="store_true", help="only print the recorded ratios")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    grid = itertools.product(FINISHERS, chosen.budgets, (0.01, 0.02), (None, "dense", 0.98))
    for finish, budget, delta, reference in [] if chosen.table else grid:
        found = search(finish=finish, budget=budget, delta=delta, reference=reference, seed=0)
        with chosen.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
    print(table([json.loads(line) for line in chosen.results.read_text().splitlines()]))


if __name__ == "__main__":
    main()
