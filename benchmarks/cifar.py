"""Dense baselines, brute-force ground truth and discoveries on CIFAR-10 with ResNet-32.

    python -m benchmarks.cifar dense ladder discover --data-root DIR --results results/cifar10_resnet32.jsonl

Every finished training appends one line of JSON and is not run again, so the command can be interrupted and rerun. With
`--kept DIR` interrupted trainings resume, and trunks are grown only once. `python -m benchmarks.cifar table` prints a
summary of the results.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.discovery import crossing, smoothed
from pathgrow import data as datasets
from pathgrow import models
from pathgrow.checkpoint import MemoryStore, Store
from pathgrow.checkpoint.stage_files import Metrics, StageFiles
from pathgrow.data.dataset import Dataset
from pathgrow.graph import trace
from pathgrow.graph.scope import scope
from pathgrow.masks import Masks
from pathgrow.methods import create, fixed
from pathgrow.rng import derive
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.runs.discovery import run_discovery
from pathgrow.runs.training import train
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import (
    TrainingCheckpoint,
    initial_state,
    pack_model_and_optimizer,
    reinitialize_,
    unpack_model_and_optimizer_,
)
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import recipe

RUNGS = (0.2, 0.3, 0.25, 0.4, 0.15, 0.5, 0.1, 0.7, 0.05)
"""Densities of the sweep, the most informative about "half a point below dense" first."""
TOTAL = 80
"""Total epochs of every network of the sweep."""
GAMMA = 0.25
Network = tuple[torch.nn.Module, torch.optim.Optimizer]


def stage_files(folder: Path) -> StageFiles:
    """Return a store of interrupted trainings in a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    return StageFiles(folder, Metrics(folder / "metrics.jsonl"), time.perf_counter)


class Lines:
    """Results on disk, one line of JSON each."""

    def __init__(self, path: Path, commit: str | None = None) -> None:
        self.path = path
        self._commit = commit or _commit()
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        self._began = time.perf_counter()

    def has(self, **key: Any) -> bool:
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        row |= {"commit": self._commit, "machine": _machine(), "torch": torch.__version__}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {
            name: row[name] for name in ("kind", "final", "density", "epochs", "seed", "val", "test") if name in row
        }
        print(f"{time.perf_counter() - self._began:7.1f} s", shown, flush=True)


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _machine() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"


