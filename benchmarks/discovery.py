"""Discoveries with static masks on the bundled data, compared with brute-force ground truth.

    python -m benchmarks.discovery [--jobs N] [--out FILE] [--settings mlp resnet] [--folds 5] [--seeds 8] [--repeats 4]

On two cores the MLP takes about a quarter of an hour; the residual network takes hours and runs only if requested.

The ground truth is one number per setting: the smallest density whose network, grown to it and fully trained like the
final network, stays within one point of the dense network trained for as many epochs. Accuracies are over all held-out
images (val and test), pooled over folds and seeds, and fitted by a monotone curve.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression

import pathgrow
from pathgrow import data, models
from pathgrow.data import Dataset, Split
from pathgrow.density.types import Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.runs.api import discover
from pathgrow.runs.result import Discovery
from pathgrow.trainer import EngineOptions, Trainer, recipes

DELTA = 0.01


@dataclass(frozen=True)
class Setting:
    """A network, a dataset, and the epochs of its dense training."""

    name: str
    model: str
    budget: int
    options: dict[str, Any] = field(default_factory=dict)
    data: str = "digits"


SETTINGS = {
    "mlp": Setting("mlp", "mlp", 80),
    "resnet": Setting("resnet", "resnet20", 40, {"width": 8, "in_channels": 1}),
}


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A rule that grows to the end and then probes densities at a constant ratio."""

    ratio: float = 1.5
    name: str = "ladder"

    def rungs(self, curve: Curve) -> list[int]:
        found = [curve.rough[0]]
        for point in curve.rough[1:]:
            if point.density >= self.ratio * found[-1].density:
                found.append(point)
        return [point.round for point in found]

    def decide(self, curve: Curve) -> Verdict:
        if not curve.at_ceiling and curve.rough[-1].density < 0.8:
            return Grow(reason="growing to the end")
        done = {point.round for point in curve.probes}
        left = [rung for rung in self.rungs(curve) if rung not in done]
        return (
            Probe(rounds=tuple(left), reason="probing all densities") if left else Stop(reason="all densities probed")
        )

    def answer(self, curve: Curve) -> Answer:
        return Answer(rule=self.name, delta=DELTA, status="open", reference=curve.reference)


def make_trainer(setting: Setting, dataset: Dataset) -> Trainer:
    """Return our own trainer, on the CPU of any machine."""
    return Trainer(
        dataset, recipes.recipe(recipes.default_name(setting.data, setting.model)), EngineOptions(device="cpu")
    )


def run_discovery(setting: Setting, fold: int, seed: int, evaluate_on: Sequence[str], **options: Any) -> Discovery:
    """Run one discovery with our own trainer."""
    dataset = data.load(setting.data, fold=fold)
    trainer = make_trainer(setting, dataset)
    model, optimizer = trainer.place(models.create(setting.model, dataset.classes, seed=seed, **setting.options))
    return discover(
        model,
        optimizer,
        trainer,
        trainer.evaluate(_images(dataset, evaluate_on)),
        dataset.example_input(),
        budget=setting.budget,
        seed=seed,
        delta=DELTA,
        finish="static",
        **options,
    )


def _images(dataset: Dataset, names: Sequence[str]) -> Split:
    splits = [getattr(dataset, name) for name in names]
    return Split(
        torch.cat([split.images for split in splits]), torch.cat([split.labels for split in splits]),
        splits[0].mean, splits[0].std,
    )  # fmt: skip


def ladder(setting: Setting, final: str, case: tuple[int, int]) -> dict[str, Any]:
    """Train the networks of one trunk at all densities of the sweep, and the dense one, for the whole budget."""
    torch.set_num_threads(1)
    fold, seed = case
    found = run_discovery(setting, fold, seed, ("val", "test"), rule=Ladder(), reference="dense", final=final)
    assert found.dense is not None
    points = sorted(found.curve.probes, key=lambda point: point.density)
    return {
        "fold": fold, "seed": seed, "dense": found.dense.point.score,
        "density": [point.density for point in points], "score": [point.score for point in points],
        "epochs": [point.epochs for point in points],
    }  # fmt: skip


