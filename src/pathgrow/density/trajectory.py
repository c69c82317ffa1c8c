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
from pathgrow.density.types import Answer, Curve, Details, Grow, Reason, Reference, Status, Stop, Verdict
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
        """Grow or stop, never probe."""
        return self._decide(curve, self._read(curve))

    def answer(self, curve: Curve) -> Answer:
        """Both answers with wide intervals, or in words why there is none."""
        reading = self._read(curve)
        verdict = self._decide(curve, reading)
        if reading is None:
            return self._nothing(curve, "open", "Too few rounds to read an answer from.", verdict)
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
            return self._nothing(curve, "flat", words.lines(text, caveat), verdict, reading)
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
        )
        told = words.lines(
            f"{words.density(density)} of the switchable weights should be enough to score within"
            f" {words.score(self.delta)} of {words.dense_one(reading.reference, reading.densest)}.",
            f"90% interval of the answer: {words.span(interval)}.",
            f"The reference is {against}." if reading.reference.kind == "densest" else "",
            caveat,
            gain_text,
            words.disagreement(density, gain, self.delta) if gain else "",
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
            reason=verdict.reason,
            details={
                **self._details(curve, reading),
                "quantile": 0.5,
                "widened": DOUBT,
                "gain_missing": None if gain is not None else "no_saturation" if reading.has_gain else "no_rise",
                **verdict.details,
            },
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
            return Stop(
                reason=Reason.GROWTH_ENDED, details={"at_density": curve.rough[-1].density if curve.rough else None}
            )
        if reading is None:
            return Grow(reason=Reason.FEW_ROUNDS, details={"rounds": len(curve.rough), "needed": self.min_points})
        here = reading.densest.density
        if not reading.has_gain:
            # A flat curve has shown enough when half of the rounds up to the ceiling brought no rise.
            if here**2 >= reading.lowest * curve.ceiling:
                return Stop(reason=Reason.NO_RISE, details={"from_density": reading.lowest, "at_density": here})
            return Grow(reason=Reason.NOT_RISING, details={"at_density": here})
        flattens = reading.exponential.operating_density()
        details: Details = {"at_density": here, "estimate": flattens, "factor": self.beyond}
        if here >= self.beyond * flattens:
            return Stop(reason=Reason.PAST_ESTIMATE, details=details)
        if here >= curve.ceiling:
            return Stop(reason=Reason.GROWTH_ENDED, details={"at_density": here})
        return Grow(reason=Reason.BELOW_ESTIMATE, details=details)

    def _nothing(
        self, curve: Curve, status: Status, text: str, verdict: Verdict, reading: Estimate | None = None
    ) -> Answer:
        return Answer(
            rule=self.name,
            delta=self.delta,
            status=status,
            reference=curve.reference if reading is None else reading.reference,
            words=text,
            reason=verdict.reason,
            details={**({} if reading is None else self._details(curve, reading)), **verdict.details},
        )

    def _details(self, curve: Curve, reading: Estimate) -> dict[str, float | int | str | None]:
        unmatched = curve.reference is not None and reading.reference.kind != curve.reference.kind
        return {
            "lowest": reading.lowest,
            "densest": reading.densest.density,
            "densest_round": reading.densest.round,
            "unmatched_reference": curve.reference.score if curve.reference is not None and unmatched else None,
        }


def _incomparable(reference: Reference) -> Reference:
    """The same score, marked so that it is never taken for the end of the rough curve, whose networks had less
    training."""
    return Reference(score=reference.score, kind=reference.kind, epochs=reference.epochs or -1)


def _widen(low: float, high: float, ceiling: float) -> tuple[float, float]:
    return low / DOUBT, min(high * DOUBT, ceiling)
