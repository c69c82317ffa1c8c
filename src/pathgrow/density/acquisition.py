"""Where to probe: a first batch by ratio of densities, then what tells most about the answers for its price."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pathgrow.density.least_squares import Array
from pathgrow.density.posterior import Curves
from pathgrow.density.types import Curve, Point

BASE_PRICE = 0.05
"""What a probe costs beyond its density, in dense trainings: reading data, dense layers, launch."""
WORTHWHILE = 0.03
"""A probe that would reduce the variance by less than this share is not worth its training."""

NEXT_TO = 1.1
"""Where probes are short, densities within this factor count as one: less growth is not worth a round and a probe."""
STEP = 1.25
"""The factor by which a step of growth usually makes a network denser."""
DEEPEST = 3.0
"""How far below its end a curve is trusted, in units of its rise over the densities probed."""

Question = tuple[Curves, Array]
"""The curves that are possible, and the logarithm of the answer on each of them."""


def price(points: Sequence[Point]) -> float:
    """What probes of these networks cost, in dense trainings of a probe's length."""
    return sum(point.density + BASE_PRICE for point in points)


def spread(visited: Sequence[Point], ratio: float, num: int) -> list[Point]:
    """`num` of the networks, the densest first and each next one sparser by about `ratio`.

    The ratio is smaller where the range is too short for it, and the list is shorter where there are too few networks.

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
    """The network nearest to a density, by ratio."""
    return min(points, key=lambda point: abs(math.log(point.density / density)))


def smallest_enough(curve: Curve, density: float) -> Point:
    """The sparsest visited network that is dense enough for an answer; the densest where none is.

    An answer that rests on short probes is vague, and every further network trained costs part of what is to be saved.
    So a network that is a little too sparse will do then, and a probed one is preferred to an unprobed one that is
    sparser by up to a step of growth: it has been seen, and the first part of its training is done.

    >>> points = [Point(round=k, density=density, epochs=20, score=0.5) for k, density in enumerate([0.2, 0.25, 0.3])]
    >>> smallest_enough(Curve(rough=tuple(points)), 0.203).round
    1
    >>> brief = Curve(rough=tuple(points), probes=(points[2],), can_probe_dense=True)
    >>> [smallest_enough(brief, density).round for density in (0.203, 0.23, 0.245)]
    [0, 1, 2]
    """
    visited = sorted(curve.rough, key=lambda point: point.density)
    little, step = (NEXT_TO, STEP) if curve.probes and curve.can_probe_dense else (1.0, 1.0)
    enough = [point for point in visited if little * point.density >= density] or visited[-1:]
    probed = {probe.round for probe in curve.probes}
    return next((p for p in enough if p.round in probed and p.density <= step * density), enough[0])


def most_telling(questions: Sequence[Question], candidates: Sequence[Point], chosen: Sequence[Point]) -> Point | None:
    """The candidate that reduces the variance of the answers most for its price, beyond what those chosen already do.

    Estimated by linear regression over the possible curves; None where no candidate is worth its training.
    """
    best, most = None, 0.0
    taken = [point.density for point in chosen]
    known = sum(_explained(*question, taken) for question in questions)
    for point in candidates:
        value = sum(_explained(*question, [*taken, point.density]) for question in questions) - known
        if value > WORTHWHILE and value / price([point]) > most:
            best, most = point, value / price([point])
    return best


def _explained(curves: Curves, answer: Array, densities: Sequence[float]) -> float:
    """The share of the answer's variance that scores at these densities would explain."""
    if not densities or np.var(answer) == 0.0:
        return 0.0
    # Below the probes a curve may fall without end; that far down it says nothing any more.
    values = np.stack([np.maximum(curves.at(density), curves.top - DEEPEST * curves.rise) for density in densities])
    values -= values.mean(axis=1, keepdims=True)
    centred = answer - answer.mean()
    covariance = values @ centred / len(centred)
    within = values @ values.T / len(centred) + float(np.mean(curves.noise**2)) * np.eye(len(densities))
    return float(covariance @ np.linalg.solve(within, covariance) / np.mean(centred**2))
