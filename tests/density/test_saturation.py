"""The saturation fit: known parameters, its interval, degenerate points and invalid input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from pathgrow.density.saturation import fit_saturation
from pathgrow.errors import UserError

RHO = 0.03 * 1.25 ** np.arange(14)


def exponential(rho: np.ndarray, p0: float = 0.2, gain: float = 0.7, rate: float = 10.0) -> np.ndarray:
    return p0 + gain * (1 - np.exp(-rate * rho))


def test_known_curve() -> None:
    fit = fit_saturation(RHO, exponential(RHO))
    assert (fit.p0, fit.gain, fit.rate) == pytest.approx((0.2, 0.7, 10.0), rel=1e-7)
    assert fit.operating_density() == pytest.approx(0.299573, abs=5e-7)
    assert fit.operating_density(0.5) == pytest.approx(math.log(2) / 10)
    assert fit.within(0.01) == pytest.approx(math.log(70) / 10)
    assert fit.predict(0.1) == pytest.approx(0.2 + 0.7 * (1 - math.exp(-1)))
    assert fit.predict([0.0, 0.1]).shape == (2,)
    assert fit.interval() == pytest.approx((0.299573, 0.299573), abs=1e-6)


@given(st.floats(-5, 5), st.floats(0.01, 50), st.floats(3.0, 200.0))
def test_any_noiseless_curve_is_recovered(p0: float, gain: float, rate: float) -> None:
    rho = np.geomspace(0.005, 1.0, 12)
    fit = fit_saturation(rho, p0 + gain * (1 - np.exp(-rate * rho)))
    assert fit.gain == pytest.approx(gain, rel=1e-4)
    assert fit.operating_density() == pytest.approx(math.log(20) / rate, rel=1e-4)
    assert fit.p0 == pytest.approx(p0, abs=1e-4 * gain)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_general_least_squares(seed: int) -> None:
    noisy = exponential(RHO) + np.random.default_rng(seed).normal(0, 0.01, len(RHO))
    fit = fit_saturation(RHO, noisy)
    (p0, gain, rate), covariance = curve_fit(exponential, RHO, noisy, p0=[0.3, 0.5, 5.0])
    assert (fit.p0, fit.gain, fit.rate) == pytest.approx((p0, gain, rate), rel=1e-5)
    # For small noise the profile interval is the linearised one.
    low, high = fit.interval(0.9)
    spread = 1.796 * math.sqrt(covariance[2, 2]) / rate
    assert math.log(high / low) / 2 == pytest.approx(spread, rel=0.15)
    assert low < fit.operating_density() < high


def test_interval_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(7)
    rho, known, num_covered = RHO[::2], math.log(20) / 10, 0
    for _ in range(200):
        low, high = fit_saturation(rho, exponential(rho) + rng.normal(0, 0.02, len(rho))).interval(0.9)
        num_covered += low <= known <= high
    assert 170 <= num_covered <= 192


ROUNDED = [0.3] * 3 + [0.1 + 0.2] * 3
"""They rise by one rounding error."""


@pytest.mark.parametrize(
    "scores", [[0.5] * 6, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], ROUNDED], ids=["constant", "falling", "rounded"]
)
def test_points_that_do_not_rise_have_no_operating_density(scores) -> None:
    flat = fit_saturation([0.05, 0.1, 0.2, 0.3, 0.5, 0.9], scores)
    assert flat.flat
    assert flat.gain == 0.0
    assert math.isnan(flat.operating_density())
    assert flat.within(0.01) == 0.0
    assert flat.interval() == (0.0, math.inf)
    assert flat.predict(0.3) == pytest.approx(np.mean(scores))


def test_a_rise_and_fall_is_fitted_by_the_best_rising_curve() -> None:
    """Falling curves would fit better but are excluded; checked by an exhaustive search over rates."""
    rho, score = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]), np.array([0.6, 0.8, 0.78, 0.76, 0.7, 0.6, 0.55])
    residual: dict[bool, float] = {True: math.inf, False: math.inf}
    for rate in np.geomspace(0.05, 500, 500):
        design = np.stack([np.ones_like(rho), 1 - np.exp(-rate * rho)], axis=1)
        p0, gain = np.linalg.lstsq(design, score)[0]
        residual[gain > 0] = min(residual[gain > 0], float(np.sum((score - design @ [p0, gain]) ** 2)))
    assert residual[False] < residual[True]
    fit = fit_saturation(rho, score)
    assert not fit.flat
    assert float(np.sum((score - fit.predict(rho)) ** 2)) == pytest.approx(residual[True], rel=1e-3)


def test_a_straight_line_does_not_saturate() -> None:
    fit = fit_saturation([0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert fit.operating_density() > 1.0
    assert fit.interval()[1] == math.inf


def test_interval_of_three_points_is_unbounded() -> None:
    rho = np.array([0.1, 0.3, 0.6])
    fit = fit_saturation(rho, [0.5, 0.8, 0.85])
    assert fit.predict(rho) == pytest.approx([0.5, 0.8, 0.85])
    assert fit.interval() == (0.0, math.inf)


def test_the_order_of_points_does_not_matter() -> None:
    """The range of rates depends on the lowest and the highest density."""
    noisy = exponential(RHO, rate=60.0) + np.random.default_rng(1).normal(0, 0.01, len(RHO))
    sorted_fit = fit_saturation(RHO, noisy)
    for order in (np.arange(len(RHO))[::-1], np.random.default_rng(0).permutation(len(RHO))):
        assert fit_saturation(RHO[order], noisy[order]) == sorted_fit


@pytest.mark.parametrize(
    ("densities", "scores", "message"),
    [
        ([0.1, 0.2], [0.5, 0.6], "needs at least 3 distinct densities, got 2"),
        ([0.1, 0.1, 0.1, 0.2], [0.5, 0.6, 0.7, 0.8], "distinct densities, got 2"),
        ([0.1, 0.2, 0.3], [0.5, 0.6], "equal length, got 3 and 2 values"),
        ([0.1, 0.2, 0.3], [0.5, math.nan, 0.7], "point 1 must be finite, got density 0.2, performance nan"),
        ([0.1, 0.2, 30.0], [0.5, 0.6, 0.7], "density of point 2 must be in .0, 1., got 30"),
        ([], [], "distinct densities, got 0"),
    ],
)
def test_invalid_points_are_refused(densities, scores, message) -> None:
    with pytest.raises(UserError, match=message):
        fit_saturation(densities, scores)


def test_invalid_levels_are_refused() -> None:
    fit = fit_saturation(RHO, exponential(RHO) + 0.01 * np.sin(9 * RHO))
    for ask in (lambda: fit.operating_density(1.0), lambda: fit.within(0.0), lambda: fit.interval(1.5)):
        with pytest.raises(UserError, match="must be"):
            ask()
