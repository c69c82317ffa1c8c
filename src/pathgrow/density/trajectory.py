"""Rules for loops that cannot train probes: they use the trajectory alone.

A rough network lags behind what its density could reach, so its scores say little about a fully trained reference, and
the estimate drifts while growth continues. What worked on recorded runs is to look further, to twice the estimate, as
`TrajectoryRule` does. A spread of about a factor of two remains, and its interval includes it.
"""

import math
from dataclasses import dataclass, field, replace

from pathgrow.density.estimate import LEVEL, DensityEstimate, estimate_from_points, quantiles, trajectory_noise
from pathgrow.density.saturation import SaturationFit, check_level, fit_saturation
from pathgrow.density.types import Answer, Curve, Details, Grow, Reason, Stop, Verdict, check_delta, open_answer
from pathgrow.errors import require

WIDENING = 2.0
"""Factor on both ends of an interval: how far answers moved with the length of a round on recorded runs."""


@dataclass(frozen=True, kw_only=True)
class TrajectoryRule:
    """Use the growing network alone: stop at twice the density at which the fitted curve reaches 95% of its gain.

    The curve is the exponential through the rough points; `beyond` is the factor.
    """

    delta: float
    beyond: float = 2.0
    min_points: int = 6
    """Rounds before the first fit."""
    name: str = field(default="trajectory", init=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        require(self.beyond >= 1.0, "beyond", self.beyond, ">= 1", 2)
        require(self.min_points >= 5, "min_points", self.min_points, ">= 5", 6)

    def decide(self, curve: Curve) -> Verdict:
        """Return whether to grow or to stop; this rule never probes."""
        return self._decide(curve, self._estimate(curve))

    def answer(self, curve: Curve) -> Answer:
        """Return both answers with wide intervals."""
        estimate = self._estimate(curve)
        verdict = self._decide(curve, estimate)
        nothing = open_answer(self.name, self.delta, curve, verdict)
        if estimate is None:
            return nothing
        is_unmatched = curve.reference is not None and estimate.reference.kind == "densest"
        details: Details = {
            "lowest": estimate.lowest,
            "densest": estimate.densest.density,
            "densest_round": estimate.densest.round,
            "unmatched_reference": curve.reference.score if curve.reference is not None and is_unmatched else None,
            "widened": WIDENING,
            **verdict.details,
        }
        if estimate.share_below > 0.5:
            return replace(nothing, status="flat", reference=estimate.reference, details=details)
        low, density, high = quantiles(estimate.delta_density, LEVEL)
        gain, gain_interval = None, None
        if estimate.has_gain and estimate.exponential.operating_density() <= curve.ceiling:
            gain_low, _, gain_high = quantiles(estimate.gain_density, LEVEL)
            gain = estimate.exponential.operating_density()
            gain_interval = _widen(gain_low, gain_high, curve.ceiling)
        missing = None if gain is not None else "no_saturation" if estimate.has_gain else "no_rise"
        return replace(
            nothing,
            status="found",
            density=density,
            interval=_widen(low, high, curve.ceiling),
            gain_density=gain,
            gain_interval=gain_interval,
            reference=estimate.reference,
            details={**details, "gain_missing": missing},
        )

    def _decide(self, curve: Curve, estimate: DensityEstimate | None) -> Verdict:
        if curve.at_ceiling:
            return Stop(
                reason=Reason.GROWTH_ENDED, details={"at_density": curve.rough[-1].density if curve.rough else None}
            )
        if estimate is None:
            return Grow(reason=Reason.FEW_ROUNDS, details={"rounds": len(curve.rough), "needed": self.min_points})
        here = estimate.densest.density
        if not estimate.has_gain:
            # A flat curve has shown enough when half of the rounds up to the ceiling brought no rise.
            if here**2 >= estimate.lowest * curve.ceiling:
                return Stop(reason=Reason.NO_RISE, details={"from_density": estimate.lowest, "at_density": here})
            return Grow(reason=Reason.NOT_RISING, details={"at_density": here})
        flattens = estimate.exponential.operating_density()
        details: Details = {"at_density": here, "estimate": flattens, "factor": self.beyond}
        if here >= self.beyond * flattens:
            return Stop(reason=Reason.PAST_ESTIMATE, details=details)
        if here >= curve.ceiling:
            return Stop(reason=Reason.GROWTH_ENDED, details={"at_density": here})
        return Grow(reason=Reason.BELOW_ESTIMATE, details=details)

    def _estimate(self, curve: Curve) -> DensityEstimate | None:
        if len(curve.rough) < self.min_points:
            return None
        hint = trajectory_noise(curve.rough)
        if curve.reference is not None:
            # A rough network that is already within delta is sufficient: more training only helps. The epochs keep
            # the reference from being taken for the end of the rough curve, whose networks had less training.
            reference = replace(curve.reference, epochs=curve.reference.epochs or -1)
            estimate = estimate_from_points(curve.rough, self.delta, reference, noise_hint=hint, num_val=curve.num_val)
            if estimate is not None and estimate.share_above < 0.5:
                return estimate
        return estimate_from_points(curve.rough, self.delta, None, noise_hint=hint, num_val=curve.num_val)


def _widen(low: float, high: float, ceiling: float) -> tuple[float, float]:
    return low / WIDENING, min(high * WIDENING, ceiling)


@dataclass(frozen=True, kw_only=True)
class ExponentialRule:
    """The paper's rule: fit an exponential to the scores of the growing network, stop past 95% of its gain.

    The paper asks for a density with `level` of the fitted gain and has no delta, so that density is both the delta and
    the gain answer; the returned network is the one at which growth stopped.

    It is kept for comparison. A rough trajectory is a training curve (a round without growth gains as much as one with
    growth), so the estimate depends on the length of a round; prefer the `probe` rule.
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
