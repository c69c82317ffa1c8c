"""What reports and the loop take from a finished curve: the fitted band, and the network to hand back."""

from __future__ import annotations

import numpy as np

from pathgrow.density.acquisition import smallest_enough
from pathgrow.density.estimate import LEVEL, estimate, estimate_from_points, quantiles, scatter
from pathgrow.density.probe import CAUTION, ProbeRule
from pathgrow.density.types import Answer, AnswerKind, Curve, Point

NUM_DENSITIES = 61


def fit_band(curve: Curve, answer: Answer | None = None) -> dict[str, list[float]] | None:
    """The fitted curve through the probes with its 90% band, from the lowest to the densest of them.

    Lists `density`, `score`, `low` and `high` of equal length; None while there are too few probes. In a loop that
    cannot train copies the band goes through the rough points.

    With an answer of the default rule there is one more list. That answer is not taken from the fitted curve, which is
    the middle of those possible, but from where two thirds of them have reached the goal: `cautious` is the score that
    these are above, each seen from its own goal, so it crosses the goal at the answer.
    """
    points = curve.probes if curve.can_probe else curve.rough
    reading = estimate_from_points(points, 1.0, curve.reference, noise_hint=scatter(curve.rough))
    if reading is None:
        return None
    densities = np.geomspace(reading.lowest, reading.densest.density, NUM_DENSITIES)
    rows = [quantiles(reading.curves.at(float(density)), LEVEL) for density in densities]
    low, score, high = (list(column) for column in zip(*rows, strict=True))
    band = {"density": densities.tolist(), "score": score, "low": low, "high": high}
    judged = estimate(curve, answer.delta) if answer is not None and answer.rule == ProbeRule.name else None
    if answer is not None and judged is not None:
        goal = judged.reference.score - (answer.delta if answer.allowed is None else answer.allowed)
        band["cautious"] = [goal + judged.margin(float(density), CAUTION) for density in densities]
    return band


def hand_back(curve: Curve, answer: Answer, by: AnswerKind = "delta") -> Point:
    """The visited network to hand back: the sparsest that is dense enough for the answer (see `smallest_enough`).

    On a flat curve that is the sparsest of all, and without an answer the densest.
    """
    visited = sorted(curve.rough, key=lambda point: point.density)
    wanted = answer.gain_density if by == "gain" else answer.density
    if wanted is None:
        return visited[0] if answer.status == "flat" else visited[-1]
    return smallest_enough(curve, wanted)
