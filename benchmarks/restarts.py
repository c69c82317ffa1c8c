"""What restarts of the learning rate cost networks that are pruned, on the tasks of `benchmarks.tasks`.

    python -m benchmarks.restarts TASK [TASK ...] --seeds 0 1 2 [--results results/restarts.jsonl]

For every task and seed the dense network is trained for the budget. Networks of 50% and 20% are pruned gradually until
70% of the steps of their last training, and have as many epochs in all: after two phases of a quarter of the budget,
after one, or in a single training, from its start or from 20% of its steps on. Each is a line of JSON with its distance
to dense on the validation and test examples, in units of delta; the table has mean and standard error over seeds.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cifar import Lines
from benchmarks.tasks import FIRST, TASKS, Pruned, baseline

DENSITIES = (0.5, 0.2)
PLANS = {
    "after two phases": ((0.25, 0.25), 0.0),
    "after one phase": ((0.25,), 0.0),
    "one training, from the start": ((), 0.0),
    "one training, from 20%": ((), FIRST),
}
"""Phases before the last one, as fractions of the budget, and where pruning begins in that."""


def run(name: str, seed: int, lines: Lines) -> None:
    """Train the networks of one task and seed that have no line yet."""
    task = TASKS[name]
    if all(lines.has(task=name, seed=seed, plan=plan, rung=rung) for plan in PLANS for rung in DENSITIES):
        return
    problem = task.problem(seed, "cpu", None)
    dense = problem.values(baseline(task, problem, seed), "val", "test")
    delta = task.tolerance(problem.score(dense))
    for plan, (phases, first) in PLANS.items():
        for rung in DENSITIES:
            network, spent = Pruned(problem, seed), 0
            for phase in phases:
                epochs = max(1, int(phase * task.budget))
                network.fit_(epochs, 1.0, seed=spent)
                spent += epochs
            network.fit_(task.budget - spent, rung, first=first, seed=spent)
            gap, error = problem.difference(dense, problem.values(network.model, "val", "test"))
            lines.add(
                task=name, seed=seed, plan=plan, rung=rung, density=network.density,
                below=task.sign * gap / delta, error=error / delta,
            )  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean distance to dense in units of delta, with its standard error over seeds."""
    found: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["task"], row["rung"], row["plan"]].append(row["below"])
    lines = [f"| task | density | {' | '.join(PLANS)} |", "|" + "---|" * (2 + len(PLANS))]
    for name, rung in dict.fromkeys((task, rung) for task, rung, _ in found):
        cells = []
        for plan in PLANS:
            below = np.array(found[name, rung, plan])
            error = below.std(ddof=1) / math.sqrt(len(below)) if len(below) > 1 else math.nan
            cells.append(f"{below.mean():.1f} ± {error:.1f}")
        lines.append(f"| {name} | {rung:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []], metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("results/restarts.jsonl"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    lines = Lines(chosen.results)
    for seed in chosen.seeds:
        for name in chosen.tasks:
            run(name, seed, lines)
    print(table(lines.rows))


if __name__ == "__main__":
    main()