class Bench:
    """Data, trainer, results and store that all jobs share."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.model_name = chosen.model
        self.data: Dataset = datasets.load(chosen.data, chosen.data_root)
        self.data_name, self.data_root = chosen.data, chosen.data_root
        self.trainer = Trainer(self.data, recipe("cifar"), EngineOptions(compile=chosen.compile))
        self.lines = Lines(chosen.results, chosen.commit)
        self.seeds: list[int] = chosen.seeds
        self.kept: Path | None = chosen.kept
        self.store: Store = stage_files(chosen.kept) if chosen.kept is not None else MemoryStore()
        self.example = self.data.example_input().to(self.trainer.plan.device)
        self._val, self._test = (self.trainer.evaluate(split) for split in (self.data.val, self.data.test))
        self.queue: list[tuple[dict[str, Any], Callable[[], tuple[Attached, int, int]]]] = []

    def network(self, seed: int) -> Network:
        """Return the untrained network of `pathgrow discover --seed`."""
        return self.trainer.place(models.create(self.model_name, self.data.classes, seed=seed))

    def score(self, attached: Attached) -> dict[str, list[float]]:
        """Return (accuracy, loss) on val and test."""
        return {"val": list(self._val(attached.model)), "test": list(self._test(attached.model))}

    def ask(self, key: dict[str, Any], make: Callable[[], tuple[Attached, int, int]]) -> None:
        """Queue a training unless its result exists; `make` returns the network, its epochs and its seed."""
        if not self.lines.has(**key):
            self.queue.append((key, make))

    def work(self) -> None:
        """Train everything in the queue concurrently; each result is written when it is finished."""
        made = [(key, *make()) for key, make in self.queue]
        partials = [TrainingCheckpoint(self.store, named("partial", **key)) for key, *_ in made]
        jobs = [
            Job(attached=attached, epochs=epochs, seed=seed, progress=partial)
            for (_, attached, epochs, seed), partial in zip(made, partials, strict=True)
        ]
        began = time.perf_counter()

        def over(number: int) -> None:
            key, attached = made[number][:2]
            self.lines.add(**key, **self.score(attached), seconds=time.perf_counter() - began, side_by_side=len(jobs))
            attached.detach()
            partials[number].delete()

        self.trainer.train(jobs, on_done=over)
        self.queue.clear()


def dense(bench: Bench, epochs: int) -> None:
    """Queue the dense baseline."""

    def make(seed: int) -> tuple[Attached, int, int]:
        model, optimizer = bench.network(seed)
        inside = scope(model)
        return attach(model, optimizer, fixed(Masks.full(model, inside)), scope=inside), epochs, derive(seed, "dense")

    for seed in bench.seeds:
        bench.ask({"kind": "dense", "density": 1.0, "epochs": epochs, "seed": seed}, lambda seed=seed: make(seed))


def ladder(bench: Bench, rungs: dict[str, list[float]]) -> None:
    """Queue networks grown to each density and trained to one total length, from fresh or grown weights."""
    wanted = [
        (final, density, seed)
        for final, densities in rungs.items()
        for density in densities
        for seed in bench.seeds
        if not bench.lines.has(kind="ladder", final=final, density=density, seed=seed)
    ]
    missing = [seed for seed in bench.seeds if any(not _is_kept(bench, f, s, d) for f, d, s in wanted if s == seed)]
    if missing:
        grow(bench, missing)

    def make(final: str, density: float, seed: int) -> tuple[Attached, int, int]:
        model, optimizer = bench.network(seed)
        had = 0
        if final == "fresh":
            masks = _kept_masks(bench, seed, density)
            graph, initial = trace(model, bench.example), initial_state(model)
            reinitialize_(model, optimizer, initial, masks, derive(seed, "fresh", str(density)), graph=graph)
        else:
            masks, had = _kept_network_(bench, model, optimizer, seed, density)
        attached = attach(model, optimizer, fixed(masks), scope=scope(model))
        return attached, TOTAL - had, derive(seed, "rung", str(density))

    for final, density, seed in wanted:
        key = {"kind": "ladder", "final": final, "density": density, "epochs": TOTAL, "seed": seed}
        bench.ask(key, lambda final=final, density=density, seed=seed: make(final, density, seed))


def grow(bench: Bench, seeds: list[int]) -> None:
    """Grow the trunks of all seeds concurrently, as a discovery of this budget does, and store them at each density."""
    trunks = {}
    for seed in seeds:
        model, optimizer = bench.network(seed)
        trunks[seed] = attach(model, optimizer, create("gcg", gamma=GAMMA), bench.example, seed=seed)
    had = {seed: TOTAL // 8 for seed in seeds}
    _train_all(bench, trunks, TOTAL // 8, "seed")
    for density in sorted(RUNGS):
        goal = {seed: round(density * trunk.masks.num) for seed, trunk in trunks.items()}
        while open_ := {s: t for s, t in trunks.items() if t.masks.num_on < goal[s]}:
            for seed, trunk in open_.items():
                trunk.grow_(min(round(GAMMA * trunk.masks.num_on), goal[seed] - trunk.masks.num_on))
                had[seed] += 1
            _train_all(bench, open_, 1, "round")
        for seed, trunk in trunks.items():
            tensors, metadata = pack_model_and_optimizer(trunk.model, trunk.optimizer, trunk.masks)
            bench.store.save(
                named("trunk", seed=seed, density=density), {"epochs": had[seed], "state": metadata}, tensors
            )
            key = {"kind": "trunk", "density": density, "epochs": had[seed], "seed": seed}
            bench.lines.add(**key, val=list(bench.score(trunk)["val"]))
    for trunk in trunks.values():
        trunk.detach()


def _is_kept(bench: Bench, final: str, seed: int, density: float) -> bool:
    if final == "fresh" and _mask_file(bench, seed, density) is not None:
        return True
    return bench.store.load(named("trunk", seed=seed, density=density)) is not None


def _mask_file(bench: Bench, seed: int, density: float) -> Path | None:
    """Return a file of masks, for trunks of which nothing else was stored."""
    path = bench.kept / f"seed{seed}-{density:g}.safetensors" if bench.kept is not None else None
    return path if path is not None and path.is_file() else None


def _kept_masks(bench: Bench, seed: int, density: float) -> Masks:
    if (path := _mask_file(bench, seed, density)) is not None:
        return Masks.load(path).to(bench.trainer.plan.device)
    return _kept_network_(bench, *bench.network(seed), seed, density)[0]


def _kept_network_(
    bench: Bench, model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int, density: float
) -> tuple[Masks, int]:
    """Load a trunk at one density into a network; return its masks and the epochs it was trained."""
    found = bench.store.load(named("trunk", seed=seed, density=density))
    assert found is not None, "grown before"
    masks = unpack_model_and_optimizer_(model, optimizer, found.tensors, found.metadata["state"])
    assert masks is not None
    return masks.to(bench.trainer.plan.device), int(found.metadata["epochs"])


def named(what: str, **key: Any) -> str:
    """Return a stage name made of these values."""
    return "-".join([what, *(f"{name}-{value}".replace(".", "p") for name, value in key.items())])


def _train_all(bench: Bench, trunks: dict[int, Attached], epochs: int, name: str) -> None:
    bench.trainer.train(
        [Job(attached=t, epochs=epochs, seed=derive(seed, name, t.round)) for seed, t in trunks.items()]
    )


def discoveries(bench: Bench, *, budget: int, delta: float, reference: float | None) -> None:
    """Run `pathgrow discover` for one seed after the other, because wall-clock time is measured."""
    for seed in bench.seeds:
        key = {"kind": "discover", "budget": budget, "delta": delta, "reference": reference, "seed": seed}
        if bench.lines.has(**key):
            continue
        given = {
            "data": bench.data_name, "data_root": bench.data_root, "model": bench.model_name,
            "budget": budget, "delta": delta, "seed": seed,
        }  # fmt: skip
        config = DiscoverConfig.from_dict(given | ({"reference": reference} if reference is not None else {}))
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as away:
            report = run_discovery(
                config, bench.kept / named("run", **key) if bench.kept is not None else away
            ).as_json()
        network, wall = report["network"], time.perf_counter() - began
        bench.lines.add(
            **key,
            data=bench.data_name,
            model=bench.model_name,
            answer=report["answer"],
            density=network["density"],
            epochs=network["epochs"],
            val=[network["val"]["score"], network["val"]["loss"]],
            test=[network["test"]["score"], network["test"]["loss"]],
            probes=report["curve"]["probes"],
            rounds=[[row["density"], row["score"]] for row in report["curve"]["rounds"]],
            curve=report["curve"],
            ledger=report["ledger"],
            timing=report["timing"],
            wall=wall,
        )


def alone(bench: Bench) -> None:
    """Run `pathgrow train --method dense` alone: the baseline for the wall-clock time of a discovery."""
    key = {"kind": "dense, alone", "epochs": 2 * TOTAL, "seed": bench.seeds[0]}
    if bench.lines.has(**key):
        return
    given = {"data": bench.data_name, "data_root": bench.data_root, "model": bench.model_name, "method": "dense"}
    config = TrainConfig.from_dict({**given, "epochs": key["epochs"], "seed": key["seed"]})
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = train(config, folder).as_json()
    wall = time.perf_counter() - began
    scores = {part: [report["network"][part]["score"], report["network"][part]["loss"]] for part in ("val", "test")}
    bench.lines.add(**key, **scores, ledger=report["ledger"], timing=report["timing"], wall=wall)


def table(lines: Lines) -> None:
    """Print means over seeds with their standard errors."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in lines.rows:
        if row["kind"] in ("dense", "ladder"):
            groups.setdefault((row["kind"], row.get("final", ""), row["epochs"], row["density"]), []).append(row)
    for (kind, final, epochs, density), rows in sorted(groups.items()):
        val, test = (_spread([row[part][0] for row in rows]) for part in ("val", "test"))
        print(f"{kind:<8}{final:<7}{epochs:4d} epochs{density:6.2f}  val {val}  test {test}")
    for final in ("fresh", "grown"):
        for delta in (0.005, 0.01):
            if (found := truth(lines, final, delta)) is not None:
                print(f"truth, {final}, within {100 * delta:g} points of dense at {TOTAL} epochs: {found:.3f}")
    found_by: dict[tuple[int, float, float | None], list[dict[str, Any]]] = {}
    for row in lines.rows:
        if row["kind"] == "discover":
            found_by.setdefault((row["budget"], row["delta"], row["reference"]), []).append(row)
    for (budget, delta, reference), rows in found_by.items():
        print(f"discover, budget {budget}, delta {delta}, reference {reference}")
        for row in rows:
            answer = row["answer"]
            print(
                f"  seed {row['seed']}: answer {_density(answer['operating_density'])} {answer['status']}, "
                f"interval {' to '.join(map(_density, answer['interval'] or [None]))}, "
                f"gain answer {_density(answer['gain_density'])}, {len(row['probes'])} probes, "
                f"returned {row['density']:.3f}, val {row['val'][0]:.4f}, test {row['test'][0]:.4f}, "
                f"FLOPs {row['ledger']['relative']:.3f}, wall {row['wall']:.0f} s"
            )
        _print_means(lines, budget, rows)


