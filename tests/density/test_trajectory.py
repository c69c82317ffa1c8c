"""The trajectory rule says only what is true of where it stops."""

from __future__ import annotations

import math

import numpy as np

from pathgrow.density import rules
from pathgrow.density.types import Curve, Grow, Point, Reason, Reference, Stop


def test_trajectory_says_no_more_than_is_true_of_where_it_stops() -> None:
    """A round may land well beyond twice the estimate, or the ceiling may come before it."""
    rule = rules.create("trajectory")
    densities = [0.01 * 1.4**k for k in range(12)]
    points = tuple(
        Point(round=k, density=d, epochs=k + 1, score=0.9 - 0.5 * math.exp(-d / 0.02)) for k, d in enumerate(densities)
    )
    stopped = rule.decide(Curve(rough=points))
    assert isinstance(stopped, Stop)
    assert stopped.reason == Reason.PAST_ESTIMATE
    assert stopped.details["at_density"] == densities[-1] > 2.5 * stopped.details["estimate"]
    short = tuple(point for point in points if point.density < 0.09)
    assert isinstance(rule.decide(Curve(rough=short)), Grow)
    capped = rule.decide(Curve(rough=short, ceiling=short[-1].density))
    assert isinstance(capped, Stop)
    assert (capped.reason, capped.details) == (Reason.GROWTH_ENDED, {"at_density": short[-1].density})


def test_a_reference_is_never_the_end_of_a_rough_curve() -> None:
    """Whether its length is told or not, and even where the curve ends: no rough network has had its training."""
    noise = np.random.default_rng(0).normal(0, 0.004, 15)
    points = tuple(
        Point(round=k, density=x, epochs=20 + k, score=float(0.5 + 0.4 * (1 - math.exp(-12 * x)) + noise[k]))
        for k, x in enumerate([0.03 * 1.25**k for k in range(15)])
    )
    told, untold = (
        rules.create("trajectory").answer(
            Curve(rough=points, can_probe=False, reference=Reference(score=0.9, kind="given", epochs=epochs))
        )
        for epochs in (160, None)
    )
    assert told.status == "found"
    assert told.reference.score == 0.9
    assert (told.density, told.interval) == (untold.density, untold.interval)


def test_a_density_that_was_not_visited_is_never_found() -> None:
    """Rises about as large as delta: for some of these curves all that was seen is near enough, and that is flat."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        points = tuple(
            Point(round=k, density=x, epochs=20, score=float(0.9 + 0.012 * math.log10(x) + rng.normal(0, 0.003)))
            for k, x in enumerate([0.03 * 1.4**k for k in range(10)])
        )
        answer = rules.create("trajectory", delta=0.016).answer(Curve(rough=points, can_probe=False))
        seen.add(answer.status)
        if answer.density is not None:
            assert points[0].density < answer.density <= points[-1].density
    assert seen == {"flat", "found"}