def dense(setting: Setting, case: tuple[int, int]) -> dict[str, Any]:
    """Train the dense baseline; return its accuracy on val (a user's own reference) and on test."""
    torch.set_num_threads(1)
    fold, seed = case
    dataset = data.load(setting.data, fold=fold)
    trainer = make_trainer(setting, dataset)
    model, optimizer = trainer.place(models.create(setting.model, dataset.classes, seed=seed, **setting.options))
    torch.manual_seed(seed)
    trainer(model, optimizer, setting.budget)
    val, test = (trainer.evaluate(split)(model)[0] for split in (dataset.val, dataset.test))
    return {"fold": fold, "seed": seed, "val": val, "test": test}


def one_discovery(setting: Setting, final: str, case: tuple[int, int, float | None]) -> dict[str, Any]:
    """Run a discovery as a user would, and return its results with the test accuracy of the returned network."""
    torch.set_num_threads(1)
    fold, seed, reference = case
    began = time.perf_counter()
    found = run_discovery(setting, fold, seed, ("val",), reference=reference, final=final)
    dataset = data.load(setting.data, fold=fold)
    test, _ = found.examine(make_trainer(setting, dataset).evaluate(dataset.test))
    return {
        "fold": fold, "seed": seed, "reference": reference, "seconds": time.perf_counter() - began,
        "delta_density": found.operating_density, "interval": found.interval, "gain_density": found.gain_density,
        "status": found.answer.status, "density": found.density, "val": found.score, "test": test.score,
        "num_probes": len(found.probes), "epochs": found.network.point.epochs,
        "relative_flops": found.ledger.relative,
        "probes": [[p.density, p.score] for p in found.curve.probes],
        "rough": [[p.density, p.score] for p in found.curve.rough],
    }  # fmt: skip


# Ground truth


