"""Rules by name, and what each says at the turning points of a discovery."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pathgrow.density import rules
from pathgrow.density.acquisition import select_network
from pathgrow.density.estimate import estimate_from_probes, fit_band
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import Answer, Curve, Grow, Point, Probe, Reason, Reference, Stop
from pathgrow.errors import UserError

RULE = ProbeRule(delta=0.01)


# Not quite noise: the same small wiggle every time.
WIGGLE = [0.3, -0.8, 0.5, 0.9, -0.4, -0.6, 0.7, -0.2, 0.1, -0.9, 0.8, -0.3, 0.2, -0.5, 0.6, -0.7, 0.4, -0.1]


def rough(densities: Sequence[float], score: Callable[[float], float], wiggle: float = 5e-4) -> tuple[Point, ...]:
    return tuple(
        Point(round=k, density=x, epochs=20 + 4 * k, score=score(x) + wiggle * WIGGLE[k % len(WIGGLE)])
        for k, x in enumerate(densities)
    )


def ladder(start: float = 0.03, gamma: float = 0.25) -> list[float]:
    densities = [start]
    while densities[-1] < 1.0:
        densities.append(min(densities[-1] * (1 + gamma), 1.0))
    return densities


def saturating(rate: float) -> Callable[[float], float]:
    return lambda x: 0.5 + 0.4 * (1 - math.exp(-rate * x))


def grown(
    score: Callable[[float], float],
    *,
    gamma: float = 0.25,
    reference: Reference | None = None,
    rule: ProbeRule | None = None,
    ceiling: float = 1.0,
) -> tuple[Curve, Stop, Answer]:
    """Follow the probe rule on a curve with next to no noise."""
    rule = rule or RULE
    visited = [point for point in rough(ladder(gamma=gamma), score) if point.density <= ceiling]
    probes: list[Point] = []
    seen = 1
    for _ in range(200):
        curve = Curve(
            rough=tuple(visited[:seen]),
            probes=tuple(probes),
            reference=reference,
            ceiling=ceiling,
            at_ceiling=seen == len(visited),
        )
        match rule.decide(curve):
            case Stop() as verdict:
                return curve, verdict, rule.answer(curve)
            case Probe(rounds=rounds):
                assert rounds
                for k in rounds:
                    assert k not in {probe.round for probe in probes}
                    wiggle = 5e-4 * WIGGLE[(k + 5) % len(WIGGLE)]
                    probes.append(dataclasses.replace(visited[k], epochs=80, score=score(visited[k].density) + wiggle))
            case Grow():
                seen += 1
    raise AssertionError("the rule does not come to an end")


def test_names_and_options() -> None:
    assert rules.names() == ["probe", "exponential", "trajectory"]
    for name in rules.names():
        assert rules.create(name, delta=0.02).name == name
    assert rules.create("probe", max_probes=6) == ProbeRule(delta=0.01, max_probes=6)
    with pytest.raises(UserError, match="unknown density rule 'prob': did you mean probe"):
        rules.create("prob")
    with pytest.raises(UserError, match=r"density rule 'trajectory' has no option 'max_probes' \(known: beyond, delta"):
        rules.create("trajectory", max_probes=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("probe", {"delta": 0.0}),
        ("probe", {"delta": math.nan}),
        ("probe", {"max_probes": 3}),
        ("probe", {"max_cost": 0.5}),
        ("probe", {"max_cost": math.nan}),
        ("probe", {"spacing": 1.0}),
        ("probe", {"max_width": 0.9}),
        ("exponential", {"level": 1.0}),
        ("exponential", {"min_points": 3}),
        ("trajectory", {"beyond": 0.5}),
        ("trajectory", {"min_points": 2}),
    ],
)
def test_options_out_of_range_end_with_a_sentence(name, options) -> None:
    with pytest.raises(UserError, match="got"):
        rules.create(name, **options)


def test_literal_rules_stop_at_the_first_density_past_their_estimate() -> None:
    rule = rules.create("exponential")
    points = rough(ladder(), saturating(10.0))
    stops = []
    for num in range(1, len(points) + 1):
        curve = Curve(rough=points[:num])
        verdict, answer = rule.decide(curve), rule.answer(curve)
        stops.append(isinstance(verdict, Stop))
        if num < 5:
            assert answer.status == "open"
            assert answer.density is None
        if stops[-1]:
            assert answer.density is not None
            assert points[num - 2].density < answer.density <= points[num - 1].density
            assert answer.density == answer.gain_density
            assert answer.reason == Reason.PAST_ESTIMATE
            break
    assert stops[-1]
    assert answer.density == pytest.approx(math.log(20) / 10, rel=0.02)


def test_a_literal_rule_may_ask_for_less_of_the_gain() -> None:
    answer = rules.create("exponential", level=0.8).answer(Curve(rough=rough(ladder(), saturating(10.0))))
    assert answer.gain_level == 0.8
    assert answer.gain_density == pytest.approx(math.log(5) / 10, rel=0.02)


def test_the_literal_rule_says_when_there_is_no_saturation() -> None:
    points = rough([0.1, 0.2, 0.4, 0.6, 0.8, 1.0], lambda x: x, wiggle=0.0)
    rule = rules.create("exponential")
    assert isinstance(rule.decide(Curve(rough=points)), Grow)
    full = Curve(rough=points, at_ceiling=True)
    assert isinstance(rule.decide(full), Stop)
    assert rule.answer(full).status == "unreached"
    assert rule.answer(full).density is None


def test_trajectory_goes_on_to_twice_its_estimate() -> None:
    rule = rules.create("trajectory")
    points = rough(ladder(), saturating(12.0))
    for num in range(1, len(points) + 1):
        curve = Curve(rough=points[:num], can_probe=False, at_ceiling=num == len(points))
        if isinstance(rule.decide(curve), Stop):
            break
    answer = rule.answer(curve)
    assert answer.gain_density == pytest.approx(math.log(20) / 12, rel=0.05)
    assert 2 * answer.gain_density <= curve.rough[-1].density <= 2.6 * answer.gain_density
    assert answer.status == "found"
    # The doubt of a factor of two stands on both ends.
    low, high = answer.interval
    assert low <= answer.density / 1.9
    assert high >= min(answer.density * 1.9, 1.0)
    assert answer.details["widened"] == 2.0


def test_trajectory_does_not_hold_rough_networks_against_a_reference() -> None:
    rule = rules.create("trajectory")
    points = rough(ladder(), saturating(12.0))
    apart = rule.answer(Curve(rough=points, can_probe=False, reference=Reference(score=0.95, kind="given")))
    assert apart.reference.kind == "densest"
    assert apart.details["unmatched_reference"] == 0.95
    # A rough network that is good enough already settles it.
    met = rule.answer(Curve(rough=points, can_probe=False, reference=Reference(score=0.85, kind="given")))
    assert met.reference.score == 0.85
    assert met.details["unmatched_reference"] is None
    assert met.density == pytest.approx(math.log(0.4 / 0.06) / 12, rel=0.05)


def test_trajectory_says_flat() -> None:
    rule = rules.create("trajectory")
    curve = Curve(rough=rough(ladder()[:12], lambda x: 0.9), can_probe=False)
    assert isinstance(rule.decide(curve), Stop)
    assert rule.answer(curve).status == "flat"
    assert rule.answer(curve).density is None


def test_probe_refuses_a_loop_without_copies() -> None:
    with pytest.raises(UserError, match="use the 'trajectory' rule"):
        rules.create("probe").decide(Curve(rough=rough([0.03], saturating(10.0)), can_probe=False))


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5, 1.0])
def test_first_probes_follow_ratios_of_density_not_rounds(gamma: float) -> None:
    """Half a growth step at either end is all that the ladder of rounds may change."""
    points = rough(ladder(gamma=gamma), saturating(10.0))
    for num in range(1, len(points) + 1):
        verdict = RULE.decide(Curve(rough=points[:num], at_ceiling=num == len(points)))
        if isinstance(verdict, Probe):
            break
    first = [points[k].density for k in verdict.rounds]
    assert first[-1] == points[num - 1].density
    assert len(first) == 3
    assert all(3.0 / (1 + gamma) <= b / a <= 3.0 * (1 + gamma) for a, b in itertools.pairwise(first))
    _, _, answer = grown(saturating(10.0), gamma=gamma)
    off = abs(math.log(answer.density / (math.log(40) / 10)))
    assert off < max(math.log(1.15), math.log(1 + gamma) / 2), "coarse steps leave few networks to probe"


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="given")])
def test_probe_never_stops_before_both_answers_are_bracketed(reference: Reference | None) -> None:
    for rate in (60.0, 20.0, 8.0):
        curve, verdict, answer = grown(saturating(rate), reference=reference)
        densest = max(probe.density for probe in curve.probes)
        assert answer.status == "found"
        assert curve.probes[0].density < answer.density < densest
        assert answer.gain_density < densest
        assert answer.reason == verdict.reason
        assert verdict.details.items() <= answer.details.items()


def test_fast_saturation_with_a_reference_ends_growth_early() -> None:
    curve, _, answer = grown(saturating(30.0), reference=Reference(score=0.9, kind="given"))
    assert curve.rough[-1].density < 0.5
    assert answer.reference.kind == "given"


def test_a_reference_out_of_reach_is_said_to_be() -> None:
    curve, _, answer = grown(saturating(10.0), reference=Reference(score=0.95, kind="given"))
    assert curve.at_ceiling
    assert answer.status == "unreached"
    assert answer.density is None
    assert answer.interval is None
    assert answer.gain_density == pytest.approx(0.2996, rel=0.05)
    assert answer.reason == Reason.UNREACHED
    assert (answer.details["gap"], answer.details["at_density"]) == (0.01, 1.0)
    assert select_network(curve, answer).density == 1.0


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="dense", epochs=80)])
def test_a_flat_curve_is_said_to_be(reference: Reference | None) -> None:
    curve, _, answer = grown(lambda x: 0.9, reference=reference)
    assert answer.status == "flat"
    assert answer.density is None
    assert answer.interval == (0.0, curve.rough[0].density)
    assert answer.gain_density is None
    assert answer.details["gain_missing"] == "no_rise"
    assert select_network(curve, answer).round == 0
    # Nothing can be gained by growing on: the expensive half of the range is spared.
    assert max(probe.density for probe in curve.probes) < 0.6


def test_a_perfectly_constant_score_is_flat() -> None:
    points = tuple(Point(round=k, density=x, epochs=80, score=0.9) for k, x in enumerate([0.03, 0.06, 0.12, 0.25, 0.5]))
    answer = rules.create("probe").answer(Curve(rough=points, probes=points))
    assert answer.status == "flat"


def test_a_ceiling_below_the_answer_leaves_it_unreached() -> None:
    curve, _, answer = grown(
        saturating(3.0), reference=Reference(score=saturating(3.0)(1.0), kind="given"), ceiling=0.4
    )
    assert curve.at_ceiling
    assert answer.status == "unreached"


def test_a_small_budget_of_probes_is_spread_over_the_range() -> None:
    curve, _, answer = grown(saturating(5.0), rule=ProbeRule(delta=0.01, max_probes=5))
    assert len(curve.probes) <= 5
    assert max(probe.density for probe in curve.probes) == 1.0
    assert answer.status == "found"


def batches(score: Callable[[float], float], *, reference: Reference | None = None) -> list[tuple[int, ...]]:
    """What the rule asks for at a time, while a ladder is grown as it says."""
    visited, probes, seen, asked = rough(ladder(), score), list[Point](), 1, list[tuple[int, ...]]()
    while True:
        curve = Curve(rough=visited[:seen], probes=tuple(probes), reference=reference, at_ceiling=seen == len(visited))
        match RULE.decide(curve):
            case Stop():
                return asked
            case Grow():
                seen += 1
            case Probe(rounds=rounds):
                asked.append(rounds)
                probes += [
                    dataclasses.replace(visited[k], epochs=80, score=score(visited[k].density) + 0.004 * WIGGLE[k])
                    for k in rounds
                ]


@pytest.mark.parametrize("rate", [40.0, 20.0, 10.0, 5.0])
def test_without_a_reference_three_probes_at_once_and_then_the_answer_itself(rate: float) -> None:
    asked = batches(saturating(rate))
    assert len(asked[0]) == 3
    assert all(len(batch) == 1 for batch in asked[1:])
    assert 4 <= sum(map(len, asked)) <= 5
    curve, _, answer = grown(saturating(rate))
    assert select_network(curve, answer).round in {probe.round for probe in curve.probes}


def test_with_a_reference_probes_come_in_batches() -> None:
    asked = batches(lambda x: 0.95 - 0.02 * x**-0.4, reference=Reference(score=0.93, kind="given"))
    assert len(asked[0]) == 6
    assert {len(batch) for batch in asked[1:]} <= {1, 2}
    assert any(len(batch) == 2 for batch in asked[1:])
    assert sum(map(len, asked)) <= 10


def test_the_price_of_the_search_is_kept() -> None:
    def spent(limit: float | None) -> float:
        rule = ProbeRule(delta=0.01, max_probes=9, max_cost=limit, max_width=1.001, max_gain_width=1.001)
        return sum(probe.density for probe in grown(saturating(4.0), rule=rule)[0].probes)

    assert [spent(limit) < limit for limit in (1.8, 2.2, 2.6)] == [True, True, True]
    assert spent(None) > spent(2.2) > spent(1.8)


def test_nothing_is_probed_before_the_trunk_is_well_beyond_its_own_flattening() -> None:
    points = rough(ladder(), saturating(15.0))
    flattens = math.log(20) / 15
    for reference in (None, Reference(score=0.9, kind="given")):
        curves = [Curve(rough=points[:num], reference=reference) for num in range(1, len(points))]
        first = next(curve for curve in curves if isinstance(RULE.decide(curve), Probe))
        assert first.rough[-2].density < 1.05 * 3 * flattens
        assert first.rough[-1].density > 0.95 * 3 * flattens


def test_an_answer_below_the_first_batch_is_followed_down() -> None:
    # The trunk has learned long after its density sufficed, so growth looked far too high.
    visited = rough(ladder(), saturating(4.0))
    probes: list[Point] = []
    while not isinstance(
        verdict := RULE.decide(curve := Curve(rough=visited, probes=tuple(probes), at_ceiling=True)),
        Stop,
    ):
        assert isinstance(verdict, Probe)
        probes += [dataclasses.replace(visited[k], score=saturating(70.0)(visited[k].density)) for k in verdict.rounds]
    answer = RULE.answer(curve)
    assert min(probe.density for probe in probes[:3]) > 0.1
    assert answer.density == pytest.approx(math.log(40) / 70, rel=0.35)
    assert answer.interval[0] <= math.log(40) / 70 <= answer.interval[1]


def test_few_visited_densities_are_all_probed() -> None:
    points = rough([0.5, 0.7, 1.0], saturating(3.0))
    rule = rules.create("probe")
    probes: list[Point] = []
    while isinstance(verdict := rule.decide(Curve(rough=points, probes=tuple(probes), at_ceiling=True)), Probe):
        probes.extend(points[k] for k in verdict.rounds)
    assert {probe.round for probe in probes} == {0, 1, 2}
    two = Curve(rough=points[-2:], probes=points[-2:], at_ceiling=True)
    assert isinstance(rule.decide(two), Stop)
    assert rule.answer(two).status == "open"


def test_hand_back_takes_the_smallest_visited_density_no_smaller_than_the_answer() -> None:
    curve, _, answer = grown(saturating(10.0), rule=ProbeRule(delta=0.1))
    for by, wanted in (("delta", answer.density), ("gain", answer.gain_density)):
        chosen = select_network(curve, answer, by=by)
        assert chosen.density >= wanted
        assert all(point.density < wanted for point in curve.rough if point.density < chosen.density)


def test_fit_band_holds_the_curve() -> None:
    curve, _, _ = grown(saturating(10.0))
    band = fit_band(curve)
    assert set(band) == {"density", "score", "low", "high"}
    for x, low, score, high in zip(band["density"], band["low"], band["score"], band["high"], strict=True):
        assert low <= score <= high
        assert score == pytest.approx(saturating(10.0)(x), abs=0.004)
    assert fit_band(Curve(rough=curve.rough, probes=curve.probes[:2])) is None


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="dense", epochs=80)])
def test_few_validation_examples_widen_the_interval(reference: Reference | None) -> None:
    curve, _, sharp = grown(saturating(10.0), reference=reference)
    widths = [math.log(sharp.interval[1] / sharp.interval[0])]
    for num_val in (10_000, 300):
        answer = RULE.answer(dataclasses.replace(curve, num_val=num_val))
        assert answer.density == pytest.approx(
            sharp.density, rel=0.05
        )  # two thirds of a wider spread lie a little higher
        widths.append(math.log(answer.interval[1] / answer.interval[0]))
    assert widths[0] < widths[1] < widths[2] / 1.5


@pytest.mark.parametrize(
    ("score", "reference", "status", "reason"),
    [
        (lambda density: 0.8, None, "flat", Reason.FLAT),
        (
            lambda density: 0.93 - 0.1 * math.exp(-10 * density),
            Reference(score=0.99, kind="given"),
            "unreached",
            Reason.UNREACHED,
        ),
    ],
)
def test_the_reason_to_stop_tells_what_was_found(score, reference, status: str, reason: Reason) -> None:
    _, verdict, answer = grown(score, reference=reference)
    assert answer.status == status
    assert answer.density is None
    assert verdict.reason == reason
    assert verdict.stop


def test_an_interval_that_reaches_below_every_probe_is_open_there() -> None:
    """A slow rise, delta nearly as large as it: many of the possible curves need less than was trained out."""
    noise = (0.004, -0.003, 0.002, -0.004, 0.003)
    points = tuple(
        Point(round=k, density=x, epochs=80, score=0.9 + 0.02 * math.log10(x) + off)
        for k, (x, off) in enumerate(zip((0.1, 0.2, 0.4, 0.7, 1.0), noise, strict=True))
    )
    rule = ProbeRule(delta=0.012)
    curve = Curve(rough=points, probes=points, at_ceiling=True)
    answer = rule.answer(curve)
    below = float(np.mean(estimate_from_probes(curve, rule.delta).delta_density <= 0.1))
    assert below > 0.05
    assert answer.status == "found"
    assert answer.interval[0] == 0.0
    assert answer.interval[1] > answer.density > 0.1
    assert answer.details["share_below"] == below
    assert answer.details["lowest"] == 0.1
    sharp = rule.answer(Curve(rough=points, probes=tuple(saturated(points)), at_ceiling=True))
    assert sharp.interval[0] > 0.1
    assert sharp.details["share_below"] < 0.05


def saturated(points: Sequence[Point]) -> list[Point]:
    """The same densities, on a curve that crosses far above the lowest of them."""
    return [dataclasses.replace(point, score=0.9 * (1 - math.exp(-8.0 * point.density))) for point in points]
