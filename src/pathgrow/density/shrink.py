"""The rule of grow-train-shrink: prune a trained network in rounds, and read where its score has dropped by delta.

Every point of the curve is a network that exists, and the same weights continue from one to the next, so neighbours
differ by one small step. What is not measured by the rounds is measured by the finished networks: how far the score of
a density moves between a short round and a full training. The dense network after a full training, if it is neither
given nor trained, is extrapolated from its last two scores by a power law of the epochs with an exponent between 0 and
1, the range of published learning curves: doubling a training gains from half to all of what the last doubling did.
"""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import expit, ndtr

from pathgrow.density.estimate import LEVEL, DensityEstimate, estimate_from_points, quantiles
from pathgrow.density.types import (
    DEFAULT_DELTA,
    Answer,
    Curve,
    FloatArray,
    Point,
    Reason,
    Reference,
    Stop,
    check_delta,
    open_answer,
)
from pathgrow.errors import require

_QUANTILE = 0.6
"""Posterior quantile of the density that is finished and reported. The median is about a fifth too low if one score is
as noisy as a third of delta (tests/density/test_shrink.py)."""
MAX_ROUNDS = 14
OPEN = 0.1
"""Probability of an answer below the sparsest network at which pruning goes on."""
NARROW = 2.0
"""Ratio of the densities around the crossing at which they are close enough."""
STEP = 1.2
"""A fully trained network up to this factor denser than the answer is close enough to it."""
_CLOSE = 1.1
"""The same for one that is sparser than the answer."""
MAX_CUT = 0.5
"""How far below the sparsest of them the next one may be, as a ratio."""
MAX_FINISHED = 4
MAX_FACTOR = 10.0
"""Largest factor by which a full training can change the gaps between networks."""

Outcome = Literal["verified", "consistent", "missed", "not verified"]
"""How the returned network compares with dense. Against a given or trained score: verified if it is within
delta, consistent if two standard errors allow it, otherwise missed. Against an estimate: consistent if it is within
delta, missed if two standard errors exclude it, otherwise not verified."""


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """A network to prune, by its number on the trunk, and the density to prune it to."""

    start: int
    density: float


@dataclass(frozen=True, kw_only=True)
class Check:
    """The returned network beside the dense one."""

    outcome: Outcome
    shortfall: float
    """Score of the dense network minus that of the returned one."""
    error: float
    """Standard error of `shortfall`."""


