"""The paper's rule as published: its estimate, its interval, and where it stops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq, curve_fit

from pathgrow.density.acquisition import select_network
from pathgrow.density.literal import ExponentialRule
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import Curve, Point, Reason
from tests.support.searching import ladder, points, saturating, search

RULE = ExponentialRule(delta=0.01)


def exponential(x: float) -> float:
    return 0.2 + 0.7 * (1 - math.exp(-10 * x))


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_without_noise_the_answer_is_where_the_curve_reaches_its_level(level: float) -> None:
    known = brentq(lambda x: exponential(x) - 0.2 - level * 0.7, 0.0, 1.0)
    found = search(ExponentialRule(delta=0.01, level=level), exponential, wiggle=0.0)
    assert found.answer.status == "found"
    assert found.answer.density == found.answer.gain_density == pytest.approx(known, rel=1e-3)
    assert found.answer.interval == found.answer.gain_interval == pytest.approx((known, known), rel=2e-3)
    assert found.answer.gain_level == level
    assert found.answer.reason == Reason.PAST_ESTIMATE
    assert found.answer.details["fit_within_delta"] == pytest.approx(math.log(70) / 10, rel=1e-3)
    *_, before, last = found.curve.rough
    assert before.density < found.answer.density * 1.001
    assert last.density >= found.answer.density
    assert select_network(found.curve, found.answer) == last


def test_four_rounds_are_too_few() -> None:
    curve = Curve(rough=points(ladder()[:4], saturating(60.0)))
    assert RULE.decide(curve).reason == Reason.FEW_ROUNDS
    assert RULE.answer(curve).status == "open"


@pytest.mark.parametrize("level", [0.95, 0.6])
def test_with_noise_the_interval_is_that_of_general_least_squares(level: float) -> None:
    x = 0.03 * 1.25 ** np.arange(13)
    y = np.array([exponential(each) for each in x]) + np.random.default_rng(3).normal(0, 0.01, len(x))
    rough = tuple(Point(round=k, density=a, epochs=20, score=b) for k, (a, b) in enumerate(zip(x, y, strict=True)))
    answer = ExponentialRule(delta=0.01, level=level).answer(Curve(rough=rough))
    (_, _, rate), covariance = curve_fit(lambda x, p, g, r: p + g * (1 - np.exp(-r * x)), x, y, p0=[0.3, 0.5, 5.0])
    assert answer.density == pytest.approx(-math.log(1 - level) / rate, rel=1e-4)
    # Student's t of 90% with 13 points and 3 parameters, to first order in the noise.
    spread = 1.812 * math.sqrt(covariance[2, 2]) / rate
    low, high = answer.interval
    assert math.log(high / low) / 2 == pytest.approx(spread, rel=0.15)
    assert low < answer.density < high


def test_intervals_end_at_density_one() -> None:
    """A slow rise that barely reaches 95% of its gain: with this noise it may as well not."""
    x = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0])
    y = 0.5 + 0.4 * (1 - np.exp(-3.6 * x)) + 0.02 * np.array([1, -1, 1, -1, 1, -1, 1, -1])
    rough = tuple(Point(round=k, density=a, epochs=20, score=b) for k, (a, b) in enumerate(zip(x, y, strict=True)))
    answer = RULE.answer(Curve(rough=rough, at_ceiling=True))
    assert answer.density is not None
    assert fit_saturation(x.tolist(), y.tolist()).interval(0.9)[1] > 1.0, "otherwise this tests nothing"
    assert 0 < answer.interval[0] <= answer.density <= answer.interval[1] == 1.0


def test_a_curve_without_saturation_has_no_answer() -> None:
    rough = points([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], lambda x: x)
    growing, full = Curve(rough=rough), Curve(rough=rough, at_ceiling=True)
    assert (RULE.decide(growing).stop, RULE.decide(growing).reason) == (False, Reason.NO_SATURATION_YET)
    assert (RULE.decide(full).stop, RULE.decide(full).reason) == (True, Reason.NO_SATURATION)
    assert (RULE.answer(growing).status, RULE.answer(full).status) == ("open", "unreached")
    assert RULE.answer(full).density is None


def test_an_estimate_above_the_ceiling_is_out_of_reach() -> None:
    rough = points(ladder()[:8], saturating(10.0))
    growing, capped = Curve(rough=rough), Curve(rough=rough, at_ceiling=True)
    assert RULE.decide(growing).reason == Reason.BELOW_ESTIMATE
    verdict = RULE.decide(capped)
    assert (verdict.stop, verdict.reason) == (True, Reason.ESTIMATE_OUT_OF_REACH)
    assert verdict.details["estimate"] == pytest.approx(math.log(20) / 10, rel=1e-3)
    assert RULE.answer(capped).status == "unreached"