def _print_means(lines: Lines, budget: int, rows: list[dict[str, Any]]) -> None:
    """Print the means of equal discoveries, next to dense baselines of the same budget."""
    level = [row["test"][0] for row in lines.rows if row["kind"] == "dense" and row["epochs"] == budget]
    usual = [row["wall"] for row in lines.rows if row["kind"] == "dense, alone" and row["epochs"] == budget]
    wall = f", wall {np.mean([row['wall'] for row in rows]) / usual[0]:.2f} of dense, alone" if usual else ""
    answers = [found for row in rows if (found := row["answer"]["operating_density"]) is not None]
    print(
        f"  mean: answer {_density(float(np.mean(answers)) if answers else None)} ({len(answers)} of {len(rows)}), "
        f"test {_spread([row['test'][0] for row in rows])}, dense {_spread(level)}, "
        f"FLOPs {np.mean([row['ledger']['relative'] for row in rows]):.3f}{wall}"
    )


def _density(value: float | None) -> str:
    """Format an answer, which is None for flat curves and for those that do not reach the reference."""
    return "none" if value is None else f"{value:.3f}"


def truth(lines: Lines, final: str, delta: float) -> float | None:
    """Return the smallest density within delta of dense, from a monotone curve over all held-out images and seeds."""

    def images(row: dict[str, Any]) -> float:
        return float(np.average([row["val"][0], row["test"][0]], weights=[5_000, 10_000]))

    dense_rows = [r for r in lines.rows if r["kind"] == "dense" and r["epochs"] == TOTAL]
    rungs = [r for r in lines.rows if r["kind"] == "ladder" and r["final"] == final]
    if not dense_rows or len({row["density"] for row in rungs}) < 2:
        return None
    level = float(np.mean([images(row) for row in dense_rows]))
    run = {"density": [row["density"] for row in rungs], "score": [images(row) for row in rungs], "dense": level}
    return crossing(*smoothed([run]), delta)


