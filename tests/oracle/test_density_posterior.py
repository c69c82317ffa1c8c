"""The quadrature behind the answers against plain Monte Carlo, and the family against its closed-form members."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pathgrow.density.estimate import LEVEL, quantiles
from pathgrow.density.posterior import BENDS, SPEEDS, normalized_gap, sample_posterior

RHO = 0.03 * 1.25 ** np.array([0, 3, 6, 9, 12, 15])


def test_members_of_the_family() -> None:
    rho, lowest = np.array([0.03, 0.1, 0.4, 1.0]), 0.03
    cases = {
        1.0: np.exp(-4.0 * rho),  # the exponential
        0.0: rho**-4.0,  # a power law
        0.5: np.exp(-8.0 * np.sqrt(rho)),  # a stretched exponential
    }
    for bend, gap in cases.items():
        expected = (gap - gap[-1]) / (gap[0] - gap[-1])
        assert normalized_gap(rho, lowest, np.array(bend), np.array(4.0)) == pytest.approx(expected)
    # The slow limit: a plain root, which no exponential tail describes.
    root = (1 - np.sqrt(rho)) / (1 - math.sqrt(lowest))
    assert normalized_gap(rho, lowest, np.array(0.5), np.array(1e-7)) == pytest.approx(root, rel=1e-5)


def test_reach_inverts_at() -> None:
    curves = sample_posterior(RHO, [0.5, 0.61, 0.7, 0.76, 0.78, 0.785])
    for density in (0.05, 0.2, 0.7):
        assert curves.reach(curves.at(density)) == pytest.approx(np.full(len(curves.top), density))
    assert np.all(np.isinf(curves.reach(curves.top + 1e-6)))
    assert np.all(curves.reach(curves.at(0.2) - 1e-3) < 0.2)


def monte_carlo(rho: np.ndarray, score: np.ndarray, noise_hint: float, delta: float, num: int = 400_000):
    """Importance sampling of the stated model from its prior, with nothing shared but the definition of the curve."""
    rng = np.random.default_rng(0)
    lowest, span = rho[0], np.ptp(score)
    bend = rng.choice(BENDS, num)
    safe = np.where(bend == 0, 1.0, bend)

    def clock(density):
        return np.where(bend == 0, np.log(density), (density**safe - 1) / safe)

    # Half of the rise log-uniform in density: draw the speed log-uniform and weight by the slope of log(half).
    full = -clock(lowest)
    speed = np.exp(rng.uniform(*np.log(SPEEDS), num)) / full

    def half_at(speed):
        at = -np.log1p(0.5 * np.expm1(speed * full)) / speed
        return np.where(bend == 0, at, np.log1p(np.maximum(safe * at, -1 + 1e-12)) / safe)

    weight = np.abs(half_at(speed * 1.001) - half_at(speed))
    # Normalised for each bend, as every bend is equally likely beforehand only through this density.
    noise = noise_hint * np.exp(0.8 * rng.standard_normal(num))
    h = np.stack([np.expm1(-speed * clock(x)) / np.expm1(speed * full) for x in rho], axis=1)
    # Linear parameters from a normal around their least squares, to be reweighted to the flat prior.
    design = np.stack([np.ones_like(h), -h], axis=2)
    gram = np.einsum("npi,npj->nij", design, design) + 1e-9 * np.eye(2)
    centre = np.linalg.solve(gram, np.einsum("npi,p->ni", design, score)[..., None])[..., 0]
    root = np.linalg.cholesky(np.linalg.inv(gram)) * (1.5 * noise)[:, None, None]
    normal = rng.standard_normal((num, 2))
    top, rise = (centre + np.einsum("nij,nj->ni", root, normal)).T
    misfit = np.sum((score - top[:, None] + rise[:, None] * h) ** 2, axis=1) / noise**2
    log_weight = (
        np.log(weight + 1e-300)
        - 0.5 * misfit
        - len(rho) * np.log(noise)
        - 0.5 * (rise / (10 * span)) ** 2
        + 0.5 * np.sum(normal**2, axis=1)
        + np.log(np.abs(np.linalg.det(root)))
    )
    log_weight[rise < 0] = -np.inf
    keep = log_weight > log_weight.max() - 20
    wanted = delta / rise[keep]
    at = -np.log1p(wanted * np.expm1(speed[keep] * full[keep])) / speed[keep]
    inside = np.maximum(1 + safe[keep] * at, 0)
    density = np.where(bend[keep] == 0, np.exp(at), inside ** (1 / safe[keep]))
    weight = np.exp(log_weight[keep] - log_weight.max())

    def spread(values: np.ndarray) -> list[float]:
        order = np.argsort(values)
        total = np.cumsum(weight[order]) / weight.sum()
        return [float(values[order][np.searchsorted(total, share)]) for share in LEVEL]

    return {"density": spread(density), "top": spread(top[keep]), "rise": spread(rise[keep])}


@pytest.mark.parametrize("seed", [0, 1])
def test_quadrature_agrees_with_monte_carlo(seed: int) -> None:
    """Closely: a term left out of the noise's posterior moves the lower end by 4%."""
    score = 0.9 - 0.4 * np.exp(-((RHO / 0.05) ** 0.5)) + np.random.default_rng(seed).normal(0, 0.004, len(RHO))
    curves = sample_posterior(RHO, score, noise_hint=0.004)
    known = monte_carlo(RHO, score, 0.004, 0.02)
    assert quantiles(curves.reach(curves.top - 0.02), LEVEL) == pytest.approx(known["density"], rel=0.02)
    assert quantiles(curves.rise, LEVEL) == pytest.approx(known["rise"], rel=0.005)
    assert quantiles(curves.top, LEVEL) == pytest.approx(known["top"], abs=0.0005)


@pytest.mark.parametrize("seed", [0, 1])
def test_quadrature_agrees_with_monte_carlo_where_nothing_rises(seed: int) -> None:
    """Here the bound at zero decides: half of the possible rises are cut off."""
    score = 0.9 + np.random.default_rng(seed).normal(0, 0.004, len(RHO))
    curves = sample_posterior(RHO, score, noise_hint=0.004)
    known = monte_carlo(RHO, score, 0.004, 0.02)
    assert quantiles(curves.rise, LEVEL)[1:] == pytest.approx(known["rise"][1:], rel=0.05)
    assert quantiles(curves.top, LEVEL) == pytest.approx(known["top"], abs=0.0005)


def test_points_that_clearly_fall_are_noise_about_a_flat_curve() -> None:
    """A curve that rises is the only one thought of, so all of their spread has to be noise."""
    rho = np.geomspace(0.03, 1.0, 12)
    score = 0.9 - 0.3 * rho
    curves = sample_posterior(rho, score, noise_hint=0.02)
    assert float(np.median(curves.noise)) == pytest.approx(float(np.std(score)), rel=0.25)


def test_the_posterior_is_the_same_every_time() -> None:
    score = [0.5, 0.6, 0.7, 0.75, 0.78, 0.79]
    first, second = sample_posterior(RHO, score), sample_posterior(RHO, score)
    assert np.array_equal(first.top, second.top)
    assert np.array_equal(first.speed, second.speed)


def test_noise_is_inferred() -> None:
    rng = np.random.default_rng(3)
    rho = np.geomspace(0.02, 1.0, 24)
    for noise in (0.001, 0.01):
        error = rng.normal(0, noise, len(rho))
        curves = sample_posterior(rho, 0.9 - 0.3 * np.exp(-8 * rho) + error, noise_hint=0.004)
        assert float(np.mean(curves.noise)) == pytest.approx(float(np.std(error)), rel=0.25)
