"""Noise of one evaluation of the growing network: current weights after annealed rounds, or their EMA.

    python -m benchmarks.observation [--jobs N] [--runs 16]

The noise of a score along the trajectory is estimated from third differences, which remove a smooth rise. Printed: the
mean over runs in percentage points of accuracy, and the ratio of the two.
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
    """A rule that grows to the end without probes."""

    name: str = "grow only"

    def decide(self, curve: Curve) -> Verdict:
        done = curve.at_ceiling or curve.rough[-1].density > 0.7
        return Stop(reason="at the end") if done else Grow(reason="growing to the end")

    def answer(self, curve: Curve) -> Answer:
        return Answer(rule=self.name, delta=0.01, status="open")


def noise(eval_weights: str, case: int) -> tuple[float, float]:
    """Return the noise of one trajectory and its last score."""
    torch.set_num_threads(1)
    found = run_discovery(SETTINGS["mlp"], case % 5, case, ("val",), rule=GrowOnly(), eval_weights=eval_weights)
    value = trajectory_noise(found.curve.rough)
    assert value is not None
    return value, found.curve.rough[-1].score


def main() -> None:
    """Measure and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=16)
    given = parser.parse_args()
    means = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for eval_weights in ("current", "ema"):
            values = list(pool.map(partial(noise, eval_weights), range(given.runs)))
            noises = [100 * value for value, _ in values]
            means[eval_weights] = mean(noises)
            half = 1.645 * stdev(noises) / math.sqrt(given.runs)
            print(
                f"{eval_weights:9} noise {means[eval_weights]:.3f} +- {half:.3f} pp (90%, {given.runs} runs), "
                f"last score {100 * mean(score for _, score in values):.2f}"
            )
    print(f"ema / current: {means['ema'] / means['current']:.2f}")


if __name__ == "__main__":
    main()
