"""The rules as published: each reads its own curve, at the level asked for, and says no more than a density can be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq, curve_fit

from pathgrow.density import rules
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import Curve, Grow, Point, Reason, Stop
from tests.support.growing import Followed, follow


def exponential(x: float) -> float:
    return 0.2 + 0.7 * (1 - math.exp(-10 * x))


def followed(score: Callable[[float], float], **options: float) -> Followed:
    """The growing network scores as the curve says; this rule sees nothing else."""
    return follow(rules.create("exponential", **options), lambda round, x: score(x), lambda round, x: math.nan)


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_without_noise_the_answer_is_where_the_curve_has_made_its_level(level: float) -> None:
    known = brentq(lambda x: exponential(x) - 0.2 - level * 0.7, 0.0, 1.0)
    seen = followed(exponential, level=level)
    assert seen.answer.status == "found"
    assert seen.answer.density == seen.answer.gain_density == pytest.approx(known, rel=1e-3)
    assert seen.answer.interval == pytest.approx((known, known), rel=2e-3)
    *_, before, last = seen.curve.rough
    assert before.density < known * 1.001
    assert last.density >= seen.answer.density
    assert seen.answer.gain_level == level
    assert seen.answer.reason == Reason.PAST_ESTIMATE


@pytest.mark.parametrize("level", [0.95, 0.6])
def test_with_noise_the_interval_is_that_of_general_least_squares(level: float) -> None:
    x = 0.03 * 1.25 ** np.arange(13)
    y = np.array([exponential(each) for each in x]) + np.random.default_rng(3).normal(0, 0.01, len(x))
    points = tuple(Point(round=k, density=a, epochs=20, score=b) for k, (a, b) in enumerate(zip(x, y, strict=True)))
    answer = rules.create("exponential", level=level).answer(Curve(rough=points))
    (_, _, rate), covariance = curve_fit(lambda x, p, g, r: p + g * (1 - np.exp(-r * x)), x, y, p0=[0.3, 0.5, 5.0])
    assert answer.density == pytest.approx(-math.log(1 - level) / rate, rel=1e-4)
    # Student's t of 90% with 13 points and 3 parameters, and the first term in the noise.
    spread = 1.812 * math.sqrt(covariance[2, 2]) / rate
    low, high = answer.interval
    assert math.log(high / low) / 2 == pytest.approx(spread, rel=0.15)
    assert low < answer.density < high


def test_no_interval_reaches_beyond_all_weights() -> None:
    """A slow rise that 95% of the gain is just made on: with this noise it may as well not be."""
    x = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0])
    y = 0.5 + 0.4 * (1 - np.exp(-3.6 * x)) + 0.02 * np.array([1, -1, 1, -1, 1, -1, 1, -1])
    points = tuple(Point(round=k, density=a, epochs=20, score=b) for k, (a, b) in enumerate(zip(x, y, strict=True)))
    answer = rules.create("exponential").answer(Curve(rough=points, at_ceiling=True))
    assert answer.density is not None
    assert fit_saturation(x.tolist(), y.tolist()).interval(0.9)[1] > 1.0, "the case is what it says"
    assert 0 < answer.interval[0] <= answer.density <= answer.interval[1] == 1.0


def test_an_estimate_beyond_all_weights_is_none() -> None:
    points = tuple(Point(round=k, density=x, epochs=20, score=x) for k, x in enumerate([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    rule = rules.create("exponential")
    verdict = rule.decide(Curve(rough=points))
    assert isinstance(verdict, Grow)
    assert verdict.reason == Reason.NO_SATURATION_YET
    verdict = rule.decide(Curve(rough=points, at_ceiling=True))
    assert isinstance(verdict, Stop)
    assert verdict.reason == Reason.NO_SATURATION
