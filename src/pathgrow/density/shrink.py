"""The rule of grow-train-shrink: prune a trained network in rounds, and read where its score has dropped by delta.

Every point of the curve is a network that exists, and the same weights continue from one to the next, so neighbours
differ by one small step. What the rounds do not measure is inferred (`full_training.py`): from the finished networks,
how far the score of a density moves between a short round and a full training; from its learning curve, the score of
the dense network after a full training, if it is neither given nor trained.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pathgrow.density.estimate import (
    LEVEL,
    DensityEstimate,
    expected_noise,
    is_compared_directly,
    pruned_curve,
    quantiles,
    still_learns,
    unpruned,
)
from pathgrow.density.full_training import MIN_NOISE, FullTraining, infer
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

MAX_ROUNDS = 14
CLEARLY = 1.28
"""Standard errors by which a network has to be further below an estimated dense score than delta to have missed it: the
90% level, as for intervals."""
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
MAX_SAMPLING = 2.0
"""Standard error of a difference between two accuracies, at most, as a multiple of that of two independent samples."""
LAST = 0.25
"""Fraction of the budget that the last training of a network takes, at least."""
MAX_FINISHED = 4
"""Pruned networks that are trained fully, at most."""
FIRST = 0.2
"""Density of the first one if rounds say too little, relative to the network before pruning."""
USUAL_SHAPE = 0.5
"""Exponent of the power law by which its gap to dense tells where the second one has to be."""
AWAY = 1.5
"""Ratio of the two, at least."""
MAX_FIRST_CUT = 0.25
"""How far below the first one that may be, as a ratio."""
MAX_COMPARED_DENSITY = 0.9
"""How dense, relative to the network before pruning: denser ones are hardly sparse."""
MAX_COMPARED = 6
"""Fully trained networks in that case, at most."""
SPARSER = 0.6
"""Density of the sparser one of the first two, relative to the other."""
CONTROL = 0.25
"""By how much a control has to narrow the estimate of the dense score (its standard deviation, in units of delta)."""
LIKELY = 0.2
"""The sparser one is trained if the answer is that low with at least this probability."""
AIM = 0.85
"""Expected loss of the returned network in units of delta, if the dense score is estimated: of several noisy networks
the chosen one is usually worse than it looks."""
TOO_MUCH = 2.0
"""How much better than the pruned network one without pruning has to be, in units of delta, to be returned instead."""
_LONGER = 1.2
"""Ratio of two lengths of training up to which they count as equal."""
DENSITIES = tuple(np.geomspace(0.005, 1.0, 200).tolist())
"""Candidates for the density to return."""


Outcome = Literal["verified", "consistent", "missed", "not verified"]
"""How the returned network compares with dense. Against a given or trained score: verified if it is within delta,
consistent if two standard errors allow it, otherwise missed. Against an estimate: consistent if it is within delta,
missed if the 90% level excludes it, otherwise not verified."""


INITIAL = -1
"""Number of the network with its initial weights."""


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
        if is_compared_directly(curve, self.delta):
            return None
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

    def candidates(self, curve: Curve, *, cost: Callable[[float], float], left: float) -> list[NextRound]:
        """The networks to train fully next, which may be trained together; empty if enough is known.

        The first ones are the network of the density read from the rounds, a sparser one, in case that turns out to be
        enough, and the network without pruning, a control, if the dense score is uncertain without it. Later ones
        follow if the answer has moved away from these. `cost` is what training a network of some density costs, and
        `left` what may be spent; only a first pruned network is trained in any case.
        """
        base, estimate, pruned = curve.rough[-1], self._estimate(curve), self._sparse(curve)
        is_direct = is_compared_directly(curve, self.delta)
        if is_direct and estimate is None:
            return self._next_compared(curve, cost, left)
        control = NextRound(start=base.round, density=base.density)
        if estimate is None:
            return [] if curve.finished else [control]
        if pruned:
            affordable = max((density for density in DENSITIES if cost(density) <= left), default=0.0)
            most = MAX_COMPARED if is_direct else MAX_FINISHED
            later = self._later(curve, affordable) if len(pruned) < most else None
            return [] if later is None else [later]
        wanted = float(np.clip(self._most_telling(curve), estimate.lowest, estimate.densest.density))
        chosen = [self.pruned_from(curve, wanted)]
        if self._needs_control(curve) and wanted < base.density and cost(wanted) + cost(base.density) <= left:
            chosen.insert(0, control)
        elif self.is_too_short(curve):
            return [self.pruned_from(curve, estimate.densest.density)]
        sparser = max(SPARSER * wanted, estimate.lowest)
        is_likely = np.mean(self._outcomes(curve).within(self.delta) <= STEP * sparser) >= LIKELY
        left -= cost(sparser) + sum(cost(one.density) for one in chosen)
        # With a reference an answer is accurate enough to go one by one.
        if curve.reference is None and is_likely and sparser * STEP < wanted and left >= 0:
            chosen.append(self.pruned_from(curve, sparser))
        return chosen

    def _next_compared(self, curve: Curve, cost: Callable[[float], float], left: float) -> list[NextRound]:
        """The first networks that are compared with the reference, one after the other, as the cost limit allows.

        The gap of one tells where about the next one has to be. Once there is a curve, `_later` follows it.
        """
        whole, pruned = curve.rough[-1].density, self._sparse(curve)
        density = FIRST * whole if not pruned else self._by_power_law(curve, pruned[-1])
        if pruned and (len(pruned) >= MAX_COMPARED or cost(density) > left):
            return []
        return [self.pruned_from(curve, density)]

    def _by_power_law(self, curve: Curve, network: Point) -> float:
        """The density that loses delta if gaps to dense follow a usual power law through one network."""
        assert curve.reference is not None
        whole = curve.rough[-1].density
        gap = max(curve.reference.score - network.score, MIN_NOISE * self.delta)
        scale = gap / ((network.density / whole) ** -USUAL_SHAPE - 1)
        density = whole * (1 + self.delta / scale) ** (-1 / USUAL_SHAPE)
        if 1 / AWAY < density / network.density < AWAY:  # two points side by side make no curve
            density = network.density * (AWAY if gap > self.delta else 1 / AWAY)
        return float(
            np.clip(density, max(MAX_FIRST_CUT * network.density, self.min_density), MAX_COMPARED_DENSITY * whole)
        )

    def _later(self, curve: Curve, affordable: float) -> NextRound | None:
        """A network that is denser or much sparser than the finished ones, if the answer has moved there."""
        base, finished, wanted = curve.rough[-1], self._sparse(curve), self._wanted(curve)
        lowest, highest = (least(point.density for point in finished) for least in (min, max))
        if is_compared_directly(curve, self.delta) and self._may_be_below(curve, lowest):
            sparser = max(MAX_CUT * lowest, self.min_density)
            return self.pruned_from(curve, sparser) if sparser <= affordable and sparser * STEP < lowest else None
        missed = [point.density for point in finished if self._misses(curve, point)]
        wanted = max(wanted, *(STEP * density for density in missed), MAX_CUT * lowest)
        if len(missed) == len(finished):
            wanted = min(wanted, max(missed) / MAX_CUT**2)  # the curve is not trusted far from finished networks
        wanted = min(wanted, base.density)
        if wanted >= STEP * highest:
            wanted = min(wanted, affordable)
            is_step = wanted >= STEP * highest
        elif curve.reference is None:
            is_step = wanted <= min(lowest / STEP, affordable)
        else:
            is_step = wanted <= affordable
        known = [point.density for point in curve.finished]
        if is_compared_directly(curve, self.delta):
            known.append(base.density)  # a sparse network is asked for, and the reference is dense already
        if not is_step or any(1 / _CLOSE <= density / wanted <= STEP for density in known):
            return None
        return self.pruned_from(curve, wanted)

    def _may_be_below(self, curve: Curve, density: float) -> bool:
        """Whether the answer may be so low that a sparser network has to be trained."""
        return float(np.mean(self._outcomes(curve).within(self.delta) <= density)) > LEVEL[0]

    def pruned_from(self, curve: Curve, density: float) -> NextRound:
        """The network that is pruned to a density: the sparsest that is dense enough.

        What was trained longest goes first. A network that is compared with another training has to end with as many
        epochs, however, so it continues from one that leaves at least a quarter of these. If only fully trained
        networks are compared, it is trained like the dense baseline, from the initial weights: a restart of the
        learning rate may cost more than delta.
        """
        base, latest = curve.rough[-1], math.inf
        if base.density == 1 and is_compared_directly(curve, self.delta):
            return NextRound(start=INITIAL, density=density)
        if curve.reference is not None and curve.reference.kind != "pretrained" and curve.full_epochs is not None:
            latest = (1 - LAST) * curve.full_epochs
        for visited in (self._sparse(curve), (base, *curve.probes)):
            enough = [p for p in visited if p.density >= density and (p.epochs <= latest or p is base)]
            if enough:
                return NextRound(start=min(enough, key=lambda point: point.density).round, density=density)
        raise AssertionError("the trained network is at least as dense as any candidate")

    def select(self, curve: Curve) -> Point:
        """The network to return: the sparsest at the answer or not far below it that does not miss.

        If there is none, it is the densest one that was pruned. Networks that score much lower than the one without
        pruning are left out; if all do, that one is returned. Beside a measured dense score, networks whose own score
        is within delta go first.
        """
        base = curve.rough[-1]
        dense = (base, *(point for point in curve.finished if point.density == base.density))
        whole = max(dense, key=lambda point: (point.score, point.epochs))
        best = whole.score
        if curve.reference is not None and curve.reference.kind == "dense":
            best = max(best, curve.reference.score)  # the baseline can be returned too
        pruned = [p for p in self._sparse(curve) if best - p.score <= TOO_MUCH * self.delta]
        if not pruned:
            return whole
        wanted = self._sparsest_within(curve) if self._estimate(curve) is None else self._wanted(curve)
        enough = [p for p in pruned if p.density * _CLOSE >= wanted and not self._misses(curve, p)]
        if curve.reference is not None:
            target = curve.reference.score - self.delta
            enough = [p for p in enough if p.score >= target] or enough
        if enough:
            return min(enough, key=lambda point: point.density)
        return max(pruned, key=lambda point: point.density)

    def _sparsest_within(self, curve: Curve) -> float:
        """The lowest density of a finished network that is within delta of the reference; 1 if there is none."""
        if curve.reference is None:
            return 1.0
        target = curve.reference.score - self.delta
        return min((point.density for point in self._sparse(curve) if point.score >= target), default=1.0)

    def check(self, curve: Curve, network: Point, *, within: float | None = None) -> Check | None:
        """How a fully trained network compares with dense; None if too little is known.

        `within` is another tolerance than delta: the difference is the same, the outcome may be another.
        """
        delta = self.delta if within is None else within
        if self._estimate(curve) is not None:
            gap = self._shortfall(curve, network)
            shortfall, error = float(np.mean(gap)), float(np.std(gap))
        elif curve.reference is not None:  # too few networks for a curve, and so for its noise
            shortfall = curve.reference.score - network.score
            error = math.sqrt(2) * expected_noise(curve, self.delta)
        else:
            return None
        rate = abs(network.score)
        if curve.reference is not None and curve.num_val is not None and 0 < rate < 1:
            # A curve that does not fit makes scores look noisier than they can be.
            error = min(error, MAX_SAMPLING * math.sqrt(2 * rate * (1 - rate) / curve.num_val))
        if curve.reference is not None:
            outcome: Outcome = "consistent" if shortfall - 2 * error <= delta else "missed"
            outcome = "verified" if shortfall <= delta else outcome
            if outcome != "missed" and self._is_longer(curve, network):
                outcome = "not verified"
        else:
            outcome = "consistent" if shortfall <= delta else "not verified"
            outcome = "missed" if shortfall - CLEARLY * error > delta else outcome
            if self.is_too_short(curve, delta) or (outcome == "consistent" and curve.rough[-1].density < 1):
                outcome = "not verified"  # a network that held fewer weights tells little of the dense one
        return Check(outcome=outcome, shortfall=shortfall, error=error)

    def decide(self, curve: Curve) -> Stop:
        """A rule that reads a trained network has nothing to say about growth."""
        return Stop(reason=Reason.SHRUNK, details={"rounds": len(curve.probes)})

    def answer(self, curve: Curve, *, within: float | None = None) -> Answer:
        """The smallest density within delta of dense after full training, with its credible interval.

        `within` is another tolerance. What full trainings lead to is inferred in units of this rule's delta in any
        case, so that all tolerances are relative to one dense score, and a larger one never needs a higher density.
        """
        delta = self.delta if within is None else within
        answer = open_answer(self.name, delta, curve, self.decide(curve))
        if not curve.rough or (estimate := self._estimate(curve)) is None:
            return answer
        base, densities = curve.rough[-1], self._outcomes(curve).within(delta)
        lowest = min(estimate.lowest, *(point.density for point in (base, *curve.finished)))
        low, density, high = quantiles(densities, LEVEL)
        dense = self._dense(curve)
        answer = replace(
            answer,
            reference=curve.reference or Reference(score=float(np.median(dense)), kind="estimated"),
            details={
                **answer.details,
                "returned_for": self._wanted(curve),
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
        if self.is_too_short(curve, delta) or (low <= lowest and high > base.density):
            return answer  # anything is possible
        if any(self._is_longer(curve, point) for point in curve.finished):
            return answer
        if density * STEP <= lowest:
            return replace(answer, status="flat", interval=(0.0, max(interval[1], lowest)))
        if density > base.density:
            return replace(answer, status="unreached") if low > base.density else answer
        return replace(answer, status="found", density=density, interval=interval)

    def _is_longer(self, curve: Curve, network: Point) -> bool:
        """Whether a network that is compared directly was trained longer than the reference: `fit` was called again.

        Where training still gains much, that hides what pruning costs.
        """
        if curve.reference is None or curve.reference.epochs is None or not is_compared_directly(curve, self.delta):
            return False
        return network.epochs > _LONGER * curve.reference.epochs

    def _misses(self, curve: Curve, network: Point) -> bool:
        check = self.check(curve, network)
        return check is not None and check.outcome == "missed"

    def _estimate(self, curve: Curve) -> DensityEstimate | None:
        return pruned_curve(curve, self.delta) if curve.rough else None

    def _outcomes(self, curve: Curve) -> FullTraining:
        outcomes = infer(curve, self.delta)
        assert outcomes is not None, "there is a curve through the rounds"
        return outcomes

    def _dense(self, curve: Curve) -> FloatArray:
        """Score of the dense network after full training, one entry per outcome."""
        outcomes = self._outcomes(curve)
        if curve.reference is None:
            # No accuracy exceeds 1, and no error rate (which comes with a minus sign) 0.
            best = math.inf if curve.num_val is None else float(curve.rough[-1].score > 0)
            return np.minimum(outcomes.dense, best)
        return curve.reference.score + outcomes.noise * np.random.default_rng(0).standard_normal(len(outcomes.noise))

    def _wanted(self, curve: Curve) -> float:
        """The density to return: after a short training as high as possible, since nothing tells what is enough."""
        return 1.0 if self.is_too_short(curve) else self._expected(curve)

    def _expected(self, curve: Curve) -> float:
        """The smallest density at which a finished network is expected to lose a little less than delta."""
        outcomes = self._outcomes(curve)
        aim = self.delta if curve.reference is not None else AIM * self.delta
        enough = (density for density in DENSITIES if outcomes.shortfall(density) <= aim)
        return next(enough, 1.0)

    def _most_telling(self, curve: Curve) -> float:
        """The density of the first pruned network: the answer so far, if that is below what is safe to return.

        A network near the answer narrows it most. If it loses too much, a denser one follows.
        """
        return min(self._expected(curve), quantiles(self._outcomes(curve).within(self.delta), LEVEL)[1])

    def is_too_short(self, curve: Curve, delta: float | None = None) -> bool:
        """Whether the network without pruning may just have begun to learn, for all that is known."""
        return curve.reference is None and still_learns(curve, delta or self.delta)

    def _needs_control(self, curve: Curve) -> bool:
        """Whether the network without pruning is worth a full training too.

        It is if its score, as noisy as any other, would narrow the estimate of the dense score by a good part of delta.
        """
        if curve.reference is not None or len(unpruned(curve)) != 2:
            return False
        outcomes = self._outcomes(curve)
        spread, noise = float(np.std(outcomes.dense)), float(np.mean(outcomes.noise))
        narrowed = spread * noise / math.hypot(spread, noise)
        return spread - narrowed > CONTROL * self.delta

    def _sparse(self, curve: Curve) -> list[Point]:
        return [point for point in curve.finished if point.density < curve.rough[-1].density]

    def _shortfall(self, curve: Curve, network: Point) -> FloatArray:
        """How far a fully trained network is below dense, one entry per outcome."""
        noise = self._outcomes(curve).noise
        seed = round(1e6 * network.density)
        shortfall: FloatArray = (
            self._dense(curve) - network.score + noise * np.random.default_rng(seed).standard_normal(len(noise))
        )
        return shortfall
