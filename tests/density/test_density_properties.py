"""What holds for every curve: units do not matter, order does not matter, no rule does the impossible."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathgrow.density import rules
from pathgrow.density.acquisition import CLOSE, select_network
from pathgrow.density.estimate import allowed_gap, fit_band
from pathgrow.density.probe import ProbeRule
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import DENSE, Curve, Grow, Point, Probe, Reason, Reference, Stop
from tests.support.growing import follow

rates = st.floats(2.0, 60.0)
seeds = st.integers(0, 10_000)


def observed(rate: float, seed: int, *, num: int = 8, noise: float = 0.003) -> tuple[Point, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        Point(
            round=k,
            density=float(x),
            epochs=80,
            score=float(0.5 + 0.4 * (1 - math.exp(-rate * x)) + rng.normal(0, noise)),
        )
        for k, x in enumerate(np.geomspace(0.03, 1.0, num))
    )


@given(st.floats(-5, 5), st.floats(0.01, 50), st.floats(3.0, 200.0))
def test_fit_saturation_recovers_any_curve(p0: float, gain: float, rate: float) -> None:
    rho = np.geomspace(0.005, 1.0, 12)
    fit = fit_saturation(rho, p0 + gain * (1 - np.exp(-rate * rho)))
    assert fit.gain == pytest.approx(gain, rel=1e-4)
    assert fit.operating_density() == pytest.approx(math.log(20) / rate, rel=1e-4)
    assert fit.p0 == pytest.approx(p0, abs=1e-4 * gain)


@given(rates, seeds, st.sampled_from([1.0, 100.0, 0.02]), st.floats(-50, 50))
def test_answers_do_not_depend_on_the_unit_of_the_score(rate: float, seed: int, scale: float, shift: float) -> None:
    points = observed(rate, seed)
    moved = tuple(dataclasses.replace(point, score=scale * point.score + shift) for point in points)
    plain = rules.create("probe", delta=0.01).answer(Curve(rough=points, probes=points))
    other = rules.create("probe", delta=0.01 * scale).answer(Curve(rough=moved, probes=moved))
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
    rule = rules.create("probe")
    assert rule.answer(Curve(rough=points, probes=points)) == rule.answer(Curve(rough=points, probes=tuple(shuffled)))


@given(rates, seeds, st.booleans())
def test_a_wider_delta_never_asks_for_more_density(rate: float, seed: int, with_reference: bool) -> None:
    points = observed(rate, seed)
    curve = Curve(rough=points, probes=points, reference=Reference(score=0.9, kind="given") if with_reference else None)
    answers = [rules.create("probe", delta=delta).answer(curve) for delta in (0.005, 0.01, 0.03, 0.1)]
    sizes = [{"flat": 0.0, "unreached": math.inf, "open": math.inf}.get(a.status, a.density) for a in answers]
    assert sizes == sorted(sizes, reverse=True)
    for answer in answers:
        if answer.density is not None:
            assert answer.interval[0] <= answer.density <= answer.interval[1] <= 1.0


@given(st.lists(st.floats(0, 1), min_size=22, max_size=22), st.sampled_from([None, 0.5, 0.9]), st.floats(0.25, 1.0))
@settings(max_examples=15)
def test_any_scores_whatever_lead_to_an_end(scores: list[float], reference: float | None, gamma: float) -> None:
    """Nonsense in, sense out: legal verdicts only, no endless loop, an answer with words."""
    given = None if reference is None else Reference(score=reference, kind="given")
    for name in rules.names():
        rule = rules.create(name)
        density, rough, probes = 0.03, list[Point](), list[Point]()
        rough.append(Point(round=0, density=density, epochs=20, score=scores[0]))
        for _ in range(120):
            curve = Curve(
                rough=tuple(rough),
                probes=tuple(probes),
                reference=given,
                can_probe=name == "probe",
                at_ceiling=density >= 1.0,
            )
            verdict = rule.decide(curve)
            match verdict:
                case Stop():
                    break
                case Grow():
                    assert density < 1.0
                    density = min(density * (1 + gamma), 1.0)
                    rough.append(Point(round=len(rough), density=density, epochs=20, score=scores[len(rough) % 22]))
                case Probe(rounds=rounds):
                    assert rounds
                    for k in rounds:
                        assert k in {point.round for point in rough} - {probe.round for probe in probes}
                        score = scores[(k + 11) % 22]
                        probes.append(dataclasses.replace(rough[k], epochs=80, score=score))
        assert isinstance(verdict, Stop)
        answer = rule.answer(curve)
        assert answer.reason in set(Reason)
        assert (answer.density is not None) == (answer.status == "found")
        if answer.density is not None:
            seen = probes if name == "probe" else rough
            assert answer.density <= max(point.density for point in seen)


@given(
    rates,
    seeds,
    st.sampled_from([0.003, 0.01, 0.05]),
    st.sampled_from([None, "given", "dense"]),
    st.sampled_from([None, 80, 800]),
    st.sampled_from([None, 100]),
)
@settings(max_examples=40, deadline=None)
def test_the_cautious_line_crosses_the_goal_at_the_answer(
    rate: float, seed: int, delta: float, kind: str | None, full_epochs: int | None, num_val: int | None
) -> None:
    """What pictures draw beside the fitted curve, so that readers see why the answer is where it is."""
    points = observed(rate, seed, num=6)
    reference = None if kind is None else Reference(score=0.9, kind=kind, epochs=80)
    curve = Curve(rough=points, probes=points, reference=reference, full_epochs=full_epochs, num_val=num_val)
    answer = ProbeRule(delta=delta).answer(curve)
    band = fit_band(curve, answer)
    densities, line = np.array(band["density"]), np.array(band["cautious"])
    assert np.all(np.diff(line) >= -1e-12)
    goal = answer.reference.score - allowed_gap(delta, 80, full_epochs)[0]
    if answer.density is None:
        assert np.all(line >= goal - 1e-9) if answer.status == "flat" else np.all(line <= goal + 1e-9)
        return
    assert np.all(line[densities < answer.density * (1 - 1e-9)] <= goal + 1e-9)
    assert np.all(line[densities > answer.density * (1 + 1e-9)] >= goal - 1e-9)


shapes = st.one_of(
    st.floats(1.0, 80.0).map(lambda rate: lambda x: 0.5 + 0.4 * (1 - math.exp(-rate * x))),
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
            "gamma": st.sampled_from([0.1, 0.25, 1.0, 9.0]),
            "num": st.sampled_from([200, 10_000]),
            "probe_epochs": st.sampled_from([1, 16, 159, 160]),
            "num_val": st.sampled_from([None, 1, 50, 5000]),
            "select_by": st.sampled_from(["delta", "gain"]),
            "ceiling": st.sampled_from([1.0, 1.0, 1.0, 0.4]),
        }
    ),
)
@settings(max_examples=60, deadline=None)
def test_beside_a_dense_copy_any_curve_leads_to_an_end_within_the_limits(
    trunk, trained, seed: int, noise: float, rule: ProbeRule, options: dict
) -> None:
    """`follow` refuses whatever no loop could do: rounds not visited or asked for twice, growth beyond the ceiling."""
    rng = np.random.default_rng(seed)
    options["start"] = min(options["start"], options["ceiling"])
    seen = follow(
        rule,
        lambda _, density: float(trunk(density) + rng.normal(0, noise)),
        lambda _, density: float(trained(density) + rng.normal(0, noise)),
        **options,
    )
    brief = options["probe_epochs"] < 160
    assert len(seen.curve.probes) <= (rule.max_probes or 5)
    asked = [k for batch in seen.batches for k in batch]
    assert (DENSE in asked) <= brief
    assert DENSE not in asked[3:], "at once or not at all"
    assert all(len(batch) <= 2 for batch in seen.batches[1:] if len(seen.curve.probes) > 3)
    for verdict in seen.verdicts:
        if isinstance(verdict, Grow) and verdict.up_to is not None:
            assert 0 < verdict.up_to <= options["ceiling"]
    answer = seen.answer
    assert answer.reason in set(Reason)
    assert (answer.density is not None) == (answer.status == "found")
    chosen = select_network(seen.curve, answer, by=options["select_by"])
    assert chosen in seen.curve.rough
    if answer.density is not None:
        assert answer.interval[0] <= answer.density <= answer.interval[1] <= options["ceiling"]
        asked_for = answer.gain_density if options["select_by"] == "gain" else answer.density
        if DENSE in asked and asked_for is not None:
            assert CLOSE * chosen.density >= min(asked_for, options["ceiling"]) - 1e-9
