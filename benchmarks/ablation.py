"""Ablation of the estimator: the probes of simulated discoveries, evaluated with and without each of its parts.

    python -m benchmarks.ablation [--runs 200] [--noise 0.004] [--shapes medium digits-like ...]

The `probe` rule carries out each discovery of `benchmarks.simulated` once; every row then uses the same probes. Printed
for each curve: the median of answer / known answer, the spread of that ratio (standard deviation of its logarithm), and
the coverage of the 90% interval (-: a fit has none). An answer outside the observable range counts as its end.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median, pstdev

import numpy as np

from benchmarks.simulated import SETTINGS, ReferenceKind, Setting, Simulation
from pathgrow.density.estimate import (
    LEVEL,
    DensityEstimate,
    allowed_gap,
    estimate_from_probes,
    quantiles,
    trajectory_noise,
)
from pathgrow.density.posterior import sample_posterior
from pathgrow.density.probe import QUANTILE, ProbeRule
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import Curve, FloatArray

Estimator = Callable[[Curve, float], FloatArray]
"""From a curve and delta to the answer on each posterior curve; a fit gives a single number."""


def full_estimate(curve: Curve, delta: float) -> FloatArray:
    """As in the rule: free tails, a fitted or model-averaged reference, gaps that shrink."""
    return _estimate(curve, delta).delta_density


def raw_reference(curve: Curve, delta: float) -> FloatArray:
    """The measured score of the densest probe as the reference."""
    estimate = _estimate(curve, delta)
    return estimate.curves.reach(estimate.densest.score - estimate.allowed)


def constant_gaps(curve: Curve, delta: float) -> FloatArray:
    """As if gaps did not shrink with training."""
    return _estimate(replace(curve, full_epochs=None), delta).delta_density


def exponential_tails(curve: Curve, delta: float) -> FloatArray:
    """The paper's exponential only, with its own value at density 1 as the reference."""
    densities, scores = _points(curve)
    if curve.reference is not None:
        densities, scores = [*densities, 1.0], [*scores, curve.reference.score]
    curves = sample_posterior(densities, scores, bends=(1.0,), noise_hint=trajectory_noise(curve.rough))
    # The uncertainty of the gaps does not depend on the tails.
    return curves.reach(curves.top - _estimate(curve, delta).allowed)


def fitted_asymptote(curve: Curve, delta: float) -> FloatArray:
    """The paper's fit with its asymptote as the reference: no dense score at all."""
    allowed = allowed_gap(delta, curve.probes[0].epochs, curve.full_epochs)[0]
    return np.array([fit_saturation(*_points(curve)).within(allowed)])


def separate_reference(curve: Curve, delta: float) -> FloatArray:
    """The dense score carries no information about the curve, like one of another training length."""
    assert curve.reference is not None
    other = replace(curve.reference, epochs=curve.probes[0].epochs + 1)
    return _estimate(replace(curve, reference=other), delta).delta_density


def exact_reference(curve: Curve, delta: float) -> FloatArray:
    """The dense score without noise."""
    assert curve.reference is not None
    estimate = _estimate(curve, delta)
    return estimate.curves.reach(curve.reference.score - estimate.allowed)


ESTIMATORS: dict[ReferenceKind, dict[str, Estimator]] = {
    "none": {
        "fitted value at the dense probe (the rule)": full_estimate,
        "measured score of the dense probe": raw_reference,
        "gaps that do not shrink": constant_gaps,
        "exponential only": exponential_tails,
        "exponential only, relative to its asymptote": fitted_asymptote,
    },
    "dense": {
        "dense score, model-averaged (the rule)": full_estimate,
        "dense score, never the end of the curve": separate_reference,
        "dense score without noise": exact_reference,
        "exponential only": exponential_tails,
        "exponential only, relative to its asymptote": fitted_asymptote,
    },
}


def _estimate(curve: Curve, delta: float) -> DensityEstimate:
    estimate = estimate_from_probes(curve, delta)
    assert estimate is not None, "a finished search has enough probes"
    return estimate


def _points(curve: Curve) -> tuple[list[float], list[float]]:
    points = sorted(curve.probes, key=lambda point: point.density)
    return [point.density for point in points], [point.score for point in points]


def searched(setting: Setting, noise: float, reference: ReferenceKind, num: int) -> list[Curve]:
    """The final curves of `num` discoveries."""
    rule = ProbeRule(delta=setting.delta)
    return [
        Simulation(setting=setting, noise=noise, reference=reference, seed=seed).run(rule).curve for seed in range(num)
    ]


def cell(estimator: Estimator, setting: Setting, curves: Sequence[Curve]) -> str:
    """The result of one estimator on the discoveries of one setting."""
    known = setting.known()
    ratios, covered = list[float](), list[bool]()
    for curve in curves:
        answer = estimator(curve, setting.delta)
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
    print(f"| reference | estimator | {' | '.join(chosen.shapes)} |")
    print("|" + "---|" * (2 + len(chosen.shapes)))
    for reference, estimators in ESTIMATORS.items():
        curves = {name: searched(SETTINGS[name], chosen.noise, reference, chosen.runs) for name in chosen.shapes}
        for label, estimator in estimators.items():
            cells = [cell(estimator, SETTINGS[name], curves[name]) for name in chosen.shapes]
            print(f"| {reference} | {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
