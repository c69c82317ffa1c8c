"""What equally trained probes say: where the curve comes within delta of the reference, and where its gain is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pathgrow.density.least_squares import Array
from pathgrow.density.posterior import Curves, evenly, fit_curves
from pathgrow.density.saturation import SaturationFit, fit_saturation
from pathgrow.density.types import Curve, Point, Reference

LOG20 = math.log(20.0)
MIN_POINTS = 3
"""A curve has two numbers for its height and one for its shape. With no more points than these, the size of their error
is a prior belief."""
SAMPLING = 0.5
"""Standard deviation over images, in units of sqrt(delta), of how much more often the denser of two networks gets an
image right. Measured on digits: 0.4."""
SHRINKING = (0.2, 0.1)
"""Gaps between networks shrink with this power of the length of training; and the standard deviation of that power."""
LEVEL = (0.05, 0.5, 0.95)
"""A 90% interval and its middle."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The possible curves through one set of points, and the two answers read from each of them."""

    lowest: float
    densest: Point
    curves: Curves
    exponentials: Curves
    """The paper's shape alone: the spread of the gain answer."""
    exponential: SaturationFit
    """The paper's fit: the gain answer itself."""
    reference: Reference
    level: Array
    """The true score of the reference, one entry for each curve."""
    allowed: Array
    """How far below it a point may stay: delta after the full training, more after a short one."""
    delta_density: Array
    """One entry for each curve; 0: within reach at every density; infinity: not even at density 1."""
    gain_density: Array
    """One entry for each of the `exponentials`."""

    def margin(self, density: float, share: float) -> float:
        """How far above its own goal a curve is at a density, on this share of the curves or more.

        For the share of curves on which the delta answer is enough, that is 0 at the delta answer.
        """
        return quantiles(self.curves.at(density) - (self.level - self.allowed), (1 - share,))[0]

    @property
    def share_below(self) -> float:
        """How likely the delta answer lies below everything observed."""
        return float(np.mean(self.delta_density <= self.lowest))

    @property
    def share_above(self) -> float:
        """How likely the delta answer lies above everything observed, or nowhere."""
        return float(np.mean(self.delta_density > self.densest.density))

    @property
    def has_gain(self) -> bool:
        """Whether the points rise by more than their noise: a flat curve has no 95% of its gain."""
        rise = quantiles(self.exponentials.rise / self.exponentials.noise, (0.1,))[0]
        return not self.exponential.flat and rise > 1.0


@lru_cache(maxsize=4)  # a verdict and an answer are asked for one after the other, about the same curve
def estimate(curve: Curve, delta: float) -> Estimate | None:
    """Read the probes; None while there are too few of them."""
    return estimate_from_points(
        curve.probes,
        delta,
        curve.reference,
        noise_hint=scatter(curve.rough),
        num_val=curve.num_val,
        epochs_in_full=curve.epochs_in_full,
    )


@lru_cache(maxsize=4)
def estimate_from_trajectory(rough: tuple[Point, ...], delta: float) -> Estimate | None:
    """Read the trunk as if its rounds were trained equally, which gives a proposal and never an answer."""
    return estimate_from_points(rough, delta, None, noise_hint=scatter(rough))


def estimate_from_points(
    points: Sequence[Point],
    delta: float,
    reference: Reference | None,
    *,
    noise_hint: float | None,
    num_val: int | None = None,
    epochs_in_full: int | None = None,
) -> Estimate | None:
    """Read any points as if they were trained equally, against a reference or else against the densest of them.

    `epochs_in_full` is how long the networks in question will be trained, where the points were trained for less.
    """
    points = sorted(points, key=lambda point: point.density)
    densities = [point.density for point in points]
    if len(set(densities)) < MIN_POINTS:
        return None
    scores = [point.score for point in points]
    curves = fit_curves(densities, scores, noise_hint=noise_hint)
    exponentials = fit_curves(densities, scores, bends=(1.0,), noise_hint=noise_hint)
    # All networks are scored on the same examples, so the choice of examples is no noise among the points. Yet with
    # other examples, two networks that are delta apart would have come out this much closer or farther apart.
    blur = 0.0 if num_val is None else SAMPLING * math.sqrt(delta / num_val)
    if reference is None:
        # The fitted value, not the raw score: the other points say more about it than one noisy measurement does.
        level = curves.at(points[-1].density) + blur * curves.offset
        reference = Reference(score=float(np.median(level)), kind="densest", epochs=points[-1].epochs)
    else:
        curves, level = _weigh(reference, points, curves, noise_hint, blur)
    allowed = delta * _shrinks(points[-1].epochs, epochs_in_full, curves.lag)
    return Estimate(
        lowest=densities[0],
        densest=points[-1],
        curves=curves,
        exponentials=exponentials,
        exponential=fit_saturation(densities, scores),
        reference=reference,
        level=level,
        allowed=allowed,
        delta_density=curves.reach(level - allowed),
        gain_density=LOG20 / exponentials.speed,
    )


