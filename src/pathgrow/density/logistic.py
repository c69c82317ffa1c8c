"""The logistic saturation curve of the paper's predecessor, with the interface of `SaturationFit`.

`P(density) = p0 + gain * g(density)`, where `g` is a logistic step of steepness `rate` around a `midpoint` at or above
density 0, shifted and scaled to be 0 at density 0 and to tend to 1. The predecessor's own parameters are not in print;
this form keeps the meaning of `p0` (value at density 0) and `gain` (what density adds in the end) in any unit of score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logit

from pathgrow.density.least_squares import Array, check_delta, check_level, check_points, profile_interval, project
from pathgrow.density.saturation import ROUNDING, fastest, slowest

NUM_PARAMETERS = 4
ANCHORS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0])
"""Grid of `rate * midpoint`: 0 is the upper half of a logistic step, a large one a whole step."""


@dataclass(frozen=True, kw_only=True)
class LogisticFit:
    """A fitted logistic saturation curve; see `SaturationFit` for what the methods mean."""

    p0: float
    gain: float
    rate: float
    midpoint: float
    densities: tuple[float, ...]
    performances: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """The points do not rise with density."""
        return self.gain == 0.0

    @property
    def ceiling(self) -> float:
        """The value the curve tends to: an extrapolation."""
        return self.p0 + self.gain

    def operating_density(self, level: float = 0.95) -> float:
        """The smallest density that has reached `level` of the gain; NaN for a flat curve."""
        check_level(level)
        return math.nan if self.flat else _reach(1.0 - level, self.rate * self.midpoint) / self.rate

    def within(self, delta: float) -> float:
        """The smallest density within `delta` of the fitted ceiling; 0 when every density is."""
        check_delta(delta)
        return _reach(delta / self.gain, self.rate * self.midpoint) / self.rate if self.gain > delta else 0.0

    def interval(self, confidence: float = 0.9, level: float = 0.95) -> tuple[float, float]:
        """An interval of `operating_density(level)`, by profile likelihood; 0 or infinity where it stays open."""
        if self.flat:
            return 0.0, math.inf
        rho, score = np.asarray(self.densities), np.asarray(self.performances)
        anchors = np.sort(np.append(ANCHORS, self.rate * self.midpoint))
        reach = np.array([_reach(1.0 - level, anchor) for anchor in anchors])

        def residual_at(density: float) -> float:
            coarse = project(_shape(rho, reach / density, anchors), score).residual
            near = int(np.argmin(coarse))
            # The best anchor moves along with the density: held to the grid, it would make the interval too narrow.
            fine = minimize_scalar(
                lambda anchor: _residual(rho, score, _reach(1.0 - level, anchor) / density, anchor),
                bounds=(float(anchors[max(near - 1, 0)]), float(anchors[min(near + 1, len(anchors) - 1)])),
                method="bounded",
                options={"xatol": 1e-6},
            )
            return min(float(coarse[near]), float(fine.fun))

        best = self.operating_density(level)
        return profile_interval(
            residual_at,
            best=best,
            least=residual_at(best),
            edges=(float(reach.min() / fastest(rho)), float(reach.max() / slowest(rho))),
            num_free=len(rho) - NUM_PARAMETERS,
            confidence=confidence,
            exact=len(rho) * (1e-6 * self.gain) ** 2,
        )

    @overload
    def predict(self, density: float) -> float: ...
    @overload
    def predict(self, density: ArrayLike) -> Array: ...
    def predict(self, density: float | ArrayLike) -> float | Array:
        """The curve's value at one density, or at an array of them."""
        rho = np.asarray(density, dtype=np.float64)
        if self.flat:
            value = np.full_like(rho, self.p0)
        else:
            anchor = np.array([self.rate * self.midpoint])
            value = self.p0 + self.gain * _shape(rho.ravel(), np.array([self.rate]), anchor)[0].reshape(rho.shape)
        return float(value) if value.ndim == 0 else value


def fit_logistic(densities: Sequence[float], performances: Sequence[float]) -> LogisticFit:
    """Fit the logistic by least squares with a gain above zero; at least four different densities."""
    rho, score = check_points(densities, performances, NUM_PARAMETERS)
    rates, anchors = (x.ravel() for x in np.meshgrid(np.geomspace(slowest(rho), 10 * fastest(rho), 80), ANCHORS))
    start = int(np.argmin(project(_shape(rho, rates, anchors), score).residual))

    def one(point: Array) -> tuple[Array, Array]:
        return np.clip(np.exp(point[:1]), slowest(rho), 10 * fastest(rho)), np.abs(point[1:])

    def residual(point: Array) -> float:
        rate, anchor = one(point)
        return _residual(rho, score, float(rate[0]), float(anchor[0]))

    found = minimize(
        residual,
        x0=[math.log(rates[start]), float(anchors[start])],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 0.0, "maxiter": 400},
    )
    rate, anchor = one(found.x)
    shape = _shape(rho, rate, anchor)
    p0, gain, _ = (float(x[0]) for x in project(shape, score))
    midpoint = float(anchor[0] / rate[0])
    if gain * float(np.ptp(shape)) <= ROUNDING * float(np.abs(score).max()):
        return LogisticFit(
            p0=float(score.mean()),
            gain=0.0,
            rate=math.nan,
            midpoint=math.nan,
            densities=tuple(rho.tolist()),
            performances=tuple(score.tolist()),
        )
    return LogisticFit(
        p0=p0,
        gain=gain,
        rate=float(rate[0]),
        midpoint=midpoint,
        densities=tuple(rho.tolist()),
        performances=tuple(score.tolist()),
    )


def _shape(rho: Array, rate: Array, anchor: Array) -> Array:
    """(shapes, points) of a step with `rate * midpoint = anchor`, 0 at density 0, tending to 1."""
    low = expit(-anchor)[:, None]
    return (expit(rate[:, None] * rho[None, :] - anchor[:, None]) - low) / (1.0 - low)


def _residual(rho: Array, score: Array, rate: float, anchor: float) -> float:
    """What the best step of this shape leaves unexplained."""
    return float(project(_shape(rho, np.array([rate]), np.array([anchor])), score).residual[0])


def _reach(missing: float, anchor: float) -> float:
    """`rate * density` where the shape has all but a `missing` share of its rise."""
    return float(anchor - logit(missing * expit(anchor)))
