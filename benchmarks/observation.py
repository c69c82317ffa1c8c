"""How noisy is one observation of the growing network? Annealed rounds against a weight average.

    python -m benchmarks.observation [--jobs N] [--runs 16]

The noise of a score along the trajectory is read from third differences, which leave a smooth rise out; printed is
the mean over runs in points of accuracy, with the ratio of the two ways within this run.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev

import torch

from benchmarks.discovery import SETTINGS, run_discovery
from pathgrow.density.estimate import trajectory_noise
from pathgrow.density.types import Answer, Curve, Grow, Stop, Verdict


@dataclass(frozen=True, kw_only=True)
class GrowOnly:
    """Grow to the end, probe nothing."""

    name: str = "grow only"

    def decide(self, curve: Curve) -> Verdict:
        done = curve.at_ceiling or curve.rough[-1].density > 0.7
        return Stop(reason="the end") if done else Grow(reason="go on")

    def answer(self, curve: Curve) -> Answer:
        return Answer(rule=self.name, delta=0.01, status="open")


def noise(observe: str, case: int) -> tuple[float, float]:
    """Scatter along one trajectory, and its last score."""
    torch.set_num_threads(1)
    found = run_discovery(SETTINGS["mlp"], case % 5, case, ("val",), rule=GrowOnly(), eval_weights=observe)
    value = trajectory_noise(found.curve.rough)
    assert value is not None
    return value, found.curve.rough[-1].score


def main() -> None:
    """Measure both ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=16)
    given = parser.parse_args()
    means = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for observe in ("current", "ema"):
            values = list(pool.map(partial(noise, observe), range(given.runs)))
            noises = [100 * value for value, _ in values]
            means[observe] = mean(noises)
            half = 1.645 * stdev(noises) / math.sqrt(given.runs)
            print(
                f"{observe:9} noise {means[observe]:.3f} +- {half:.3f} points (90%, {given.runs} runs), "
                f"last score {100 * mean(score for _, score in values):.2f}"
            )
    print(f"average / annealed: {means['average'] / means['annealed']:.2f}")


if __name__ == "__main__":
    main()
