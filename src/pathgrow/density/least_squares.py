"""Least squares for curves that are linear in two numbers once their shape is fixed.

Every saturating curve here is `p0 + gain * g(density)` with a shape `g` of one or two parameters. The two linear
numbers are solved exactly for each shape (variable projection), so the search runs over the shape alone and does not
depend on a starting point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import t as student_t

from pathgrow.errors import UserError

Array = NDArray[np.float64]


class Projection(NamedTuple):
    """The best `p0` and non-negative `gain` for each row of shape values, and the residual they leave."""

    p0: Array
    gain: Array
    residual: Array
    """Sum of squared residuals."""


def project(shape_values: Array, scores: Array) -> Projection:
    """Solve for `p0` and `gain >= 0`; `shape_values` is (shapes, points)."""
    mean_score = scores.mean()
    centred = shape_values - shape_values.mean(axis=1, keepdims=True)
    spread = np.sum(centred**2, axis=1)
    slope = centred @ (scores - mean_score) / np.where(spread > 0, spread, 1.0)
    gain = np.maximum(slope, 0.0)
    p0 = mean_score - gain * shape_values.mean(axis=1)
    residual = np.sum((scores - p0[:, None] - gain[:, None] * shape_values) ** 2, axis=1)
    return Projection(p0, gain, residual)


def check_points(densities: Sequence[float], performances: Sequence[float], num_wanted: int) -> tuple[Array, Array]:
    """The points as arrays in order of density; a `UserError` if something is wrong with them."""
    rho = np.asarray(densities, dtype=np.float64)
    score = np.asarray(performances, dtype=np.float64)
    if rho.ndim != 1 or score.ndim != 1 or rho.size != score.size:
        raise UserError(
            f"got {rho.size} densities and {score.size} performances: give two plain lists of the same length"
        )
    if not (np.isfinite(rho).all() and np.isfinite(score).all()):
        bad = int(np.flatnonzero(~(np.isfinite(rho) & np.isfinite(score)))[0])
        raise UserError(
            f"point {bad} is (density {rho[bad]}, performance {score[bad]}): leave out what is not a finite number"
        )
    if (rho < 0).any() or (rho > 1).any():
        bad = int(np.flatnonzero((rho < 0) | (rho > 1))[0])
        raise UserError(f"point {bad} has density {rho[bad]:g}: a density is a kept fraction between 0 and 1")
    num_distinct = np.unique(rho).size
    if num_distinct < num_wanted:
        raise UserError(
            f"got {num_distinct} different densities: at least {num_wanted} are wanted to fit this curve, observe more"
        )
    order = np.argsort(rho, kind="stable")
    return rho[order], score[order]


def check_level(level: float) -> None:
    """Refuse what is no share of a gain."""
    if not 0.0 <= level < 1.0:
        raise UserError(f"got level {level:g}: give the share of the gain to reach, at least 0 and below 1")


def check_delta(delta: float) -> None:
    """Refuse what is no distance between scores."""
    if not (delta > 0 and math.isfinite(delta)):
        raise UserError(f"got delta {delta:g}: give a positive distance in units of the score, such as 0.01")


def profile_interval(
    residual_at: Callable[[float], float],
    best: float,
    least: float,
    edges: tuple[float, float],
    num_free: int,
    confidence: float,
    exact: float,
) -> tuple[float, float]:
    """The values around `best` that the data allow, by a likelihood profiled over all other parameters.

    An end that the data leave open is returned as 0 or infinity. A residual up to `exact` counts as mere rounding.
    """
    if not 0.0 < confidence < 1.0:
        raise UserError(f"got confidence {confidence:g}: give a number between 0 and 1, such as 0.9")
    if num_free < 1:
        return 0.0, math.inf  # as many parameters as points: nothing is left to show how wrong they are
    if least <= exact:
        return best, best
    allowed = least * (1.0 + float(student_t.ppf(0.5 + confidence / 2, num_free)) ** 2 / num_free)

    def excess(log_value: float) -> float:
        return residual_at(math.exp(log_value)) - allowed

    low, high = 0.0, math.inf
    centre = math.log(best)
    left, right = min(math.log(edges[0]), centre), max(math.log(edges[1]), centre)
    if excess(left) > 0:
        low = math.exp(brentq(excess, left, centre, xtol=1e-10))
    if excess(right) > 0:
        high = math.exp(brentq(excess, centre, right, xtol=1e-10))
    return low, high
