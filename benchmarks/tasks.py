"""Discoveries in strangers' trainings, beside the density that brute force finds.

    python -m benchmarks.tasks gpt regression lstm --seeds 0 1 2 --device cuda --jobs 8 --data-root DIR \\
        --results results/tasks.jsonl [--part truth|discover|all]
    python -m benchmarks.tasks table --results results/tasks.jsonl

The tasks are those of `benchmarks.problems`, some of which the density rule has been chosen on by now, and of
`benchmarks.unseen`, on which nothing was chosen. `discover` is called through the public interface with the task's
`fit` and `evaluate`, and with nothing that a user would not know.

The truth shares no training code with it. For every seed the dense network is trained for the budget. One network for
each density is trained as long from the same initial weights, and pruned by magnitude, gradually, from a fifth of the
training on. A pretrained network is pruned while it is fine-tuned for the budget, from the start. All are scored on the
validation and test examples. Where the gap to dense, averaged over seeds, made monotone and interpolated
over log density, equals delta is the true density; its 90% interval comes from the spread over seeds. Data splits and
initializations depend on the seed, so truth and answers are about the task, not about one split. The returned network
is compared with the dense one of its seed on the same test examples, which gives the standard error beside the
difference.

Each finished training and discovery is one line of JSON and is not run again, unless `--again` asks for new
discoveries, such as after a change of the search; the table shows the last one of each seed. `--jobs` runs seeds in
parallel, each in a process with one thread. Only `gpt` and the ViTs use `--device`: the others are faster on a core.
`gpt` reads tinyshakespeare.txt from `--data-root`; the ViTs need timm.
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from torch import nn

import pathgrow
from benchmarks import problems
from benchmarks.cifar import Lines
from benchmarks.discovery import crossing, smoothed
from benchmarks.problems import LADDER, Problem, Task
from benchmarks.unseen import UNSEEN
from pathgrow.graph.calls import called_layers, called_scope
from pathgrow.report.text import closing

TASKS = {**problems.TASKS, **UNSEEN}

# Brute force

_FAR = 5.0
"""Gap in units of delta below which sparser networks are not trained."""
FIRST, _LAST = 0.2, 0.7
"""Fractions of a training between which a network is pruned, if it is untrained before."""


class Pruned:
    """A network with masks, trained by the user's `fit` with a new optimizer each time."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.model = copy.deepcopy(problem.model)
        try:
            scope = pathgrow.scope(self.model, example_input=problem.example)
        except pathgrow.UserError:  # recurrent
            scope = called_scope(self.model, called_layers(self.model, problem.example))
        weights = dict(self.model.named_parameters())
        devices = {name: weight.device for name, weight in weights.items()}
        self._weights = {
            name: (weights[name], inside.to(devices[name]), inside.to(devices[name], copy=True))
            for name, inside in scope.items()
        }
        """Each prunable tensor with its scope and its mask."""

    @property
    def density(self) -> float:
        kept, num = (sum(int(parts[k].sum()) for parts in self._weights.values()) for k in (2, 1))
        return kept / num

    def prune_(self, density: float) -> None:
        """Keep this fraction of the prunable weights, the largest of those that are left."""
        sizes = torch.cat([weight.detach().abs()[mask] for weight, _, mask in self._weights.values()])
        num_off = len(sizes) - round(density * sum(int(scope.sum()) for _, scope, _ in self._weights.values()))
        if num_off > 0:
            limit = sizes.kthvalue(num_off).values
            for weight, _, mask in self._weights.values():
                mask &= weight.detach().abs() > limit
        self._zero_()

    def fit_(self, epochs: int, density: float, *, first: float = FIRST, seed: int = 0) -> None:
        """Train, and prune to a density along a cubic curve, from this fraction of the steps on."""
        torch.manual_seed(1000 * self.seed + seed)
        optimizer, start, num_done = self.problem.optimizer(self.model), self.density, 0
        begin, last = (int(part * epochs * self.problem.steps_per_epoch) for part in (first, _LAST))
        last = max(begin + 1, last)

        def after_step(*_: object) -> None:
            nonlocal num_done
            num_done += 1
            num_pruning = num_done - begin
            is_due = num_pruning % max(1, (last - begin) // 30) == 0 or num_done == last
            if num_pruning > 0 and num_done <= last and is_due:
                self.prune_(density + (start - density) * (1 - num_pruning / (last - begin)) ** 3)
            self._zero_()

        optimizer.register_step_post_hook(after_step)
        self.problem.fit(self.model, optimizer, epochs)

    def _zero_(self) -> None:
        with torch.no_grad():
            for weight, scope, mask in self._weights.values():
                weight.masked_fill_(scope & ~mask, 0.0)


def baseline(task: Task, problem: Problem, seed: int) -> nn.Module:
    """The dense network after the budget, or the given one if the user asks how it compares with that."""
    model = copy.deepcopy(problem.model)
    if task.baseline == "given":
        return model
    torch.manual_seed(seed)
    problem.fit(model, problem.optimizer(model), task.budget)
    return model


def find_truth(name: str, seed: int, place: Place) -> None:
    """Train the networks of the ladder that are missing, and append the gap of each to dense."""
    task, lines = TASKS[name], place.lines()
    key = {"kind": "truth", "task": name, "seed": seed}
    if all(lines.has(**key, rung=rung) for rung in task.ladder) or lines.has(**key, is_last=True):
        return
    problem = task.problem(seed, place.device, place.data_root)
    dense = problem.values(baseline(task, problem, seed), "val", "test")
    delta, is_far = task.tolerance(problem.score(dense)), False
    for rung in task.ladder:
        if is_far or lines.has(**key, rung=rung):
            continue
        began, network = time.perf_counter(), Pruned(problem, seed)
        network.fit_(task.budget, rung, first=0.0 if task.is_pretrained else FIRST)
        values = problem.values(network.model, "val", "test")
        gap, error = problem.difference(dense, values)
        below = task.sign * gap
        is_far = below > _FAR * delta
        lines.add(
            **key, rung=rung, is_last=is_far, density=network.density, epochs=task.budget,
            dense=problem.score(dense), score=problem.score(values), below=below, error=error, delta=delta,
            num_examples=len(values), seconds=time.perf_counter() - began,
        )  # fmt: skip


# Discovery


def run_discover(name: str, seed: int, place: Place) -> None:
    """Call `discover` as a user would, and append its answer beside what the returned network is worth."""
    task, lines = TASKS[name], place.lines()
    key = {"kind": "discover", "task": name, "seed": seed}
    if lines.has(**key) and not place.again:
        return
    problem = task.problem(seed, place.device, place.data_root)
    dense = problem.values(baseline(task, problem, seed), "test")
    model, began = problem.model, time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = pathgrow.discover(
            model, problem.optimizer(model), problem.fit, problem.evaluate, problem.example, budget=task.budget,
            delta=task.delta, mode=task.mode, seed=seed, **task.options,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    gap, error = problem.difference(dense, problem.values(model, "test"))
    check, reference = found.check, found.reference
    lines.add(
        **key, status=found.answer.status, answer=found.operating_density, interval=found.interval,
        density=found.density, val=found.score, dense=problem.score(dense), below=task.sign * gap, error=error,
        delta=task.tolerance(problem.score(dense)), check=None if check is None else vars(check),
        reference=None if reference is None else [reference.kind, reference.score], cost=found.ledger.relative,
        seconds=seconds, says=closing(found.report())[0], warnings=[str(warning.message) for warning in caught],
        rounds=points(found.rounds), pruned=points(found.probes), finished=points(found.finished),
    )  # fmt: skip


def points(records: Sequence[Any]) -> list[tuple[float, float, int]]:
    return [(record.point.density, record.point.score, record.point.epochs) for record in records]


# Summary


@dataclass(frozen=True)
class Truth:
    """The smallest density within delta of dense, with its 90% interval over seeds."""

    density: float
    low: float
    high: float
    num_seeds: int
    sparsest: float = min(LADDER)
    """Lowest density that was trained."""

    @property
    def is_bound(self) -> bool:
        """Whether even the sparsest network of brute force is within delta."""
        return self.density < 1.001 * self.sparsest

    def __str__(self) -> str:
        error = "" if math.isnan(self.low) else f" ({percent(self.low)} - {percent(self.high)})"
        return f"{percent(self.density)}{' or less' if self.is_bound else error}"

    def covered_by(self, interval: Sequence[float] | None) -> str:
        """Whether an interval contains the density; "nearly" if only the uncertainty of the truth allows it."""
        if interval is None:
            return "-"
        low, high = interval
        if low <= self.density and (self.density <= high or self.is_bound):
            return "yes"
        return "nearly" if self.low <= high and low <= self.high else "no"


def returned_epochs(row: dict[str, Any]) -> int:
    """How long the returned network was trained in all."""
    networks = [*row["rounds"], *row["pruned"], *row["finished"]]
    return int(min(networks, key=lambda network: abs(network[0] - row["density"]) + abs(network[1] - row["val"]))[2])


def percent(density: float) -> str:
    return "none" if math.isinf(density) else f"{100 * density:.3g}%"


def truth(rows: Sequence[dict[str, Any]], num_draws: int = 400) -> Truth | None:
    """The true density of a task, from the lines of its complete ladders; None if there is none."""
    seeds: dict[int, dict[float, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        seeds[row["seed"]][row["rung"]] = row
    if not rows:
        return None
    asked = TASKS[rows[0]["task"]].ladder
    ladders = [
        rungs for rungs in seeds.values() if len(rungs) == len(asked) or any(r["is_last"] for r in rungs.values())
    ]
    if not ladders:
        return None
    delta = float(np.mean([row["delta"] for ladder in ladders for row in ladder.values()]))
    rungs, gap = smoothed(
        [
            {"dense": 0.0, "density": list(ladder), "score": [-row["below"] for row in ladder.values()]}
            for ladder in ladders
        ]
    )
    low = high = math.nan
    if len(ladders) > 1:
        # A seed shifts all of its gaps (its dense network is lucky or not), and each network has noise of its own.
        shared = [rung for rung in asked if all(rung in ladder for ladder in ladders)]
        below = np.array([[ladder[rung]["below"] for rung in shared] for ladder in ladders])
        below = below[:, below.mean(axis=0) <= max(3 * delta, below.mean(axis=0).min())]  # sparser ones are noisier
        spread = below - below.mean(axis=0)
        common = spread.mean(axis=1, keepdims=True)
        own = math.sqrt(((spread - common) ** 2).sum() / max(1, (len(ladders) - 1) * (below.shape[1] - 1)))
        draw, drawn = np.random.default_rng(0), []
        for _ in range(num_draws):
            noise = common.std(ddof=1) * draw.standard_normal() + own * draw.standard_normal(len(rungs))
            noisy = IsotonicRegression().fit_transform(np.log(rungs), gap + noise / math.sqrt(len(ladders)))
            drawn.append(crossing(rungs, noisy, delta))
        low, high = (float(q) for q in np.quantile(drawn, (0.05, 0.95), method="nearest"))
    return Truth(crossing(rungs, gap, delta), low, high, len(ladders), float(min(rungs)))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line of Markdown per discovery."""
    head = (
        "task", "seed", "delta", "true density", "answer", "90% interval", "covers", "returned", "below dense (test)",
        "check", "cost / dense", "seconds",
    )  # fmt: skip
    found = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, task in TASKS.items():
        ladder = [row for row in rows if row["task"] == name and row["kind"] == "truth"]
        last = {row["seed"]: row for row in rows if row["task"] == name and row["kind"] == "discover"}
        for _, row in sorted(last.items()):
            interval, check, true = row["interval"], row["check"], truth(ladder)
            below = row["below"] / row["delta"]
            cells = (
                name, row["seed"], task.delta, true or "-",
                row["status"] if row["answer"] is None else percent(row["answer"]),
                "-" if interval is None else f"{percent(interval[0])} - {percent(interval[1])}",
                "-" if true is None else true.covered_by(interval), percent(row["density"]),
                f"{row['below']:.4f} ± {row['error']:.4f} ({below:.1f} delta)",
                "-" if check is None else f"{check['outcome']}, {check['shortfall']:.4f} ± {check['error']:.4f}",
                f"{row['cost']:.2f}", f"{row['seconds']:.0f}",
            )  # fmt: skip
            found.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(found)


def summary(rows: Sequence[dict[str, Any]], tasks: Mapping[str, Task] = TASKS) -> str:
    """One line of Markdown per task, over its seeds."""
    head = ("task", "delta", "true density", "answers", "covered", "returned", "epochs / budget", "below dense / delta",
            "within", "check", "cost / dense")  # fmt: skip
    found = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, task in tasks.items():
        last = list({row["seed"]: row for row in rows if row["task"] == name and row["kind"] == "discover"}.values())
        if not last:
            continue
        ladder = [row for row in rows if row["task"] == name and row["kind"] == "truth"]
        true = truth(ladder)
        named = [row["status"] if row["answer"] is None else percent(row["answer"]) for row in last]
        covered = [true.covered_by(row["interval"]) for row in last if row["interval"] is not None and true is not None]
        num_nearly = covered.count("nearly")
        nearly = f" ({num_nearly} nearly)" if num_nearly else ""
        epochs = [returned_epochs(row) / task.budget for row in last]
        below = np.array([row["below"] / row["delta"] for row in last])
        error = below.std(ddof=1) / math.sqrt(len(below)) if len(below) > 1 else math.nan
        within = sum(row["below"] <= row["delta"] + 2 * row["error"] for row in last)
        outcomes = Counter("none" if row["check"] is None else row["check"]["outcome"] for row in last)
        cells = (
            name, task.delta, true or "-", ", ".join(named),
            f"{covered.count('yes')} of {len(covered)}{nearly}",
            f"{percent(min(row['density'] for row in last))} - {percent(max(row['density'] for row in last))}",
            f"{np.mean(epochs):.2f}", f"{below.mean():.2f} ± {error:.2f}", f"{within} of {len(last)}",
            ", ".join(f"{num} {outcome}" for outcome, num in outcomes.items()),
            f"{np.mean([row['cost'] for row in last]):.2f}",
        )  # fmt: skip
        found.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(found)


# Command


@dataclass(frozen=True)
class Place:
    """Where data, results and networks are."""

    results: Path
    commit: str | None
    device: str
    data_root: Path | None
    again: bool = False

    def lines(self) -> Lines:
        return Lines(self.results, self.commit)


JOBS = {"truth": find_truth, "discover": run_discover}


def expected_seconds(task: Task, place: Place) -> dict[str, float]:
    """Roughly how long one seed takes, from the second epoch of a training."""
    problem = task.problem(0, place.device, place.data_root)
    model = copy.deepcopy(problem.model)
    optimizer = problem.optimizer(model)
    problem.fit(model, optimizer, 1)
    problem.values(model, "val")
    began = time.perf_counter()
    problem.fit(model, optimizer, 1)
    problem.values(model, "val")
    epoch = time.perf_counter() - began
    # The dense network comes first in both; masks make steps slower.
    truth = epoch * task.budget * (1 + 1.2 * len(task.ladder))
    return {"truth": truth, "discover": epoch * 3 * task.budget}


def run_job(part: str, name: str, seed: int, place: Place) -> None:
    torch.set_num_threads(1)
    JOBS[part](name, seed, place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tasks", nargs="+", choices=[*TASKS, "table"], metavar="TASK", help=f"{', '.join(TASKS)}, table"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--part", choices=[*JOBS, "all"], default="all")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--results", type=Path, default=Path("results/tasks.jsonl"))
    parser.add_argument("--again", action="store_true", help="run discoveries again that have a line")
    parser.add_argument("--commit", help="commit of the measured code, if this is no checkout")
    chosen = parser.parse_args()
    place = Place(chosen.results, chosen.commit, chosen.device, chosen.data_root, chosen.again)
    names, parts = (
        [name for name in chosen.tasks if name != "table"],
        list(JOBS) if chosen.part == "all" else [chosen.part],
    )
    torch.set_num_threads(1)
    for name in names:
        seconds = expected_seconds(TASKS[name], place)
        shown = ", ".join(f"{part} {seconds[part]:.0f} s" for part in parts)
        print(f"{name}: about {shown} for each of {len(chosen.seeds)} seeds, {chosen.jobs} at a time", flush=True)
    failed = 0
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = {
            pool.submit(run_job, part, name, seed, place): (part, name, seed)
            for seed in chosen.seeds for part in parts for name in names
        }  # fmt: skip
        for job in as_completed(jobs):
            if (error := job.exception()) is not None:
                failed += 1
                print("failed:", *jobs[job], flush=True)
                traceback.print_exception(error)
    if "table" in chosen.tasks:
        print(table(place.lines().rows), summary(place.lines().rows), sep="\n\n")
    if failed:
        raise SystemExit(f"{failed} of {len(jobs)} jobs failed")


if __name__ == "__main__":
    main()
