"""What dense networks learn in one annealed training of some length, and in several phases one after the other.

    python -m benchmarks.learning_curves digits_60 lstm --seeds 100 101 --results results/learning_curves.jsonl

The prior of the default search (`pathgrow.density.full_training`) was chosen by these. Scores are those on validation
and test examples, relative to one training of the whole budget and in units of the tolerance of the task; phases are
counted in quarters of the budget.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import torch

from benchmarks.problems import TASKS, Task

PHASES = {
    "1/8": (0.5,), "1/4": (1,), "1/2": (2,), "3/4": (3,), "1": (4,),
    "1/4 + 1/4": (1, 1), "1/4 + 1/4 + 1/4": (1, 1, 1), "1/8 + 1/8 + 1/4": (0.5, 0.5, 1),
}  # fmt: skip
"""Lengths of the phases in quarters of the budget."""


def scores(task: Task, seed: int) -> dict[str, float]:
    """The score after each sequence of phases; the higher is the better."""
    problem = task.problem(seed, "cpu", None)
    model, initial, found = problem.model, copy.deepcopy(problem.model.state_dict()), {}
    for name, phases in PHASES.items():
        model.load_state_dict(initial)
        torch.manual_seed(seed)
        for quarters in phases:
            length = task.budget if quarters == 4 else max(1, int(quarters * (task.budget // 4)))
            problem.fit(model, problem.optimizer(model), length)
        found[name] = task.sign * problem.score(problem.values(model, "val", "test"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 106)))
    parser.add_argument("--results", type=Path, default=Path("results/learning_curves.jsonl"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.tasks:
        kept = defaultdict[str, list[float]](list)
        for seed in chosen.seeds:
            found = scores(TASKS[name], seed)
            delta = TASKS[name].tolerance(abs(found["1"]))
            relative = {phases: (score - found["1"]) / delta for phases, score in found.items()}
            with chosen.results.open("a") as file:
                file.write(json.dumps({"task": name, "seed": seed, "delta": delta, **relative}) + "\n")
            for phases, value in relative.items():
                kept[phases].append(value)
        print(name, {phases: round(mean(values), 2) for phases, values in kept.items()})


if __name__ == "__main__":
    main()
