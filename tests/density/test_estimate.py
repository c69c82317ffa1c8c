"""What is read from probes: both answers where they are known, and a reference that is one more noisy score."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from pathgrow.density.estimate import LEVEL, Estimate, estimate_from_points, quantiles, trajectory_noise
from pathgrow.density.posterior import sample_posterior
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import DENSE, Curve, Point, Probe, Reference

RULE = ProbeRule(delta=0.01)


LADDER = (0.04, 0.08, 0.16, 0.3, 0.55, 1.0)
NOISE = 0.004
WIGGLE = np.array([0.8, -1.1, 0.9, 0.3, -1.2, 0.5])


def exponential(density: float) -> float:
    return 0.5 + 0.4 * (1 - math.exp(-8 * density))


def probes(score: Callable[[float], float] = exponential, noise: float = NOISE) -> list[Point]:
    return [
        Point(round=k, density=x, epochs=16, score=score(x) + noise * off)
        for k, (x, off) in enumerate(zip(LADDER, WIGGLE, strict=True))
    ]


def reading(reference: Reference | None, **options: object) -> Estimate:
    found = estimate_from_points(probes(), 0.02, reference, noise_hint=NOISE, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_without_noise_all_of_the_gain_answer_is_where_the_exponential_has_made_95_percent() -> None:
    exact = estimate_from_points(probes(noise=0.0), 0.02, None, noise_hint=1e-5)
    assert exact is not None
    assert quantiles(exact.gain_density, LEVEL) == pytest.approx([math.log(20) / 8] * 3, rel=0.02)
    points = tuple(probes(noise=0.0))
    answer = ProbeRule(delta=0.02).answer(Curve(rough=points, probes=points, at_ceiling=True))
    assert answer.gain_density == pytest.approx(math.log(20) / 8, rel=1e-4)
    assert answer.gain_interval[0] <= answer.gain_density * 1.02
    assert answer.gain_interval[1] >= answer.gain_density * 0.98


def test_three_scores_of_two_densities_are_too_few() -> None:
    """A network that is full and a dense copy have one density."""
    full = Point(round=1, density=1.0, epochs=16, score=0.9)
    copy = Point(round=DENSE, density=1.0, epochs=16, score=0.91)
    points = [Point(round=0, density=0.3, epochs=16, score=0.8), full, copy]
    assert estimate_from_points(points, 0.01, None, noise_hint=None) is None
    assert RULE.answer(Curve(rough=tuple(points[:2]), probes=tuple(points))).status == "open"
    visited = (Point(round=0, density=0.1, epochs=16, score=0.6), *points[:2])
    verdict = RULE.decide(Curve(rough=visited, probes=tuple(points[1:]), at_ceiling=True))
    assert isinstance(verdict, Probe)


# The reference.


def test_a_reference_of_another_length_is_a_noisy_score_and_no_point_of_the_curve() -> None:
    found = reading(Reference(score=0.93, kind="dense", epochs=160))
    apart = sample_posterior(LADDER, [point.score for point in probes()], noise_hint=NOISE)
    assert np.array_equal(found.curves.top, apart.top)
    assert np.array_equal(found.curves.rise, apart.rise)
    # One training's outcome: as far off as a probe's.
    assert float(np.mean(found.level)) == pytest.approx(0.93, abs=2e-4)
    assert float(np.std(found.level)) == pytest.approx(float(np.sqrt(np.mean(apart.noise**2))), rel=0.1)


def test_a_reference_on_the_curve_sharpens_its_end() -> None:
    """Trained as long as the probes and where they point to: it and they say one thing."""
    points = probes()[:-1]
    apart = sample_posterior(LADDER[:-1], [point.score for point in points], noise_hint=NOISE)
    met = estimate_from_points(points, 0.02, Reference(score=0.9, kind="dense", epochs=16), noise_hint=NOISE)
    assert met is not None
    assert float(np.std(met.curves.top)) < 0.75 * float(np.std(apart.top))
    # For most of the curves the reference's true score is then the curve's own end.
    assert float(np.mean(met.level == met.curves.top)) > 0.5


def test_a_reference_far_off_the_curve_stands_apart() -> None:
    far = reading(Reference(score=1.2, kind="dense", epochs=16))
    assert float(np.mean(far.level == far.curves.top)) < 0.05
    assert float(np.median(far.level)) == pytest.approx(1.2, abs=0.01)
    assert float(np.median(far.curves.top)) == pytest.approx(0.9, abs=0.01), "and leaves the curve where it is"


# Few validation examples.


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="dense", epochs=16)])
@pytest.mark.parametrize("num_val", [100, 2500])
def test_the_level_is_blurred_by_the_examples_it_was_seen_on(reference: Reference | None, num_val: int) -> None:
    """Half of sqrt(delta / n), for either reference: four times as many examples are twice as sure."""
    sharp, blurred = reading(reference), reading(reference, num_val=num_val)
    added = np.var(blurred.level) - np.var(sharp.level)
    assert float(added) == pytest.approx(0.25 * 0.02 / num_val, rel=0.15, abs=0.02 * float(np.var(sharp.level)))


def test_the_scatter_of_a_trajectory_is_its_noise_whatever_its_rise() -> None:
    rng = np.random.default_rng(0)
    ladder = [0.03 * 1.25**k for k in range(15)]
    for noise in (0.004, 0.04):
        found = []
        for _ in range(200):
            rough = [
                Point(round=k, density=x, epochs=20, score=exponential(x) + rng.normal(0, noise))
                for k, x in enumerate(ladder)
            ]
            found.append(trajectory_noise(rough))
        assert float(np.mean(found)) == pytest.approx(noise, rel=0.2)
    assert trajectory_noise(rough[:5]) is None
