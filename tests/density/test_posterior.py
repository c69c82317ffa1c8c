"""Posterior samples: inversion, determinism, inferred noise, and values outside the range of the points."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pathgrow.density.posterior import sample_posterior

RHO = 0.03 * 1.25 ** np.array([0, 3, 6, 9, 12, 15])


def test_reach_inverts_at() -> None:
    curves = sample_posterior(RHO, [0.5, 0.61, 0.7, 0.76, 0.78, 0.785])
    for density in (0.05, 0.2, 0.7):
        assert curves.reach(curves.at(density)) == pytest.approx(np.full(len(curves.top), density))
    assert np.all(np.isinf(curves.reach(curves.top + 1e-6)))
    assert np.all(curves.reach(curves.at(0.2) - 1e-3) < 0.2)


def test_samples_are_deterministic() -> None:
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


def test_falling_points_are_noise_around_a_flat_curve() -> None:
    """Every curve of the family rises, so all of their spread has to be noise."""
    rho = np.geomspace(0.03, 1.0, 12)
    score = 0.9 - 0.3 * rho
    curves = sample_posterior(rho, score, noise_hint=0.02)
    assert float(np.median(curves.noise)) == pytest.approx(float(np.std(score)), rel=0.25)


def test_curves_are_finite_far_below_their_points() -> None:
    """Long tails grow without bound there; a curve that does not rise stays constant."""
    curves = sample_posterior([0.2, 0.5, 1.0], [0.9, 0.9, 0.9], noise_hint=1e-3)
    with np.errstate(all="raise"):
        assert np.isfinite(dataclasses.replace(curves, bend=np.full_like(curves.bend, -0.4)).at(1e-4)).all()
