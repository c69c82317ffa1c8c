"""How sparse the default search could be on digits if it knew: networks of many densities finished, on unseen images.

    python -m benchmarks.digits_ladder --seeds 40 41 42

For every fold and seed a network is trained and pruned in rounds as by `pathgrow discover --data digits --budget 80`,
but networks of all densities are finished, and the dense network is trained for the budget. One line of JSON each, with
(density, validation accuracy, test accuracy) of the finished networks. About 15 seconds per fold on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from benchmarks.discovery import crossing
from pathgrow.density.shrink import NextRound, ShrinkRule
from pathgrow.distributed.comm import SINGLE_PROCESS
from pathgrow.report.progress import ProgressBar
from pathgrow.runs.command import open_session
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.shrinking import ShrinkingTrunk
from pathgrow.runs.trunk import score_dense, train_dense

BUDGET = 80
DELTA = 0.01
DENSITIES = (1.0, 0.5, 0.3, 0.21, 0.15, 0.105, 0.074, 0.052, 0.037, 0.026)
NUM_ROUNDS = 5
RESULTS = Path("results/digits_mlp_ladder.jsonl")


def ladder(fold: int, seed: int) -> dict[str, Any]:
    """Train, prune, and finish networks of all densities."""
    given = {"data": "digits", "model": "mlp", "fold": fold, "seed": seed, "budget": BUDGET}
    config = DiscoverConfig.from_dict(given).resolved(None)
    session, trainer = open_session(config, None, ProgressBar(), SINGLE_PROCESS, num_epochs=None)
    options = dataclasses.replace(DiscoverOptions(**config.search()), metric="accuracy", num_val=len(trainer.data.val))
    trunk, rule = ShrinkingTrunk(session, options), ShrinkRule(delta=DELTA)
    test = trainer.evaluate(trainer.data.test)
    trunk.train_()
    starts = [NextRound(start=len(trunk.records) - 1, density=1.0)]
    for _ in range(NUM_ROUNDS):
        fraction = rule.prune_fraction if len(starts) > 1 else rule.first_prune_fraction
        density = starts[-1].density * (1 - fraction)
        trunk.shrink_(dataclasses.replace(starts[-1], density=density))
        starts.append(NextRound(start=len(trunk.records) - 1, density=density))
    finished = []
    for density in DENSITIES:
        start = min((one for one in starts if one.density >= density), key=lambda one: one.density).start
        [record] = trunk.train_candidates_([NextRound(start=start, density=density)])
        finished.append((record.point.density, record.point.score, test(trunk.attached.model)[0]))
    dense = train_dense(session, BUDGET)
    return {**given, "finished": finished, "dense": (dense.point.score, score_dense(session, test).score)}


def lost(lines: list[dict[str, Any]]) -> np.ndarray:
    """How far networks are below dense on test images: splits in rows, densities in columns."""
    return np.array([[line["dense"][1] - test for _, _, test in line["finished"]] for line in lines])


def summary(lines: list[dict[str, Any]]) -> tuple[list[list[str]], float]:
    """A row of the points lost for each density (mean and standard error over splits), and where delta is lost."""
    values = lost(lines)
    means, errors = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
    rows = [
        [f"{density:.3g}", f"{100 * mean:.2f} ± {100 * error:.2f}"]
        for density, mean, error in zip(np.multiply(DENSITIES, 100), means, errors, strict=True)
    ]
    sparse_first = IsotonicRegression().fit_transform(range(len(means)), -means[::-1])
    return rows, crossing(np.array(DENSITIES[::-1]), sparse_first, DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[40, 41, 42])
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    for seed in chosen.seeds:
        for fold in chosen.folds:
            line = ladder(fold, seed)
            with chosen.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
    rows, density = summary([json.loads(line) for line in chosen.results.read_text().splitlines()])
    print(*(f"{density}%: {points}" for density, points in rows), f"one point at {density:.1%}", sep="\n")


if __name__ == "__main__":
    main()
