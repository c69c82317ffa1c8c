"""Rules that use the trajectory alone: where they stop, their intervals, and references they are not compared with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq, curve_fit

from pathgrow.density.probe import select_network
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.trajectory import ExponentialRule, TrajectoryRule
from pathgrow.density.types import Curve, Point, Reason, Reference
from tests.support.searching import ladder, points, saturating, search, search_scores

RULE = TrajectoryRule(delta=0.01)
PUBLISHED = ExponentialRule(delta=0.01)


def test_grows_to_twice_its_estimate() -> None:
    found = search(RULE, saturating(12.0), can_probe=False)
    answer, last = found.answer, found.curve.rough[-1].density
    assert answer.status == "found"
    assert answer.gain_density == pytest.approx(math.log(20) / 12, rel=0.05)
    assert 2 * answer.gain_density <= last <= 2.6 * answer.gain_density
    assert answer.reason == Reason.PAST_ESTIMATE
    assert answer.details["at_density"] == last
    assert answer.details["factor"] == answer.details["widened"] == 2.0
    low, high = answer.interval
    assert low <= answer.density / 1.9
    assert high >= min(answer.density * 1.9, 1.0)


def test_stops_past_the_estimate_or_at_the_ceiling() -> None:
    rough = points([0.01 * 1.4**k for k in range(12)], lambda x: 0.9 - 0.5 * math.exp(-x / 0.02))
    stopped = RULE.decide(Curve(rough=rough))
    assert (stopped.stop, stopped.reason) == (True, Reason.PAST_ESTIMATE)
    assert stopped.details["at_density"] == rough[-1].density > 2.5 * stopped.details["estimate"]
    short = tuple(point for point in rough if point.density < 0.09)
    assert RULE.decide(Curve(rough=short)).reason == Reason.BELOW_ESTIMATE
    capped = RULE.decide(Curve(rough=short, ceiling=short[-1].density))
    assert (capped.stop, capped.reason) == (True, Reason.GROWTH_ENDED)
    assert capped.details == {"at_density": short[-1].density}
    ended = RULE.decide(Curve(at_ceiling=True))
    assert (ended.stop, ended.reason, ended.details) == (True, Reason.GROWTH_ENDED, {"at_density": None})


def test_five_rounds_are_too_few() -> None:
    curve = Curve(rough=points(ladder()[:5], saturating(12.0)))
    assert RULE.decide(curve).details == {"rounds": 5, "needed": 6}
    assert RULE.answer(curve).status == "open"


def test_a_flat_trajectory_stops_half_way_to_the_ceiling() -> None:
    flat = points(ladder(), lambda x: 0.9, wiggle=5e-4)
    assert RULE.decide(Curve(rough=flat[:6])).reason == Reason.NOT_RISING
    curve = Curve(rough=flat[:12], can_probe=False)
    verdict, answer = RULE.decide(curve), RULE.answer(curve)
    assert (verdict.stop, verdict.reason) == (True, Reason.NO_RISE)
    assert (answer.status, answer.density) == ("flat", None)


def test_a_straight_line_has_no_gain_density() -> None:
    rough = points(ladder(), lambda x: 0.5 + 0.4 * x, wiggle=1e-4)
    answer = RULE.answer(Curve(rough=rough, can_probe=False, at_ceiling=True))
    assert (answer.status, answer.gain_density, answer.details["gain_missing"]) == ("found", None, "no_saturation")


def test_a_reference_counts_only_if_a_rough_network_reaches_it() -> None:
    rough = points(ladder(), saturating(12.0), wiggle=5e-4)
    apart = RULE.answer(Curve(rough=rough, can_probe=False, reference=Reference(score=0.95, kind="given")))
    assert apart.reference.kind == "densest"
    assert apart.details["unmatched_reference"] == 0.95
    met = RULE.answer(Curve(rough=rough, can_probe=False, reference=Reference(score=0.85, kind="given")))
    assert (met.reference.score, met.reference.kind) == (0.85, "given")
    assert met.details["unmatched_reference"] is None
    assert met.density == pytest.approx(math.log(0.4 / 0.06) / 12, rel=0.05)


def test_a_reference_is_never_the_end_of_a_rough_curve() -> None:
    """Whether its length is known or not, and even where the curve ends: no rough network has had its training."""
    noise = np.random.default_rng(0).normal(0, 0.004, 15)
    rough = tuple(
        Point(round=k, density=x, epochs=20 + k, score=float(saturating(12.0)(x) + noise[k]))
        for k, x in enumerate([0.03 * 1.25**k for k in range(15)])
    )
    known, unknown = (
        RULE.answer(Curve(rough=rough, can_probe=False, reference=Reference(score=0.9, kind="given", epochs=epochs)))
        for epochs in (160, None)
    )
    assert known.status == "found"
    assert known.reference.score == 0.9
    assert (known.density, known.interval) == (unknown.density, unknown.interval)


def test_the_densest_network_of_a_trajectory_is_not_the_dense_baseline() -> None:
    full = points([*(0.03 * 1.25**k for k in range(15)), 1.0], saturating(3.0), epochs=20)
    answer = RULE.answer(Curve(rough=full, can_probe=False, at_ceiling=True))
    assert (answer.details["densest"], answer.details["densest_round"]) == (1.0, 15)


def test_the_answer_is_within_the_visited_densities() -> None:
    """Rises about as large as delta: on some of these curves every network is within delta, which is flat."""
    rng = np.random.default_rng(0)
    statuses = set()
    for _ in range(60):
        rough = tuple(
            Point(round=k, density=x, epochs=20, score=float(0.9 + 0.012 * math.log10(x) + rng.normal(0, 0.003)))
            for k, x in enumerate([0.03 * 1.4**k for k in range(10)])
        )
        answer = TrajectoryRule(delta=0.016).answer(Curve(rough=rough, can_probe=False))
        statuses.add(answer.status)
        if answer.density is not None:
            assert rough[0].density < answer.density <= rough[-1].density
    assert statuses == {"flat", "found"}


# The paper's rule as published.


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
    assert PUBLISHED.decide(curve).reason == Reason.FEW_ROUNDS
    assert PUBLISHED.answer(curve).status == "open"


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
    answer = PUBLISHED.answer(Curve(rough=rough, at_ceiling=True))
    assert answer.density is not None
    assert fit_saturation(x.tolist(), y.tolist()).interval(0.9)[1] > 1.0, "otherwise this tests nothing"
    assert 0 < answer.interval[0] <= answer.density <= answer.interval[1] == 1.0


def test_a_curve_without_saturation_has_no_answer() -> None:
    rough = points([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], lambda x: x)
    growing, full = Curve(rough=rough), Curve(rough=rough, at_ceiling=True)
    assert (PUBLISHED.decide(growing).stop, PUBLISHED.decide(growing).reason) == (False, Reason.NO_SATURATION_YET)
    assert (PUBLISHED.decide(full).stop, PUBLISHED.decide(full).reason) == (True, Reason.NO_SATURATION)
    assert (PUBLISHED.answer(growing).status, PUBLISHED.answer(full).status) == ("open", "unreached")
    assert PUBLISHED.answer(full).density is None


def test_an_estimate_above_the_ceiling_is_out_of_reach() -> None:
    rough = points(ladder()[:8], saturating(10.0))
    growing, capped = Curve(rough=rough), Curve(rough=rough, at_ceiling=True)
    assert PUBLISHED.decide(growing).reason == Reason.BELOW_ESTIMATE
    verdict = PUBLISHED.decide(capped)
    assert (verdict.stop, verdict.reason) == (True, Reason.ESTIMATE_OUT_OF_REACH)
    assert verdict.details["estimate"] == pytest.approx(math.log(20) / 10, rel=1e-3)
    assert PUBLISHED.answer(capped).status == "unreached"


@pytest.mark.parametrize("noise", [5e-4, 2e-3, 5e-3])
@pytest.mark.parametrize("rate", [5.0, 15.0, 40.0])
def test_the_statement_of_attach_covers(rate: float, noise: float) -> None:
    """The interval holds the density within delta of the densest network grown, in at least 85% of twenty runs.

    Relative to dense it is a lower bound: its lower end never exceeds the density that dense asks for.
    """
    delta, shape, num_covered = 0.01, saturating(rate), 0

    def within_delta_of(density: float) -> float:
        return -math.log(1 - (shape(density) - delta - 0.5) / 0.4) / rate

    for seed in range(20):
        rng = np.random.default_rng(seed)

        def score(round: int, density: float, rng: np.random.Generator = rng) -> float:
            return shape(density) + noise * rng.standard_normal()

        found = search_scores(RULE, score, score, can_probe=False)
        truth = within_delta_of(found.curve.rough[-1].density)
        low, high = found.answer.interval or (0.0, 0.0)
        num_covered += found.answer.status == "found" and low <= truth <= high
        assert low <= within_delta_of(1.0)
    assert num_covered >= 17
