"""The default rule: train copies out at a few visited densities and read the answer from those.

A network in the middle of growing is behind what its density could reach, and by an unknown lag; a copy trained out is
not. So the trajectory only proposes densities, and equally trained copies (probes) decide:

1. while growing, a probe at about every doubling of the density;
2. growth goes on until both answers are bracketed with room to spare. Read against the densest network grown, it also
   goes on until denser ones would not move the answer;
3. then probes at the visited densities that tell most about the answers for their price, until both are narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pathgrow.density import words
from pathgrow.density.curve import Answer, Curve, Grow, Point, Probe, Status, Stop, Verdict
from pathgrow.density.monotone import Curves
from pathgrow.density.reading import LEVEL, MIN_POINTS, Reading, quantiles, read
from pathgrow.density.separable import Array, check_delta
from pathgrow.errors import UserError

SURE = 0.9
"""How likely a bracket has to hold before growth may end."""
CAUTION = 2 / 3
"""How likely the answer is dense enough: a network too sparse breaks the promise, one too dense costs a few weights."""
ROOM = 1.5
"""How far beyond an answer the densest probe has to stand."""
DRIFT = 1.15
"""How much a denser reference may still move the answer."""
WORTHWHILE = 0.04
"""A probe that would take less than this share off the variance is not worth its training."""
BASE_PRICE = 0.05
"""What a probe costs beyond its density: reading data, dense layers, launch."""


@dataclass(frozen=True, kw_only=True)
class ProbeRule:
    """Train copies out alike at a few visited densities, and read the answer from the curve through them."""

    delta: float = 0.01
    """How far below the reference a score may stay."""
    max_probes: int = 10
    """Refinement ends here; the coarse probes are spread so as not to need more."""
    spacing: float = 1.9
    """Ratio of densities between coarse probes: every third round at 25% growth."""
    narrow: float = 1.4
    """The delta answer's interval is narrow enough when its ends differ by this factor,"""
    narrow_gain: float = 1.6
    """and the gain answer's, which chooses no network, by this one."""
    name: str = field(default="probe", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.max_probes < MIN_POINTS:
            raise UserError(f"got max_probes={self.max_probes}: the probe rule wants at least {MIN_POINTS}")
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
        return self._decide(curve, read(curve, self.delta))

    def answer(self, curve: Curve) -> Answer:
        """Both answers, their intervals and the words for them."""
        reading = read(curve, self.delta)
        if reading is None:
            num = len(curve.probes)
            return Answer(
                rule=self.name,
                delta=self.delta,
                status="open",
                density=None,
                interval=None,
                gain_density=None,
                gain_interval=None,
                reference=curve.reference,
                words=f"{num} trained-out networks are too few to read an answer from; {MIN_POINTS} are wanted.",
            )
        status, density, interval = _delta_answer(curve, reading)
        gain, gain_interval = _gain_answer(curve, reading)
        sentences = [
            _delta_words(curve, reading, self.delta, status, density, interval),
            _gain_words(reading, gain, gain_interval),
            words.disagreement(density, gain, self.delta) if density and gain else "",
            _verdict_words(self._decide(curve, reading)),
        ]
        return Answer(
            rule=self.name,
            delta=self.delta,
            status=status,
            density=density,
            interval=interval,
            gain_density=gain,
            gain_interval=gain_interval,
            reference=reading.reference,
            words=" ".join(sentence for sentence in sentences if sentence),
        )

    def _decide(self, curve: Curve, reading: Reading | None) -> Verdict:
        if not curve.rough:
            return Grow(reason="nothing has been observed yet")
        open_question = "too few networks are trained out" if reading is None else self._still_open(curve, reading)
        if open_question:
            here = curve.rough[-1]
            unseen = all(probe.round != here.round for probe in curve.probes)
            if unseen and (curve.at_ceiling or self._is_due(curve, reading)):
                return Probe(rounds=(here.round,), reason=f"to see what density {words.density(here.density)} can reach")
            if not curve.at_ceiling:
                return Grow(reason=open_question)
        if reading is None:
            unprobed = _unprobed(curve)
            if not unprobed:
                return Stop(reason=f"growth cannot go on and only {len(curve.rough)} densities were visited")
            return Probe(rounds=(_loneliest(unprobed, curve.probes).round,), reason="too few networks are trained out")
        return self._refine(curve, reading)

    def _is_due(self, curve: Curve, reading: Reading | None) -> bool:
        """A coarse probe at each step of `spacing`, or where the answers would be bracketed if they hold."""
        here = curve.rough[-1].density
        densest = max((probe.density for probe in curve.probes), default=0.0)
        if reading is not None:
            wanted = ROOM * max(_enough(reading), reading.exponential.operating_density() if reading.has_gain else 0.0)
            if here >= wanted > 1.2 * densest:
                return True
        # A small budget of probes is spread over the whole range; two are kept for refinement.
        whole = curve.ceiling / curve.rough[0].density
        spacing = max(self.spacing, whole ** (1.0 / (self.max_probes - 2)))
        # Close below the ceiling the ceiling itself will tell more.
        return here >= spacing * densest and here * ROOM < curve.ceiling

    def _still_open(self, curve: Curve, reading: Reading) -> str:
        """What is not bracketed yet, in words; empty when growth may end."""
        densest = reading.densest.density
        top = words.density(densest)
        rise_is_small = _sure(reading.curves.rise <= self.delta)
        if (
            rise_is_small
            and len(curve.probes) > MIN_POINTS
            and (curve.reference is None or _sure(reading.delta_density <= reading.lowest))
        ):
            return ""  # flat: denser networks have nothing to add
        if not _sure(reading.delta_density <= densest) or ROOM * _enough(reading) > densest:
            return f"the delta answer is not yet well below the densest probe ({top})"
        if reading.has_gain and (
            not _sure(reading.gain_density <= densest) or ROOM * reading.exponential.operating_density() > densest
        ):
            return f"the gain answer is not yet well below the densest probe ({top})"
        if curve.reference is None:
            if_denser = reading.curves.reach(reading.curves.top - self.delta)
            if not _sure(if_denser <= DRIFT * np.maximum(reading.delta_density, reading.lowest)):
                return f"denser networks than {top} may still score higher and move the reference"
        return ""

    def _refine(self, curve: Curve, reading: Reading) -> Verdict:
        """Probe where the two wide answers learn most for the price, as far as straight-line statistics can tell."""
        questions: list[tuple[Curves, Array]] = []
        if _width(reading.delta_density, reading.lowest, curve.ceiling) > self.narrow:
            questions.append((reading.curves, reading.delta_density))
        if reading.has_gain and _width(reading.gain_density, reading.lowest, curve.ceiling) > self.narrow_gain:
            questions.append((reading.exponentials, reading.gain_density))
        if not questions:
            return Stop(reason=_why_settled(curve, reading, self.delta))
        if len(curve.probes) >= self.max_probes:
            return Stop(reason=f"all {self.max_probes} probes are spent (more of them would narrow the interval)")
        unprobed = _unprobed(curve)
        if not unprobed:
            return Stop(reason="growth cannot go on and every visited density has been probed")
        best, most = None, 0.0
        for point in unprobed:
            value = sum(
                _explained(curves, np.log(np.clip(answer, reading.lowest / 2, 2 * curve.ceiling)), point.density)
                for curves, answer in questions
            )
            if value > WORTHWHILE and value / (point.density + BASE_PRICE) > most:
                best, most = point, value / (point.density + BASE_PRICE)
        if best is None:
            return Stop(reason="probes at the densities visited would hardly narrow the interval any more")
        return Probe(rounds=(best.round,), reason=f"density {words.density(best.density)} tells most about the answer now")


def _why_settled(curve: Curve, reading: Reading, delta: float) -> str:
    far, top = words.score(delta), words.density(reading.densest.density)
    match _delta_answer(curve, reading)[0]:
        case "flat":
            return f"the curve is flat: every density observed is within {far} of the reference"
        case "unreached" | "open":
            return f"no density up to {top} comes within {far} of the reference, and more probes would not change that"
        case "found":
            return "the answers are bracketed by trained-out networks and their intervals are narrow"


def _width(answer: Array, lowest: float, ceiling: float) -> float:
    """Ratio of the ends of an answer's 90% interval, within what can be observed."""
    low, high = quantiles(answer, (LEVEL[0], LEVEL[-1]))
    return min(high, ceiling) / max(low, lowest)


def _sure(holds: NDArray[np.bool_]) -> bool:
    return float(np.mean(holds)) >= SURE


def _enough(reading: Reading) -> float:
    """The delta answer, before it is asked whether it lies within what was observed."""
    return quantiles(reading.delta_density, (CAUTION,))[0]


def _unprobed(curve: Curve) -> list[Point]:
    rounds = {probe.round for probe in curve.probes}
    return [point for point in curve.rough if point.round not in rounds]


def _loneliest(points: list[Point], probes: tuple[Point, ...]) -> Point:
    """The one farthest from any probe, by ratio of densities."""
    return max(
        points,
        key=lambda point: min((abs(math.log(point.density / probe.density)) for probe in probes), default=math.inf),
    )


def _explained(curves: Curves, answer: Array, density: float) -> float:
    """The share of the answer's variance that one more score at this density would take away."""
    value = curves.at(density)
    covariance = float(np.mean((value - value.mean()) * (answer - answer.mean())))
    spread = float(np.var(answer)) * (float(np.var(value)) + float(np.mean(curves.noise**2)))
    return covariance**2 / spread if spread > 0 else 0.0


def _delta_answer(curve: Curve, reading: Reading) -> tuple[Status, float | None, tuple[float, float] | None]:
    low, _, high = quantiles(reading.delta_density, LEVEL)
    density = _enough(reading)
    if density <= reading.lowest:
        return "flat", None, (0.0, min(max(high, reading.lowest), curve.ceiling))
    if density > reading.densest.density:
        return ("unreached" if curve.at_ceiling else "open"), None, None
    # Beyond what was observed the ends are open, and the words say so; a number there would be invented.
    return "found", density, (max(low, reading.lowest), min(high, curve.ceiling))


def _gain_answer(curve: Curve, reading: Reading) -> tuple[float | None, tuple[float, float] | None]:
    low, _, high = quantiles(reading.gain_density, LEVEL)
    if not reading.has_gain or low > curve.ceiling:
        return None, None
    return min(reading.exponential.operating_density(), curve.ceiling), (low, min(high, curve.ceiling))


def _delta_words(
    curve: Curve,
    reading: Reading,
    delta: float,
    status: Status,
    density: float | None,
    interval: tuple[float, float] | None,
) -> str:
    against = words.reference(reading.reference, reading.densest.density)
    lowest, densest = words.density(reading.lowest), words.density(reading.densest.density)
    far = words.score(delta)
    match status:
        case "flat":
            return (
                f"Every density observed, from {lowest} on, is within {far} of {against}: the smallest one needed lies"
                " below what was tried."
            )
        case "unreached":
            return (
                f"No density up to {densest} comes within {far} of {against}: the trained-out networks end at"
                f" {words.score(float(np.median(reading.curves.at(reading.densest.density))))}."
            )
        case "open":
            return f"Up to {densest} no density is clearly within {far} of {against}; growth has not ended."
        case "found":
            assert density is not None
            assert interval is not None
            text = (
                f"Within {far} of {against} from density {words.density(density)} on"
                f" (90% interval {words.span(interval)})."
            )
            if reading.share_below > 0.05:
                text += f" It may lie below the lowest density tried ({reading.share_below:.0%})."
            if reading.share_above > 0.05:
                text += f" It may lie above the densest tried or not exist ({reading.share_above:.0%})."
            return text


def _gain_words(reading: Reading, gain: float | None, interval: tuple[float, float] | None) -> str:
    if gain is None or interval is None:
        if not reading.has_gain:
            return "The scores do not rise with density by more than their noise, so there is no gain to take 95% of."
        return "The rise does not saturate: the exponential fit makes 95% of its gain only beyond density 100%."
    return f"95% of the fitted gain is made by density {words.density(gain)} (90% interval {words.span(interval)})."


def _verdict_words(verdict: Verdict) -> str:
    match verdict:
        case Stop(reason=reason):
            return f"Stopped: {reason}."
        case Grow(reason=reason):
            return f"Growth goes on: {reason}."
        case Probe(reason=reason):
            return f"Another probe is due: {reason}."
