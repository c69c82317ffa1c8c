"""Whether a network is better if it is pruned from a control than if it is pruned from the rounds of a search.

    python -m benchmarks.from_control digits_60 digits_cnn sets wrong_labels tabular --seeds 100 101 102 103 104 105

Both have three quarters of the budget densely or in rounds, and the last quarter with gradual pruning: from the network
of the last round, as the default search does; or from the network that was trained without pruning for a quarter more,
the control of the search, which the returned network could continue. A line of JSON has the difference of their scores
on validation and test examples, in units of delta; above 0 the one from the control is better.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.problems import Task
from benchmarks.tasks import TASKS, Pruned

ROUNDS = (0.3, 0.165)
"""Densities of the first rounds of a search."""
DENSITIES = (0.15, 0.07)


def score(task: Task, seed: int, density: float, *, from_control: bool) -> float:
    """The score of a network that was pruned in one of the two ways; the higher is the better."""
    problem = task.problem(seed, "cpu", None)
    network, quarter = Pruned(problem, seed), task.budget // 4
    num_dense = 3 if from_control else 2
    for phase in range(num_dense):
        network.fit_(quarter, 1.0, seed=1 + phase)
    for number, rounded in enumerate(() if from_control else ROUNDS):
        network.prune_(rounded)
        network.fit_(max(1, round(task.budget / 16)), rounded, seed=3 + number)
    network.fit_(quarter, density, first=0.0, seed=9)
    return task.sign * problem.score(problem.values(network.model, "val", "test"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 106)))
    parser.add_argument("--results", type=Path, default=Path("results/from_control.jsonl"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.tasks:
        task = TASKS[name]
        for density in DENSITIES:
            found = []
            for seed in chosen.seeds:
                rounds, control = (score(task, seed, density, from_control=way) for way in (False, True))
                found.append((control - rounds) / task.tolerance(abs(rounds)))
                with chosen.results.open("a") as file:
                    line = {"task": name, "density": density, "seed": seed, "control_minus_rounds": found[-1]}
                    file.write(json.dumps(line) + "\n")
            error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
            print(f"{name} at {density:.0%}: {mean(found):+.2f} +- {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
