"""The probe rule with short probes and no reference: the dense probe, and growth up to the answer."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pathgrow.density.acquisition import select_network
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import DENSE, Curve, Grow, Point, Reason, Reference
from tests.support.searching import Search, Shape, points, saturating, search

RULE = ProbeRule(delta=0.01)
EARLY = saturating(40.0)
"""A trunk that flattens at 7% already."""


def power(exponent: float) -> Shape:
    """A dense error of 7%, larger by a power of the density: what equally trained networks on CIFAR-10 do."""
    return lambda density: 1.0 - 0.07 * density**-exponent


def requested(found: Search) -> list[float]:
    """The densities up to which the rule asked to grow."""
    return [v.up_to for v in found.verdicts if isinstance(v, Grow) and v.up_to is not None]


# The dense probe.


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


# Growth up to the answer.


@pytest.mark.parametrize("exponent", [0.1, 0.127, 0.2])
def test_growth_ends_at_the_answer(exponent: float) -> None:
    found = search(RULE, power(exponent), trunk=EARLY)
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
    visited = points([0.03 * 1.25**k for k in range(8)], EARLY, 20)
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
    by_delta = search(rule, saturating(5.0), trunk=EARLY)
    by_gain = search(rule, saturating(5.0), trunk=EARLY, select_by="gain")
    assert by_delta.curve.rough[-1].density < 0.9 * by_delta.answer.gain_density
    chosen = select_network(by_gain.curve, by_gain.answer, by="gain")
    assert chosen.density >= by_gain.answer.gain_density / 1.1
    assert chosen.round in {probe.round for probe in by_gain.curve.probes}
    straight = search(rule, lambda density: 0.5 + 0.4 * density, trunk=EARLY, select_by="gain")
    assert straight.answer.gain_density is None
    assert straight.answer.details["gain_missing"] == "no_saturation"
    assert select_network(straight.curve, straight.answer, by="gain").density == 1.0


def test_a_ceiling_below_the_answer() -> None:
    found = search(RULE, power(0.127), trunk=EARLY, ceiling=0.2)
    assert found.curve.at_ceiling
    assert (found.answer.status, found.answer.density, found.answer.interval) == ("unreached", None, None)
    assert found.answer.reason == Reason.UNREACHED
    assert found.answer.details["at_density"] == pytest.approx(0.2)
    assert found.answer.details["gap"] == found.answer.allowed == pytest.approx(0.01 * 10**0.2)
    assert select_network(found.curve, found.answer).density == pytest.approx(0.2)


def test_a_delta_too_small_for_the_validation_set_terminates() -> None:
    """Scores that differ by 1e-4 cannot be distinguished on 20 examples: no finite density is certain."""
    found = search(ProbeRule(delta=1e-4), power(0.127), trunk=EARLY, num_val=20)
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
    found = search(rule, power(0.127), trunk=EARLY)
    assert len(found.curve.probes) <= max_probes
    assert sum(batch.count(DENSE) for batch in found.batches) == 1
    assert all(len(batch) <= 2 for batch in found.batches[1:])
