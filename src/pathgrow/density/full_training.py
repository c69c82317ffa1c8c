"""What a full training leads to, inferred from short rounds of pruned networks and a few that were finished.

Given the learning curve of the dense network and the curve through the pruned networks, all other scores are linear in
four unknown numbers:

    first phase         dense - slope * left(epochs)
    trained network     dense - slope * left(epochs) - restart
    reference           dense
    finished network    dense - slope * left(epochs) - restart - factor * gap(density)

The learning curve is a power law, `left(epochs) = ((epochs / full)^-power - 1) / power`. Published exponents are
between 0 and 1, those of small tasks above 1; with a large one, training has saturated long before its end. `restart`
is what a network whose learning rate was restarted lacks beside one that was trained in one phase; `factor` is how
further training changes the gaps to dense. All scores are equally noisy, but a reference from another training also
differs by the luck of that training. So for each exponent and curve the four numbers have a normal distribution, and
the likelihood of the scores says how much that exponent and that curve count.
"""

import math
import operator
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from pathgrow.density.estimate import (
    POWERS,
    RESTART_SPREAD,
    TRAINING_NOISE,
    curve_of_rounds,
    estimate_from_finished,
    expected_noise,
    is_compared_directly,
    unpruned,
)
from pathgrow.density.posterior import PosteriorSamples
from pathgrow.density.types import Curve, FloatArray

DENSE, SLOPE, RESTART, FACTOR = range(4)
_TINY = 1e-300
FACTOR_SPREAD = 0.75
"""Prior standard deviation of the factor, around 1: gaps may halve or double."""
UNKNOWN_GAIN = 10.0
"""Prior standard deviation of the dense score and of what training gains, in units of delta, after one training."""
MIN_FACTOR = 0.1
MIN_NOISE, MAX_GAP = 0.01, 50.0
"""In units of delta; they keep the arithmetic well-conditioned."""


@dataclass(frozen=True, kw_only=True)
class FullTraining:
    """Equally likely outcomes."""

    dense: FloatArray
    """Score of the dense network after full training."""
    noise: FloatArray
    """Standard deviation of one score."""
    curves: PosteriorSamples
    """Through the rounds of pruned networks."""
    level: FloatArray
    """Score of the network before pruning on that curve."""
    factor: FloatArray
    """By which further training changes the gaps to it."""
    lost: FloatArray
    """How far it would be below the dense network if it were finished."""

    def within(self, delta: float) -> FloatArray:
        """The smallest density that is within delta of the dense network; 0: any, infinity: none."""
        return self.curves.reach(self.level - (delta - self.lost) / self.factor)

    def shortfall(self, density: float) -> float:
        """How far a finished network of that density is expected to be below the dense one."""
        gap = np.maximum(self.level - self.curves.at(density), 0.0)
        return float(np.mean(self.lost + self.factor * gap))


