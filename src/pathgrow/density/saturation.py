"""The paper's saturation curve, `P(density) = p0 + gain * (1 - exp(-rate * density))`, fitted by least squares.

For a fixed rate the curve is linear in `p0` and `gain`, which are then solved for exactly (variable projection). The
search runs over the rate alone and does not depend on a starting point.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit  # the quantile of scipy.stats.t, which takes half a second to import

from pathgrow.density.types import FloatArray, check_delta
from pathgrow.errors import UserError, require

NUM_PARAMETERS = 3
ROUNDING = 1e-12
"""A rise over the points below this fraction of the scores themselves counts as none."""


@dataclass(frozen=True, kw_only=True)
class SaturationFit:
    """A fitted exponential saturation curve.

    >>> rho = [0.02, 0.05, 0.1, 0.2, 0.4, 0.8]
    >>> fit = fit_saturation(rho, [0.2 + 0.7 * (1 - math.exp(-10 * x)) for x in rho])
    >>> round(fit.p0, 6), round(fit.gain, 6), round(fit.rate, 6), round(fit.operating_density(), 6)
    (0.2, 0.7, 10.0, 0.299573)
    """

    p0: float
    """Value at density 0."""
    gain: float
    """Rise from density 0 to the asymptote; 0 if the points do not rise."""
    rate: float
    """Decay rate of the remaining gain; NaN if the points do not rise."""
    densities: tuple[float, ...]
    performances: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """Whether the points do not rise with density, which leaves no gain to reach 95% of."""
        return self.gain == 0.0

    def operating_density(self, level: float = 0.95) -> float:
        """Return the smallest density that reaches `level` of the gain.

        NaN for a flat curve, which has no such density; above 1 if the points show no saturation.
        """
        check_level(level)
        return math.nan if self.flat else -math.log1p(-level) / self.rate

    def within(self, delta: float) -> float:
        """Return the smallest density within `delta` of the asymptote; 0 if every density is."""
        check_delta(delta)
        return math.log(self.gain / delta) / self.rate if self.gain > delta else 0.0

    def interval(self, confidence: float = 0.9, level: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval of `operating_density(level)`, from the profile likelihood of the rate.

        An end that the points do not bound is 0 or infinity; a flat curve bounds neither.
        """
        from scipy.optimize import brentq  # a quarter of a second, which every command would wait

        require(0.0 < confidence < 1.0, "confidence", confidence, "in (0, 1)", 0.9)
        rho, score = np.asarray(self.densities), np.asarray(self.performances)
        num_free = len(rho) - NUM_PARAMETERS
        if self.flat or num_free < 1:  # with as many parameters as points, no residual tells the noise
            return 0.0, math.inf
        reach = -math.log1p(-level)
        least = float(np.sum((score - self.predict(rho)) ** 2))
        if least <= len(rho) * (1e-9 * self.gain) ** 2:  # rounding
            return reach / self.rate, reach / self.rate
        allowed = least * (1.0 + float(stdtrit(num_free, 0.5 + confidence / 2)) ** 2 / num_free)

        def excess(log_rate: float) -> float:
            return float(_project(rho, score, np.array([math.exp(log_rate)]))[2][0]) - allowed

        best, (slowest, fastest) = math.log(self.rate), map(math.log, _rate_range(rho))
        left, right = min(slowest, best), max(fastest, best)
        low = reach / math.exp(brentq(excess, best, right, xtol=1e-10)) if excess(right) > 0 else 0.0
        high = reach / math.exp(brentq(excess, left, best, xtol=1e-10)) if excess(left) > 0 else math.inf
        return low, high

    def predict(self, density: ArrayLike) -> FloatArray:
        """Return the value of the curve at one density or at an array of them."""
        rho = np.asarray(density, dtype=np.float64)
        value: FloatArray = self.p0 - self.gain * np.expm1(-(0.0 if self.flat else self.rate) * rho)
        return value


