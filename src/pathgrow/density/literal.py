"""The paper's stopping rule as published: fit the trajectory, stop at the first density past 95% of the fitted gain.

It is kept for comparison. A rough trajectory is a training curve (a round without growth gains as much as one with
growth), so the estimate depends on the length of a round; prefer the `probe` rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pathgrow.density import words
from pathgrow.density.least_squares import check_delta, check_level
from pathgrow.density.saturation import SaturationFit, fit_saturation
from pathgrow.density.types import Answer, Curve, Grow, Reason, Status, Stop, Verdict
from pathgrow.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ExponentialRule:
    """The paper's rule: fit an exponential to the scores of the growing network, stop past 95% of its gain.

    The paper asks for a density with `level` of the fitted gain and has no delta, so that density is both the delta and
    the gain answer; the returned network is the one at which growth stopped.
    """

    delta: float = 0.01
    level: float = 0.95
    min_points: int = 5
    """Rounds before the first fit."""
    name: str = field(default="exponential", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_level(self.level)
        if self.min_points < 5:
            raise UserError(f"got min_points={self.min_points}: the fit wants at least 5 rough points")

    def decide(self, curve: Curve) -> Verdict:
        """Grow until the estimate has been passed."""
        estimate = self._estimate(curve)
        if estimate is None:
            if curve.at_ceiling:
                return Stop(reason=Reason.NO_SATURATION)
            if len(curve.rough) < self.min_points:
                return Grow(reason=Reason.FEW_ROUNDS, details={"rounds": len(curve.rough), "needed": self.min_points})
            return Grow(reason=Reason.NO_SATURATION_YET)
        here = curve.rough[-1].density
        details = {"at_density": here, "estimate": estimate, "factor": 1.0}
        if here >= estimate:
            return Stop(reason=Reason.PAST_ESTIMATE, details=details)
        if curve.at_ceiling:
            return Stop(reason=Reason.ESTIMATE_OUT_OF_REACH, details={"estimate": estimate})
        return Grow(reason=Reason.BELOW_ESTIMATE, details=details)

    def answer(self, curve: Curve) -> Answer:
        """The estimate if an observed density has passed it; otherwise no answer."""
        estimate, verdict = self._estimate(curve), self.decide(curve)
        if estimate is None or curve.rough[-1].density < estimate:
            status: Status = "unreached" if curve.at_ceiling else "open"
            return Answer(
                rule=self.name,
                delta=self.delta,
                status=status,
                gain_level=self.level,
                reference=curve.reference,
                reason=verdict.reason,
                details=verdict.details,
            )
        fit = self._fit(curve)
        low, high = fit.interval(0.9, self.level)
        interval = (min(low, 1.0), min(high, 1.0))
        within = fit.within(self.delta)
        found = (
            f"{words.density(estimate)} of the switchable weights should be enough: by there the {self.name} fit to"
            f" the rough trajectory makes {self.level:.0%} of its gain.",
            f"90% interval of the fit alone: {words.span(interval)}.",
            f"The fit comes within {words.score(self.delta)} of its own ceiling, an extrapolation, at"
            f" {words.density(within)}.",
            "This rule knows neither the reference nor how far rough networks lag behind trained-out ones.",
        )
        return Answer(
            rule=self.name,
            delta=self.delta,
            status="found",
            density=estimate,
            interval=interval,
            gain_density=estimate,
            gain_interval=interval,
            gain_level=self.level,
            reference=curve.reference,
            words=words.lines(*found),
            notes=found[2:],
            reason=verdict.reason,
            details={"fit_within_delta": within, **verdict.details},
        )

    def _fit(self, curve: Curve) -> SaturationFit:
        return fit_saturation([point.density for point in curve.rough], [point.score for point in curve.rough])

    def _estimate(self, curve: Curve) -> float | None:
        if len(curve.rough) < self.min_points:
            return None
        estimate = self._fit(curve).operating_density(self.level)
        return estimate if math.isfinite(estimate) and estimate <= 1.0 else None