@dataclass(frozen=True, kw_only=True)
class ShrinkRule:
    """Prune a trained network in rounds, and read where its score has dropped by delta.

    The last of `Curve.rough` is the trained network; the point before it, if it has the same density, is the same
    network after half of that training. `Curve.probes` are the pruned networks, `Curve.finished` the fully trained
    ones.
    """

    delta: float = DEFAULT_DELTA
    first_prune_fraction: float = 0.7
    """Fraction of the weights that the first round prunes: that much is rarely needed."""
    prune_fraction: float = 0.45
    """The same for later rounds."""
    min_density: float = 0.005
    name: str = field(default="shrink", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        for name in ("first_prune_fraction", "prune_fraction", "min_density"):
            require(0 < getattr(self, name) < 1, name, getattr(self, name), "in (0, 1)", 0.4)

    def next_round(self, curve: Curve) -> NextRound | None:
        """The next network to prune; None if the crossing is bracketed closely, or out of reach."""
        base, target = curve.rough[-1], curve.rough[-1].score - self.delta
        visited = sorted((base, *curve.probes), key=lambda point: -point.density)
        if len(curve.probes) >= MAX_ROUNDS:
            return None
        last, estimate = visited[-1], self._estimate(curve)
        is_far_below = last.score < target - 2 * self.delta
        num_below = sum(point.score < target for point in curve.probes)
        if estimate is None or num_below == 0 or estimate.share_below > OPEN:
            fraction = self.prune_fraction if curve.probes else self.first_prune_fraction
            density = last.density * (1 - fraction)
            if not is_far_below and density >= self.min_density:
                return NextRound(start=last.round, density=density)
        below = next((k for k, point in enumerate(visited) if point.score < target), None)
        if below is None or below == 0:
            return None
        above = visited[below - 1]
        if above.density / visited[below].density <= NARROW and estimate is not None:
            return None
        return NextRound(start=above.round, density=math.sqrt(above.density * visited[below].density))

    def candidate(self, curve: Curve) -> NextRound | None:
        """The next network to train fully; None if one is close to the answer."""
        base, estimate = curve.rough[-1], self._estimate(curve)
        if estimate is None or self._needs_control(curve):
            return None if curve.finished else NextRound(start=base.round, density=base.density)
        finished, wanted = self._sparse(curve), quantiles(self._densities(curve, estimate), (_QUANTILE,))[0]
        if finished:
            # The curve is not trusted far below the networks that were trained fully.
            lowest = [STEP * point.density for point in finished if self._misses(curve, point)]
            wanted = max(wanted, *lowest, min(MAX_CUT * point.density for point in finished))
        else:
            # Between the density that is within delta of the trained network and the one that is, after its short
            # round, already within delta of dense: full training makes up for some of the difference.
            safe = quantiles(estimate.curves.reach(self._dense(curve, estimate) - self.delta), (_QUANTILE,))[0]
            wanted, safe = np.clip((wanted, safe), estimate.lowest, estimate.densest.density)
            wanted = math.sqrt(wanted * safe)
        wanted = min(wanted, base.density)
        is_close = any(1 / _CLOSE <= point.density / wanted <= STEP for point in curve.finished)
        if is_close or len(finished) >= MAX_FINISHED:
            return None
        # What was trained longest is pruned further, if it is dense enough.
        for visited in (finished, (base, *curve.probes)):
            if enough := [point for point in visited if point.density >= wanted]:
                return NextRound(start=min(enough, key=lambda point: point.density).round, density=wanted)
        raise AssertionError("the trained network is at least as dense as any candidate")

    def select(self, curve: Curve) -> Point:
        """The fully trained network to return: the sparsest at the answer or not far below it that does not miss.

        If there is none, it is the densest one that was pruned.
        """
        estimate, pruned = self._estimate(curve), self._sparse(curve)
        wanted = 1.0 if estimate is None else quantiles(self._densities(curve, estimate), (_QUANTILE,))[0]
        enough = [p for p in pruned if p.density * _CLOSE >= wanted and not self._misses(curve, p)]
        if enough:
            return min(enough, key=lambda point: point.density)
        return max(pruned or curve.finished, key=lambda point: point.density)

    def check(self, curve: Curve, network: Point) -> Check | None:
        """How a fully trained network compares with dense; None if too little is known."""
        if (estimate := self._estimate(curve)) is None:
            return None
        gap = self._shortfall(curve, estimate, network)
        shortfall, error = float(np.mean(gap)), float(np.std(gap))
        if curve.reference is not None:
            within = shortfall <= self.delta
            outcome: Outcome = (
                "verified" if within else "consistent" if shortfall - 2 * error <= self.delta else "missed"
            )
        else:
            outcome = "consistent" if shortfall <= self.delta else "not verified"
            outcome = "missed" if shortfall - 2 * error > self.delta else outcome
        return Check(outcome=outcome, shortfall=shortfall, error=error)

    def decide(self, curve: Curve) -> Stop:
        """A rule that reads a trained network has nothing to say about growth."""
        return Stop(reason=Reason.SHRUNK, details={"rounds": len(curve.probes)})

    def answer(self, curve: Curve) -> Answer:
        """The smallest density within delta of dense after full training, with its credible interval."""
        answer = open_answer(self.name, self.delta, curve, self.decide(curve))
        if not curve.rough or (estimate := self._estimate(curve)) is None:
            return answer
        base, densities = curve.rough[-1], self._densities(curve, estimate)
        lowest = min(estimate.lowest, *(point.density for point in (base, *curve.finished)))
        low, median, high = quantiles(densities, LEVEL)
        density = quantiles(densities, (_QUANTILE,))[0]
        dense = self._dense(curve, estimate)
        answer = replace(
            answer,
            reference=curve.reference or Reference(score=float(np.median(dense)), kind="estimated"),
            details={
                **answer.details,
                "quantile": _QUANTILE,
                "median_density": median if median <= 1 else None,
                "lowest": lowest,
                "densest": base.density,
                "end_score": base.score,
                "dense_low": quantiles(dense, LEVEL)[0],
                "dense_high": quantiles(dense, LEVEL)[-1],
                "share_below": float(np.mean(densities <= lowest)),
                "share_above": float(np.mean(densities > base.density)),
            },
        )
        interval = (low if low > lowest else 0.0, min(high, base.density))
        if low <= lowest and high > base.density:
            return answer  # anything is possible
        if density * _CLOSE <= lowest:
            return replace(answer, status="flat", interval=(0.0, max(interval[1], lowest)))
        if density > base.density:
            return replace(answer, status="unreached")
        return replace(answer, status="found", density=density, interval=interval)

    def _misses(self, curve: Curve, network: Point) -> bool:
        check = self.check(curve, network)
        return check is not None and check.outcome == "missed"

    def _estimate(self, curve: Curve) -> DensityEstimate | None:
        return _through(curve.probes, curve.rough[-1].score, self.delta, curve.num_val)

    def _dense(self, curve: Curve, estimate: DensityEstimate) -> FloatArray:
        """Score of the dense network after full training, one entry per posterior curve."""
        noise = estimate.curves.noise * estimate.curves.reference_z
        if curve.reference is not None:
            return curve.reference.score + noise
        level = estimate.level if len(self._unpruned(curve)) < 3 else self._unpruned(curve)[-1].score + noise
        return level + max(0.0, self._last_gain(curve)) * self._gain_ratio(curve, ndtr(estimate.curves.gap_z))

    def _densities(self, curve: Curve, estimate: DensityEstimate) -> FloatArray:
        """The answer on each posterior curve."""
        finished, curves = self._sparse(curve), estimate.curves
        if not finished:
            return estimate.delta_density  # relative to the trained network: nothing is known about full training yet
        # Further training may scale the gaps to dense, or shift all of them (such as what restarts of the learning rate
        # cost). With one finished network both explain it; with more, the more likely one is drawn more often.
        after = np.stack([self._shortfall(curve, estimate, point) for point in curve.finished])
        before = np.stack([estimate.level - curves.at(point.density) for point in curve.finished])
        shift = np.mean(after - before, axis=0)
        largest = np.maximum(np.sum(before**2, axis=0), curves.noise**2)
        factor = np.clip(np.sum(before * after, axis=0) / largest, 1 / MAX_FACTOR, MAX_FACTOR)
        misfit = [np.sum((after - m) ** 2, axis=0) / (4 * curves.noise**2) for m in (factor * before, before + shift)]
        is_scaled = np.random.default_rng(1).random(len(factor)) < expit(misfit[1] - misfit[0])
        return curves.reach(estimate.level - np.where(is_scaled, self.delta / factor, self.delta - shift))

    def _needs_control(self, curve: Curve) -> bool:
        """Whether the network without pruning has to be trained fully too, since it still improves by more than delta.

        Otherwise what a full training gains would be a guess that is larger than the tolerance.
        """
        return curve.reference is None and len(self._unpruned(curve)) == 2 and self._last_gain(curve) > self.delta

    def _last_gain(self, curve: Curve) -> float:
        """What the last phase of the network without pruning gained."""
        scores = [point.score for point in self._unpruned(curve)]
        return scores[-1] - scores[-2] if len(scores) > 1 else 0.0

    def _gain_ratio(self, curve: Curve, exponent: FloatArray) -> FloatArray:
        """What the rest of a full training gains over what the last phase did, if 1 - score falls as a power law."""
        if len(points := self._unpruned(curve)) < 2:
            return np.ones_like(exponent)  # no phase to compare with
        before, last = (-np.expm1(-exponent * math.log(p.epochs)) / exponent for p in points[-2:])
        end = -np.expm1(-exponent * math.log(max(curve.full_epochs or 0, points[-1].epochs))) / exponent
        ratio: FloatArray = (end - last) / (last - before)
        return ratio

    def _unpruned(self, curve: Curve) -> list[Point]:
        """The network without pruning after each of its trainings."""
        base = curve.rough[-1]
        return [point for point in (*curve.rough[-2:], *curve.finished) if point.density == base.density]

    def _sparse(self, curve: Curve) -> list[Point]:
        return [point for point in curve.finished if point.density < curve.rough[-1].density]

    def _shortfall(self, curve: Curve, estimate: DensityEstimate, network: Point) -> FloatArray:
        """How far a fully trained network is below dense, one entry per posterior curve."""
        noise = np.random.default_rng(round(1e6 * network.density)).standard_normal(len(estimate.level))
        shortfall: FloatArray = self._dense(curve, estimate) - network.score + estimate.curves.noise * noise
        return shortfall


@lru_cache(maxsize=8)  # each decision reads the same curve several times
def _through(points: tuple[Point, ...], end: float, delta: float, num_val: int | None) -> DensityEstimate | None:
    """The curve through the pruned networks; it may or may not end at the score of the trained one."""
    noise = None
    rate = abs(end)  # an error rate comes with a minus sign
    if num_val is not None and 0 < rate < 1:
        # Two networks that make as many mistakes make about two thirds of them on the same examples.
        noise = math.sqrt(rate * (1 - rate) / (3 * num_val))
    base = Reference(score=end, kind="densest")
    return estimate_from_points(points, delta, base, noise_hint=noise, num_val=num_val)
