"""The default rule: probe a few visited densities, and read the answer from the curve through the probes.

A growing network lags behind what its density could reach, by an unknown amount; an equally trained copy of it (a
probe) does not. So the trajectory only suggests how far to look, and probes decide:

1. Growth, which is cheap, continues until the trunk is well beyond the density at which its own trajectory flattens.
2. A first batch of probes is spread by ratio of densities, from the densest network down; if probes are short, the
   dense network is among them.
3. Then batches of one or two: the network that would be returned now (if it stays the answer, its probe is the first
   part of its final training and costs nothing), and those that are most informative about the answers for their cost.

Without a reference the whole search has to cost less than the dense training it replaces: three probes, growth up to
the answer and no further, a probe of the answer itself, and one more if that moved it. With a reference, probing
continues until both credible intervals are narrow, and growth until both answers are bracketed with a margin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pathgrow.density.estimate import (
    LEVEL,
    MIN_POINTS,
    DensityEstimate,
    allowed_gap,
    estimate_from_probes,
    gain_estimate,
    quantiles,
    trajectory_noise,
)
from pathgrow.density.posterior import PosteriorSamples
from pathgrow.density.types import (
    DENSE,
    Answer,
    Curve,
    Details,
    FloatArray,
    Grow,
    Point,
    Probe,
    Reason,
    SelectBy,
    Status,
    Stop,
    Verdict,
    check_delta,
    open_answer,
)
from pathgrow.errors import UserError, require

BASE_COST = 0.05
"""Cost of a probe beyond its density, in dense trainings: data loading, dense layers, kernel launches."""
MIN_INFORMATION = 0.03
"""A probe that would reduce the variance of an answer by less than this fraction is not worth its training."""
CLOSE = 1.1
"""If probes are short, densities within this factor count as equal: less growth is not worth a round and a probe."""
GROWTH_STEP = 1.25
"""Factor by which one growth step usually increases the density."""
DEEPEST = 3.0
"""How far below its end a curve is trusted, in units of its rise over the probed densities."""

Question = tuple[PosteriorSamples, FloatArray]
"""The posterior curves, and the logarithm of the answer on each of them."""


def probe_cost(points: Sequence[Point]) -> float:
    """Return the cost of probing these networks, in dense trainings of a probe's length."""
    return sum(point.density + BASE_COST for point in points)


def spread(visited: Sequence[Point], ratio: float, num: int) -> list[Point]:
    """Return `num` of the networks, the densest first and each next one sparser by about `ratio`.

    The ratio is smaller if the range is too short for it, and the list is shorter if there are too few networks.

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
    """Return the network whose density is nearest by ratio."""
    return min(points, key=lambda point: abs(math.log(point.density / density)))


def select_network(curve: Curve, answer: Answer, by: SelectBy = "delta") -> Point:
    """Return the visited network to return to the user: the sparsest that is dense enough for the answer.

    On a flat curve that is the sparsest of all; without an answer it is the densest.
    """
    density = answer.gain_density if by == "gain" else answer.density
    if density is not None:
        return sparsest_sufficient(curve, density)
    visited = sorted(curve.rough, key=lambda point: point.density)
    return visited[0] if answer.status == "flat" else visited[-1]


def sparsest_sufficient(curve: Curve, density: float) -> Point:
    """Return the sparsest visited network of at least this density; the densest if there is none.

    If probes are short, a network a little sparser is sufficient too, and a probed one is preferred to an unprobed one
    that is sparser by up to a growth step: it has been evaluated, and the first part of its training is done.

    >>> points = [Point(round=k, density=density, epochs=20, score=0.5) for k, density in enumerate([0.2, 0.25, 0.3])]
    >>> sparsest_sufficient(Curve(rough=tuple(points)), 0.203).round
    1
    >>> short = Curve(rough=tuple(points), probes=(points[2],), can_probe_dense=True)
    >>> [sparsest_sufficient(short, density).round for density in (0.203, 0.23, 0.245)]
    [0, 1, 2]
    """
    visited = sorted(curve.rough, key=lambda point: point.density)
    tolerance, step = (CLOSE, GROWTH_STEP) if curve.probes and curve.can_probe_dense else (1.0, 1.0)
    enough = [point for point in visited if tolerance * point.density >= density] or visited[-1:]
    probed = {probe.round for probe in curve.probes}
    return next((p for p in enough if p.round in probed and p.density <= step * density), enough[0])


def most_informative(
    questions: Sequence[Question], candidates: Sequence[Point], chosen: Sequence[Point]
) -> Point | None:
    """Return the candidate that reduces the variance of the answers most per cost, given those already chosen.

    The reduction is estimated by linear regression over the posterior samples. None: no candidate is worth its cost.
    """
    best, most = None, 0.0
    taken = [point.density for point in chosen]
    known = sum(_explained(*question, taken) for question in questions)
    for point in candidates:
        value = sum(_explained(*question, [*taken, point.density]) for question in questions) - known
        if value > MIN_INFORMATION and value / probe_cost([point]) > most:
            best, most = point, value / probe_cost([point])
    return best


def _explained(curves: PosteriorSamples, answer: FloatArray, densities: Sequence[float]) -> float:
    """Return the fraction of the answer's variance that scores at these densities would explain."""
    if not densities or np.var(answer) == 0.0:
        return 0.0
    # Below the probes a curve may fall without bound; that far down its value carries no information.
    values = np.stack([np.maximum(curves.at(density), curves.top - DEEPEST * curves.rise) for density in densities])
    values -= values.mean(axis=1, keepdims=True)
    centred = answer - answer.mean()
    covariance = values @ centred / len(centred)
    within = values @ values.T / len(centred) + float(np.mean(curves.noise**2)) * np.eye(len(densities))
    return float(covariance @ np.linalg.solve(within, covariance) / np.mean(centred**2))


