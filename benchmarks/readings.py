"""What is each part of the reading worth? The probes of simulated discoveries, read as the rule does and otherwise.

    python -m benchmarks.readings [--runs 200] [--noise 0.004] [--shapes medium digits-like ...]

The `probe` rule carries out each discovery of `benchmarks.simulated` once; every row then reads the same probes, so
rows differ by nothing but how they read. Printed for each curve: the median answer over the known one, the spread of
that ratio (standard deviation of its logarithm), and how often the 90% interval covers (-: a fit has none). An answer
beyond what can be visited counts as its end.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median, pstdev

import numpy as np

from benchmarks.simulated import SETTINGS, ReferenceKind, Setting, Simulation
from pathgrow.density.estimate import LEVEL, Estimate, allowed_gap, estimate_from_probes, quantiles, trajectory_noise
from pathgrow.density.posterior import sample_posterior
from pathgrow.density.probe import QUANTILE, ProbeRule
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import Array, Curve

Tracer = Callable[[Curve, float], Array]
"""From a curve and delta to the answer on each of the curves that are possible; a fit alone gives one number."""


def as_the_rule_does(curve: Curve, delta: float) -> Array:
    """The family of tails, a fitted or weighed reference, gaps that shrink."""
    return _read(curve, delta).delta_density


def against_the_raw_score(curve: Curve, delta: float) -> Array:
    """The score of the densest probe as it was drawn."""
    reading = _read(curve, delta)
    return reading.curves.reach(reading.densest.score - reading.allowed)


def with_lasting_gaps(curve: Curve, delta: float) -> Array:
    """As if gaps after a short training were those in the end."""
    return _read(replace(curve, full_epochs=None), delta).delta_density


def by_exponentials(curve: Curve, delta: float) -> Array:
    """The paper's tail alone, against its own end at density 1."""
    densities, scores = _points(curve)
    if curve.reference is not None:
        densities, scores = [*densities, 1.0], [*scores, curve.reference.score]
    curves = sample_posterior(densities, scores, bends=(1.0,), noise_hint=trajectory_noise(curve.rough))
    # Curves come with the same doubt about gaps whatever their tails are.
    return curves.reach(curves.top - _read(curve, delta).allowed)


def against_a_fitted_ceiling(curve: Curve, delta: float) -> Array:
    """The paper's fit and what it tends to: no dense score at all."""
    allowed = allowed_gap(delta, curve.probes[0].epochs, curve.full_epochs)[0]
    return np.array([fit_saturation(*_points(curve)).within(allowed)])


def against_a_score_apart(curve: Curve, delta: float) -> Array:
    """The dense score says nothing of the curve's end: as one of another length of training is read."""
    assert curve.reference is not None
    other = replace(curve.reference, epochs=curve.probes[0].epochs + 1)
    return _read(replace(curve, reference=other), delta).delta_density


def against_an_exact_score(curve: Curve, delta: float) -> Array:
    """The dense score without any noise of its own."""
    assert curve.reference is not None
    reading = _read(curve, delta)
    return reading.curves.reach(curve.reference.score - reading.allowed)


READERS: dict[ReferenceKind, dict[str, Tracer]] = {
    "none": {
        "fitted value at the dense copy (the rule)": as_the_rule_does,
        "raw score of the dense copy": against_the_raw_score,
        "gaps that do not shrink": with_lasting_gaps,
        "exponential alone": by_exponentials,
        "exponential alone, against its ceiling": against_a_fitted_ceiling,
    },
    "dense": {
        "dense score, weighed with the curve's end (the rule)": as_the_rule_does,
        "dense score, always apart": against_a_score_apart,
        "dense score, taken as exact": against_an_exact_score,
        "exponential alone": by_exponentials,
        "exponential alone, against its ceiling": against_a_fitted_ceiling,
    },
}


def _read(curve: Curve, delta: float) -> Estimate:
    reading = estimate_from_probes(curve, delta)
    assert reading is not None, "a discovery that has ended has probes enough"
    return reading


def _points(curve: Curve) -> tuple[list[float], list[float]]:
    points = sorted(curve.probes, key=lambda point: point.density)
    return [point.density for point in points], [point.score for point in points]


def discovered(setting: Setting, noise: float, reference: ReferenceKind, num: int) -> list[Curve]:
    """What the rule had probed when it stopped, in `num` discoveries."""
    rule = ProbeRule(delta=setting.delta)
    return [
        Simulation(setting=setting, noise=noise, reference=reference, seed=seed).run(rule).curve for seed in range(num)
    ]


def cell(reader: Tracer, setting: Setting, curves: Sequence[Curve]) -> str:
    """One reader on the discoveries of one setting."""
    known = setting.known()
    ratios, covered = list[float](), list[bool]()
    for curve in curves:
        answer = reader(curve, setting.delta)
        density = quantiles(answer, (QUANTILE,))[0]
        ratios.append(min(max(density, curve.rough[0].density), 1.0) / known)
        if len(answer) > 1:
            low, high = quantiles(answer, (LEVEL[0], LEVEL[-1]))
            covered.append(low <= known <= high)
    spread = pstdev(math.log(ratio) for ratio in ratios)
    return f"{median(ratios):.2f}, {spread:.2f}, {f'{mean(covered):.0%}' if covered else '-'}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.004)
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SETTINGS), default=["medium", "digits-like", "cifar, equal"]
    )
    chosen = parser.parse_args()
    print(f"| reference | read by | {' | '.join(chosen.shapes)} |")
    print("|" + "---|" * (2 + len(chosen.shapes)))
    for reference, readers in READERS.items():
        curves = {name: discovered(SETTINGS[name], chosen.noise, reference, chosen.runs) for name in chosen.shapes}
        for told, reader in readers.items():
            cells = [cell(reader, SETTINGS[name], curves[name]) for name in chosen.shapes]
            print(f"| {reference} | {told} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
