"""One question through every interface: how dense must this network be to stay within one point of dense?

    python -m benchmarks.interfaces [INTERFACE ...] [--seeds 0 1 2] [--again] [--results results/interfaces.jsonl]
    python -m benchmarks.interfaces table
    make results    # puts the table into docs/results.md

A small CNN on scikit-learn's digits (`digits_cnn` of `benchmarks.problems`) is measured through

- `truth`: brute force, the ladder of `benchmarks.tasks`;
- `discover`: `pathgrow.discover` with the user's own `fit`;
- `dense`: the same with `reference="dense"`;
- `engine`: the same network, data and optimizer settings on pathgrow's training engine, which the commands use;
- `attach`: the user's own loop, for as many epochs as the budget; its answer is relative to the densest network grown.

Each finished run is one line of JSON and is not run again, unless `--again` is passed.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import pathgrow
from benchmarks.cifar import Lines
from benchmarks.problems import TASKS, Problem
from benchmarks.tasks import Place, Truth, baseline, find_truth, percent, truth
from pathgrow.data.dataset import Dataset, Split
from pathgrow.report.text import closing
from pathgrow.runs.result import Discovery
from pathgrow.trainer import Trainer
from pathgrow.trainer.recipes import Recipe

NAME = "digits_cnn"
TASK = TASKS[NAME]
Found = dict[str, Any]


def discovered(problem: Problem, seed: int, **options: Any) -> Found:
    """Call `discover` as a user would."""
    model = problem.model
    return answer_of(
        pathgrow.discover(
            model, problem.optimizer(model), problem.fit, problem.evaluate, problem.example, budget=TASK.budget,
            delta=TASK.delta, seed=seed, progress=False, **TASK.options, **options,
        )
    )  # fmt: skip


def with_dense(problem: Problem, seed: int) -> Found:
    return discovered(problem, seed, reference="dense")


def on_engine(problem: Problem, seed: int) -> Found:
    """The same network, images and settings; only the code of the training is another."""
    splits = {}
    for part, (images, labels) in problem.parts.items():
        splits[part] = Split((8 * (images + 1)).round().to(torch.uint8), labels, (8.0,), (8.0,))
    recipe = Recipe(
        optimizer="adamw", lr=problem.lr, weight_decay=0.01, batch_size=problem.batch_size, schedule="cosine",
        warmup=0.04,
    )  # fmt: skip
    data = Dataset("digits", 10, **splits)
    trainer = Trainer(data, recipe)
    model, optimizer = trainer.place(problem.model)
    return answer_of(
        pathgrow.discover(
            model, optimizer, trainer, trainer.evaluate(data.val), data.example_input(), budget=TASK.budget,
            delta=TASK.delta, seed=seed, progress=False, **TASK.options,
        )
    )  # fmt: skip


def answer_of(found: Discovery) -> Found:
    """The answer of a discovery, and what its report says."""
    report, reference = found.report(), found.reference
    return {
        "status": found.answer.status, "answer": found.operating_density, "interval": found.interval,
        "reference": None if reference is None else [reference.kind, reference.score], "density": found.density,
        "val": found.score, "check": None if found.check is None else found.check.outcome,
        "cost": found.ledger.relative, "says": " ".join(closing(report)[0]),
    }  # fmt: skip


def in_own_loop(problem: Problem, seed: int) -> Found:
    """Growth in the user's loop: a quarter of the budget for the seed network, then rounds of two epochs."""
    model, warmup, every = problem.model, TASK.budget // 4, 2
    optimizer = problem.optimizer(model)
    sparse = pathgrow.attach(model, optimizer, "gcg", problem.example, seed=seed)
    torch.manual_seed(seed)
    images, labels = problem.parts["train"]
    for epoch in range(1, TASK.budget + 1):
        model.train()
        for batch in torch.randperm(len(labels)).split(problem.batch_size):
            optimizer.zero_grad()
            problem.loss(model(images[batch]), labels[batch]).mean().backward()
            optimizer.step()
        if epoch >= warmup and (epoch - warmup) % every == 0:
            sparse.observe(problem.evaluate(model))
    answer, reference = sparse.rule_answer(), sparse.rule_answer().reference
    sparse.detach()
    return {
        "status": answer.status, "answer": answer.density, "interval": answer.interval,
        "reference": None if reference is None else [reference.kind, reference.score], "density": sparse.density,
        "val": problem.evaluate(model), "check": None, "cost": None, "says": sparse.summary(),
    }  # fmt: skip


