"""Both answers where they are known, noisy references, gaps that shrink with training, and the fitted band."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.optimize import brentq

from pathgrow.density.estimate import (
    LEVEL,
    DensityEstimate,
    allowed_gap,
    estimate_from_points,
    fit_band,
    quantiles,
    trajectory_noise,
)
from pathgrow.density.posterior import sample_posterior
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import DENSE, Answer, Curve, Point, Probe, Reference
from tests.support.searching import Shape, points, saturating

LADDER = (0.04, 0.08, 0.16, 0.3, 0.55, 1.0)
NOISE = 0.004
WIGGLE = np.array([0.8, -1.1, 0.9, 0.3, -1.2, 0.5])


def probes(noise: float = NOISE) -> list[Point]:
    return [
        Point(round=k, density=x, epochs=16, score=saturating(8.0)(x) + noise * off)
        for k, (x, off) in enumerate(zip(LADDER, WIGGLE, strict=True))
    ]


def estimated(reference: Reference | None, **options: object) -> DensityEstimate:
    found = estimate_from_points(probes(), 0.02, reference, noise_hint=NOISE, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_without_noise_the_gain_answer_is_95_percent_of_the_exponential() -> None:
    exact = estimate_from_points(probes(noise=0.0), 0.02, None, noise_hint=1e-5)
    assert exact is not None
    assert quantiles(exact.gain_density, LEVEL) == pytest.approx([math.log(20) / 8] * 3, rel=0.02)
    observed = tuple(probes(noise=0.0))
    answer = ProbeRule(delta=0.02).answer(Curve(rough=observed, probes=observed, at_ceiling=True))
    assert answer.gain_density == pytest.approx(math.log(20) / 8, rel=1e-4)
    assert answer.gain_interval[0] <= answer.gain_density * 1.02
    assert answer.gain_interval[1] >= answer.gain_density * 0.98


def test_three_scores_at_two_densities_are_too_few() -> None:
    """A fully grown network and the dense network have the same density."""
    full = Point(round=1, density=1.0, epochs=16, score=0.9)
    dense = Point(round=DENSE, density=1.0, epochs=16, score=0.91)
    observed = [Point(round=0, density=0.3, epochs=16, score=0.8), full, dense]
    assert estimate_from_points(observed, 0.01, None, noise_hint=None) is None
    rule = ProbeRule(delta=0.01)
    answer = rule.answer(Curve(rough=tuple(observed[:2]), probes=tuple(observed)))
    assert (answer.status, answer.details["probes"], answer.details["probes_needed"]) == ("open", 3, 3)
    visited = (Point(round=0, density=0.1, epochs=16, score=0.6), *observed[:2])
    verdict = rule.decide(Curve(rough=visited, probes=tuple(observed[1:]), at_ceiling=True))
    assert isinstance(verdict, Probe)


# References.


def test_a_reference_of_another_length_is_a_noisy_score_and_not_a_point_of_the_curve() -> None:
    found = estimated(Reference(score=0.93, kind="dense", epochs=160))
    apart = sample_posterior(LADDER, [point.score for point in probes()], noise_hint=NOISE)
    assert np.array_equal(found.curves.top, apart.top)
    assert np.array_equal(found.curves.rise, apart.rise)
    # The outcome of one training is as noisy as a probe.
    assert float(np.mean(found.level)) == pytest.approx(0.93, abs=2e-4)
    assert float(np.std(found.level)) == pytest.approx(float(np.sqrt(np.mean(apart.noise**2))), rel=0.1)


def test_a_reference_on_the_curve_sharpens_its_end() -> None:
    """It is trained as long as the probes, and where they extrapolate to."""
    observed = probes()[:-1]
    apart = sample_posterior(LADDER[:-1], [point.score for point in observed], noise_hint=NOISE)
    met = estimate_from_points(observed, 0.02, Reference(score=0.9, kind="dense", epochs=16), noise_hint=NOISE)
    assert met is not None
    assert float(np.std(met.curves.top)) < 0.75 * float(np.std(apart.top))
    # For most of the curves the true score of the reference is then the end of the curve.
    assert float(np.mean(met.level == met.curves.top)) > 0.5


def test_a_reference_far_from_the_curve_does_not_move_it() -> None:
    far = estimated(Reference(score=1.2, kind="dense", epochs=16))
    assert float(np.mean(far.level == far.curves.top)) < 0.05
    assert float(np.median(far.level)) == pytest.approx(1.2, abs=0.01)
    assert float(np.median(far.curves.top)) == pytest.approx(0.9, abs=0.01)


# Noise.


@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="dense", epochs=16)])
@pytest.mark.parametrize("num_val", [100, 2500])
def test_few_validation_examples_blur_the_reference(reference: Reference | None, num_val: int) -> None:
    """By half of sqrt(delta / n): four times as many examples halve it."""
    sharp, blurred = estimated(reference), estimated(reference, num_val=num_val)
    added = np.var(blurred.level) - np.var(sharp.level)
    assert float(added) == pytest.approx(0.25 * 0.02 / num_val, rel=0.15, abs=0.02 * float(np.var(sharp.level)))


def test_trajectory_noise_does_not_depend_on_the_rise() -> None:
    rng = np.random.default_rng(0)
    densities = [0.03 * 1.25**k for k in range(15)]
    for noise in (0.004, 0.04):
        found = []
        for _ in range(200):
            rough = [
                Point(round=k, density=x, epochs=20, score=saturating(8.0)(x) + rng.normal(0, noise))
                for k, x in enumerate(densities)
            ]
            found.append(trajectory_noise(rough))
        assert float(np.mean(found)) == pytest.approx(noise, rel=0.2)
    assert trajectory_noise(rough[:5]) is None


# Gaps that shrink with training.

SHORT = [0.05, 0.1, 0.2, 0.4, 1.0]


def power(exponent: float) -> Shape:
    """A dense error of 7%, larger by a power of the density: what equally trained networks on CIFAR-10 do."""
    return lambda density: 1.0 - 0.07 * density**-exponent


def short_estimate(full_epochs: int) -> DensityEstimate:
    found = estimate_from_points(points(SHORT, power(0.127), 16), 0.01, None, noise_hint=1e-3, full_epochs=full_epochs)
    assert found is not None
    return found


def test_the_allowed_gap_is_an_uncertain_power_of_the_epochs() -> None:
    estimate = short_estimate(80)
    powers = np.sort(np.log(estimate.allowed / 0.01) / math.log(80 / 16))
    known = np.array([NormalDist(0.2, 0.1).inv_cdf((k + 0.5) / len(powers)) for k in range(len(powers))])
    assert np.abs(powers - known).max() < 0.03
    assert np.abs(powers - known).mean() < 2e-3
    # Independent of everything else in the posterior.
    curves = estimate.curves
    for other in (curves.top, curves.rise, curves.reference_z, np.log(curves.noise)):
        assert abs(np.corrcoef(other, curves.gap_z)[0, 1]) < 0.05
    median, low, high = allowed_gap(0.01, 16, 80)
    assert median == pytest.approx(0.01 * 5**0.2)
    assert (low, high) == pytest.approx(
        tuple(0.01 * 5 ** NormalDist(0.2, 0.1).inv_cdf(x) for x in (0.05, 0.95)), rel=1e-3
    )


def test_each_curve_has_its_own_gap() -> None:
    estimate = short_estimate(160)
    curves = estimate.curves
    names = [field.name for field in dataclasses.fields(curves) if field.name != "lowest"]
    for k in range(0, len(curves.top), 97):
        single = dataclasses.replace(curves, **{name: getattr(curves, name)[k : k + 1] for name in names})
        target = curves.top[k] - 0.01 * 10 ** (0.2 + 0.1 * curves.gap_z[k])
        found = brentq(lambda x, single=single, target=target: float(single.at(x)[0]) - target, 1e-6, 1.0)
        assert estimate.delta_density[k] == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("shape", [power(0.127), saturating(6.0)])
def test_answers_from_short_probes_in_closed_form(shape: Shape) -> None:
    """Without noise in the points only the gap is uncertain."""
    visited = points([0.03 * 1.25**k for k in range(16)], shape, 20)
    dense = Point(round=DENSE, density=1.0, epochs=16, score=shape(1.0))

    def answer(epochs: int, full_epochs: int | None) -> Answer:
        trained = (*(visited[k] for k in (2, 7, 10, 14)), dense)
        curve = Curve(
            rough=visited,
            probes=tuple(dataclasses.replace(probe, epochs=epochs) for probe in trained),
            can_probe_dense=True,
            full_epochs=full_epochs,
        )
        return ProbeRule(delta=0.01).answer(curve)

    def known(probability: float) -> float:
        gap = 0.01 * 10 ** NormalDist(0.2, 0.1).inv_cdf(1 - probability)
        return brentq(lambda x: shape(1.0) - shape(x) - gap, 1e-3, 1.0)

    short, plain = answer(16, 160), answer(16, None)
    assert short.allowed == pytest.approx(0.01 * 10**0.2)
    assert (short.details["probe_epochs"], short.details["full_epochs"]) == (16, 160)
    assert plain.allowed is None
    assert short.density == pytest.approx(known(2 / 3), rel=0.02)
    assert short.details["median_density"] == pytest.approx(known(0.5), rel=0.02)
    assert short.interval == pytest.approx((known(0.05), known(0.95)), rel=0.03)
    assert plain.density == pytest.approx(brentq(lambda x: shape(1.0) - shape(x) - 0.01, 1e-3, 1.0), rel=0.02)
    # The longer the probes, the closer to what probes of full length give.
    longer = [answer(epochs, 160).density for epochs in (16, 40, 80, 160)]
    assert longer == sorted(longer)
    assert longer[-1] == plain.density


@pytest.mark.parametrize(
    "reference", [None, Reference(score=0.93, kind="dense", epochs=80), Reference(score=0.93, kind="given")]
)
@pytest.mark.parametrize("full_epochs", [80, 40])
def test_probes_as_long_as_the_final_training_are_not_corrected(reference: Reference | None, full_epochs: int) -> None:
    visited = points(SHORT, power(0.127), 80)
    plain = Curve(rough=visited, probes=visited, reference=reference)
    rule = ProbeRule(delta=0.01)
    answer = rule.answer(dataclasses.replace(plain, full_epochs=full_epochs))
    assert answer == rule.answer(plain)
    assert answer.allowed is None


# The fitted band.


def test_the_band_contains_the_curve() -> None:
    shape = saturating(10.0)
    observed = points([0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.6, 1.0], shape, wiggle=5e-4)
    band = fit_band(Curve(rough=observed, probes=observed))
    assert set(band) == {"density", "score", "low", "high"}
    assert (band["density"][0], band["density"][-1]) == pytest.approx((0.03, 1.0))
    for x, low, score, high in zip(band["density"], band["low"], band["score"], band["high"], strict=True):
        assert low <= score <= high
        assert score == pytest.approx(shape(x), abs=0.004)
    assert fit_band(Curve(rough=observed, probes=observed[:2])) is None


def test_without_probes_the_band_is_that_of_the_trajectory() -> None:
    shape = saturating(10.0)
    trunk = points([0.03, 0.06, 0.1, 0.15, 0.2, 0.3], shape, wiggle=5e-4)
    band = fit_band(Curve(rough=trunk, can_probe=False))
    assert band is not None
    assert (band["density"][0], band["density"][-1]) == pytest.approx((0.03, 0.3))
    for x, low, high in zip(band["density"], band["low"], band["high"], strict=True):
        assert low <= shape(x) <= high
    assert fit_band(Curve(rough=trunk)) is None
