"""Choosing among the visited networks: which to probe next, and which one to return."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pathgrow.density.posterior import PosteriorSamples
from pathgrow.density.types import Answer, Curve, FloatArray, Point, SelectBy

BASE_COST = 0.05
"""Cost of a probe beyond its density, in dense trainings: data loading, dense layers, kernel launches."""
MIN_INFORMATION = 0.03
"""A probe that would reduce the variance of an answer by less than this fraction is not worth its training."""
CLOSE = 1.1
"""If probes are short, densities within this factor count as equal: less growth is not worth a round and a probe."""
GROWTH_STEP = 1.25
"""Factor by which one growth step usually increases the density."""
DEEPEST = 3.0
"""How far below its end a curve is trusted, in units of its rise over the probed densities."""

Question = tuple[PosteriorSamples, FloatArray]
"""The posterior curves, and the logarithm of the answer on each of them."""


def probe_cost(points: Sequence[Point]) -> float:
    """Return the cost of probing these networks, in dense trainings of a probe's length."""
    return sum(point.density + BASE_COST for point in points)


def spread(visited: Sequence[Point], ratio: float, num: int) -> list[Point]:
    """Return `num` of the networks, the densest first and each next one sparser by about `ratio`.

    The ratio is smaller if the range is too short for it, and the list is shorter if there are too few networks.

    >>> points = [Point(round=k, density=0.03 * 1.25**k, epochs=20, score=0.5) for k in range(15)]
    >>> [point.round for point in spread(points, 3.0, 3)]
    [14, 9, 4]
    """
    low, high = (f(point.density for point in visited) for f in (min, max))
    ratio = min(ratio, (high / low) ** (1.0 / max(num - 1, 1)))
    chosen: list[Point] = []
    for k in range(num):
        left = [point for point in visited if point not in chosen]
        if left:
            chosen.append(nearest(left, high / ratio**k))
    return chosen


def nearest(points: Sequence[Point], density: float) -> Point:
    """Return the network whose density is nearest by ratio."""
    return min(points, key=lambda point: abs(math.log(point.density / density)))


def select_network(curve: Curve, answer: Answer, by: SelectBy = "delta") -> Point:
    """Return the visited network to return to the user: the sparsest that is dense enough for the answer.

    On a flat curve that is the sparsest of all; without an answer it is the densest.
    """
    density = answer.gain_density if by == "gain" else answer.density
    if density is not None:
        return sparsest_sufficient(curve, density)
    visited = sorted(curve.rough, key=lambda point: point.density)
    return visited[0] if answer.status == "flat" else visited[-1]


def sparsest_sufficient(curve: Curve, density: float) -> Point:
    """Return the sparsest visited network of at least this density; the densest if there is none.

    If probes are short, a network a little sparser is sufficient too, and a probed one is preferred to an unprobed one
    that is sparser by up to a growth step: it has been evaluated, and the first part of its training is done.

    >>> points = [Point(round=k, density=density, epochs=20, score=0.5) for k, density in enumerate([0.2, 0.25, 0.3])]
    >>> sparsest_sufficient(Curve(rough=tuple(points)), 0.203).round
    1
    >>> short = Curve(rough=tuple(points), probes=(points[2],), can_probe_dense=True)
    >>> [sparsest_sufficient(short, density).round for density in (0.203, 0.23, 0.245)]
    [0, 1, 2]
    """
    visited = sorted(curve.rough, key=lambda point: point.density)
    tolerance, step = (CLOSE, GROWTH_STEP) if curve.probes and curve.can_probe_dense else (1.0, 1.0)
    enough = [point for point in visited if tolerance * point.density >= density] or visited[-1:]
    probed = {probe.round for probe in curve.probes}
    return next((p for p in enough if p.round in probed and p.density <= step * density), enough[0])


def most_informative(
    questions: Sequence[Question], candidates: Sequence[Point], chosen: Sequence[Point]
) -> Point | None:
    """Return the candidate that reduces the variance of the answers most per cost, given those already chosen.

    The reduction is estimated by linear regression over the posterior samples. None: no candidate is worth its cost.
    """
    best, most = None, 0.0
    taken = [point.density for point in chosen]
    known = sum(_explained(*question, taken) for question in questions)
    for point in candidates:
        value = sum(_explained(*question, [*taken, point.density]) for question in questions) - known
        if value > MIN_INFORMATION and value / probe_cost([point]) > most:
            best, most = point, value / probe_cost([point])
    return best


def _explained(curves: PosteriorSamples, answer: FloatArray, densities: Sequence[float]) -> float:
    """Return the fraction of the answer's variance that scores at these densities would explain."""
    if not densities or np.var(answer) == 0.0:
        return 0.0
    # Below the probes a curve may fall without bound; that far down its value carries no information.
    values = np.stack([np.maximum(curves.at(density), curves.top - DEEPEST * curves.rise) for density in densities])
    values -= values.mean(axis=1, keepdims=True)
    centred = answer - answer.mean()
    covariance = values @ centred / len(centred)
    within = values @ values.T / len(centred) + float(np.mean(curves.noise**2)) * np.eye(len(densities))
    return float(covariance @ np.linalg.solve(within, covariance) / np.mean(centred**2))
