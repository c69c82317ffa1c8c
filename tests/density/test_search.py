"""How far the default rule looks before it answers: room beyond the answer, nothing beyond what was observed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from pathgrow.density import rules
from pathgrow.density.acquisition import select_network
from pathgrow.density.estimate import estimate_from_probes, fit_band, quantiles
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import Curve, Grow, Point, Probe, Reference
from tests.support.growing import Followed, follow

RULE = ProbeRule(delta=0.01)


WIGGLE = [0.3, -0.8, 0.5, 0.9, -0.4, -0.6, 0.7, -0.2, 0.1, -0.9, 0.8, -0.3, 0.2, -0.5, 0.6, -0.7, 0.4, -0.1]
GIVEN = Reference(score=0.9, kind="given", epochs=80)


def saturating(rate: float) -> Callable[[float], float]:
    return lambda density: 0.5 + 0.4 * (1 - math.exp(-rate * density))


def search(
    trained: Callable[[float], float], trunk: Callable[[float], float], rule: ProbeRule | None = None, **options: object
) -> Followed:
    """With a reference, unless told otherwise: copies are trained in full, and no dense one among them."""

    def near(curve: Callable[[float], float], shift: int) -> Callable[[int, float], float]:
        return lambda round, density: curve(density) + 5e-4 * WIGGLE[(round + shift) % len(WIGGLE)]

    settings = {"reference": GIVEN, "probe_epochs": 80, "budget": 80, **options}
    return follow(rule or RULE, near(trunk, 0), near(trained, 5), **settings)  # type: ignore[arg-type]


EARLY = saturating(60.0)
"""A trunk that seems to have learned all at 5% already: growth has to follow what the probes say."""


@pytest.mark.parametrize("rate", [40.0, 25.0, 18.0, 16.0, 15.0, 14.0, 12.0, 10.0, 8.0, 6.0])
def test_growth_goes_on_until_there_is_room_beyond_both_answers(rate: float) -> None:
    seen = search(saturating(rate), EARLY)
    assert seen.answer.status == "found"
    assert seen.answer.density == pytest.approx(math.log(40) / rate, rel=0.15)
    answers = (seen.answer.density, seen.answer.gain_density)
    densest = max(probe.density for probe in seen.curve.probes)
    assert densest >= min(1.5 * max(answers), 1.0)
    # No further than it takes: two steps of growth beyond that room, or beyond where it began to look.
    first = max(seen.curve.rough[k].density for k in seen.batches[0])
    assert seen.curve.rough[-1].density <= min(1.6 * max(1.5 * max(answers), first), 1.0)


def test_the_gain_answer_is_bracketed_too() -> None:
    """A delta of a quarter of the gain is reached early; 95% of the gain is not."""
    seen = search(saturating(8.0), EARLY, ProbeRule(delta=0.1))
    assert seen.answer.density == pytest.approx(math.log(4) / 8, rel=0.15)
    assert max(probe.density for probe in seen.curve.probes) >= 1.5 * math.log(20) / 8


@pytest.mark.parametrize("rate", [25.0, 10.0, 6.0])
def test_on_the_way_up_probes_are_placed_apart(rate: float) -> None:
    seen = search(saturating(rate), EARLY)
    visited = seen.curve.rough
    ways_up = [visited[k].density for batch in seen.batches[:1] for k in batch][-1:]
    for batch in seen.batches[1:]:
        ways_up += [visited[k].density for k in batch if visited[k].density > max(ways_up)]
    assert len(ways_up) > 1
    assert all(after >= 1.2 * before for before, after in pairwise(ways_up))


@pytest.mark.parametrize("max_probes", [5, 6, 7])
def test_one_probe_is_kept_for_the_network_of_the_answer(max_probes: int) -> None:
    for rate in (20.0, 10.0, 6.0):
        seen = search(saturating(rate), EARLY, ProbeRule(delta=0.01, max_probes=max_probes))
        assert len(seen.curve.probes) <= max_probes
        if len(seen.curve.probes) < max_probes:
            continue  # sure enough without
        chosen = select_network(seen.curve, seen.answer)
        steps = [abs(chosen.round - probe.round) for probe in seen.curve.probes]
        assert min(steps) <= 1, "it may move by a step when its own probe is seen"


def test_with_a_reference_the_price_of_probes_is_no_limit() -> None:
    """Each of them may be handed back as it is, and the user has asked for a sure answer."""
    cheap, free = (
        search(saturating(5.0), EARLY, ProbeRule(delta=0.01, max_cost=price, max_width=1.001, max_gain_width=1.001))
        for price in (1.0, None)
    )
    assert sum(probe.density for probe in cheap.curve.probes) > 1.0
    assert cheap.curve == free.curve


def test_a_flat_curve_below_its_reference_is_grown_to_the_end() -> None:
    """Nothing rises, yet a reference that nobody has come near may lie at a density not seen."""
    seen = search(lambda density: 0.8, lambda density: 0.8)
    assert seen.curve.at_ceiling
    assert seen.answer.status == "unreached"
    near = search(lambda density: 0.9, lambda density: 0.9)
    assert near.answer.status == "flat"
    assert not near.curve.at_ceiling


def points(densities: list[float], score: Callable[[float], float]) -> tuple[Point, ...]:
    return tuple(
        Point(round=k, density=x, epochs=80, score=score(x) + 5e-4 * WIGGLE[k]) for k, x in enumerate(densities)
    )


@pytest.mark.parametrize(("at_ceiling", "status"), [(False, "open"), (True, "unreached")])
def test_an_answer_beyond_the_densest_probe_is_none(at_ceiling: bool, status: str) -> None:
    """The fit would put it at 74%; what was trained out ends at 30%."""
    seen = points([0.03, 0.06, 0.1, 0.15, 0.2, 0.3], saturating(5.0))
    curve = Curve(rough=seen, probes=seen, reference=GIVEN, at_ceiling=at_ceiling)
    answer = RULE.answer(curve)
    assert (answer.status, answer.density, answer.interval) == (status, None, None)


@pytest.mark.parametrize("rate", [4.0, 6.0, 7.0, 7.5, 8.0, 12.0])
def test_no_answer_lies_beyond_the_ceiling_of_growth(rate: float) -> None:
    """95% of the gain of the middle ones is made at 40 to 43%, a little above the ceiling or next to it."""
    seen = tuple(
        Point(round=k, density=x, epochs=80, score=saturating(rate)(x) + 0.004 * WIGGLE[k])
        for k, x in enumerate([0.03, 0.06, 0.1, 0.16, 0.25, 0.4])
    )
    for rule in (ProbeRule(delta=0.03), rules.create("trajectory", delta=0.03)):
        curve = Curve(rough=seen, probes=seen, ceiling=0.4, at_ceiling=True, can_probe=rule.name == "probe")
        answer = rule.answer(curve)
        for density, interval in (
            (answer.density, answer.interval),
            (answer.gain_density, answer.gain_interval),
        ):
            assert (density is None) <= (interval is None or answer.status == "flat")
            if density is not None and interval is not None:
                assert interval[0] <= density <= interval[1] <= 0.4


def test_without_copies_the_band_goes_through_the_trajectory() -> None:
    trunk = points([0.03, 0.06, 0.1, 0.15, 0.2, 0.3], saturating(10.0))
    band = fit_band(Curve(rough=trunk, can_probe=False))
    assert band is not None
    assert (band["density"][0], band["density"][-1]) == pytest.approx((0.03, 0.3))
    for x, low, high in zip(band["density"], band["low"], band["high"], strict=True):
        assert low <= saturating(10.0)(x) <= high
    assert fit_band(Curve(rough=trunk)) is None


def test_a_search_without_dense_copies_never_asks_for_one() -> None:
    seen = search(saturating(10.0), EARLY)
    assert all(min(verdict.rounds) >= 0 for verdict in seen.verdicts if isinstance(verdict, Probe))


@pytest.mark.parametrize("noise", [0.012, 0.016])
def test_growth_goes_on_while_a_bracket_holds_with_less_than_ninety_percent(noise: float) -> None:
    """The answer lies well below the densest probe, but a reference this high may as well be out of reach."""
    rough = tuple(
        Point(round=k, density=x, epochs=80, score=saturating(20.0)(x) + noise * WIGGLE[k])
        for k, x in enumerate([0.03 * 1.25**k for k in range(13)])
    )
    probes = tuple(rough[k] for k in (0, 3, 6, 8, 10, 12))
    curve = Curve(rough=rough, probes=probes, reference=Reference(score=0.906, kind="given", epochs=160))
    reading = estimate_from_probes(curve, 0.01)
    assert reading is not None
    assert 0.12 < reading.share_above < 0.45
    assert 1.5 * quantiles(reading.delta_density, (2 / 3,))[0] < probes[-1].density
    assert isinstance(RULE.decide(curve), Grow)
