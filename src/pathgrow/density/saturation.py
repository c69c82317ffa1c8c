"""The paper's saturation curve: `P(density) = p0 + gain * (1 - exp(-rate * density))`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from pathgrow.density.least_squares import Array, check_delta, check_level, check_points, profile_interval, project

NUM_PARAMETERS = 3
ROUNDING = 1e-12
"""A rise over the points that is below this share of the scores themselves counts as none."""


@dataclass(frozen=True, kw_only=True)
class SaturationFit:
    """A fitted exponential saturation curve.

    >>> rho = [0.02, 0.05, 0.1, 0.2, 0.4, 0.8]
    >>> fit = fit_saturation(rho, [0.2 + 0.7 * (1 - math.exp(-10 * x)) for x in rho])
    >>> round(fit.p0, 6), round(fit.gain, 6), round(fit.rate, 6), round(fit.operating_density(), 6)
    (0.2, 0.7, 10.0, 0.299573)
    """

    p0: float
    """The curve's value at density 0."""
    gain: float
    """What density adds to `p0` in the end; 0 when the points do not rise."""
    rate: float
    """How fast the gain is made; NaN when the points do not rise."""
    densities: tuple[float, ...]
    performances: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """The points do not rise with density: there is no gain to reach 95% of."""
        return self.gain == 0.0

    @property
    def ceiling(self) -> float:
        """The value the curve tends to. An extrapolation: prefer a measured reference."""
        return self.p0 + self.gain

    def operating_density(self, level: float = 0.95) -> float:
        """The smallest density that has reached `level` of the gain.

        NaN for a flat curve, which has no such density; above 1 when no saturation is in sight.
        """
        check_level(level)
        return math.nan if self.flat else -math.log1p(-level) / self.rate

    def within(self, delta: float) -> float:
        """The smallest density within `delta` of the fitted ceiling; 0 when every density is."""
        check_delta(delta)
        return math.log(self.gain / delta) / self.rate if self.gain > delta else 0.0

    def interval(self, confidence: float = 0.9, level: float = 0.95) -> tuple[float, float]:
        """An interval of `operating_density(level)`, from the profile likelihood of the rate.

        An end the points leave open is 0 or infinity; a flat curve leaves both open.
        """
        if self.flat:
            return 0.0, math.inf
        rho, score = np.asarray(self.densities), np.asarray(self.performances)
        reach = -math.log1p(-level)
        low, high = profile_interval(
            lambda rate: float(project(_shape(rho, np.array([rate])), score).residual[0]),
            best=self.rate,
            least=float(np.sum((score - self.predict(rho)) ** 2)),
            edges=(slowest(rho), fastest(rho)),
            num_free=len(rho) - NUM_PARAMETERS,
            confidence=confidence,
            exact=len(rho) * (1e-9 * self.gain) ** 2,
        )
        return reach / high, reach / low if low > 0 else math.inf

    @overload
    def predict(self, density: float) -> float: ...
    @overload
    def predict(self, density: ArrayLike) -> Array: ...
    def predict(self, density: float | ArrayLike) -> float | Array:
        """The curve's value at one density, or at an array of them."""
        rho = np.asarray(density, dtype=np.float64)
        value = np.full_like(rho, self.p0) if self.flat else self.p0 - self.gain * np.expm1(-self.rate * rho)
        return float(value) if value.ndim == 0 else value


def fit_saturation(densities: Sequence[float], performances: Sequence[float]) -> SaturationFit:
    """Fit the exponential by least squares with a gain and a rate above zero.

    Parameters
    ----------
    densities : kept fractions in [0, 1], at least three different ones.
    performances : the scores observed there, higher is better, in any unit.

    Returns
    -------
    A `SaturationFit`. Points that do not rise give `gain == 0` and no operating density, not an invented one.

    Examples
    --------
    >>> fit = fit_saturation([0.02, 0.05, 0.1, 0.2, 0.4], [0.42, 0.64, 0.8, 0.89, 0.9])
    >>> round(fit.operating_density(), 2), [round(end, 2) for end in fit.interval()]
    (0.15, [0.14, 0.16])
    """
    rho, score = check_points(densities, performances, NUM_PARAMETERS)
    grid = np.geomspace(slowest(rho), fastest(rho), 400)
    residual = project(_shape(rho, grid), score).residual
    best = int(np.argmin(residual))
    around = np.log(grid[[max(best - 1, 0), min(best + 1, len(grid) - 1)]])
    found = minimize_scalar(
        lambda log_rate: float(project(_shape(rho, np.exp([log_rate])), score).residual[0]),
        bounds=(float(around[0]), float(around[1])),
        method="bounded",
        options={"xatol": 1e-13},
    )
    rate = float(np.exp(found.x)) if found.fun <= residual[best] else float(grid[best])
    p0, gain, _ = (float(x[0]) for x in project(_shape(rho, np.array([rate])), score))
    rise = gain * float(np.ptp(_shape(rho, np.array([rate]))))
    if rise <= ROUNDING * float(np.abs(score).max()):
        p0, gain, rate = float(score.mean()), 0.0, math.nan
    return SaturationFit(p0=p0, gain=gain, rate=rate, densities=tuple(rho.tolist()), performances=tuple(score.tolist()))


def _shape(rho: Array, rates: Array) -> Array:
    return -np.expm1(-rates[:, None] * rho[None, :])


def slowest(rho: Array) -> float:
    """The smallest rate to consider: below it the curve is a straight line over these points."""
    return 0.03 / float(rho[-1])


def fastest(rho: Array) -> float:
    """The largest rate to consider: above it the curve has saturated before the first point."""
    return 20.0 / float(rho[rho > 0][0])
