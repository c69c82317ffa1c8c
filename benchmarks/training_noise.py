"""How much the score of a dense network varies with its training, beside the noise that a search infers.

    python -m benchmarks.training_noise digits_60 lstm --seeds 200 201 --results results/training_noise.jsonl
    python -m benchmarks.training_noise table --results results/training_noise.jsonl

On each split of the data a dense network is trained several times, from other initial weights and in another order of
the examples, and scored on the same validation examples. A search sees one of these trainings, and networks that were
pruned from it: these share its luck, so that their scores scatter less around a curve. All in units of the tolerance.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

import pathgrow
from benchmarks.problems import TASKS, Task
from pathgrow.density.full_training import infer

NUM_TRAININGS = 6


def trained_scores(task: Task, seed: int) -> tuple[list[float], list[float]]:
    """Validation and test scores of several dense trainings on the data of one seed."""
    problem = task.problem(seed, "cpu", None)
    val, test = [], []
    for repeat in range(NUM_TRAININGS):
        model = task.problem(1000 + repeat, "cpu", None).model
        torch.manual_seed(1000 * seed + repeat)
        problem.fit(model, problem.optimizer(model), task.budget)
        val.append(problem.evaluate(model))
        test.append(problem.score(problem.values(model, "test")))
    return val, test


def inferred_noise(task: Task, seed: int) -> float:
    """Standard deviation of one score, as a search with a trained reference infers it."""
    problem = task.problem(seed, "cpu", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pathgrow.discover(
            problem.model, problem.optimizer(problem.model), problem.fit, problem.evaluate, problem.example,
            budget=task.budget, delta=task.delta, mode=task.mode, seed=seed, reference="dense", progress=False,
            **task.options,
        )  # fmt: skip
    outcomes = infer(found.curve, found.answer.delta)
    return math.nan if outcomes is None else float(np.mean(outcomes.noise))


def table(rows: list[dict[str, Any]]) -> str:
    """One line of Markdown per task; standard deviations in units of delta, root mean squares over the seeds."""
    found = ["| task | splits | between trainings | inferred | ratio |", "|---|---|---|---|---|"]
    by_task = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        by_task[row["task"]].append(row)
    for name, lines in by_task.items():
        between = math.sqrt(mean((stdev(row["val"]) / row["delta"]) ** 2 for row in lines))
        inferred = math.sqrt(mean((row["inferred"] / row["delta"]) ** 2 for row in lines))
        found.append(f"| {name} | {len(lines)} | {between:.2f} | {inferred:.2f} | {between / inferred:.2f} |")
    return "\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*TASKS, "table"]
    parser.add_argument("tasks", nargs="+", choices=names, metavar="TASK", help=", ".join(names))
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201, 202, 203])
    parser.add_argument("--results", type=Path, default=Path("results/training_noise.jsonl"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.tasks:
        if name == "table":
            print(table([json.loads(line) for line in chosen.results.read_text().splitlines()]))
            continue
        task = TASKS[name]
        for seed in chosen.seeds:
            val, test = trained_scores(task, seed)
            row = {
                "task": name, "seed": seed, "delta": task.tolerance(abs(mean(val))), "val": val, "test": test,
                "inferred": inferred_noise(task, seed),
            }  # fmt: skip
            with chosen.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
