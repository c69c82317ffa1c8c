"""The visible part of the accuracy-density plane, shared by the figure and the terminal chart."""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib.ticker import LogLocator, MaxNLocator

from pathgrow.report.schema import RunReport

_DEPTH = 1.0
"""How far the window reaches below the probes, relative to their spread; rounds may start at chance level."""
_REACH = 2.0
"""Factor by which an interval may widen the window beyond the evaluated densities; its lower end may be 0."""


@dataclass(frozen=True)
class PlotWindow:
    """Limits of density (log scale) and score; `x` and `y` map into [0, 1]."""

    densities: tuple[float, float]
    scores: tuple[float, float]

    @classmethod
    def of(cls, report: RunReport) -> PlotWindow:
        """Cover all densities, and all scores except those of rounds far below the rest."""
        curve, answer = report.curve, report.answer
        densities = [point.density for point in (*curve.rounds, *curve.probes)]
        scores = [point.score for point in (curve.probes or curve.rounds)]
        if answer is not None:
            densities += [density for density in (answer.operating_density, answer.gain_density) if density]
        if densities and answer is not None and answer.interval is not None:
            least, most = min(densities) / _REACH, max(densities) * _REACH
            densities += [min(max(end, least), most) for end in answer.interval if end]
        if report.reference is not None and report.target_score is not None:
            scores += [report.reference.score, report.target_score]
        low, high = min(scores, default=0.0), max(scores, default=1.0)
        # Equal scores still need a window: twice the tolerance, or 1% of a score for `train`.
        spread = max(high - low, 2 * answer.delta if answer is not None else 0.01 * max(abs(high), 1.0), 1e-9)
        above = [point.score for point in curve.rounds if point.score >= low - _DEPTH * spread]
        low, high = min([low, *above]), max([high, *above])
        margin = 0.08 * max(high - low, spread)
        left, right = min(densities, default=0.01), max(densities, default=1.0)
        factor = max(right / left, 2.0) ** 0.05
        return cls((left / factor, right * factor), (low - margin, high + margin))

    def x(self, density: float) -> float:
        """Position of a density; one outside the window is moved to its edge."""
        left, right = self.densities
        return math.log(min(max(density, left), right) / left) / math.log(right / left)

    def y(self, score: float) -> float:
        """Position of a score."""
        low, high = self.scores
        return (score - low) / (high - low)

    def density_ticks(self) -> list[float]:
        """Two to seven round densities.

        >>> PlotWindow((0.009, 0.5), (0, 1)).density_ticks()
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
        """
        left, right = self.densities[0], min(self.densities[1], 1.0)
        locators = [LogLocator(subs=subs) for subs in ((1, 2, 3, 5, 7), (1, 2, 5), (1,))]
        for locator in (*locators, MaxNLocator(6)):
            ticks = [float(f"{tick:.3g}") for tick in locator.tick_values(left, right)]
            ticks = sorted({tick for tick in ticks if left <= tick <= right})
            if 2 <= len(ticks) <= 7:
                return ticks
        return [left, right]

    def score_ticks(self) -> list[float]:
        """Evenly spaced round scores.

        >>> PlotWindow((0.01, 1), (0.881, 0.98)).score_ticks()
        [0.9, 0.92, 0.94, 0.96, 0.98]
        """
        low, high = self.scores
        ticks = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high)
        return [float(f"{tick:.10g}") for tick in ticks if low <= tick <= high + 1e-9]