INTERFACES: dict[str, Callable[[Problem, int], Found]] = {
    "discover": discovered, "dense": with_dense, "engine": on_engine, "attach": in_own_loop,
}  # fmt: skip


def run(interface: str, seed: int, lines: Lines) -> None:
    """Append the answer of one interface, and how the returned model compares with dense on the test images."""
    problem, began = TASK.problem(seed, "cpu", None), time.perf_counter()
    dense = problem.values(baseline(TASK, copy.deepcopy(problem), seed), "test")
    found = INTERFACES[interface](problem, seed)
    below, error = problem.difference(dense, problem.values(problem.model, "test"))
    seconds = time.perf_counter() - began
    # "door" is the name of an interface in the stored lines.
    lines.add(kind="door", task=NAME, door=interface, seed=seed, **found, below=below, error=error, seconds=seconds)


def last_answers(rows: Sequence[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """The last line of each interface and seed."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        if row["kind"] == "door":
            found[row["door"]][row["seed"]] = row
    return found


def disagreements(answers: dict[str, dict[int, dict[str, Any]]], true: Truth | None) -> list[str]:
    """Pairs of intervals of one seed that are disjoint, and intervals that contradict brute force.

    `attach` answers another question, whose answer is at most as large: only a lower end above the others contradicts.
    """
    found = []
    for seed in sorted({seed for rows in answers.values() for seed in rows}):
        rows = [
            (interface, answers[interface][seed]["interval"]) for interface in answers if seed in answers[interface]
        ]
        known = [(interface, interval) for interface, interval in rows if interval is not None]
        for k, (interface, (low, high)) in enumerate(known):
            for other, (other_low, other_high) in known[k + 1 :]:
                is_below = high < other_low and interface != "attach"
                is_above = low > other_high and other != "attach"
                if is_below or is_above:
                    found.append(f"seed {seed}: {interface} and {other} are disjoint")
            if true is not None and (low > true.high or (high < true.low and interface != "attach")):
                found.append(f"seed {seed}: {interface} does not cover brute force")
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line of Markdown per answer, and what disagrees."""
    true, answers = truth([row for row in rows if row["kind"] == "truth"]), last_answers(rows)
    head = (
        "interface",
        "seed",
        "answer",
        "90% interval",
        "relative to",
        "network",
        "below dense (test)",
        "cost",
    )
    found = [f"Brute force: {true or '-'}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for interface in [interface for interface in INTERFACES if interface in answers]:
        for seed, row in sorted(answers[interface].items()):
            interval, reference = row["interval"], row["reference"]
            cells = (
                interface, seed, row["status"] if row["answer"] is None else percent(row["answer"]),
                "-" if interval is None else f"{percent(interval[0])} - {percent(interval[1])}",
                "-" if reference is None else f"{reference[0]}, {100 * reference[1]:.1f}%", percent(row["density"]),
                f"{100 * row['below']:.1f} ± {100 * row['error']:.1f} pp",
                "-" if row["cost"] is None else f"{row['cost']:.2f}",
            )  # fmt: skip
            found.append(f"| {' | '.join(map(str, cells))} |")
    wrong = disagreements(answers, true) or ["No disagreement."]
    return "\n".join([*found, "", *(f"- {sentence}" for sentence in wrong)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    interfaces = ["truth", *INTERFACES, "table"]
    parser.add_argument(
        "interfaces", nargs="*", choices=[*interfaces, []], metavar="INTERFACE", help=", ".join(interfaces)
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("results/interfaces.jsonl"))
    parser.add_argument("--again", action="store_true", help="run again where there is a line")
    parser.add_argument("--commit", help="commit of the measured code, if this is no checkout")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    place = Place(chosen.results, chosen.commit, "cpu", None)
    for seed in chosen.seeds:
        for interface in chosen.interfaces or interfaces:
            lines = place.lines()
            if interface == "truth":
                find_truth(NAME, seed, place)
            elif interface in INTERFACES and (chosen.again or not lines.has(kind="door", door=interface, seed=seed)):
                run(interface, seed, lines)
    if not chosen.interfaces or "table" in chosen.interfaces:
        print(table(place.lines().rows))


if __name__ == "__main__":
    main()
