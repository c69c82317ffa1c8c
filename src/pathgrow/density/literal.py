"""The paper's stopping rule as published: fit the trajectory, stop at the first density past 95% of the fitted gain.

It is kept for comparison. A rough trajectory is a training curve (a round without growth gains as much as one with
growth), so the estimate depends on the length of a round; prefer the `probe` rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from pathgrow.density.saturation import SaturationFit, check_level, fit_saturation
from pathgrow.density.types import Answer, Curve, Details, Grow, Reason, Stop, Verdict, check_delta, open_answer
from pathgrow.errors import require


@dataclass(frozen=True, kw_only=True)
class ExponentialRule:
    """The paper's rule: fit an exponential to the scores of the growing network, stop past 95% of its gain.

    The paper asks for a density with `level` of the fitted gain and has no delta, so that density is both the delta and
    the gain answer; the returned network is the one at which growth stopped.
    """

    delta: float
    level: float = 0.95
    min_points: int = 5
    """Rounds before the first fit."""
    name: str = field(default="exponential", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_level(self.level)
        require(self.min_points >= 5, "min_points", self.min_points, ">= 5", 5)

    def decide(self, curve: Curve) -> Verdict:
        """Return whether to grow: until the trunk has passed the estimate."""
        estimate = self._estimate(curve)
        if estimate is None:
            if curve.at_ceiling:
                return Stop(reason=Reason.NO_SATURATION)
            if len(curve.rough) < self.min_points:
                return Grow(reason=Reason.FEW_ROUNDS, details={"rounds": len(curve.rough), "needed": self.min_points})
            return Grow(reason=Reason.NO_SATURATION_YET)
        here = curve.rough[-1].density
        details: Details = {"at_density": here, "estimate": estimate, "factor": 1.0}
        if here >= estimate:
            return Stop(reason=Reason.PAST_ESTIMATE, details=details)
        if curve.at_ceiling:
            return Stop(reason=Reason.ESTIMATE_OUT_OF_REACH, details={"estimate": estimate})
        return Grow(reason=Reason.BELOW_ESTIMATE, details=details)

    def answer(self, curve: Curve) -> Answer:
        """Return the estimate as the answer once an observed density has passed it."""
        estimate, verdict = self._estimate(curve), self.decide(curve)
        answer = replace(open_answer(self.name, self.delta, curve, verdict), gain_level=self.level)
        if estimate is None or curve.rough[-1].density < estimate:
            return replace(answer, status="unreached") if curve.at_ceiling else answer
        fit = self._fit(curve)
        low, high = fit.interval(0.9, self.level)
        interval = (min(low, 1.0), min(high, 1.0))
        return replace(
            answer,
            status="found",
            density=estimate,
            interval=interval,
            gain_density=estimate,
            gain_interval=interval,
            details={"fit_within_delta": fit.within(self.delta), **verdict.details},
        )

    def _fit(self, curve: Curve) -> SaturationFit:
        return fit_saturation([point.density for point in curve.rough], [point.score for point in curve.rough])

    def _estimate(self, curve: Curve) -> float | None:
        if len(curve.rough) < self.min_points:
            return None
        estimate = self._fit(curve).operating_density(self.level)
        return estimate if math.isfinite(estimate) and estimate <= 1.0 else None