def _spread(values: list[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{100 * np.mean(values):6.2f} +- {100 * error:4.2f} ({len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "jobs", nargs="+", choices=["dense", "dense-long", "ladder", "grown", "alone", "discover", "reference", "table"]
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--results", type=Path, default=Path("results/cifar10_resnet32.jsonl"))
    parser.add_argument("--rungs", type=float, nargs="*", default=RUNGS, help="densities of the job `ladder`")
    parser.add_argument("--grown-rungs", type=float, nargs="*", default=RUNGS, help="densities of the job `grown`")
    parser.add_argument("--kept", type=Path, default=None, help="directory for trunks and interrupted trainings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--delta", type=float, default=0.005)
    parser.add_argument("--compile", default="auto")
    parser.add_argument("--commit", default=None, help="commit of the code, if this is not a git checkout")
    chosen = parser.parse_args()
    if chosen.jobs == ["table"]:
        table(Lines(chosen.results))
        return
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(chosen)
    if "dense-long" in chosen.jobs:
        dense(bench, 2 * TOTAL)
    if "dense" in chosen.jobs:
        dense(bench, TOTAL)
    if "ladder" in chosen.jobs or "grown" in chosen.jobs:
        requested = {"fresh": ("ladder", chosen.rungs), "grown": ("grown", chosen.grown_rungs)}
        ladder(bench, {final: list(rungs) for final, (job, rungs) in requested.items() if job in chosen.jobs})
    bench.work()
    if "alone" in chosen.jobs:
        alone(bench)
    if "discover" in chosen.jobs:
        discoveries(bench, budget=2 * TOTAL, delta=0.01, reference=None)
    if "reference" in chosen.jobs:
        known = [row["val"][0] for row in bench.lines.rows if row["kind"] == "dense" and row["epochs"] == TOTAL]
        discoveries(bench, budget=TOTAL, delta=chosen.delta, reference=round(float(np.mean(known)), 4))
    table(bench.lines)


if __name__ == "__main__":
    main()
