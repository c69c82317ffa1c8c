"""The paper's rule and its predecessor's as published: fit the rough points, stop at the first density past 95%.

They are kept for comparison. A rough trajectory is a training curve (a round without growth gains as much as one with
it), so the estimate depends on the length of a round; prefer the `probe` rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pathgrow.density import words
from pathgrow.density.least_squares import check_delta, check_level
from pathgrow.density.logistic import fit_logistic
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import Answer, Curve, Grow, Status, Stop, Verdict
from pathgrow.errors import UserError


class Fit(Protocol):
    """What both saturation curves offer."""

    def operating_density(self, level: float = 0.95) -> float: ...
    def within(self, delta: float) -> float: ...
    def interval(self, confidence: float = 0.9, level: float = 0.95) -> tuple[float, float]: ...


@dataclass(frozen=True, kw_only=True)
class LiteralRule:
    """Fit all rough points from the `min_points`-th on; stop at the first density no smaller than the estimate.

    The paper asks for a density with `level` of the fitted gain and has no delta, so that density is both the delta and
    the gain answer; the network handed back is the one at which growth stopped.
    """

    name: str
    fit: Callable[[Sequence[float], Sequence[float]], Fit] = field(repr=False)
    delta: float = 0.01
    level: float = 0.95
    min_points: int = 5

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
                return Stop(reason="growth cannot go on, and the rough points show no saturation")
            if len(curve.rough) < self.min_points:
                return Grow(reason=f"{self.min_points} rough points are wanted for a fit")
            return Grow(reason="the rough points show no saturation yet")
        here = curve.rough[-1].density
        if here >= estimate:
            return Stop(reason=f"density {words.density(here)} has passed the estimate {words.density(estimate)}")
        if curve.at_ceiling:
            return Stop(reason=f"growth cannot go on to the estimate {words.density(estimate)}")
        return Grow(reason=f"the estimate {words.density(estimate)} has not been passed yet")

    def answer(self, curve: Curve) -> Answer:
        """The estimate, if an observed density has passed it; otherwise no answer."""
        estimate = self._estimate(curve)
        interval: tuple[float, float] | None = None
        gain: float | None = None
        status: Status = "unreached" if curve.at_ceiling else "open"
        found: tuple[str, ...] = ()
        ending = words.verdict(self.decide(curve))
        if estimate is not None and curve.rough[-1].density >= estimate:
            fit = self._fit(curve)
            low, high = fit.interval(0.9, self.level)
            interval = (min(low, 1.0), min(high, 1.0))
            gain, status = estimate, "found"
            found = (
                f"{words.density(gain)} of the switchable weights should be enough: by there the {self.name} fit to"
                f" the rough trajectory makes {self.level:.0%} of its gain.",
                f"90% interval of the fit alone: {words.span(interval)}.",
                f"The fit comes within {words.score(self.delta)} of its own ceiling, an extrapolation, at"
                f" {words.density(fit.within(self.delta))}.",
                "This rule knows neither the reference nor how far rough networks lag behind trained-out ones.",
            )
        return Answer(
            rule=self.name,
            delta=self.delta,
            status=status,
            density=gain,
            interval=interval,
            gain_density=gain,
            gain_interval=interval,
            gain_level=self.level,
            reference=curve.reference,
            words=words.lines(*found, ending),
            notes=(*found[2:], ending),  # the density, what it stands for and its interval are fields
        )

    def _fit(self, curve: Curve) -> Fit:
        return self.fit([point.density for point in curve.rough], [point.score for point in curve.rough])

    def _estimate(self, curve: Curve) -> float | None:
        if len(curve.rough) < self.min_points:
            return None
        estimate = self._fit(curve).operating_density(self.level)
        return estimate if math.isfinite(estimate) and estimate <= 1.0 else None


def exponential(*, delta: float = 0.01, level: float = 0.95, min_points: int = 5) -> LiteralRule:
    """The rule of GCG: fit an exponential to the growing network's scores, stop past 95% of its gain."""
    return LiteralRule(name="exponential", fit=fit_saturation, delta=delta, level=level, min_points=min_points)


def logistic(*, delta: float = 0.01, level: float = 0.95, min_points: int = 5) -> LiteralRule:
    """The rule of GCG's predecessor: fit a logistic step to the growing network's scores, stop past 95% of its gain."""
    return LiteralRule(name="logistic", fit=fit_logistic, delta=delta, level=level, min_points=min_points)
