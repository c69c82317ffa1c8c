"""Without a reference: a dense copy beside short probes, gaps that shrink with training, growth up to the answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from pathgrow.density import rules
from pathgrow.density.acquisition import select_network, sparsest_sufficient
from pathgrow.density.estimate import allowed_gap, estimate_from_points
from pathgrow.density.posterior import sample_posterior
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Reason, Reference
from tests.support.growing import Followed, follow

RULE = ProbeRule(delta=0.01)


WIGGLE = [0.3, -0.8, 0.5, 0.9, -0.4, -0.6, 0.7, -0.2, 0.1, -0.9, 0.8, -0.3, 0.2, -0.5, 0.6, -0.7, 0.4, -0.1]


def saturating(rate: float) -> Callable[[float], float]:
    return lambda density: 0.5 + 0.4 * (1 - math.exp(-rate * density))


def power(exponent: float) -> Callable[[float], float]:
    """A dense error of 7%, larger by a power of the density: what equally trained networks on CIFAR-10 do."""
    return lambda density: 1.0 - 0.07 * density**-exponent


def followed(
    score: Callable[[float], float],
    *,
    trunk: Callable[[float], float] | None = None,
    rule: ProbeRule | None = None,
    wiggle: float = 5e-4,
    **options: object,
) -> Followed:
    """Probes lie on `score`, the growing network on a curve of its own: it learns while it grows."""

    def near(curve: Callable[[float], float], shift: int) -> Callable[[int, float], float]:
        return lambda round, density: curve(density) + wiggle * WIGGLE[(round + shift) % len(WIGGLE)]

    return follow(rule or RULE, near(trunk or score, 0), near(score, 5), **options)  # type: ignore[arg-type]


def points(densities: list[float], score: Callable[[float], float], epochs: int) -> list[Point]:
    return [Point(round=k, density=x, epochs=epochs, score=score(x)) for k, x in enumerate(densities)]


EARLY = saturating(40.0)
"""A trunk that seems to have learned all at 7% already."""


# The dense copy.


@pytest.mark.parametrize("rate", [40.0, 20.0, 10.0, 5.0])
def test_a_dense_copy_is_in_the_first_batch_and_nowhere_else(rate: float) -> None:
    seen = followed(saturating(rate))
    first, *later = seen.batches
    assert len(first) == 3
    assert first.count(DENSE) == 1
    assert all(DENSE not in batch and len(batch) == 1 for batch in later)
    assert len(seen.curve.probes) <= 5
    sparse, denser = sorted(round for round in first if round != DENSE)
    visited = seen.curve.rough
    assert visited[denser].density / visited[sparse].density == pytest.approx(3.0, rel=0.25)
    assert seen.answer.status == "found"
    assert seen.answer.details["densest_round"] == DENSE


@pytest.mark.parametrize(
    "options",
    [{"probe_epochs": 160}, {"reference": Reference(score=0.9, kind="given"), "probe_epochs": 160}],
    ids=["long probes", "reference"],
)
def test_no_dense_copy_where_it_would_cost_a_dense_training(options: dict) -> None:
    seen = followed(saturating(10.0), **options)
    assert all(DENSE not in batch for batch in seen.batches)
    assert all(verdict.up_to is None for verdict in seen.verdicts if isinstance(verdict, Grow))
    assert seen.answer.details["densest_round"] >= 0


@pytest.mark.parametrize("options", [{"gamma": 2.0}, {"start": 0.4}, {"start": 0.9}, {"start": 1.0}])
def test_no_dense_copy_beside_a_network_that_is_full(options: dict) -> None:
    """Growth came to its end before there were rounds enough to ask: the densest network has all its weights."""
    seen = followed(saturating(5.0), **options)
    assert seen.curve.rough[-1].density == 1.0
    assert all(DENSE not in batch for batch in seen.batches)
    assert len({probe.density for probe in seen.curve.probes}) == len(seen.curve.probes)


def test_a_full_network_that_was_probed_is_not_joined_by_a_dense_copy() -> None:
    """Of three networks two were probed: what is left of the first batch holds no second dense one."""
    three = points([0.3, 0.6, 1.0], saturating(5.0), 16)
    curve = Curve(rough=tuple(three), probes=tuple(three[1:]), can_probe_dense=True, at_ceiling=True)
    assert RULE.decide(curve).rounds == (0,)


def test_fewer_rounds_are_grown_beside_a_dense_copy() -> None:
    """Densities far above the answer need not be visited: a dense copy bounds the curve from above."""
    flattens = math.log(20) / 15
    beside, alone = followed(saturating(15.0)), followed(saturating(15.0), probe_epochs=160)
    assert flattens < beside.curve.rough[-1].density < 2 * flattens
    assert alone.curve.rough[-1].density > 0.95 * 3 * flattens
    assert max(probe.density for probe in beside.curve.probes) == 1.0


# Growth up to the answer.


@pytest.mark.parametrize("exponent", [0.1, 0.127, 0.2])
def test_growth_goes_as_far_as_the_answer_and_no_further(exponent: float) -> None:
    seen = followed(power(exponent), trunk=EARLY)
    asked = [verdict.up_to for verdict in seen.verdicts if isinstance(verdict, Grow) and verdict.up_to is not None]
    assert asked, "the trunk had flattened far below the answer"
    assert max(asked) <= 1.0
    # To one weight of 10,000, unless a whole step was smaller; and never by less than a tenth.
    grown = [point.density for point in seen.curve.rough]
    assert min(abs(grown[-1] - up_to) for up_to in asked) <= 1e-4
    assert grown[-1] <= max(asked) + 1e-4
    assert seen.answer.status == "found"
    assert seen.answer.density is not None
    assert seen.answer.density <= 1.1 * grown[-1]
    assert select_network(seen.curve, seen.answer).density >= seen.answer.density / 1.1


def spent(max_probes: int) -> tuple[ProbeRule, Curve]:
    """All probes are spent, and the answer lies beyond the densest network grown."""
    visited = points([0.03 * 1.25**k for k in range(8)], EARLY, 20)
    short = power(0.127)
    probed = [dataclasses.replace(visited[k], epochs=16, score=short(visited[k].density)) for k in range(7, 0, -2)]
    dense = Point(round=DENSE, density=1.0, epochs=16, score=short(1.0))
    curve = Curve(
        rough=tuple(visited), probes=(*probed[: max_probes - 1], dense), can_probe_dense=True, full_epochs=160
    )
    return ProbeRule(delta=0.01, max_probes=max_probes), curve


def test_growth_reaches_the_answer_even_where_no_probe_is_left() -> None:
    """The network handed back has to be there, whether it can be probed or not."""
    rule, curve = spent(5)
    answer = rule.answer(curve)
    assert answer.status == "found"
    assert answer.density is not None
    assert answer.density > 1.1 * curve.rough[-1].density
    verdict = rule.decide(curve)
    assert isinstance(verdict, Grow)
    assert verdict.up_to == pytest.approx(answer.density)
    priced = dataclasses.replace(rule, max_probes=9, max_cost=1.0)
    assert isinstance(priced.decide(curve), Grow)
    near = Point(round=8, density=answer.density / 1.05, epochs=20, score=0.9)
    assert rule.decide(dataclasses.replace(curve, rough=(*curve.rough, near))).stop


def test_growth_follows_the_answer_that_chooses_the_network() -> None:
    """A wide delta is met by a sparse network, while 95% of the gain take a dense one."""
    rule = ProbeRule(delta=0.1)
    by_delta = followed(saturating(5.0), trunk=EARLY, rule=rule)
    by_gain = followed(saturating(5.0), trunk=EARLY, rule=rule, select_by="gain")
    assert by_delta.answer.gain_density is not None
    assert by_gain.answer.gain_density is not None
    assert by_delta.curve.rough[-1].density < 0.9 * by_delta.answer.gain_density
    chosen = select_network(by_gain.curve, by_gain.answer, by="gain")
    assert chosen.density >= by_gain.answer.gain_density / 1.1
    assert chosen.round in {probe.round for probe in by_gain.curve.probes}, "and it is probed"
    straight = followed(lambda density: 0.5 + 0.4 * density, trunk=EARLY, rule=rule, select_by="gain")
    assert straight.answer.gain_density is None
    assert straight.answer.details["gain_missing"] == "no_saturation"
    assert select_network(straight.curve, straight.answer, by="gain").density == 1.0


def test_a_ceiling_below_the_answer_leaves_it_unreached_whatever_a_dense_copy_does() -> None:
    seen = followed(power(0.127), trunk=EARLY, ceiling=0.2)
    assert seen.curve.at_ceiling
    assert seen.answer.status == "unreached"
    assert (seen.answer.density, seen.answer.interval) == (None, None)
    assert seen.answer.reason == Reason.UNREACHED
    assert seen.answer.details["at_density"] == pytest.approx(0.2)
    assert seen.answer.details["gap"] == seen.answer.allowed == pytest.approx(0.01 * 10**0.2)
    assert select_network(seen.curve, seen.answer).density == pytest.approx(0.2)


def test_a_delta_too_fine_for_the_examples_leads_to_an_end() -> None:
    """Two scores that differ by a ten-thousandth cannot be told apart on 20 examples: no finite density is sure."""
    seen = followed(power(0.127), trunk=EARLY, rule=ProbeRule(delta=1e-4), num_val=20)
    asked = [verdict.up_to for verdict in seen.verdicts if isinstance(verdict, Grow) and verdict.up_to is not None]
    assert asked
    assert max(asked) == 1.0
    assert seen.curve.at_ceiling


def test_a_flat_curve_ends_early_beside_a_dense_copy() -> None:
    seen = followed(lambda density: 0.9)
    assert seen.answer.status == "flat"
    assert select_network(seen.curve, seen.answer).round == 0
    assert seen.curve.rough[-1].density < 0.3


@pytest.mark.parametrize("max_probes", [4, 5, 8])
def test_a_number_of_probes_that_was_given_is_kept(max_probes: int) -> None:
    seen = followed(
        power(0.127),
        trunk=EARLY,
        rule=ProbeRule(delta=0.01, max_probes=max_probes, max_width=1.001, max_gain_width=1.001),
    )
    assert len(seen.curve.probes) <= max_probes
    assert sum(batch.count(DENSE) for batch in seen.batches) == 1
    assert all(len(batch) <= 2 for batch in seen.batches[1:])


# Gaps that shrink.

LADDER = [0.05, 0.1, 0.2, 0.4, 1.0]


def test_the_allowed_gap_is_a_power_of_the_epochs_with_doubt() -> None:
    reading = estimate_from_points(points(LADDER, power(0.127), 16), 0.01, None, noise_hint=1e-3, full_epochs=80)
    assert reading is not None
    powers = np.sort(np.log(reading.allowed / 0.01) / math.log(80 / 16))
    wanted = np.array([NormalDist(0.2, 0.1).inv_cdf((k + 0.5) / len(powers)) for k in range(len(powers))])
    assert np.abs(powers - wanted).max() < 0.03
    assert np.abs(powers - wanted).mean() < 2e-3
    # No knowledge of the curve hangs on it: drawn apart from all else.
    for other in (reading.curves.top, reading.curves.rise, reading.curves.reference_z, np.log(reading.curves.noise)):
        assert abs(np.corrcoef(other, reading.curves.gap_z)[0, 1]) < 0.05
    middle, low, high = allowed_gap(0.01, 16, 80)
    assert middle == pytest.approx(0.01 * 5**0.2)
    assert (low, high) == pytest.approx(
        tuple(0.01 * 5 ** NormalDist(0.2, 0.1).inv_cdf(x) for x in (0.05, 0.95)), rel=1e-3
    )


def test_answers_are_where_each_curve_comes_within_its_own_gap() -> None:
    reading = estimate_from_points(points(LADDER, power(0.127), 16), 0.01, None, noise_hint=1e-3, full_epochs=160)
    assert reading is not None
    curves = reading.curves
    for k in range(0, len(curves.top), 97):
        one = {
            name: getattr(curves, name)[k : k + 1]
            for name in ("bend", "speed", "top", "rise", "noise", "reference_z", "gap_z")
        }
        single = dataclasses.replace(curves, **one)
        target = curves.top[k] - 0.01 * 10 ** (0.2 + 0.1 * curves.gap_z[k])
        found = brentq(lambda x, single=single, target=target: float(single.at(x)[0]) - target, 1e-6, 1.0)
        assert reading.delta_density[k] == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("score", [power(0.127), saturating(6.0)])
def test_answers_move_down_by_the_gap_that_is_allowed(score: Callable[[float], float]) -> None:
    """Points without noise leave one doubt, that about the gap: the answers are then known in closed form."""
    visited = tuple(points([0.03 * 1.25**k for k in range(16)], score, 20))
    dense = Point(round=DENSE, density=1.0, epochs=16, score=score(1.0))
    probes = (*(dataclasses.replace(visited[k], epochs=16) for k in (2, 7, 10, 14)), dense)

    def answer(epochs: int, full_epochs: int | None) -> Answer:
        trained = tuple(dataclasses.replace(probe, epochs=epochs) for probe in probes)
        curve = Curve(rough=visited, probes=trained, can_probe_dense=True, full_epochs=full_epochs)
        return RULE.answer(curve)

    def known(share: float) -> float:
        gap = 0.01 * 10 ** NormalDist(0.2, 0.1).inv_cdf(1 - share)
        return brentq(lambda x: score(1.0) - score(x) - gap, 1e-3, 1.0)

    brief, plain = answer(16, 160), answer(16, None)
    assert brief.allowed == pytest.approx(0.01 * 10**0.2)
    assert plain.allowed is None
    assert brief.density == pytest.approx(known(2 / 3), rel=0.02)
    assert brief.interval == pytest.approx((known(0.05), known(0.95)), rel=0.03)
    assert plain.density == pytest.approx(brentq(lambda x: score(1.0) - score(x) - 0.01, 1e-3, 1.0), rel=0.02)
    # The longer the probes, the closer to what those of full length say.
    longer = [answer(epochs, 160).density for epochs in (16, 40, 80, 160)]
    assert longer == sorted(longer)
    assert longer[-1] == plain.density


@pytest.mark.parametrize(
    "reference", [None, Reference(score=0.93, kind="dense", epochs=80), Reference(score=0.93, kind="given")]
)
@pytest.mark.parametrize("full_epochs", [80, 40])
def test_probes_no_shorter_than_the_final_training_are_read_as_they_are(
    reference: Reference | None, full_epochs: int
) -> None:
    visited = tuple(points(LADDER, power(0.127), 80))
    plain = Curve(rough=visited, probes=visited, reference=reference)
    told = dataclasses.replace(plain, full_epochs=full_epochs)
    assert RULE.answer(told) == RULE.answer(plain)
    assert RULE.answer(told).allowed is None


# The network handed back.

densities = st.lists(st.integers(1, 100).map(lambda k: k / 100), min_size=1, max_size=8, unique=True).map(sorted)


@given(densities, st.sets(st.integers(0, 7)), st.floats(0.005, 1.2), st.booleans())
def test_the_smallest_enough_by_its_definition(
    visited: list[float], probed: set[int], wanted: float, brief: bool
) -> None:
    rough = tuple(points(visited, saturating(5.0), 16))
    probes = tuple(point for point in rough if point.round in probed)
    curve = Curve(rough=rough, probes=probes, can_probe_dense=brief)
    chosen = sparsest_sufficient(curve, wanted).density
    if not brief or not probes:
        assert chosen == min((x for x in visited if x >= wanted), default=visited[-1])
        return
    a_little_less = [x for x in visited if 1.1 * x >= wanted] or visited[-1:]
    seen = [point.density for point in probes if point.density in a_little_less and point.density <= 1.25 * wanted]
    assert chosen == (min(seen) if seen else min(a_little_less))


def test_rules_without_probes_hand_back_the_network_at_which_they_stopped() -> None:
    rule = rules.create("exponential")
    stopped = follow(rule, lambda _, x: saturating(10.0)(x), lambda _, x: 0.0)
    assert select_network(stopped.curve, stopped.answer).round == stopped.curve.rough[-1].round


def test_the_trajectory_of_a_full_network_is_not_called_a_dense_training() -> None:
    full = points([0.03 * 1.25**k for k in range(15)] + [1.0], saturating(3.0), 20)
    answer = rules.create("trajectory").answer(Curve(rough=tuple(full), can_probe=False, at_ceiling=True))
    assert (answer.details["densest"], answer.details["densest_round"]) == (1.0, 15)


def test_curves_are_numbers_far_below_their_points() -> None:
    """Long tails rise beyond all numbers there; one that does not rise at all stays where it is."""
    curves = sample_posterior([0.2, 0.5, 1.0], [0.9, 0.9, 0.9], noise_hint=1e-3)
    with np.errstate(all="raise"):
        assert np.isfinite(dataclasses.replace(curves, bend=np.full_like(curves.bend, -0.4)).at(1e-4)).all()
