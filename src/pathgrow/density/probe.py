"""The default rule: train copies out at a few visited densities and read the answer from those.

A network that is still growing lags behind what its density could reach, by an unknown amount; a copy that was trained
out does not. So the trajectory only proposes how far to look, and equally trained copies (probes) decide:

1. Growth, which is cheap, goes on until the trunk is well beyond the point where its own trajectory flattens.
2. A first batch of probes is spread by ratio of densities, from the densest network down; where probes are short, a
   dense copy is among them.
3. Then batches of one or two: the network that would be handed back now (if it stays the answer, its probe is the
   beginning of its final training and costs nothing), and those that tell most about the answers for their price.

Without a reference the whole search has to cost less than the dense training it replaces: three probes, growth up to
the answer and no further, a probe of the answer itself, and one more if that moved it. With a reference, probes go on
until both answers are narrow, and growth goes on until they are bracketed with room to spare.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pathgrow.density import probe_words, words
from pathgrow.density.acquisition import NEXT_TO, Question, most_telling, nearest, price, smallest_enough, spread
from pathgrow.density.estimate import (
    LEVEL,
    MIN_POINTS,
    Estimate,
    allowed_meanwhile,
    estimate,
    estimate_from_trajectory,
    quantiles,
)
from pathgrow.density.least_squares import Array, check_delta
from pathgrow.density.types import DENSE, Answer, Curve, Details, Grow, Point, Probe, Reason, Status, Stop, Verdict
from pathgrow.errors import UserError

SURE = 0.9
"""How likely a bracket has to hold before growth may end."""
CAUTION = 2 / 3
"""How likely the answer has to be dense enough: too sparse a network breaks the promise, too dense a one only costs
some weights."""
ROOM = 1.5
"""How far beyond an answer the densest probe has to stand."""
BEYOND = 3.0
"""How far past the point where its trajectory flattens the trunk grows before anything is probed."""
BESIDE_DENSE = 1.0
"""The same where a dense copy is probed as well; growth can then go on from there, up to the answer."""
MIN_ROUNDS = 6
"""Rough points that are needed before the trajectory is read."""
NUM_FIRST = 3
"""Probes of the first batch without a reference: three wide apart place the answer as well as six close ones."""
FIRST_RATIO = 3.0
"""Ratio of densities between them."""
BATCH = 2
"""Probes at a time after the first batch: more would be placed on less knowledge, fewer would not run side by side."""


@dataclass(frozen=True, kw_only=True)
class ProbeRule:
    """Train copies out alike at a few visited densities, and read the answer from the curve through them."""

    delta: float = 0.01
    """How far below the reference a score may stay."""
    max_probes: int | None = None
    """How many probes there may be. None: 10 with a reference; 5 without, and then no more than are needed."""
    max_price: float | None = 3.0
    """Without a reference, after the first batch: a limit on the price of all probes together, in dense trainings of a
    probe's length. None: no limit."""
    spacing: float = 1.9
    """With a reference: ratio of densities in the first batch; 1.9 is every third round at 25% growth."""
    narrow: float = 1.4
    """The delta answer's interval is narrow enough when its ends differ by this factor,"""
    narrow_gain: float = 1.6
    """and the gain answer's, which chooses no network, by this one."""
    name: str = field(default="probe", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.max_probes is not None and self.max_probes <= MIN_POINTS:
            raise UserError(f"got max_probes={self.max_probes}: the probe rule wants at least {MIN_POINTS + 1}")
        if self.max_price is not None and not self.max_price >= 1.0:
            raise UserError(f"got max_price={self.max_price:g}: give at least 1 dense training, such as 3, or None")
        if not self.spacing > 1.0:
            raise UserError(f"got spacing={self.spacing:g}: give a ratio of densities above 1, such as 1.9")
        for name in ("narrow", "narrow_gain"):
            if not getattr(self, name) > 1.0:
                raise UserError(
                    f"got {name}={getattr(self, name):g}: give a ratio of interval ends above 1, such as 1.6"
                )

    def decide(self, curve: Curve) -> Verdict:
        """Grow, probe a visited round, or stop."""
        if not curve.can_probe:
            raise UserError("the probe rule trains copies, which this loop cannot do: use the rule 'trajectory'")
        return _verdict(self, curve)

    def answer(self, curve: Curve) -> Answer:
        """Both answers, their intervals and the words for them."""
        reading = estimate(curve, self.delta)
        if reading is None:
            num = len(curve.probes)
            verdict = _verdict(self, curve)
            return Answer(
                rule=self.name,
                delta=self.delta,
                status="open",
                reference=curve.reference,
                words=f"{num} trained-out networks are too few to read an answer from; {MIN_POINTS} are wanted.",
                reason=verdict.reason,
                details={"probes": num, "probes_needed": MIN_POINTS, **verdict.details},
            )
        status, density, interval = _delta_answer(curve, reading)
        gain, gain_interval = _gain_answer(curve, reading)
        verdict = _verdict(self, curve)
        allowed, allowed_low, allowed_high = allowed_meanwhile(self.delta, reading.densest.epochs, curve.epochs_in_full)
        median = quantiles(reading.delta_density, (0.5,))[0]
        details: dict[str, float | int | str | None] = {
            "quantile": CAUTION,
            "median_density": median if median <= 1.0 else None,
            "lowest": reading.lowest,
            "densest": reading.densest.density,
            "densest_round": reading.densest.round,
            "end_score": float(np.median(reading.curves.at(reading.densest.density))),
            "share_below": reading.share_below,
            "share_above": reading.share_above,
            "gain_missing": None if gain is not None else "no_saturation" if reading.has_gain else "no_rise",
        }
        if allowed > self.delta:
            details |= {
                "allowed_low": allowed_low,
                "allowed_high": allowed_high,
                "probe_epochs": reading.densest.epochs,
                "full_epochs": curve.epochs_in_full,
            }
        # What the fields of the answer hold as well is told in words, and left out of the notes.
        first, *further = probe_words.answer_words(curve, reading, self.delta, status, density)
        within = f"90% interval of the answer: {words.span(interval)}." if density and interval else ""
        where = probe_words.read_where(curve, reading, self.delta) if density else ""
        rise = words.gain(gain, gain_interval) if gain and gain_interval else ""
        ending = (
            "" if rise else probe_words.no_gain(reading),
            words.disagreement(density, gain, self.delta) if density and gain else "",
        )
        return Answer(
            rule=self.name,
            delta=self.delta,
            status=status,
            density=density,
            interval=interval,
            gain_density=gain,
            gain_interval=gain_interval,
            reference=reading.reference,
            words=words.lines(first, within, *further, where, rise, *ending),
            notes=tuple(line for line in (*further, *ending) if line),
            allowed=allowed if allowed > self.delta else None,
            reason=verdict.reason,
            details={**details, **verdict.details},
        )

    def _decide(self, curve: Curve, reading: Estimate | None) -> Verdict:
        if not curve.rough:
            return Grow(reason=Reason.NOTHING_OBSERVED)
        if reading is None:
            rising = None if curve.at_ceiling or curve.probes else _still_rising(curve, self.delta)
            return rising or self._first(curve)
        open_question = self._still_open(curve, reading)
        here = curve.rough[-1]
        if open_question and reading.densest.round == DENSE:
            # Grow even if no probe is left: the network to hand back has to exist.
            return replace(open_question, up_to=min(_wanted(curve, reading), curve.ceiling))
        # One probe is kept back for the network that will be the answer.
        if open_question and self._may_probe(curve, here, here):
            unseen = all(probe.round != here.round for probe in curve.probes)
            if unseen and (curve.at_ceiling or self._is_due(curve, reading)):
                return Probe(rounds=(here.round,), reason=Reason.PROBE_TRUNK, details={"at_density": here.density})
            if not curve.at_ceiling:
                return open_question
        return self._refine(curve, reading)

    def _first(self, curve: Curve) -> Verdict:
        """The first batch of probes, or more of it if an earlier one gave too few different densities."""
        unprobed = _unprobed(curve)
        if not unprobed:
            return Stop(reason=Reason.FEW_DENSITIES, details={"rounds": len(curve.rough)})
        if curve.reference is not None:
            batch = spread(unprobed, self.spacing, max(NUM_FIRST, self._most(curve) // 2 + 1))
        else:
            batch = spread(unprobed, FIRST_RATIO, NUM_FIRST)
        densest = batch[0].density
        dense = curve.can_probe_dense and not any(p.density == 1.0 for p in (*batch, *curve.probes))
        if dense:
            batch = spread(unprobed, FIRST_RATIO, NUM_FIRST - 1)
        return Probe(
            rounds=(*_rounds(batch), *([DENSE] if dense else [])),
            reason=Reason.FIRST_PROBES,
            details={"at_density": densest, "dense": int(dense)},
        )

    def _most(self, curve: Curve) -> int:
        if self.max_probes is not None:
            return self.max_probes
        return 5 if self._is_frugal(curve) else 10

    def _is_frugal(self, curve: Curve) -> bool:
        return curve.reference is None and self.max_probes is None

    def _may_probe(self, curve: Curve, *points: Point) -> bool:
        """Whether probes of these networks keep to the limits."""
        if len(curve.probes) + len(points) > self._most(curve):
            return False
        limit = self.max_price if curve.reference is None else None
        return limit is None or price([*curve.probes, *points]) <= limit

    def _is_due(self, curve: Curve, reading: Estimate) -> bool:
        """Whether to probe the trunk here, beyond the first batch: the answers, if they hold, would be bracketed."""
        here = curve.rough[-1].density
        densest = reading.densest.density
        wanted = ROOM * max(_enough(reading), reading.exponential.operating_density() if reading.has_gain else 0.0)
        # Just above the densest probe there is little to learn; just below the ceiling, the ceiling itself tells more.
        is_bracket = wanted > densest and here >= max(wanted, 1.2 * densest)
        return is_bracket or (here >= self.spacing * densest and here * ROOM < curve.ceiling)

    def _still_open(self, curve: Curve, reading: Estimate) -> Grow | None:
        """Why growth has to go on; None if it may end."""
        densest = reading.densest.density
        rise_is_small = _sure(reading.curves.rise <= reading.allowed)
        if (
            rise_is_small
            and len(curve.probes) > MIN_POINTS
            and (curve.reference is None or _sure(reading.delta_density <= reading.lowest))
        ):
            return None  # flat: denser networks have nothing to add
        if reading.densest.round == DENSE:  # any answer is bracketed from above
            wanted, grown = _wanted(curve, reading), curve.rough[-1].density
            if not wanted > NEXT_TO * grown or curve.at_ceiling:
                return None
            return Grow(
                reason=Reason.ANSWER_BEYOND_TRUNK,
                details={"criterion": curve.wanted, "needed_density": min(wanted, curve.ceiling), "at_density": grown},
            )
        if not _sure(reading.delta_density <= densest) or ROOM * _enough(reading) > densest:
            return Grow(reason=Reason.DELTA_NOT_BRACKETED, details={"at_density": densest})
        if reading.has_gain and (
            not _sure(reading.gain_density <= densest) or ROOM * reading.exponential.operating_density() > densest
        ):
            return Grow(reason=Reason.GAIN_NOT_BRACKETED, details={"at_density": densest})
        return None

    def _refine(self, curve: Curve, reading: Estimate) -> Verdict:
        """Probe what would be handed back now, and where an answer that is still wide would gain most for the price."""
        questions: list[Question] = []
        reach = (reading.lowest / 2, 2 * curve.ceiling)
        few = len(curve.probes) <= MIN_POINTS  # too few to show how wrong they are
        if few or _width(reading.delta_density, reading.lowest, curve.ceiling) > self.narrow:
            questions.append((reading.curves, np.log(np.clip(reading.delta_density, *reach))))
        if reading.has_gain and _width(reading.gain_density, reading.lowest, curve.ceiling) > self.narrow_gain:
            questions.append((reading.exponentials, np.log(np.clip(reading.gain_density, *reach))))
        chosen = _to_hand_back(curve, reading)
        is_ahead = any(probe.round == chosen.round for probe in curve.probes)
        if not questions:
            return self._end(curve, reading, Stop(reason=Reason.INTERVALS_NARROW))
        if self._is_frugal(curve) and is_ahead and not few:
            probed = Stop(reason=Reason.ANSWER_PROBED, details={"at_density": chosen.density})
            return self._end(curve, reading, probed)
        unprobed = _unprobed(curve)
        if not unprobed:
            return Stop(reason=Reason.ALL_PROBED)
        batch: list[Point] = []
        while len(batch) < (1 if self._is_frugal(curve) else BATCH):
            allowed = [p for p in unprobed if p not in batch and self._may_probe(curve, *batch, p)]
            best = chosen if not batch and chosen in allowed else most_telling(questions, allowed, batch)
            if best is None:
                break
            batch.append(best)
        if batch:
            second = batch[1].density if len(batch) > 1 else None
            return Probe(
                rounds=_rounds(batch),
                reason=Reason.MOST_INFORMATIVE,
                details={"at_density": batch[0].density, "second_density": second},
            )
        if not any(self._may_probe(curve, point) for point in unprobed):
            return Stop(reason=Reason.PROBES_SPENT, details={"probes": len(curve.probes)})
        return self._end(curve, reading, Stop(reason=Reason.NOTHING_INFORMATIVE))

    def _end(self, curve: Curve, reading: Estimate, found: Stop) -> Stop:
        """`found` if there is an answer; otherwise the reason is that there is none."""
        gap = allowed_meanwhile(self.delta, reading.densest.epochs, curve.epochs_in_full)[0]
        match _delta_answer(curve, reading)[0]:
            case "found":
                return found
            case "flat":
                return Stop(reason=Reason.FLAT, details={"gap": gap})
            case _:
                top = min(reading.densest.density, curve.ceiling)
                return Stop(reason=Reason.UNREACHED, details={"gap": gap, "at_density": top})


@lru_cache(maxsize=4)  # both `decide` and `answer` need it, one after the other
def _verdict(rule: ProbeRule, curve: Curve) -> Verdict:
    return rule._decide(curve, estimate(curve, rule.delta))


def _still_rising(curve: Curve, delta: float) -> Grow | None:
    """Why the trunk is not yet dense enough to be worth a probe; None if it is."""
    here = curve.rough[-1].density
    reading = estimate_from_trajectory(curve.rough, delta) if len(curve.rough) >= MIN_ROUNDS else None
    if reading is None:
        return Grow(reason=Reason.FEW_ROUNDS, details={"rounds": len(curve.rough), "needed": MIN_ROUNDS})
    if not reading.has_gain:
        # A flat curve has shown enough when half of the rounds up to the ceiling brought no rise.
        if here**2 >= reading.lowest * curve.ceiling:
            return None
        return Grow(reason=Reason.NOT_RISING, details={"at_density": here})
    flattens = reading.exponential.operating_density()
    factor = BESIDE_DENSE if curve.can_probe_dense else BEYOND
    if here >= factor * flattens:
        return None
    details: Details = {"at_density": here, "estimate": flattens, "factor": factor}
    return Grow(reason=Reason.TRAJECTORY_RISING, details=details)


def _width(answer: Array, lowest: float, ceiling: float) -> float:
    """Ratio of the ends of an answer's 90% interval, within what can be observed."""
    low, high = quantiles(answer, (LEVEL[0], LEVEL[-1]))
    return min(high, ceiling) / max(low, lowest)


def _sure(holds: NDArray[np.bool_]) -> bool:
    return float(np.mean(holds)) >= SURE


def _enough(reading: Estimate) -> float:
    """The delta answer, whether or not it lies within what was observed."""
    return quantiles(reading.delta_density, (CAUTION,))[0]


def _wanted(curve: Curve, reading: Estimate) -> float:
    """The density that chooses the network; where the gain does not end, all there is."""
    if curve.wanted == "delta" or not reading.has_gain:
        return _enough(reading)
    gain = _gain_answer(curve, reading)[0]
    return curve.ceiling if gain is None else gain


def _to_hand_back(curve: Curve, reading: Estimate) -> Point:
    """The network that the answer would choose now; below all probes, one sparse enough to bracket the answer."""
    enough = _wanted(curve, reading)
    sparser = [point for point in curve.rough if point.density < reading.lowest]
    if enough <= reading.lowest and sparser:
        return nearest(sparser, reading.lowest / FIRST_RATIO)
    return smallest_enough(curve, enough)


def _unprobed(curve: Curve) -> list[Point]:
    rounds = {probe.round for probe in curve.probes}
    return [point for point in curve.rough if point.round not in rounds]


def _rounds(points: list[Point]) -> tuple[int, ...]:
    return tuple(sorted(point.round for point in points))


def _delta_answer(curve: Curve, reading: Estimate) -> tuple[Status, float | None, tuple[float, float] | None]:
    low, _, high = quantiles(reading.delta_density, LEVEL)
    density = _enough(reading)
    if density <= reading.lowest:
        return "flat", None, (0.0, min(max(high, reading.lowest), curve.ceiling))
    if density > min(reading.densest.density, curve.ceiling):  # a dense copy may lie above the ceiling
        return ("unreached" if curve.at_ceiling else "open"), None, None
    # Below everything trained out the lower end is open: a number there would be invented.
    return "found", density, (low if low > reading.lowest else 0.0, min(high, curve.ceiling))


def _gain_answer(curve: Curve, reading: Estimate) -> tuple[float | None, tuple[float, float] | None]:
    low, _, high = quantiles(reading.gain_density, LEVEL)
    if not reading.has_gain or low > curve.ceiling:
        return None, None
    return min(reading.exponential.operating_density(), curve.ceiling), (low, min(high, curve.ceiling))