CONFIDENCE = 0.9
"""Posterior probability of a bracket that ends growth."""
QUANTILE = 2 / 3
"""Posterior quantile that is reported as the delta answer: a network that is too sparse misses the target, one that is
too dense only costs some weights."""
BRACKET = 1.5
"""Factor by which the densest probe has to exceed an answer."""
BEYOND_FLATTENING = 3.0
"""The trunk grows to this multiple of the density at which its trajectory flattens before anything is probed."""
BEYOND_FLATTENING_DENSE = 1.0
"""The same if the dense network is probed as well; growth can then continue up to the answer."""
MIN_ROUNDS = 6
"""Rounds before the trajectory is fitted."""
NUM_FIRST = 3
"""Probes in the first batch without a reference: three far apart locate the answer as well as six close ones."""
FIRST_RATIO = 3.0
"""Ratio of densities between them."""
BATCH = 2
"""Probes per batch after the first: more would be placed on less information, fewer would not train concurrently."""


@dataclass(frozen=True, kw_only=True)
class ProbeRule:
    """Train copies of a few visited networks equally long, and read the answer from the curve through them."""

    delta: float
    """Allowed gap to the reference score."""
    max_probes: int | None = None
    """Upper limit of the number of probes. None: 10 with a reference; 5 without, and then no more than needed."""
    max_cost: float | None = 3.0
    """Upper limit of the cost of all probes, in dense trainings of a probe's length, without a reference and after the
    first batch. None: no limit."""
    spacing: float = 1.9
    """Ratio of densities in the first batch with a reference; 1.9 is every third round at 25% growth."""
    max_width: float = 1.4
    """Ratio of the ends of the delta answer's interval at which it is narrow enough."""
    max_gain_width: float = 1.6
    """The same for the gain answer, which by default does not select the network."""
    name: str = field(default="probe", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.max_probes is not None:
            require(self.max_probes > MIN_POINTS, "max_probes", self.max_probes, f"None or > {MIN_POINTS}", 8)
        if self.max_cost is not None:
            require(self.max_cost >= 1.0, "max_cost", self.max_cost, "None or >= 1 dense training", 3)
        for name, example in (("spacing", 1.9), ("max_width", 1.4), ("max_gain_width", 1.6)):
            require(getattr(self, name) > 1.0, name, getattr(self, name), "a ratio > 1", example)

    def decide(self, curve: Curve) -> Verdict:
        """Return whether to grow, to probe visited rounds, or to stop."""
        if not curve.can_probe:
            raise UserError("the 'probe' rule trains copies, which this loop cannot do; use the 'trajectory' rule")
        return _verdict(self, curve)

    def answer(self, curve: Curve) -> Answer:
        """Return both answers with their credible intervals."""
        verdict, estimate = _verdict(self, curve), estimate_from_probes(curve, self.delta)
        answer = open_answer(self.name, self.delta, curve, verdict)
        if estimate is None:
            return replace(
                answer, details={"probes": len(curve.probes), "probes_needed": MIN_POINTS, **verdict.details}
            )
        status, density, interval = _delta_answer(curve, estimate)
        gain, gain_interval = _gain_answer(curve, estimate)
        densest, median = estimate.densest, quantiles(estimate.delta_density, (0.5,))[0]
        details: dict[str, float | int | str | None] = {
            "quantile": QUANTILE,
            "median_density": median if median <= 1.0 else None,
            "lowest": estimate.lowest,
            "densest": densest.density,
            "densest_round": densest.round,
            "end_score": float(np.median(estimate.curves.at(densest.density))),
            "share_below": estimate.share_below,
            "share_above": estimate.share_above,
            "gain_missing": None if gain is not None else "no_saturation" if estimate.has_gain else "no_rise",
        }
        allowed, low, high = allowed_gap(self.delta, densest.epochs, curve.full_epochs)
        if allowed > self.delta:
            details |= {
                "allowed_low": low,
                "allowed_high": high,
                "probe_epochs": densest.epochs,
                "full_epochs": curve.full_epochs,
            }
        return replace(
            answer,
            status=status,
            density=density,
            interval=interval,
            gain_density=gain,
            gain_interval=gain_interval,
            reference=estimate.reference,
            allowed=allowed if allowed > self.delta else None,
            details={**details, **verdict.details},
        )

    def _decide(self, curve: Curve, estimate: DensityEstimate | None) -> Verdict:
        if not curve.rough:
            return Grow(reason=Reason.NOTHING_OBSERVED)
        if estimate is None:
            rising = None if curve.at_ceiling or curve.probes else _still_rising(curve)
            return rising or self._first_batch(curve)
        grow = _still_open(curve, estimate)
        here = curve.rough[-1]
        if grow and estimate.densest.round == DENSE:
            # Grow even if no probe is left: the network to return has to exist.
            return replace(grow, up_to=min(_needed_density(curve, estimate), curve.ceiling))
        # One probe is reserved for the network that will be the answer.
        if grow and self._may_probe(curve, here, here):
            unprobed = all(probe.round != here.round for probe in curve.probes)
            if unprobed and (curve.at_ceiling or self._trunk_is_due(curve, estimate)):
                return Probe(rounds=(here.round,), reason=Reason.PROBE_TRUNK, details={"at_density": here.density})
            if not curve.at_ceiling:
                return grow
        return self._refine(curve, estimate)

    def _first_batch(self, curve: Curve) -> Verdict:
        """Return the first probes, or more of them if earlier ones have too few distinct densities."""
        unprobed = _unprobed(curve)
        if not unprobed:
            return Stop(reason=Reason.FEW_DENSITIES, details={"rounds": len(curve.rough)})
        if curve.reference is not None:
            batch = spread(unprobed, self.spacing, max(NUM_FIRST, self._limit(curve) // 2 + 1))
        else:
            batch = spread(unprobed, FIRST_RATIO, NUM_FIRST)
        details: Details = {"at_density": batch[0].density, "dense": 0}
        dense = curve.can_probe_dense and not any(p.density == 1.0 for p in (*batch, *curve.probes))
        if dense:
            batch = spread(unprobed, FIRST_RATIO, NUM_FIRST - 1)
            details = {**details, "dense": 1}
        return Probe(rounds=(*_rounds(batch), *([DENSE] if dense else [])), reason=Reason.FIRST_PROBES, details=details)

    def _limit(self, curve: Curve) -> int:
        if self.max_probes is not None:
            return self.max_probes
        return 5 if self._is_frugal(curve) else 10

    def _is_frugal(self, curve: Curve) -> bool:
        return curve.reference is None and self.max_probes is None

    def _may_probe(self, curve: Curve, *points: Point) -> bool:
        """Whether probes of these networks stay within the limits."""
        if len(curve.probes) + len(points) > self._limit(curve):
            return False
        limit = self.max_cost if curve.reference is None else None
        return limit is None or probe_cost([*curve.probes, *points]) <= limit

    def _trunk_is_due(self, curve: Curve, estimate: DensityEstimate) -> bool:
        """Whether to probe the trunk here, after the first batch: the answers, if they hold, would be bracketed."""
        here = curve.rough[-1].density
        densest = estimate.densest.density
        gain = estimate.exponential.operating_density() if estimate.has_gain else 0.0
        bracket = BRACKET * max(_delta_quantile(estimate), gain)
        # Just above the densest probe there is little to learn; just below the ceiling, the ceiling is more
        # informative.
        is_bracket = bracket > densest and here >= max(bracket, 1.2 * densest)
        return is_bracket or (here >= self.spacing * densest and here * BRACKET < curve.ceiling)

    def _refine(self, curve: Curve, estimate: DensityEstimate) -> Verdict:
        """Probe the network that would be returned now, and where a wide answer would gain most for the cost."""
        questions: list[Question] = []
        reach = (estimate.lowest / 2, 2 * curve.ceiling)
        few = len(curve.probes) <= MIN_POINTS  # too few to show their own error
        if few or _width(estimate.delta_density, estimate.lowest, curve.ceiling) > self.max_width:
            questions.append((estimate.curves, np.log(np.clip(estimate.delta_density, *reach))))
        if estimate.has_gain and _width(estimate.gain_density, estimate.lowest, curve.ceiling) > self.max_gain_width:
            questions.append((estimate.exponentials, np.log(np.clip(estimate.gain_density, *reach))))
        if not questions:
            return self._stop(curve, estimate, Stop(reason=Reason.INTERVALS_NARROW))
        selected = _selected_now(curve, estimate)
        if self._is_frugal(curve) and not few and any(probe.round == selected.round for probe in curve.probes):
            probed = Stop(reason=Reason.ANSWER_PROBED, details={"at_density": selected.density})
            return self._stop(curve, estimate, probed)
        unprobed = _unprobed(curve)
        if not unprobed:
            return Stop(reason=Reason.ALL_PROBED)
        batch: list[Point] = []
        while len(batch) < (1 if self._is_frugal(curve) else BATCH):
            allowed = [p for p in unprobed if p not in batch and self._may_probe(curve, *batch, p)]
            best = selected if not batch and selected in allowed else most_informative(questions, allowed, batch)
            if best is None:
                break
            batch.append(best)
        if batch:
            second = batch[1].density if len(batch) > 1 else None
            details: Details = {"at_density": batch[0].density, "second_density": second}
            return Probe(rounds=_rounds(batch), reason=Reason.MOST_INFORMATIVE, details=details)
        if not any(self._may_probe(curve, point) for point in unprobed):
            return Stop(reason=Reason.PROBES_SPENT, details={"probes": len(curve.probes)})
        return self._stop(curve, estimate, Stop(reason=Reason.NOTHING_INFORMATIVE))

    def _stop(self, curve: Curve, estimate: DensityEstimate, found: Stop) -> Stop:
        """Return `found` if there is an answer; otherwise the reason is that there is none."""
        gap = allowed_gap(self.delta, estimate.densest.epochs, curve.full_epochs)[0]
        match _delta_answer(curve, estimate)[0]:
            case "found":
                return found
            case "flat":
                return Stop(reason=Reason.FLAT, details={"gap": gap})
            case _:
                top = min(estimate.densest.density, curve.ceiling)
                return Stop(reason=Reason.UNREACHED, details={"gap": gap, "at_density": top})


@lru_cache(maxsize=4)  # `decide` and `answer` both need it, for the same curve
def _verdict(rule: ProbeRule, curve: Curve) -> Verdict:
    return rule._decide(curve, estimate_from_probes(curve, rule.delta))


def _still_rising(curve: Curve) -> Grow | None:
    """Return why the trunk is not yet dense enough to be worth a probe; None if it is."""
    here = curve.rough[-1].density
    if len(curve.rough) < MIN_ROUNDS:
        return Grow(reason=Reason.FEW_ROUNDS, details={"rounds": len(curve.rough), "needed": MIN_ROUNDS})
    # As if all rounds were trained equally, which is good enough to decide how far to look.
    estimate = gain_estimate(curve.rough, noise_hint=trajectory_noise(curve.rough))
    if not estimate.has_gain:
        # A flat curve has shown enough when half of the rounds up to the ceiling brought no rise.
        if here**2 >= estimate.lowest * curve.ceiling:
            return None
        return Grow(reason=Reason.NOT_RISING, details={"at_density": here})
    flattens = estimate.exponential.operating_density()
    factor = BEYOND_FLATTENING_DENSE if curve.can_probe_dense else BEYOND_FLATTENING
    if here >= factor * flattens:
        return None
    details: Details = {"at_density": here, "estimate": flattens, "factor": factor}
    return Grow(reason=Reason.TRAJECTORY_RISING, details=details)


def _still_open(curve: Curve, estimate: DensityEstimate) -> Grow | None:
    """Return which answer is not bracketed yet; None if growth may end."""
    densest = estimate.densest.density
    if (
        _is_likely(estimate.curves.rise <= estimate.allowed)
        and len(curve.probes) > MIN_POINTS
        and (curve.reference is None or _is_likely(estimate.delta_density <= estimate.lowest))
    ):
        return None  # flat: denser networks have nothing to add
    if estimate.densest.round == DENSE:  # any answer is bracketed from above
        needed, grown = _needed_density(curve, estimate), curve.rough[-1].density
        if not needed > CLOSE * grown or curve.at_ceiling:
            return None
        return Grow(
            reason=Reason.ANSWER_BEYOND_TRUNK,
            details={"criterion": curve.select_by, "needed_density": min(needed, curve.ceiling), "at_density": grown},
        )
    if not _is_likely(estimate.delta_density <= densest) or BRACKET * _delta_quantile(estimate) > densest:
        return Grow(reason=Reason.DELTA_NOT_BRACKETED, details={"at_density": densest})
    if estimate.has_gain and (
        not _is_likely(estimate.gain_density <= densest) or BRACKET * estimate.exponential.operating_density() > densest
    ):
        return Grow(reason=Reason.GAIN_NOT_BRACKETED, details={"at_density": densest})
    return None


def _width(answer: FloatArray, lowest: float, ceiling: float) -> float:
    """Return the ratio of the ends of an answer's 90% interval, clipped to the observable range."""
    low, high = quantiles(answer, (LEVEL[0], LEVEL[-1]))
    return min(high, ceiling) / max(low, lowest)


def _is_likely(holds: NDArray[np.bool_]) -> bool:
    return float(np.mean(holds)) >= CONFIDENCE


def _delta_quantile(estimate: DensityEstimate) -> float:
    """Return the delta answer, whether or not it is within the observed range."""
    return quantiles(estimate.delta_density, (QUANTILE,))[0]


def _needed_density(curve: Curve, estimate: DensityEstimate) -> float:
    """Return the density that selects the network; the ceiling if the gain does not saturate below it."""
    if curve.select_by == "delta" or not estimate.has_gain:
        return _delta_quantile(estimate)
    gain = _gain_answer(curve, estimate)[0]
    return curve.ceiling if gain is None else gain


def _selected_now(curve: Curve, estimate: DensityEstimate) -> Point:
    """Return the network that the answer would select now; below all probes, one sparse enough to bracket it."""
    needed = _needed_density(curve, estimate)
    sparser = [point for point in curve.rough if point.density < estimate.lowest]
    if needed <= estimate.lowest and sparser:
        return nearest(sparser, estimate.lowest / FIRST_RATIO)
    return sparsest_sufficient(curve, needed)


def _unprobed(curve: Curve) -> list[Point]:
    rounds = {probe.round for probe in curve.probes}
    return [point for point in curve.rough if point.round not in rounds]


def _rounds(points: list[Point]) -> tuple[int, ...]:
    return tuple(sorted(point.round for point in points))


def _delta_answer(curve: Curve, estimate: DensityEstimate) -> tuple[Status, float | None, tuple[float, float] | None]:
    low, _, high = quantiles(estimate.delta_density, LEVEL)
    density = _delta_quantile(estimate)
    if density <= estimate.lowest:
        return "flat", None, (0.0, min(max(high, estimate.lowest), curve.ceiling))
    if density > min(estimate.densest.density, curve.ceiling):  # a dense probe may be above the ceiling
        return ("unreached" if curve.at_ceiling else "open"), None, None
    # Below every probe the lower end is open: a number there would be made up.
    return "found", density, (low if low > estimate.lowest else 0.0, min(high, curve.ceiling))


def _gain_answer(curve: Curve, estimate: DensityEstimate) -> tuple[float | None, tuple[float, float] | None]:
    low, _, high = quantiles(estimate.gain_density, LEVEL)
    if not estimate.has_gain or low > curve.ceiling:
        return None, None
    return min(estimate.exponential.operating_density(), curve.ceiling), (low, min(high, curve.ceiling))
