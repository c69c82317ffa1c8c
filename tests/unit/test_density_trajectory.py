"""The trajectory rule says only what is true of where it stops."""

from __future__ import annotations

import math
import re

from pathgrow.density import rules
from pathgrow.density.curve import Curve, Grow, Point, Stop


def test_trajectory_says_no_more_than_is_true_of_where_it_stops() -> None:
    """A round may land well beyond twice the estimate, or the ceiling may come before it."""
    rule = rules.create("trajectory")
    densities = [0.01 * 1.4**k for k in range(12)]
    points = tuple(
        Point(round=k, density=d, epochs=k + 1, score=0.9 - 0.5 * math.exp(-d / 0.02)) for k, d in enumerate(densities)
    )
    stopped = rule.decide(Curve(rough=points))
    assert isinstance(stopped, Stop)
    said = re.match(r"density (\d+)% is at least 2 times the estimate ([\d.]+)%; density .* is enough", stopped.reason)
    assert said is not None
    assert float(said[1]) > 2.5 * float(said[2])
    short = tuple(point for point in points if point.density < 0.09)
    assert isinstance(rule.decide(Curve(rough=short)), Grow)
    capped = rule.decide(Curve(rough=short, ceiling=short[-1].density))
    assert isinstance(capped, Stop)
    assert capped.reason.startswith("density 7.5% is as far as growth may go; ")