def smoothed(runs: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return densities and mean score gaps to dense, by isotonic regression."""
    density = np.concatenate([run["density"] for run in runs])
    level = mean(run["dense"] for run in runs)
    gap = np.concatenate([np.asarray(run["score"]) for run in runs]) - level
    rungs, where = np.unique(density.round(6), return_inverse=True)
    count = np.bincount(where)
    means = np.bincount(where, gap) / count
    rising = IsotonicRegression().fit_transform(np.log(rungs), means, sample_weight=count)
    return rungs, rising


def crossing(rungs: np.ndarray, gap: np.ndarray, delta: float) -> float:
    """Return the smallest density where the curve is within delta, by linear interpolation over log density."""
    inside = np.flatnonzero(gap >= -delta)
    if not len(inside):
        return float("inf")
    first = inside[0]
    if first == 0:
        return float(rungs[0])
    share = (-delta - gap[first - 1]) / (gap[first] - gap[first - 1])
    return float(np.exp(np.log(rungs[first - 1]) + share * np.log(rungs[first] / rungs[first - 1])))


def truth(runs: Sequence[dict[str, Any]], num_resamples: int = 400) -> dict[str, Any]:
    """Return the true answer with its 90% bootstrap interval over runs."""
    rungs, gap = smoothed(runs)
    rng = np.random.default_rng(0)
    drawn = [
        crossing(*smoothed([runs[i] for i in rng.integers(len(runs), size=len(runs))]), DELTA)
        for _ in range(num_resamples)
    ]
    return {
        "density": crossing(rungs, gap, DELTA), "interval": [float(q) for q in np.quantile(drawn, (0.05, 0.95))],
        "dense": mean(run["dense"] for run in runs), "rungs": rungs.tolist(), "below_dense": gap.tolist(),
        "num_runs": len(runs),
    }  # fmt: skip


# Report


def summary(found: Sequence[dict[str, Any]], true: float, dense_test: Callable[[int], float]) -> dict[str, Any]:
    """Compare discoveries with the ground truth."""
    # The answer to a flat curve is below the first density, that to an unreached one above the last.
    instead = {"flat": 0.0, "unreached": float("inf"), "open": float("inf"), "unlearned": float("inf")}
    answers = [instead[run["status"]] if run["delta_density"] is None else run["delta_density"] for run in found]
    covers = [run["interval"] is not None and run["interval"][0] <= true <= run["interval"][1] for run in found]
    middle = median(answers)
    return {
        "median": middle, "factor": max(middle / true, true / middle) if 0 < middle < 2 else None,
        "covered": sum(covers),
        "of": len(found), "test": mean(run["test"] for run in found),
        "dense_test": mean(dense_test(run["fold"]) for run in found),
        "relative_flops": mean(run["relative_flops"] for run in found),
    }  # fmt: skip


def measure(setting: Setting, pool: ProcessPoolExecutor, folds: int, seeds: int, repeats: int) -> dict[str, Any]:
    """Measure one setting."""
    cases = [(fold, seed) for fold in range(folds) for seed in range(seeds)]
    ladders = {final: pool.map(partial(ladder, setting, final), cases) for final in ("fresh", "grown")}
    trained = list(pool.map(partial(dense, setting), cases))

    def of_fold(key: str, fold: int) -> float:
        return mean(run[key] for run in trained if run["fold"] == fold)

    discoveries = {
        kind: pool.map(
            partial(one_discovery, setting, "fresh"),
            [
                (fold, 100 + repeat, of_fold("val", fold) if kind == "given" else None)
                for repeat in range(repeats)
                for fold in range(folds)
            ],
        )
        for kind in ("given", "none")
    }
    runs = {final: list(results) for final, results in ladders.items()}
    truths = {final: truth(results) for final, results in runs.items()}
    found = {kind: list(results) for kind, results in discoveries.items()}
    return {
        "model": setting.model, "options": setting.options, "budget": setting.budget, "delta": DELTA,
        "folds": folds, "seeds": seeds, "truth": truths,
        "dense": {key: mean(run[key] for run in trained) for key in ("val", "test")},
        "summary": {
            kind: [
                summary(results[i : i + folds], truths["fresh"]["density"], partial(of_fold, "test"))
                for i in range(0, len(results), folds)
            ]
            for kind, results in found.items()
        },
        "discoveries": found, "ladders": runs,
    }  # fmt: skip


def show(name: str, result: dict[str, Any]) -> None:
    """Print the results of one setting as a table."""
    print(f"\n== {name}: {result['model']} {result['options']}, {result['budget']} epochs, delta {100 * DELTA:g} pp")
    print(f"   dense: val {100 * result['dense']['val']:.2f}, test {100 * result['dense']['test']:.2f}")
    for final, true in result["truth"].items():
        low, high = true["interval"]
        print(f"   truth ({final} weights, {true['num_runs']} runs): {true['density']:.3f}  [{low:.3f}, {high:.3f}]")
        gaps = zip(true["rungs"], true["below_dense"], strict=True)
        print("      " + "  ".join(f"{100 * rung:.1f}%:{100 * gap:+.2f}" for rung, gap in gaps))
    print("   reference fold  answer     90% interval   gain  network   test  FLOPs")
    for kind, runs in result["discoveries"].items():
        for run in runs:
            interval = "-" if run["interval"] is None else "[{:.3f}, {:.3f}]".format(*run["interval"])
            cells = [
                f"{run[key]:.3f}" if run[key] is not None else run["status"]
                for key in ("delta_density", "gain_density")
            ]
            print(
                f"   {kind:9} {run['fold']:4d} {cells[0]:>7} {interval:>16} {cells[1]:>6} {run['density']:8.3f} "
                f"{100 * run['test']:6.2f} {run['relative_flops']:6.2f}"
            )
        for s in result["summary"][kind]:
            factor = "no answer" if s["factor"] is None else f"{s['factor']:.2f}x off the truth"
            print(
                f"   {kind}, {s['of']} discoveries: median {s['median']:.3f}, {factor}; the interval covers it in "
                f"{s['covered']}; test {100 * s['test']:.2f} against {100 * s['dense_test']:.2f} dense; "
                f"{s['relative_flops']:.2f} of the dense FLOPs"
            )


def main() -> None:
    """Run the benchmark; print and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--settings", nargs="+", default=["mlp"], choices=list(SETTINGS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=4, help="discoveries per fold")
    given = parser.parse_args()
    results: dict[str, Any] = {
        "pathgrow": pathgrow.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "jobs": given.jobs, "settings": {},
    }  # fmt: skip
    with ProcessPoolExecutor(given.jobs) as pool:
        for name in given.settings:
            results["settings"][name] = measure(SETTINGS[name], pool, given.folds, given.seeds, given.repeats)
            show(name, results["settings"][name])
            if given.out is not None:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
