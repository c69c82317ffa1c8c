"""Properties of density rules on arbitrary curves: units and order do not matter, and every search terminates."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathgrow.density import rules
from pathgrow.density.estimate import allowed_gap, fit_band
from pathgrow.density.probe import CLOSE, ProbeRule, select_network
from pathgrow.density.types import DENSE, Curve, Grow, Point, Reason, Reference
from tests.support.searching import saturating, search_scores

RULE = ProbeRule(delta=0.01)
rates = st.floats(2.0, 60.0)
seeds = st.integers(0, 10_000)


def observed(rate: float, seed: int, num: int = 8) -> tuple[Point, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        Point(round=k, density=float(x), epochs=80, score=float(saturating(rate)(x) + rng.normal(0, 0.003)))
        for k, x in enumerate(np.geomspace(0.03, 1.0, num))
    )


@given(rates, seeds, st.sampled_from([1.0, 100.0, 0.02]), st.floats(-50, 50))
def test_answers_do_not_depend_on_the_unit_of_the_score(rate: float, seed: int, scale: float, shift: float) -> None:
    points = observed(rate, seed)
    moved = tuple(dataclasses.replace(point, score=scale * point.score + shift) for point in points)
    plain = RULE.answer(Curve(rough=points, probes=points))
    other = ProbeRule(delta=0.01 * scale).answer(Curve(rough=moved, probes=moved))
    assert plain.status == other.status
    if plain.density is not None:
        assert other.density == pytest.approx(plain.density, rel=0.01)
        # Just below the lowest probe an end is open, so rounding may open one of the two.
        pairs = [(max(answer.interval[0], points[0].density), answer.interval[1]) for answer in (plain, other)]
        assert pairs[0] == pytest.approx(pairs[1], rel=0.02)
    if plain.gain_density is not None:
        assert other.gain_density == pytest.approx(plain.gain_density, rel=1e-4)


@given(rates, seeds, st.randoms(use_true_random=False))
def test_the_order_of_probes_does_not_matter(rate: float, seed: int, shuffle) -> None:
    points = observed(rate, seed)
    shuffled = list(points)
    shuffle.shuffle(shuffled)
    assert RULE.answer(Curve(rough=points, probes=points)) == RULE.answer(Curve(rough=points, probes=tuple(shuffled)))


@given(rates, seeds, st.booleans())
@settings(max_examples=40)
def test_a_larger_delta_never_needs_more_density(rate: float, seed: int, with_reference: bool) -> None:
    points = observed(rate, seed)
    curve = Curve(rough=points, probes=points, reference=Reference(score=0.9, kind="given") if with_reference else None)
    answers = [ProbeRule(delta=delta).answer(curve) for delta in (0.005, 0.01, 0.03, 0.1)]
    sizes = [{"flat": 0.0, "unreached": math.inf, "open": math.inf}.get(a.status, a.density) for a in answers]
    assert sizes == sorted(sizes, reverse=True)
    for answer in answers:
        if answer.density is not None:
            assert answer.interval[0] <= answer.density <= answer.interval[1] <= 1.0


@given(
    rates,
    seeds,
    st.sampled_from([0.003, 0.01, 0.05]),
    st.sampled_from([None, "given", "dense"]),
    st.sampled_from([None, 80, 800]),
    st.sampled_from([None, 100]),
)
@settings(max_examples=30)
def test_the_cautious_line_crosses_the_target_at_the_answer(
    rate: float, seed: int, delta: float, kind: str | None, full_epochs: int | None, num_val: int | None
) -> None:
    points = observed(rate, seed, num=6)
    reference = None if kind is None else Reference(score=0.9, kind=kind, epochs=80)
    curve = Curve(rough=points, probes=points, reference=reference, full_epochs=full_epochs, num_val=num_val)
    answer = ProbeRule(delta=delta).answer(curve)
    band = fit_band(curve, answer)
    densities, line = np.array(band["density"]), np.array(band["cautious"])
    assert np.all(np.diff(line) >= -1e-12)
    target = answer.reference.score - allowed_gap(delta, 80, full_epochs)[0]
    if answer.density is None:
        assert np.all(line >= target - 1e-9) if answer.status == "flat" else np.all(line <= target + 1e-9)
        return
    assert np.all(line[densities < answer.density * (1 - 1e-9)] <= target + 1e-9)
    assert np.all(line[densities > answer.density * (1 + 1e-9)] >= target - 1e-9)


@given(st.lists(st.floats(0, 1), min_size=22, max_size=22), st.sampled_from([None, 0.5, 0.9]), st.floats(0.25, 1.0))
@settings(max_examples=15)
def test_every_rule_terminates_on_arbitrary_scores(scores: list[float], reference: float | None, gamma: float) -> None:
    """`search_scores` rejects impossible verdicts."""
    given_score = None if reference is None else Reference(score=reference, kind="given")
    for name in rules.names():
        found = search_scores(
            rules.create(name),
            lambda round, _: scores[round % 22],
            lambda round, _: scores[(round + 11) % 22],
            gamma=gamma,
            reference=given_score,
            probe_epochs=160,
            can_probe=name == "probe",
        )
        assert found.answer.reason in set(Reason)
        assert (found.answer.density is not None) == (found.answer.status == "found")
        if found.answer.density is not None:
            compared = found.curve.probes if name == "probe" else found.curve.rough
            assert found.answer.density <= max(point.density for point in compared)


shapes = st.one_of(
    st.floats(1.0, 80.0).map(saturating),
    st.floats(0.01, 0.6).map(lambda exponent: lambda x: 1.0 - 0.07 * x**-exponent),
    st.just(lambda x: 0.9),
    st.floats(0.0, 0.3).map(lambda slope: lambda x: 0.9 - slope * x),
)


@given(
    trunk=shapes,
    trained=shapes,
    seed=seeds,
    noise=st.sampled_from([0.0, 0.002, 0.02, 0.3]),
    rule=st.builds(
        ProbeRule,
        delta=st.sampled_from([1e-4, 0.005, 0.01, 0.1]),
        max_probes=st.sampled_from([None, 4, 7, 12]),
        max_cost=st.sampled_from([1.0, 3.0, None]),
    ),
    options=st.fixed_dictionaries(
        {
            "start": st.sampled_from([0.005, 0.03, 0.3, 1.0]),
            "gamma": st.sampled_from([0.25, 1.0, 9.0]),
            "num": st.sampled_from([200, 10_000]),
            "probe_epochs": st.sampled_from([1, 16, 159, 160]),
            "num_val": st.sampled_from([None, 1, 50, 5000]),
            "select_by": st.sampled_from(["delta", "gain"]),
            "ceiling": st.sampled_from([1.0, 1.0, 1.0, 0.4]),
        }
    ),
)
@settings(max_examples=50)
def test_every_search_without_a_reference_terminates_within_its_limits(
    trunk, trained, seed: int, noise: float, rule: ProbeRule, options: dict
) -> None:
    rng = np.random.default_rng(seed)
    options["start"] = min(options["start"], options["ceiling"])
    found = search_scores(
        rule,
        lambda _, density: float(trunk(density) + rng.normal(0, noise)),
        lambda _, density: float(trained(density) + rng.normal(0, noise)),
        **options,
    )
    assert len(found.curve.probes) <= (rule.max_probes or 5)
    probed = [k for batch in found.batches for k in batch]
    assert (DENSE in probed) <= (options["probe_epochs"] < 160)
    assert DENSE not in probed[3:], "in the first batch or not at all"
    assert all(len(batch) <= 2 for batch in found.batches[1:] if len(found.curve.probes) > 3)
    for verdict in found.verdicts:
        assert verdict.reason in set(Reason)
        if isinstance(verdict, Grow) and verdict.up_to is not None:
            assert 0 < verdict.up_to <= options["ceiling"]
    answer = found.answer
    assert (answer.density is not None) == (answer.status == "found")
    chosen = select_network(found.curve, answer, by=options["select_by"])
    assert chosen in found.curve.rough
    if answer.density is not None:
        assert answer.interval[0] <= answer.density <= answer.interval[1] <= options["ceiling"]
        needed = answer.gain_density if options["select_by"] == "gain" else answer.density
        if DENSE in probed and needed is not None:
            assert CLOSE * chosen.density >= min(needed, options["ceiling"]) - 1e-9