@lru_cache(maxsize=8)  # each decision reads the same curve several times
def infer(curve: Curve, delta: float) -> FullTraining | None:
    """Return what a full training leads to; None if there are too few pruned networks."""
    if is_compared_directly(curve, delta):
        return _measured(curve, delta)
    given = [weighted for power in POWERS if (weighted := _given_exponent(curve, delta, power)) is not None]
    if not given:
        return None
    log_weight = np.concatenate([weighted.log_weight for weighted in given])
    kept = _resampled(log_weight, len(log_weight) // len(given))
    outcomes = [weighted.outcomes for weighted in given]
    names = ("dense", "noise", "level", "factor", "lost")
    arrays = {name: np.concatenate([getattr(one, name) for one in outcomes])[kept] for name in names}
    return FullTraining(curves=reduce(operator.add, [one.curves for one in outcomes])[kept], **arrays)


def _measured(curve: Curve, delta: float) -> FullTraining | None:
    """The outcomes if networks were trained as long as the reference: nothing is left to infer but the curve."""
    if (estimate := estimate_from_finished(curve, delta)) is None:
        return None
    level = estimate.level
    # The scatter around the curve is that of trainings. Two networks that exist are compared with less noise.
    noise = max(expected_noise(curve, delta), MIN_NOISE * delta)
    return FullTraining(
        dense=level,
        noise=np.full_like(level, noise),
        curves=estimate.curves,
        level=level,
        factor=np.ones_like(level),
        lost=np.zeros_like(level),
    )


@dataclass(frozen=True, kw_only=True)
class _Weighted:
    outcomes: FullTraining
    log_weight: FloatArray


def _given_exponent(curve: Curve, delta: float, power: float) -> _Weighted | None:
    if (estimate := curve_of_rounds(curve, delta, power)) is None:
        return None
    curves, base = estimate.curves, curve.rough[-1]
    noise = np.maximum(curves.noise, MIN_NOISE * delta)
    full = curve.full_epochs or 2 * base.epochs
    finished = [point for point in curve.finished if point.density < base.density]
    # A sparser network that is better shows that the one before pruning is too.
    level = np.maximum(estimate.level, curves.at(estimate.densest.density))

    def left(epochs: int) -> float:
        # A pretrained network has no learning curve.
        return math.expm1(-power * math.log(epochs / full)) / power if base.epochs else 0.0

    scores = [point.score for point in unpruned(curve)]
    # A wider prior, cut off at 0 (training does no harm), would turn noise into expected gains. After a single
    # training, however, nothing is known about what more of it gains.
    gained = float(np.ptp(scores))
    spread = (delta + gained) * (1.0 if len(scores) > 1 or not base.epochs else UNKNOWN_GAIN)
    # Unknown is what the second half of the training so far was worth: in that unit no exponent is preferred.
    second_half = left(max(1, base.epochs // 2)) - left(base.epochs) if base.epochs > 1 else 1.0
    unknown = _Unknown(
        mean=(base.score, 0.0, 0.0, 1.0),
        spread=(spread, spread / second_half, RESTART_SPREAD[0] * delta + RESTART_SPREAD[1] * gained, FACTOR_SPREAD),
        size=len(noise),
    )
    if curve.reference is not None:
        # A pretrained reference is the network that is pruned: no other training is compared with it.
        beyond = 0.0 if curve.reference.kind == "pretrained" else TRAINING_NOISE
        unknown.observe(curve.reference.score, noise * math.hypot(1.0, beyond), dense=1.0)
    if curve.reference is None or base.density == 1:
        for point in unpruned(curve):
            score, error = (level, MIN_NOISE * delta) if point is base else (point.score, noise)
            is_single = point.epochs < base.epochs
            unknown.observe(score, error, dense=1.0, slope=-left(point.epochs), restart=0.0 if is_single else -1.0)
    else:
        level = curves.at(1.0)  # the network before pruning is sparser than the reference
    for point in finished:
        gap = np.clip(level - curves.at(point.density), 0.0, MAX_GAP * delta)
        unknown.observe(point.score, noise, dense=1.0, slope=-left(point.epochs), restart=-1.0, factor=-gap)
    slope, factor = unknown.draw(SLOPE, 0.0), unknown.draw(FACTOR, MIN_FACTOR)
    restart, dense = unknown.draw(RESTART), unknown.draw(DENSE)
    lost = restart + (slope * left(finished[-1].epochs) if finished else 0.0)
    outcomes = FullTraining(
        dense=dense,
        noise=noise,
        curves=curves,
        level=level,
        factor=factor,
        lost=lost,
    )
    return _Weighted(outcomes=outcomes, log_weight=unknown.log_weight)


def _resampled(log_weight: FloatArray, num: int) -> NDArray[np.intp]:
    """Draw in proportion to the weights, by systematic resampling."""
    cumulative = np.cumsum(np.exp(log_weight - log_weight.max()))
    kept: NDArray[np.intp] = np.searchsorted(cumulative, (np.arange(num) + 0.5) / num * cumulative[-1])
    return kept


class _Unknown:
    """Normal distributions of the four numbers, one per curve, updated score by score."""

    def __init__(self, mean: tuple[float, ...], spread: tuple[float, ...], size: int) -> None:
        self._mean = np.tile(np.array(mean), (size, 1))
        self._covariance = np.tile(np.diag(np.square(spread)), (size, 1, 1))
        self.log_weight = np.zeros(size)
        self._random = np.random.default_rng(1)

    def observe(
        self,
        score: FloatArray | float,
        noise: FloatArray | float,
        *,
        dense: float,
        slope: FloatArray | float = 0.0,
        restart: float = 0.0,
        factor: FloatArray | float = 0.0,
    ) -> None:
        """Take a noisy score into account: a linear combination of the numbers."""
        row = np.stack(np.broadcast_arrays(dense, slope, restart, factor, self.log_weight)[:4], axis=1)
        error, variance = self._update(row, score, np.square(noise))
        self.log_weight -= (error**2 / variance + np.log(variance)) / 2

    def draw(self, which: int, lowest: float = -math.inf) -> FloatArray:
        """Draw one of the numbers, no lower than given; those drawn later fit it."""
        mean, spread = self._mean[:, which], np.sqrt(np.maximum(self._covariance[:, which, which], _TINY))
        above = (mean - lowest) / spread
        self.log_weight += log_ndtr(above)
        tail = np.maximum((1 - self._random.random(len(mean))) * ndtr(above), _TINY)
        value: FloatArray = np.maximum(mean - spread * ndtri(tail), lowest)
        self._update(np.tile(np.eye(4)[which], (len(mean), 1)), value, 0.0)
        return value

    def _update(
        self, row: FloatArray, value: FloatArray | float, noise: FloatArray | float
    ) -> tuple[FloatArray, FloatArray]:
        along = np.einsum("nij,nj->ni", self._covariance, row)
        variance = np.sum(row * along, axis=1) + noise
        error = value - np.sum(row * self._mean, axis=1)
        gain = along / variance[:, None]
        self._mean += gain * error[:, None]
        self._covariance -= gain[:, :, None] * along[:, None, :]
        return error, variance
