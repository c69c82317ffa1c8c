"""The grid posterior against importance sampling, and the family of curves against its closed-form members."""

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
    # The slow limit: a root, which is not an exponential tail.
    root = (1 - np.sqrt(rho)) / (1 - math.sqrt(lowest))
    assert normalized_gap(rho, lowest, np.array(0.5), np.array(1e-7)) == pytest.approx(root, rel=1e-5)


def importance_sampling(rho: np.ndarray, score: np.ndarray, noise_hint: float, delta: float, num: int = 400_000):
    """Importance sampling of the model from its prior; shares only the definition of the curve."""
    rng = np.random.default_rng(0)
    lowest, span = rho[0], np.ptp(score)
    bend = rng.choice(BENDS, num)
    safe = np.where(bend == 0, 1.0, bend)

    def clock(density):
        return np.where(bend == 0, np.log(density), (density**safe - 1) / safe)

    # Prior log-uniform in the density at half of the rise: draw log-uniform speeds, weight by the slope of log(half).
    full = -clock(lowest)
    speed = np.exp(rng.uniform(*np.log(SPEEDS), num)) / full

    def half_at(speed):
        at = -np.log1p(0.5 * np.expm1(speed * full)) / speed
        return np.where(bend == 0, at, np.log1p(np.maximum(safe * at, -1 + 1e-12)) / safe)

    weight = np.abs(half_at(speed * 1.001) - half_at(speed))
    # Not normalised for each bend: a bend is as likely as the range of half-rise densities that it covers.
    noise = noise_hint * np.exp(0.8 * rng.standard_normal(num))
    h = np.stack([np.expm1(-speed * clock(x)) / np.expm1(speed * full) for x in rho], axis=1)
    # Draw the linear parameters around their least-squares solution, and reweight to the flat prior.
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
    gap = delta / rise[keep]
    at = -np.log1p(gap * np.expm1(speed[keep] * full[keep])) / speed[keep]
    inside = np.maximum(1 + safe[keep] * at, 0)
    density = np.where(bend[keep] == 0, np.exp(at), inside ** (1 / safe[keep]))
    weight = np.exp(log_weight[keep] - log_weight.max())

    def spread(values: np.ndarray) -> list[float]:
        order = np.argsort(values)
        total = np.cumsum(weight[order]) / weight.sum()
        return [float(values[order][np.searchsorted(total, p)]) for p in LEVEL]

    return {"density": spread(density), "top": spread(top[keep]), "rise": spread(rise[keep])}


@pytest.mark.parametrize("seed", [0, 1])
def test_grid_agrees_with_importance_sampling(seed: int) -> None:
    """Within 2%: a missing term in the posterior of the noise moves the lower end by 4%."""
    score = 0.9 - 0.4 * np.exp(-((RHO / 0.05) ** 0.5)) + np.random.default_rng(seed).normal(0, 0.004, len(RHO))
    curves = sample_posterior(RHO, score, noise_hint=0.004)
    known = importance_sampling(RHO, score, 0.004, 0.02)
    assert quantiles(curves.reach(curves.top - 0.02), LEVEL) == pytest.approx(known["density"], rel=0.02)
    assert quantiles(curves.rise, LEVEL) == pytest.approx(known["rise"], rel=0.005)
    assert quantiles(curves.top, LEVEL) == pytest.approx(known["top"], abs=0.0005)


@pytest.mark.parametrize("seed", [0, 1])
def test_grid_agrees_with_importance_sampling_on_flat_points(seed: int) -> None:
    """The bound at zero dominates: it truncates half of the possible rises."""
    score = 0.9 + np.random.default_rng(seed).normal(0, 0.004, len(RHO))
    curves = sample_posterior(RHO, score, noise_hint=0.004)
    known = importance_sampling(RHO, score, 0.004, 0.02)
    assert quantiles(curves.rise, LEVEL)[1:] == pytest.approx(known["rise"][1:], rel=0.05)
    assert quantiles(curves.top, LEVEL) == pytest.approx(known["top"], abs=0.0005)