def allowed_meanwhile(delta: float, epochs: int, epochs_in_full: int | None) -> tuple[float, float, float]:
    """The gap after so many epochs that stands for a gap of delta after the full training: middle and 90% interval.

    >>> ["%.4f" % value for value in allowed_meanwhile(0.01, 16, 160)]
    ['0.0158', '0.0109', '0.0231']
    """
    middle, low, high = (float(_shrinks(epochs, epochs_in_full, np.asarray(z))) for z in (0.0, -1.645, 1.645))
    return delta * middle, delta * low, delta * high


def _shrinks(epochs: int, epochs_in_full: int | None, doubt: Array) -> Array:
    """How many times larger gaps are after `epochs` than after the full training.

    Errors fall with training, and those of sparse and dense networks fall by about the same share: on CIFAR-10 the
    error of a ResNet-32 is that of the dense one times density^-0.13, after 16 epochs as well as after 80. The dense
    error falls with the 0.21st power of the epochs there; on digits, powers of 0.2 to 0.4 make short and long probes
    agree on the answer. Without this factor, short probes ask for up to half as much density again as is needed.
    """
    if epochs_in_full is None or epochs_in_full <= epochs:
        return np.ones_like(doubt)
    power, spread = SHRINKING
    shrunk: Array = (epochs_in_full / epochs) ** (power + spread * doubt)
    return shrunk


def _weigh(
    reference: Reference, points: Sequence[Point], apart: Curves, noise_hint: float | None, blur: float
) -> tuple[Curves, Array]:
    """The possible curves given a dense score, and for each curve what that score truly is.

    A dense score is the outcome of one training, as noisy as a probe. Either it is the end of the curve at density 1,
    and then it and the probes sharpen each other; or it stands apart (another recipe, a penalty that growth left in the
    weights) by something like half of the observed rise. How well each hypothesis predicts the score decides its share.
    """
    own_level = reference.score + np.hypot(apart.noise, blur) * apart.offset
    if reference.epochs is not None and reference.epochs != points[-1].epochs:
        return apart, own_level  # trained longer or shorter than the probes: not the end of their curve
    scores = [point.score for point in points]
    joined = fit_curves([*(point.density for point in points), 1.0], [*scores, reference.score], noise_hint=noise_hint)
    gap = reference.score - apart.top

    def likelihood(spread: Array) -> float:
        return float(np.mean(np.exp(-0.5 * (gap / spread) ** 2) / spread))

    as_end = likelihood(apart.noise)
    as_apart = likelihood(np.hypot(apart.noise, 0.5 * float(np.ptp(scores))))
    share = as_end / (as_end + as_apart) if as_end > 0 else 0.0
    num_joined = round(share * len(gap))
    curves = joined.thin(num_joined) + apart.thin(len(gap) - num_joined)
    end_level = curves.top[:num_joined] + blur * curves.offset[:num_joined]
    return curves, np.concatenate([end_level, evenly(own_level, len(gap) - num_joined)])


def quantiles(values: Array, shares: Sequence[float]) -> list[float]:
    """Order statistics: nothing is interpolated, so infinities stay what they are."""
    ordered = np.sort(values)
    return [float(ordered[min(int(share * len(ordered)), len(ordered) - 1)]) for share in shares]


def scatter(rough: Sequence[Point]) -> float | None:
    """The noise of one score, estimated from third differences of the trajectory, which cancel a smooth rise.

    The median makes a single jump harmless. None while there are too few rounds to tell.
    """
    if len(rough) < 6:
        return None
    differences = np.diff([point.score for point in rough], n=3)
    return float(np.median(np.abs(differences))) / (0.6745 * math.sqrt(20.0))
