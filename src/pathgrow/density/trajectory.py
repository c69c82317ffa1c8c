"""A rule for loops that cannot train copies: it reads the trajectory alone, with room to spare and a wide interval.

A rough network lags behind what its density could reach, so its scores say little about a reference that was trained
out, and the estimate wanders while growth goes on. What held up on recorded runs is to look further, on to twice the
estimate. A spread of about a factor of two remains, and the interval says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pathgrow.density import words
from pathgrow.density.estimate import LEVEL, Estimate, estimate_from_points, quantiles, scatter
from pathgrow.density.least_squares import check_delta
from pathgrow.density.types import Answer, Curve, Grow, Reference, Status, Stop, Verdict
from pathgrow.errors import UserError

DOUBT = 2.0
"""Factor on both ends of an interval: how far answers moved with the length of a round on recorded runs."""


@dataclass(frozen=True, kw_only=True)
class TrajectoryRule:
    """From the growing network alone: stop at twice the density where the fitted curve has made 95% of its gain.

    The curve is the exponential one over the rough points; `beyond` is the factor.
    """

    delta: float = 0.01
    beyond: float = 2.0
    min_points: int = 6
    name: str = field(default="trajectory", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not self.beyond >= 1.0:
            raise UserError(f"got beyond={self.beyond:g}: give a factor of at least 1, such as 2")
        if self.min_points < 5:
            raise UserError(f"got min_points={self.min_points}: the fit wants at least 5 rough points")

    def decide(self, curve: Curve) -> Verdict:
        """Grow or stop, never probe. The reason of a stop includes the answer: nothing else tells it to the loop."""
        verdict = self._decide(curve, self._read(curve))
        answer = self.answer(curve) if verdict.stop else None
        if answer is None or answer.density is None or answer.interval is None:
            return verdict
        found = f"density {words.density(answer.density)} is enough (90% interval {words.span(answer.interval)})"
        return Stop(reason=f"{verdict.reason}; {found}")

    def answer(self, curve: Curve) -> Answer:
        """Both answers with wide intervals, or in words why there is none."""
        reading = self._read(curve)
        verdict = self._decide(curve, reading)
        ending = words.verdict(verdict)
        if reading is None:
            return self._nothing(curve, "open", words.lines("Too few rounds to read an answer from.", ending))
        against = words.reference(reading.reference, reading.densest)
        caveat = (
            "Networks were observed while still in training, so this may be off by a factor of two either way"
            " (the interval holds that doubt)."
        )
        if curve.reference is not None and reading.reference is not curve.reference:
            caveat = words.lines(
                f"No round came within {words.score(self.delta)} of {words.reference(curve.reference)}, which cannot"
                " be held against networks still in training.",
                caveat,
            )
        if reading.share_below > 0.5:
            text = f"Every round observed is within {words.score(self.delta)} of {against}."
            return self._nothing(curve, "flat", words.lines(text, caveat, ending), reading.reference)
        low, density, high = quantiles(reading.delta_density, LEVEL)
        interval = _widen(low, high, curve.ceiling)
        gain, gain_interval = None, None
        gain_text = "The scores do not rise by more than their noise, so there is no gain to take 95% of."
        if reading.has_gain:
            estimate = reading.exponential.operating_density()
            gain_low, _, gain_high = quantiles(reading.gain_density, LEVEL)
            gain_text = f"No saturation is in sight: 95% of the fitted gain lies beyond {words.density(curve.ceiling)}."
            if estimate <= curve.ceiling:
                gain, gain_interval = estimate, _widen(gain_low, gain_high, curve.ceiling)
                gain_text = words.gain(gain, gain_interval)
        notes = (
            caveat,
            "" if gain else gain_text,
            words.disagreement(density, gain, self.delta) if gain else "",
            ending,
        )
        told = words.lines(
            f"{words.density(density)} of the switchable weights should be enough to score within"
            f" {words.score(self.delta)} of {words.dense_one(reading.reference, reading.densest)}.",
            f"90% interval of the answer: {words.span(interval)}.",
            f"The reference is {against}." if reading.reference.kind == "densest" else "",
            caveat,
            gain_text,
            words.disagreement(density, gain, self.delta) if gain else "",
            ending,
        )
        return Answer(
            rule=self.name,
            delta=self.delta,
            status="found",
            density=density,
            interval=interval,
            gain_density=gain,
            gain_interval=gain_interval,
            reference=reading.reference,
            words=told,
            notes=tuple(line for note in notes for line in note.splitlines()),
        )

    def _read(self, curve: Curve) -> Estimate | None:
        if len(curve.rough) < self.min_points:
            return None
        hint = scatter(curve.rough)
        if curve.reference is not None:
            # A rough network that already comes within delta is enough: more training only helps.
            reference = _incomparable(curve.reference)
            reading = estimate_from_points(curve.rough, self.delta, reference, noise_hint=hint, num_val=curve.num_val)
            if reading is not None and reading.share_above < 0.5:
                return reading
        return estimate_from_points(curve.rough, self.delta, None, noise_hint=hint, num_val=curve.num_val)

    def _decide(self, curve: Curve, reading: Estimate | None) -> Verdict:
        if curve.at_ceiling:
            return Stop(reason="growth cannot go on")
        if reading is None:
            return Grow(reason=f"{self.min_points} rounds are wanted for an estimate")
        here = words.density(reading.densest.density)
        if not reading.has_gain:
            # A flat curve has shown enough when half of the rounds up to the ceiling brought no rise.
            if reading.densest.density**2 >= reading.lowest * curve.ceiling:
                return Stop(reason=f"the scores have not risen from {words.density(reading.lowest)} to {here}")
            return Grow(reason="the scores do not rise yet")
        estimate = reading.exponential.operating_density()
        if reading.densest.density >= self.beyond * estimate:
            return Stop(
                reason=f"density {here} is at least {self.beyond:g} times the estimate {words.density(estimate)}"
            )
        if reading.densest.density >= curve.ceiling:
            return Stop(reason=f"density {here} is as far as growth may go")
        return Grow(reason=f"density {here} is not yet {self.beyond:g} times the estimate {words.density(estimate)}")

    def _nothing(self, curve: Curve, status: Status, text: str, reference: Reference | None = None) -> Answer:
        return Answer.without_density(
            rule=self.name, delta=self.delta, status=status, reference=reference or curve.reference, words=text
        )


def _incomparable(reference: Reference) -> Reference:
    """The same score, marked so that it is never taken for the end of the rough curve, whose networks had less
    training."""
    return Reference(score=reference.score, kind=reference.kind, epochs=reference.epochs or -1)


def _widen(low: float, high: float, ceiling: float) -> tuple[float, float]:
    return low / DOUBT, min(high * DOUBT, ceiling)