def fit_saturation(densities: Sequence[float], performances: Sequence[float]) -> SaturationFit:
    """Fit the exponential by least squares with a positive gain and a positive rate.

    Parameters
    ----------
    densities : fractions of nonzero weights in [0, 1], at least three distinct ones.
    performances : the scores observed there, higher is better, in any unit.

    Returns
    -------
    A `SaturationFit`. Points that do not rise give `gain == 0` and no operating density.

    Examples
    --------
    >>> fit = fit_saturation([0.02, 0.05, 0.1, 0.2, 0.4], [0.42, 0.64, 0.8, 0.89, 0.9])
    >>> round(fit.operating_density(), 2), [round(end, 2) for end in fit.interval()]
    (0.15, [0.14, 0.16])
    """
    from scipy.optimize import minimize_scalar

    rho, score = sorted_points(densities, performances, NUM_PARAMETERS)
    grid = np.geomspace(*_rate_range(rho), 400)
    residual = _project(rho, score, grid)[2]
    best = int(np.argmin(residual))
    around = np.log(grid[[max(best - 1, 0), min(best + 1, len(grid) - 1)]])
    found = minimize_scalar(
        lambda log_rate: float(_project(rho, score, np.exp([log_rate]))[2][0]),
        bounds=(float(around[0]), float(around[1])),
        method="bounded",
        options={"xatol": 1e-13},
    )
    rate = float(np.exp(found.x)) if found.fun <= residual[best] else float(grid[best])
    p0, gain, _ = (float(x[0]) for x in _project(rho, score, np.array([rate])))
    rise = gain * float(np.ptp(np.expm1(-rate * rho)))
    if rise <= ROUNDING * float(np.abs(score).max()):
        p0, gain, rate = float(score.mean()), 0.0, math.nan
    return SaturationFit(p0=p0, gain=gain, rate=rate, densities=tuple(rho.tolist()), performances=tuple(score.tolist()))


def sorted_points(
    densities: Sequence[float], performances: Sequence[float], num_needed: int
) -> tuple[FloatArray, FloatArray]:
    """Return the points as arrays in order of density; invalid points are a `UserError`."""
    try:
        rho, score = (np.asarray(values, dtype=np.float64) for values in (densities, performances))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"densities and performances must be two lists of numbers ({error})") from error
    if rho.ndim != 1 or score.ndim != 1 or rho.size != score.size:
        raise UserError(
            f"densities and performances must be two lists of equal length, got {rho.size} and {score.size} values"
        )
    if not (np.isfinite(rho).all() and np.isfinite(score).all()):
        bad = int(np.flatnonzero(~(np.isfinite(rho) & np.isfinite(score)))[0])
        raise UserError(f"point {bad} must be finite, got density {rho[bad]}, performance {score[bad]}")
    if (rho < 0).any() or (rho > 1).any():
        bad = int(np.flatnonzero((rho < 0) | (rho > 1))[0])
        raise UserError(f"density of point {bad} must be in [0, 1], got {rho[bad]:g}")
    num_distinct = np.unique(rho).size
    if num_distinct < num_needed:
        raise UserError(f"the fit needs at least {num_needed} distinct densities, got {num_distinct}")
    order = np.argsort(rho, kind="stable")
    return rho[order], score[order]


def check_level(level: float) -> None:
    """Refuse a level that is not a fraction of the gain."""
    require(0.0 <= level < 1.0, "level", level, "in [0, 1)", 0.95)


def _project(rho: FloatArray, scores: FloatArray, rates: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return, for each rate, the best `p0` and `gain >= 0`, and the residual sum of squares."""
    shape = -np.expm1(-rates[:, None] * rho[None, :])
    mean_score = scores.mean()
    centred = shape - shape.mean(axis=1, keepdims=True)
    spread = np.sum(centred**2, axis=1)
    slope = centred @ (scores - mean_score) / np.where(spread > 0, spread, 1.0)
    gain = np.maximum(slope, 0.0)
    p0 = mean_score - gain * shape.mean(axis=1)
    residual = np.sum((scores - p0[:, None] - gain[:, None] * shape) ** 2, axis=1)
    return p0, gain, residual


def _rate_range(rho: FloatArray) -> tuple[float, float]:
    """Return a rate at which the curve is a straight line over the points, and one that saturates before the first."""
    return 0.03 / float(rho[-1]), 20.0 / float(rho[rho > 0][0])
