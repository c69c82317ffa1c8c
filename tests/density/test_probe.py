"""The probe rule: where it probes, how far it grows, when it stops; with fully trained and with short probes."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.density.estimate import estimate_from_probes, quantiles
from pathgrow.density.posterior import PosteriorSamples, sample_posterior
from pathgrow.density.probe import (
    ProbeRule,
    _explained,
    most_informative,
    nearest,
    probe_cost,
    select_network,
    sparsest_sufficient,
    spread,
)
from pathgrow.density.trajectory import TrajectoryRule
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reason, Reference, Stop
from pathgrow.errors import UserError
from tests.support.searching import Search, Shape, ladder, points, saturating, search

RULE = ProbeRule(delta=0.01)
GIVEN = Reference(score=0.9, kind="given", epochs=80)
EARLY = saturating(60.0)
"""A trunk that flattens at 5% already: growth has to follow the probes."""
SLOWER = saturating(40.0)
"""A trunk that flattens at 7%."""


def full_search(shape: Shape, rule: ProbeRule = RULE, **options: object) -> Search:
    """Search with probes as long as the final training, which rules out a dense probe."""
    return search(rule, shape, **{"probe_epochs": 80, "budget": 80, **options})


def test_refuses_a_loop_without_probes() -> None:
    with pytest.raises(UserError, match="use the 'trajectory' rule"):
        RULE.decide(Curve(rough=points([0.03], EARLY), can_probe=False))


def test_decides_and_answers_with_one_reason() -> None:
    """Also while the search goes on: the answer of a curve has the reason of its verdict."""
    rough = points(ladder(), saturating(10.0), wiggle=5e-4)
    nothing, few, probed = Curve(), Curve(rough=rough[:3]), Curve(rough=rough[:12], probes=rough[6:12:2])
    for curve, reason in (
        (nothing, Reason.NOTHING_OBSERVED),
        (few, Reason.FEW_ROUNDS),
        (dataclasses.replace(few, rough=rough[:6]), Reason.TRAJECTORY_RISING),
        (dataclasses.replace(few, rough=points(ladder()[:6], lambda x: 0.9, wiggle=5e-4)), Reason.NOT_RISING),
        (dataclasses.replace(few, rough=rough), Reason.FIRST_PROBES),
        (probed, Reason.DELTA_NOT_BRACKETED),
    ):
        verdict, answer = RULE.decide(curve), RULE.answer(curve)
        assert verdict.reason == answer.reason == reason
        assert verdict.details.items() <= answer.details.items()
        assert answer.density is None or curve is probed


# The first batch.


def test_nothing_is_probed_before_the_trunk_is_well_beyond_its_own_flattening() -> None:
    rough = points(ladder(), saturating(15.0), wiggle=5e-4)
    flattens = math.log(20) / 15
    for reference in (None, GIVEN):
        curves = [Curve(rough=rough[:num], reference=reference) for num in range(1, len(rough))]
        first = next(curve for curve in curves if isinstance(RULE.decide(curve), Probe))
        assert first.rough[-2].density < 1.05 * 3 * flattens
        assert first.rough[-1].density > 0.95 * 3 * flattens


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5, 1.0])
def test_first_probes_are_spaced_by_density_not_by_rounds(gamma: float) -> None:
    """The growth step may change the spacing by one step."""
    found = full_search(saturating(10.0), gamma=gamma)
    first = [found.curve.rough[k].density for k in found.batches[0]]
    assert len(first) == 3
    assert all(3.0 / (1 + gamma) <= b / a <= 3.0 * (1 + gamma) for a, b in pairwise(first))
    error = abs(math.log(found.answer.density / (math.log(40) / 10)))
    assert error < max(math.log(1.15), math.log(1 + gamma) / 2), "coarse steps leave few networks to probe"


@pytest.mark.parametrize("rate", [40.0, 20.0, 10.0, 5.0])
def test_without_a_reference_three_probes_and_then_the_answer_itself(rate: float) -> None:
    found = full_search(saturating(rate))
    assert len(found.batches[0]) == 3
    assert all(len(batch) == 1 for batch in found.batches[1:])
    assert 4 <= sum(map(len, found.batches)) <= 5
    assert select_network(found.curve, found.answer).round in {probe.round for probe in found.curve.probes}


def test_with_a_reference_six_probes_and_then_batches_of_two() -> None:
    reference = Reference(score=0.93, kind="given")
    found = full_search(lambda x: 0.95 - 0.02 * x**-0.4, reference=reference, wiggle=0.004)
    assert len(found.batches[0]) == 6
    assert {len(batch) for batch in found.batches[1:]} <= {1, 2}
    assert any(len(batch) == 2 for batch in found.batches[1:])
    assert sum(map(len, found.batches)) <= 10
    assert all(DENSE not in batch for batch in found.batches)


def test_few_visited_densities_are_all_probed() -> None:
    rough = points([0.5, 0.7, 1.0], saturating(3.0), wiggle=5e-4)
    probes: list[Point] = []
    while isinstance(verdict := RULE.decide(Curve(rough=rough, probes=tuple(probes), at_ceiling=True)), Probe):
        probes.extend(rough[k] for k in verdict.rounds)
    assert {probe.round for probe in probes} == {0, 1, 2}
    assert verdict.reason == Reason.ALL_PROBED
    two = Curve(rough=rough[-2:], probes=rough[-2:], at_ceiling=True)
    verdict = RULE.decide(two)
    assert (verdict.stop, verdict.reason, verdict.details) == (True, Reason.FEW_DENSITIES, {"rounds": 2})
    assert RULE.answer(two).status == "open"


# How far growth goes.


@pytest.mark.parametrize("rate", [40.0, 25.0, 18.0, 15.0, 12.0, 8.0, 6.0])
def test_growth_continues_until_both_answers_are_bracketed_with_a_margin(rate: float) -> None:
    found = full_search(saturating(rate), trunk=EARLY, reference=GIVEN)
    assert found.answer.status == "found"
    assert found.answer.density == pytest.approx(math.log(40) / rate, rel=0.15)
    answers = (found.answer.density, found.answer.gain_density)
    densest = max(probe.density for probe in found.curve.probes)
    assert densest >= min(1.5 * max(answers), 1.0)
    # No further than needed: two growth steps beyond that margin, or beyond the first batch.
    first = max(found.curve.rough[k].density for k in found.batches[0])
    assert found.curve.rough[-1].density <= min(1.6 * max(1.5 * max(answers), first), 1.0)
    # Probes on the way up keep their distance.
    ways_up = [found.curve.rough[found.batches[0][-1]].density]
    for batch in found.batches[1:]:
        ways_up += [x for x in (found.curve.rough[k].density for k in batch) if x > max(ways_up)]
    assert len(ways_up) > 1 or rate > 25
    assert all(after >= 1.2 * before for before, after in pairwise(ways_up))


@pytest.mark.parametrize("rate", [60.0, 8.0])
def test_without_a_reference_both_answers_are_bracketed_too(rate: float) -> None:
    found = full_search(saturating(rate))
    densest = max(probe.density for probe in found.curve.probes)
    assert found.answer.status == "found"
    assert min(probe.density for probe in found.curve.probes) < found.answer.density < densest
    assert found.answer.gain_density < densest


def test_the_gain_answer_is_bracketed_even_if_the_delta_answer_is_low() -> None:
    """A delta of a quarter of the gain is reached early; 95% of the gain is not."""
    found = full_search(saturating(8.0), ProbeRule(delta=0.1), trunk=EARLY, reference=GIVEN)
    assert found.answer.density == pytest.approx(math.log(4) / 8, rel=0.15)
    assert max(probe.density for probe in found.curve.probes) >= 1.5 * math.log(20) / 8
    assert Reason.GAIN_NOT_BRACKETED in {verdict.reason for verdict in found.verdicts}


def test_a_fast_rise_ends_growth_early() -> None:
    found = full_search(saturating(30.0), reference=GIVEN)
    assert found.curve.rough[-1].density < 0.5
    assert found.answer.reference.kind == "given"


@pytest.mark.parametrize("noise", [0.012, 0.016])
def test_growth_continues_while_a_bracket_has_less_than_90_percent(noise: float) -> None:
    """The answer is well below the densest probe, but a reference this high may be out of reach."""
    rough = points([0.03 * 1.25**k for k in range(13)], saturating(20.0), wiggle=noise)
    probes = tuple(rough[k] for k in (0, 3, 6, 8, 10, 12))
    curve = Curve(rough=rough, probes=probes, reference=Reference(score=0.906, kind="given", epochs=160))
    estimate = estimate_from_probes(curve, 0.01)
    assert estimate is not None
    assert 0.12 < estimate.share_above < 0.45
    assert 1.5 * quantiles(estimate.delta_density, (2 / 3,))[0] < probes[-1].density
    assert isinstance(RULE.decide(curve), Grow)


# Limits.


@pytest.mark.parametrize("max_probes", [5, 6, 7])
def test_one_probe_is_reserved_for_the_network_of_the_answer(max_probes: int) -> None:
    for rate in (20.0, 10.0, 6.0):
        found = full_search(
            saturating(rate), ProbeRule(delta=0.01, max_probes=max_probes), trunk=EARLY, reference=GIVEN
        )
        assert len(found.curve.probes) <= max_probes
        if len(found.curve.probes) < max_probes:
            continue  # certain enough without
        chosen = select_network(found.curve, found.answer)
        steps = [abs(chosen.round - probe.round) for probe in found.curve.probes]
        assert min(steps) <= 1, "the answer may move by a step once its own probe is evaluated"


def test_few_probes_are_spread_over_the_whole_range() -> None:
    found = full_search(saturating(5.0), ProbeRule(delta=0.01, max_probes=5))
    assert len(found.curve.probes) <= 5
    assert max(probe.density for probe in found.curve.probes) == 1.0
    assert found.answer.status == "found"


def test_the_cost_of_the_probes_is_limited_without_a_reference() -> None:
    def search_with(limit: float | None, **options: object) -> Search:
        rule = ProbeRule(delta=0.01, max_probes=9, max_cost=limit, max_width=1.001, max_gain_width=1.001)
        return full_search(saturating(4.0), rule, **options)

    def spent(limit: float | None) -> float:
        return sum(probe.density for probe in search_with(limit).curve.probes)

    assert [spent(limit) < limit for limit in (1.8, 2.2, 2.6)] == [True, True, True]
    assert spent(None) > spent(2.2) > spent(1.8)
    assert search_with(1.8).answer.reason == Reason.PROBES_SPENT
    # With a reference every probe may be returned as it is, and the user asked for a certain answer.
    cheap, free = (search_with(limit, reference=GIVEN) for limit in (1.0, None))
    assert sum(probe.density for probe in cheap.curve.probes) > 1.0
    assert cheap.curve == free.curve


# Answers at and beyond the ends of the range.


def test_a_reference_out_of_reach() -> None:
    found = full_search(saturating(10.0), reference=Reference(score=0.95, kind="given"))
    answer = found.answer
    assert found.curve.at_ceiling
    assert (answer.status, answer.density, answer.interval) == ("unreached", None, None)
    assert answer.gain_density == pytest.approx(0.2996, rel=0.05)
    assert answer.reason == Reason.UNREACHED
    assert (answer.details["gap"], answer.details["at_density"]) == (0.01, 1.0)
    assert answer.details["end_score"] == pytest.approx(0.9, abs=0.002)


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="dense", epochs=80)])
def test_a_flat_curve(reference: Reference | None) -> None:
    found = full_search(lambda x: 0.9, reference=reference)
    answer = found.answer
    assert (answer.status, answer.density, answer.gain_density) == ("flat", None, None)
    assert answer.interval == (0.0, found.curve.rough[0].density)
    assert answer.details["gain_missing"] == "no_rise"
    assert answer.reason == Reason.FLAT
    # Growth has nothing to add, which saves the expensive half of the range.
    assert max(probe.density for probe in found.curve.probes) < 0.6


def test_a_flat_curve_below_its_reference_is_grown_to_the_ceiling() -> None:
    """Nothing rises, but a reference that no network reaches may be reached at a density not seen yet."""
    found = full_search(lambda density: 0.8, reference=GIVEN)
    assert found.curve.at_ceiling
    assert found.answer.status == "unreached"


def test_a_constant_score_is_flat() -> None:
    rough = points([0.03, 0.06, 0.12, 0.25, 0.5], lambda x: 0.9)
    assert RULE.answer(Curve(rough=rough, probes=rough)).status == "flat"


def test_a_ceiling_below_the_answer() -> None:
    reference = Reference(score=saturating(3.0)(1.0), kind="given")
    found = full_search(saturating(3.0), reference=reference, ceiling=0.4)
    assert found.curve.at_ceiling
    assert found.answer.status == "unreached"


@pytest.mark.parametrize(("at_ceiling", "status"), [(False, "open"), (True, "unreached")])
def test_an_answer_beyond_the_densest_probe_is_not_reported(at_ceiling: bool, status: str) -> None:
    """The fit would put it at 74%; the densest probe is at 30%."""
    rough = points([0.03, 0.06, 0.1, 0.15, 0.2, 0.3], saturating(5.0), wiggle=5e-4)
    answer = RULE.answer(Curve(rough=rough, probes=rough, reference=GIVEN, at_ceiling=at_ceiling))
    assert (answer.status, answer.density, answer.interval) == (status, None, None)


@pytest.mark.parametrize("rate", [4.0, 7.0, 7.5, 12.0])
def test_no_answer_is_above_the_ceiling(rate: float) -> None:
    """95% of the gain of the middle ones is at 40 to 43%, just above the ceiling or at it."""
    rough = points([0.03, 0.06, 0.1, 0.16, 0.25, 0.4], saturating(rate), wiggle=0.004)
    for rule in (ProbeRule(delta=0.03), TrajectoryRule(delta=0.03)):
        curve = Curve(rough=rough, probes=rough, ceiling=0.4, at_ceiling=True, can_probe=rule.name == "probe")
        answer = rule.answer(curve)
        for density, interval in ((answer.density, answer.interval), (answer.gain_density, answer.gain_interval)):
            assert (density is None) <= (interval is None or answer.status == "flat")
            if density is not None and interval is not None:
                assert interval[0] <= density <= interval[1] <= 0.4


def test_an_answer_below_the_first_batch_is_followed_down() -> None:
    """The trunk kept learning long after its density sufficed, so the first probes are far too dense."""
    visited = points(ladder(), saturating(4.0), wiggle=5e-4)
    probes: list[Point] = []
    while True:
        curve = Curve(rough=visited, probes=tuple(probes), at_ceiling=True)
        verdict = RULE.decide(curve)
        if isinstance(verdict, Stop):
            break
        assert isinstance(verdict, Probe)
        probes += [dataclasses.replace(visited[k], score=saturating(70.0)(visited[k].density)) for k in verdict.rounds]
    answer = RULE.answer(curve)
    assert min(probe.density for probe in probes[:3]) > 0.1
    assert answer.density == pytest.approx(math.log(40) / 70, rel=0.35)
    assert answer.interval[0] <= math.log(40) / 70 <= answer.interval[1]


def test_an_interval_that_extends_below_every_probe_is_open() -> None:
    """A slow rise and a delta nearly as large: many curves need less than the sparsest probe."""
    noise = (0.004, -0.003, 0.002, -0.004, 0.003)
    rough = tuple(
        Point(round=k, density=x, epochs=80, score=0.9 + 0.02 * math.log10(x) + off)
        for k, (x, off) in enumerate(zip((0.1, 0.2, 0.4, 0.7, 1.0), noise, strict=True))
    )
    rule = ProbeRule(delta=0.012)
    answer = rule.answer(Curve(rough=rough, probes=rough, at_ceiling=True))
    assert answer.status == "found"
    assert answer.interval[0] == 0.0
    assert answer.interval[1] > answer.density > 0.1
    assert answer.details["lowest"] == 0.1
    assert answer.details["share_below"] > 0.05
    steep = points([point.density for point in rough], lambda x: 0.9 * (1 - math.exp(-8.0 * x)))
    sharp = rule.answer(Curve(rough=rough, probes=steep, at_ceiling=True))
    assert sharp.interval[0] > 0.1
    assert sharp.details["share_below"] < 0.05


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="dense", epochs=80)])
def test_few_validation_examples_widen_the_interval(reference: Reference | None) -> None:
    found = full_search(saturating(10.0), reference=reference)
    widths = [math.log(found.answer.interval[1] / found.answer.interval[0])]
    for num_val in (10_000, 300):
        answer = RULE.answer(dataclasses.replace(found.curve, num_val=num_val))
        # The reported quantile of a wider posterior is a little higher.
        assert answer.density == pytest.approx(found.answer.density, rel=0.05)
        widths.append(math.log(answer.interval[1] / answer.interval[0]))
    assert widths[0] < widths[1] < widths[2] / 1.5


def test_narrow_intervals_end_the_search() -> None:
    found = full_search(saturating(10.0), reference=GIVEN)
    assert found.answer.reason == Reason.INTERVALS_NARROW
    assert found.answer.interval[1] / found.answer.interval[0] <= 1.4
    assert found.answer.gain_interval[1] / found.answer.gain_interval[0] <= 1.6


# Short probes without a reference: the dense probe.


def power(exponent: float) -> Shape:
    """A dense error of 7%, larger by a power of the density: what equally trained networks on CIFAR-10 do."""
    return lambda density: 1.0 - 0.07 * density**-exponent


def requested(found: Search) -> list[float]:
    """The densities up to which the rule asked to grow."""
    return [v.up_to for v in found.verdicts if isinstance(v, Grow) and v.up_to is not None]


@pytest.mark.parametrize("rate", [40.0, 20.0, 10.0, 5.0])
def test_the_dense_probe_is_in_the_first_batch_only(rate: float) -> None:
    found = search(RULE, saturating(rate))
    first, *later = found.batches
    assert len(first) == 3
    assert first.count(DENSE) == 1
    assert all(DENSE not in batch and len(batch) == 1 for batch in later)
    assert len(found.curve.probes) <= 5
    sparse, denser = sorted(round for round in first if round != DENSE)
    visited = found.curve.rough
    assert visited[denser].density / visited[sparse].density == pytest.approx(3.0, rel=0.25)
    assert found.answer.status == "found"
    assert found.answer.details["densest_round"] == DENSE


@pytest.mark.parametrize(
    "options",
    [{"probe_epochs": 160}, {"reference": Reference(score=0.9, kind="given"), "probe_epochs": 160}],
    ids=["long probes", "reference"],
)
def test_no_dense_probe_at_the_cost_of_a_dense_training(options: dict) -> None:
    found = search(RULE, saturating(10.0), **options)
    assert all(DENSE not in batch for batch in found.batches)
    assert not requested(found)
    assert found.answer.details["densest_round"] >= 0


@pytest.mark.parametrize("options", [{"gamma": 2.0}, {"start": 0.4}, {"start": 0.9}, {"start": 1.0}])
def test_no_dense_probe_beside_a_fully_grown_network(options: dict) -> None:
    """Growth ended before there were enough rounds for an estimate."""
    found = search(RULE, saturating(5.0), **options)
    assert found.curve.rough[-1].density == 1.0
    assert all(DENSE not in batch for batch in found.batches)
    assert len({probe.density for probe in found.curve.probes}) == len(found.curve.probes)


def test_no_dense_probe_if_a_fully_grown_network_was_probed() -> None:
    """Two of three networks were probed; the rest of the first batch has no second dense one."""
    three = points([0.3, 0.6, 1.0], saturating(5.0), 16)
    curve = Curve(rough=three, probes=three[1:], can_probe_dense=True, at_ceiling=True)
    assert RULE.decide(curve).rounds == (0,)


def test_fewer_rounds_are_grown_with_a_dense_probe() -> None:
    """Densities far above the answer need not be visited: the dense probe bounds the curve from above."""
    flattens = math.log(20) / 15
    short, full = search(RULE, saturating(15.0)), search(RULE, saturating(15.0), probe_epochs=160)
    assert flattens < short.curve.rough[-1].density < 2 * flattens
    assert full.curve.rough[-1].density > 0.95 * 3 * flattens
    assert max(probe.density for probe in short.curve.probes) == 1.0


# Short probes without a reference: growth up to the answer.


@pytest.mark.parametrize("exponent", [0.1, 0.127, 0.2])
def test_growth_ends_at_the_answer(exponent: float) -> None:
    found = search(RULE, power(exponent), trunk=SLOWER)
    up_to = requested(found)
    assert up_to, "the trunk had flattened far below the answer"
    assert max(up_to) <= 1.0
    # To one weight in 10,000, unless a whole step was smaller.
    last = found.curve.rough[-1].density
    assert min(abs(last - density) for density in up_to) <= 1e-4
    assert last <= max(up_to) + 1e-4
    assert found.answer.status == "found"
    assert found.answer.density <= 1.1 * last
    assert select_network(found.curve, found.answer).density >= found.answer.density / 1.1
    grow = next(v for v in found.verdicts if v.reason == Reason.ANSWER_BEYOND_TRUNK)
    assert grow.details["needed_density"] == grow.up_to > 1.1 * grow.details["at_density"]


def test_growth_reaches_the_answer_even_if_no_probe_is_left() -> None:
    """The returned network has to exist, whether it can be probed or not."""
    shape = power(0.127)
    visited = points([0.03 * 1.25**k for k in range(8)], SLOWER, 20)
    probed = [dataclasses.replace(visited[k], epochs=16, score=shape(visited[k].density)) for k in range(7, 0, -2)]
    dense = Point(round=DENSE, density=1.0, epochs=16, score=shape(1.0))
    curve = Curve(rough=visited, probes=(*probed, dense), can_probe_dense=True, full_epochs=160)
    rule = ProbeRule(delta=0.01, max_probes=5)
    answer = rule.answer(curve)
    assert answer.status == "found"
    assert answer.density > 1.1 * visited[-1].density
    verdict = rule.decide(curve)
    assert isinstance(verdict, Grow)
    assert verdict.up_to == pytest.approx(answer.density)
    costly = dataclasses.replace(rule, max_probes=9, max_cost=1.0)
    assert isinstance(costly.decide(curve), Grow)
    near = Point(round=8, density=answer.density / 1.05, epochs=20, score=0.9)
    stopped = rule.decide(dataclasses.replace(curve, rough=(*curve.rough, near)))
    assert (stopped.stop, stopped.reason, stopped.details) == (True, Reason.PROBES_SPENT, {"probes": 5})


def test_growth_follows_the_criterion_that_selects_the_network() -> None:
    """A wide delta is met by a sparse network, while 95% of the gain takes a dense one."""
    rule = ProbeRule(delta=0.1)
    by_delta = search(rule, saturating(5.0), trunk=SLOWER)
    by_gain = search(rule, saturating(5.0), trunk=SLOWER, select_by="gain")
    assert by_delta.curve.rough[-1].density < 0.9 * by_delta.answer.gain_density
    chosen = select_network(by_gain.curve, by_gain.answer, by="gain")
    assert chosen.density >= by_gain.answer.gain_density / 1.1
    assert chosen.round in {probe.round for probe in by_gain.curve.probes}
    straight = search(rule, lambda density: 0.5 + 0.4 * density, trunk=SLOWER, select_by="gain")
    assert straight.answer.gain_density is None
    assert straight.answer.details["gain_missing"] == "no_saturation"
    assert select_network(straight.curve, straight.answer, by="gain").density == 1.0


def test_a_ceiling_below_the_answer_of_short_probes() -> None:
    found = search(RULE, power(0.127), trunk=SLOWER, ceiling=0.2)
    assert found.curve.at_ceiling
    assert (found.answer.status, found.answer.density, found.answer.interval) == ("unreached", None, None)
    assert found.answer.reason == Reason.UNREACHED
    assert found.answer.details["at_density"] == pytest.approx(0.2)
    assert found.answer.details["gap"] == found.answer.allowed == pytest.approx(0.01 * 10**0.2)
    assert select_network(found.curve, found.answer).density == pytest.approx(0.2)


def test_a_delta_too_small_for_the_validation_set_terminates() -> None:
    """Scores that differ by 1e-4 cannot be distinguished on 20 examples: no finite density is certain."""
    found = search(ProbeRule(delta=1e-4), power(0.127), trunk=SLOWER, num_val=20)
    assert max(requested(found)) == 1.0
    assert found.curve.at_ceiling


def test_a_flat_curve_ends_early_with_a_dense_probe() -> None:
    found = search(RULE, lambda density: 0.9)
    assert found.answer.status == "flat"
    assert select_network(found.curve, found.answer).round == 0
    assert found.curve.rough[-1].density < 0.3


@pytest.mark.parametrize("max_probes", [4, 5, 8])
def test_max_probes_is_respected(max_probes: int) -> None:
    rule = ProbeRule(delta=0.01, max_probes=max_probes, max_width=1.001, max_gain_width=1.001)
    found = search(rule, power(0.127), trunk=SLOWER)
    assert len(found.curve.probes) <= max_probes
    assert sum(batch.count(DENSE) for batch in found.batches) == 1
    assert all(len(batch) <= 2 for batch in found.batches[1:])


def visited_points(*densities: float) -> list[Point]:
    return [Point(round=k, density=x, epochs=16, score=0.5) for k, x in enumerate(densities)]


def test_nearest_is_by_ratio() -> None:
    """0.22 is nearer to 0.1 by difference, and nearer to 0.4 by ratio."""
    assert nearest(visited_points(0.1, 0.4), 0.22).density == 0.4
    assert nearest(visited_points(0.1, 0.4), 0.19).density == 0.1


def test_spread_covers_a_short_range_from_end_to_end() -> None:
    ladder = visited_points(*(0.2 * 2 ** (k / 12) for k in range(13)))
    assert [point.round for point in spread(ladder, 3.0, 3)] == [12, 6, 0]
    assert [point.round for point in spread(ladder, 3.0, 2)] == [12, 0]
    assert [point.round for point in spread(ladder, 2 ** (1 / 4), 3)] == [12, 9, 6], "no further apart than the ratio"
    assert [point.round for point in spread(ladder[:2], 3.0, 3)] == [1, 0]


def simulated(curves: PosteriorSamples, answer: np.ndarray, densities: list[float], num: int = 200) -> float:
    """Fraction of the answer's variance that a linear regression on noisy scores at these densities explains."""
    rng = np.random.default_rng(0)
    truth = np.stack([curves.at(x) for x in densities], axis=1)
    scores = np.concatenate([truth + curves.noise[:, None] * rng.normal(size=truth.shape) for _ in range(num // 10)])
    target = np.tile(answer, num // 10)
    design = np.column_stack([np.ones(len(scores)), scores])
    residual = target - design @ np.linalg.lstsq(design, target)[0]
    return 1 - float(np.var(residual) / np.var(target))


@pytest.fixture(scope="module")
def question() -> tuple[PosteriorSamples, np.ndarray]:
    """Three probes, and an answer that is still wide."""
    curves = sample_posterior([0.05, 0.3, 1.0], [0.75, 0.86, 0.9], noise_hint=0.004)
    return curves, np.log(np.clip(curves.reach(curves.top - 0.02), 0.025, 2.0))


def test_explained_variance_agrees_with_simulation(question: tuple[PosteriorSamples, np.ndarray]) -> None:
    for densities in ([0.1], [0.45], [0.45, 0.6], [0.1, 0.2, 0.7]):
        assert _explained(*question, densities) == pytest.approx(simulated(*question, densities), abs=0.02)


def test_below_all_probes_a_curve_is_trusted_for_three_rises() -> None:
    """Long tails fall without bound there; their outliers would dominate the covariance with the answer."""
    flat = sample_posterior([0.2, 0.5, 1.0], [0.897, 0.9, 0.9], noise_hint=0.002)
    answer = np.log(np.clip(flat.reach(flat.top - 0.003), 0.1, 2.0))
    held = np.maximum(flat.at(0.02), flat.top - 3 * flat.rise)
    assert float(np.std(flat.at(0.02))) > 10 * float(np.std(held)), "otherwise this tests nothing"
    covariance = np.cov(held, answer, ddof=0)
    known = covariance[0, 1] ** 2 / (covariance[0, 0] + np.mean(flat.noise**2)) / covariance[1, 1]
    assert _explained(flat, answer, [0.02]) == pytest.approx(known, rel=1e-6)


def test_the_most_informative_probe_explains_most_per_cost(question: tuple[PosteriorSamples, np.ndarray]) -> None:
    """A probe costs its density plus 0.05; what the probes chosen before it explain does not count."""
    candidates = visited_points(*np.geomspace(0.06, 0.95, 16).tolist())
    assert probe_cost(candidates[:2]) == pytest.approx(candidates[0].density + candidates[1].density + 0.1)
    num_found = 0
    for chosen in ([], [candidates[10]], [candidates[9], candidates[4]]):
        taken, left = [point.density for point in chosen], [point for point in candidates if point not in chosen]
        known = simulated(*question, taken) if taken else 0.0
        value = {point: simulated(*question, [*taken, point.density]) - known for point in left}
        # Less than 3% is not worth a training; near that limit the simulation is too noisy.
        worth = [value[point] / (point.density + 0.05) for point in left if value[point] > 0.035]
        best = most_informative([question], left, chosen)
        if best is None:
            assert not worth
            continue
        num_found += 1
        assert value[best] > 0.025
        assert value[best] / (best.density + 0.05) > 0.9 * max(worth)
    assert num_found >= 2
    sure = (question[0], np.full_like(question[1], math.log(0.3)))
    assert most_informative([sure], candidates, []) is None


# The network to return.

densities = st.lists(st.integers(1, 100).map(lambda k: k / 100), min_size=1, max_size=8, unique=True).map(sorted)


@given(densities, st.sets(st.integers(0, 7)), st.floats(0.005, 1.2), st.booleans())
def test_sparsest_sufficient_by_definition(
    visited: list[float], probed: set[int], needed: float, short_probes: bool
) -> None:
    rough = tuple(visited_points(*visited))
    probes = tuple(point for point in rough if point.round in probed)
    curve = Curve(rough=rough, probes=probes, can_probe_dense=short_probes)
    chosen = sparsest_sufficient(curve, needed).density
    if not short_probes or not probes:
        assert chosen == min((x for x in visited if x >= needed), default=visited[-1])
        return
    close = [x for x in visited if 1.1 * x >= needed] or visited[-1:]
    seen = [point.density for point in probes if point.density in close and point.density <= 1.25 * needed]
    assert chosen == (min(seen) if seen else min(close))


@pytest.mark.parametrize(
    ("status", "density", "gain", "by", "chosen"),
    [
        ("found", 0.15, 0.35, "delta", 0.2),
        ("found", 0.15, 0.35, "gain", 0.4),
        ("found", 0.2, None, "delta", 0.2),
        ("found", 0.15, None, "gain", 0.8),
        ("flat", None, None, "delta", 0.1),
        ("unreached", None, 0.15, "delta", 0.8),
        ("unreached", None, 0.15, "gain", 0.2),
        ("open", None, None, "delta", 0.8),
    ],
)
def test_the_selected_network_is_the_sparsest_of_at_least_the_density(status, density, gain, by, chosen) -> None:
    """A flat curve gives the sparsest network, no answer the densest."""
    curve = Curve(rough=tuple(visited_points(0.1, 0.2, 0.4, 0.8)))
    answer = Answer(rule="probe", delta=0.01, status=status, density=density, gain_density=gain)
    assert select_network(curve, answer, by=by).density == chosen
