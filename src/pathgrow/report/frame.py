"""The frame of the curve's picture: which part of the plane is shown, and where the ticks stand.

Terminal, PNG and page show the same part. Density is logarithmic: growth is by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_DEPTH = 1.0
"""How far below the trained-out points the picture reaches, in their own spread; rough ones may start at chance."""
_REACH = 2.0
"""How far an interval may widen the picture beyond the observed densities, as a factor; its ends may lie at 0."""


@dataclass(frozen=True)
class Frame:
    """A window on density and score; `x` and `y` map into [0, 1]."""

    densities: tuple[float, float]
    scores: tuple[float, float]

    @classmethod
    def of(cls, report: dict[str, Any]) -> Frame:
        """Wide enough for all densities, and for all scores but the rough ones far below the rest."""
        curve, answer = report["curve"], report["answer"]
        rough, probes = curve["rough"], curve["probes"]
        given = (answer["operating_density"], answer["gain_density"])
        densities = [row["density"] for row in (*rough, *probes)] + [density for density in given if density]
        if densities and (interval := ends(answer["interval"])):
            least, most = min(densities) / _REACH, max(densities) * _REACH
            densities += [min(max(end, least), most) for end in interval if end > 0]
        goal = threshold(report)
        scores = [row["score"] for row in (probes or rough)]
        if goal is not None:
            scores += [goal, report["reference"]["score"]]
        low, high = min(scores, default=0.0), max(scores, default=1.0)
        # Equal scores still need a window; its width is the smallest difference anybody asked about.
        spread = max(high - low, 2 * answer["delta"])
        above = [row["score"] for row in rough if row["score"] >= low - _DEPTH * spread]
        low, high = min([low, *above]), max([high, *above])
        margin = 0.08 * max(high - low, spread)
        left, right = min(densities, default=0.01), max(densities, default=1.0)
        factor = max(right / left, 2.0) ** 0.05
        return cls((left / factor, right * factor), (low - margin, high + margin))

    def x(self, density: float) -> float:
        """Densities outside the window, such as the open end of an interval at 0, are put on its edge."""
        left, right = self.densities
        return math.log(min(max(density, left), right) / left) / math.log(right / left)

    def y(self, score: float) -> float:
        low, high = self.scores
        return (score - low) / (high - low)

    def density_ticks(self) -> list[float]:
        """As many round densities as possible, at most seven.

        >>> Frame((0.009, 0.5), (0, 1)).density_ticks()
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
        """
        finest_first = ([1 + i / 10 for i in range(90)], [1, 1.5, 2, 3, 5, 7], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1])
        candidates = [self._round_densities(digits) for digits in finest_first]
        powers_of_ten = candidates[-1]
        thinned = powers_of_ten[:: max(1, math.ceil(len(powers_of_ten) / 7))]
        return next((ticks for ticks in candidates if len(ticks) <= 7), thinned)

    def _round_densities(self, digits: Sequence[float]) -> list[float]:
        left, right = self.densities
        decades = range(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1)
        ticks = [float(f"{digit * 10.0**decade:.4g}") for decade in decades for digit in digits]
        return [tick for tick in ticks if left <= tick <= min(right, 1.0)]

    def score_ticks(self, most: int = 6) -> list[float]:
        """At most `most` evenly spaced round scores.

        >>> Frame((0.01, 1), (0.881, 0.98)).score_ticks()
        [0.9, 0.92, 0.94, 0.96, 0.98]
        """
        low, high = self.scores
        decade = 10.0 ** math.floor(math.log10((high - low) / most))
        step = next(decade * digit for digit in (1, 2, 5, 10, 20) if (high - low) / (decade * digit) < most)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def ends(interval: Sequence[float | None] | None) -> tuple[float, float] | None:
    """An interval of densities with numbers for its open ends, which are null in JSON, as it has no infinity; or None.

    >>> ends([0.1, 0.2]), ends([0.0, None]), ends(None)
    ((0.1, 0.2), (0.0, 1.0), None)
    """
    if interval is None:
        return None
    low, high = interval
    return 0.0 if low is None else low, 1.0 if high is None else high


def threshold(report: dict[str, Any]) -> float | None:
    """The score that a network must reach: the reference less what is allowed."""
    reference = report.get("reference")
    return None if reference is None else float(reference["score"] - allowed(report))


def fit_reaches_goal(report: dict[str, Any]) -> float | None:
    """The density at which the fitted curve, as it is drawn, crosses the line of the goal; None if it does not."""
    fit, goal = report["curve"].get("fit"), threshold(report)
    if not fit or goal is None:
        return None
    points = pairwise(zip(fit["density"], fit["score"], strict=True))
    for (sparser, below), (denser, above) in points:
        if below < goal <= above:
            share = (goal - below) / (above - below)
            return float(sparser * (denser / sparser) ** share)
    return None


def allowed(report: dict[str, Any]) -> float:
    """How far below the reference the points may stay: delta, or more where they were trained only briefly."""
    answer = report["answer"]
    return float(answer.get("allowed") or answer["delta"])
