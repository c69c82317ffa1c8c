"""The rule of grow-train-shrink: prune a trained network in rounds, and read where its score has dropped by delta.

Every point of the curve is a network that exists, and the same weights continue from one to the next, so neighbours
differ by one small step. What is not measured by the rounds is measured by the finished networks: how far the score of
a density moves between a short round and a full training. The dense network after a full training, if it is neither
given nor trained, is bracketed: its score is at least that of the trained network, and the second half of a training
gains no more than the two quarters before it did from one to the other.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr

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

QUANTILE = 0.5
"""Posterior quantile of the density that is finished and reported; a miss is found out and made up for."""
MAX_ROUNDS = 14
OPEN = 0.1
"""Probability of an answer below the sparsest network at which pruning goes on."""
NARROW = 1.6
"""Ratio of the densities around the crossing at which they are close enough."""
STEP = 1.2
"""Smallest ratio of the densities of two networks that are both trained fully."""
MAX_CUT = 0.5
"""How far below the sparsest of them the next one may be, as a ratio."""
MAX_FINISHED = 4
LEAST_GAIN = 0.5
"""Doubling the length of a training gains between this fraction and all of what the doubling before it gained: scores
approach their limit as a power of the length, with an exponent of 1 at most."""

Outcome = Literal["verified", "consistent", "missed", "not verified"]
"""How the returned network compares with dense. Against a score that was given or trained: verified if it is within
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
    first_prune_fraction: float = 0.6
    """Fraction of the weights that the first round prunes: that much is rarely needed."""
    prune_fraction: float = 0.37
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
        if estimate is None or num_below < 2 or estimate.share_below > OPEN:
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
        if estimate is None:
            return None if curve.finished else NextRound(start=base.round, density=base.density)
        # The curve is not trusted far below the networks that were trained fully.
        lowest = min((MAX_CUT * point.density for point in curve.finished), default=estimate.lowest)
        wanted = min(max(quantiles(self._densities(curve, estimate), (QUANTILE,))[0], lowest), base.density)
        is_close = any(1 / STEP <= point.density / wanted <= STEP for point in curve.finished)
        if is_close or len(curve.finished) >= MAX_FINISHED:
            return None
        visited = (base, *curve.probes, *curve.finished)
        start = min((point for point in visited if point.density >= wanted), key=lambda point: point.density)
        return NextRound(start=start.round, density=wanted)

    def select(self, curve: Curve) -> Point:
        """The fully trained network to return: the sparsest at the answer or not far below it, else the densest."""
        estimate = self._estimate(curve)
        wanted = 1.0 if estimate is None else quantiles(self._densities(curve, estimate), (QUANTILE,))[0]
        enough = [point for point in curve.finished if point.density * STEP >= wanted]
        return min(enough or curve.finished, key=lambda p: p.density if enough else -p.density)

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
        low, median, high = quantiles(densities, LEVEL)
        density = quantiles(densities, (QUANTILE,))[0]
        dense = self._dense(curve, estimate)
        answer = replace(
            answer,
            reference=curve.reference or Reference(score=float(np.median(dense)), kind="estimated"),
            details={
                **answer.details,
                "quantile": QUANTILE,
                "median_density": median if median <= 1 else None,
                "lowest": estimate.lowest,
                "densest": base.density,
                "end_score": base.score,
                "dense_low": quantiles(dense, LEVEL)[0],
                "dense_high": quantiles(dense, LEVEL)[-1],
                "share_below": float(np.mean(densities <= estimate.lowest)),
                "share_above": float(np.mean(densities > base.density)),
            },
        )
        interval = (low if low > estimate.lowest else 0.0, min(high, base.density))
        if low <= estimate.lowest and high > base.density:
            return answer  # anything is possible
        if density <= estimate.lowest:
            return replace(answer, status="flat", interval=(0.0, max(interval[1], estimate.lowest)))
        if density > base.density:
            return replace(answer, status="unreached")
        return replace(answer, status="found", density=density, interval=interval)

    def _estimate(self, curve: Curve) -> DensityEstimate | None:
        """The curve through the pruned networks; it may or may not end at the score of the trained one."""
        base = Reference(score=curve.rough[-1].score, kind="densest")
        noise = None
        if curve.num_val is not None and 0 < base.score < 1:
            # Two networks that make as many mistakes make about two thirds of them on the same examples.
            noise = math.sqrt(base.score * (1 - base.score) / (3 * curve.num_val))
        return estimate_from_points(curve.probes, self.delta, base, noise_hint=noise, num_val=curve.num_val)

    def _dense(self, curve: Curve, estimate: DensityEstimate) -> FloatArray:
        """Score of the dense network after full training, one entry per posterior curve."""
        if curve.reference is not None:
            return curve.reference.score + estimate.curves.noise * estimate.curves.reference_z
        before, base = (curve.rough[-2] if len(curve.rough) > 1 else None), curve.rough[-1]
        if before is None or before.density != base.density:
            return estimate.level
        share = LEAST_GAIN + (1 - LEAST_GAIN) * ndtr(estimate.curves.gap_z)
        gain: FloatArray = max(0.0, base.score - before.score) * share
        return estimate.level + gain

    def _densities(self, curve: Curve, estimate: DensityEstimate) -> FloatArray:
        """The answer on each posterior curve."""
        if not curve.finished:
            return estimate.delta_density  # relative to the trained network: nothing is known about full training yet
        # How far a full training moves the scores; the average, since each is as noisy as the points of the curve.
        gaps = [self._shortfall(curve, estimate, p) + estimate.curves.at(p.density) for p in curve.finished]
        return estimate.curves.reach(np.mean(gaps, axis=0) - self.delta)

    def _shortfall(self, curve: Curve, estimate: DensityEstimate, network: Point) -> FloatArray:
        """How far a fully trained network is below dense, one entry per posterior curve."""
        noise = np.random.default_rng(round(1e6 * network.density)).standard_normal(len(estimate.level))
        shortfall: FloatArray = self._dense(curve, estimate) - network.score + estimate.curves.noise * noise
        return shortfall
