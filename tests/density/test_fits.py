"""The saturation fits: known parameters, honest edges, sentences for bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import curve_fit

from pathgrow.density.saturation import fit_saturation
from pathgrow.errors import UserError

RHO = 0.03 * 1.25 ** np.arange(14)


def exponential(rho: np.ndarray, p0: float = 0.2, gain: float = 0.7, rate: float = 10.0) -> np.ndarray:
    return p0 + gain * (1 - np.exp(-rate * rho))


def test_the_papers_fixture() -> None:
    fit = fit_saturation(RHO, exponential(RHO))
    assert (fit.p0, fit.gain, fit.rate) == pytest.approx((0.2, 0.7, 10.0), rel=1e-7)
    assert fit.operating_density() == pytest.approx(0.299573, abs=5e-7)
    assert fit.operating_density(0.5) == pytest.approx(math.log(2) / 10)
    assert fit.within(0.01) == pytest.approx(math.log(70) / 10)
    assert fit.predict(0.1) == pytest.approx(0.2 + 0.7 * (1 - math.exp(-1)))
    assert fit.predict([0.0, 0.1]).shape == (2,)
    assert fit.interval() == pytest.approx((0.299573, 0.299573), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_general_least_squares(seed: int) -> None:
    noisy = exponential(RHO) + np.random.default_rng(seed).normal(0, 0.01, len(RHO))
    fit = fit_saturation(RHO, noisy)
    (p0, gain, rate), covariance = curve_fit(exponential, RHO, noisy, p0=[0.3, 0.5, 5.0])
    assert (fit.p0, fit.gain, fit.rate) == pytest.approx((p0, gain, rate), rel=1e-5)
    # At small noise the profile interval is the linearised one.
    low, high = fit.interval(0.9)
    spread = 1.796 * math.sqrt(covariance[2, 2]) / rate
    assert math.log(high / low) / 2 == pytest.approx(spread, rel=0.15)
    assert low < fit.operating_density() < high


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    rho, wanted, num_covered = RHO[::2], math.log(20) / 10, 0
    for _ in range(200):
        low, high = fit_saturation(rho, exponential(rho) + rng.normal(0, 0.02, len(rho))).interval(0.9)
        num_covered += low <= wanted <= high
    assert 170 <= num_covered <= 192


ROUNDED = [0.3] * 3 + [0.1 + 0.2] * 3
"""They rise by the last bit of one addition."""


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


def test_a_rise_that_is_lost_again_is_fitted_by_the_best_curve_that_rises() -> None:
    """Falling curves would fit better and are not asked for; all rates tried one by one."""
    rho, score = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]), np.array([0.6, 0.8, 0.78, 0.76, 0.7, 0.6, 0.55])
    left: dict[bool, float] = {True: math.inf, False: math.inf}
    for rate in np.geomspace(0.05, 500, 500):
        design = np.stack([np.ones_like(rho), 1 - np.exp(-rate * rho)], axis=1)
        p0, gain = np.linalg.lstsq(design, score)[0]
        left[gain > 0] = min(left[gain > 0], float(np.sum((score - design @ [p0, gain]) ** 2)))
    assert left[False] < left[True]
    fit = fit_saturation(rho, score)
    assert not fit.flat
    assert float(np.sum((score - fit.predict(rho)) ** 2)) == pytest.approx(left[True], rel=1e-3)


def test_a_straight_line_has_not_saturated() -> None:
    fit = fit_saturation([0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert fit.operating_density() > 1.0
    assert fit.interval()[1] == math.inf


def test_three_points_leave_the_interval_open() -> None:
    rho = np.array([0.1, 0.3, 0.6])
    fit = fit_saturation(rho, [0.5, 0.8, 0.85])
    assert fit.predict(rho) == pytest.approx([0.5, 0.8, 0.85])
    assert fit.interval() == (0.0, math.inf)


def test_the_order_of_points_does_not_matter() -> None:
    """The rates to look at follow from the lowest and the highest density, wherever they stand."""
    noisy = exponential(RHO, rate=60.0) + np.random.default_rng(1).normal(0, 0.01, len(RHO))
    sorted_fit = fit_saturation(RHO, noisy)
    for order in (np.arange(len(RHO))[::-1], np.random.default_rng(0).permutation(len(RHO))):
        assert fit_saturation(RHO[order], noisy[order]) == sorted_fit


@pytest.mark.parametrize(
    ("densities", "scores", "words"),
    [
        ([0.1, 0.2], [0.5, 0.6], "needs at least 3 distinct densities, got 2"),
        ([0.1, 0.1, 0.1, 0.2], [0.5, 0.6, 0.7, 0.8], "distinct densities, got 2"),
        ([0.1, 0.2, 0.3], [0.5, 0.6], "equal length, got 3 and 2 values"),
        ([0.1, 0.2, 0.3], [0.5, math.nan, 0.7], "point 1 must be finite, got density 0.2, performance nan"),
        ([0.1, 0.2, 30.0], [0.5, 0.6, 0.7], "density of point 2 must be in .0, 1., got 30"),
        ([], [], "distinct densities, got 0"),
    ],
)
def test_bad_points_end_with_a_sentence(densities, scores, words) -> None:
    with pytest.raises(UserError, match=words):
        fit_saturation(densities, scores)


def test_bad_questions_end_with_a_sentence() -> None:
    fit = fit_saturation(RHO, exponential(RHO) + 0.01 * np.sin(9 * RHO))
    for ask in (lambda: fit.operating_density(1.0), lambda: fit.within(0.0), lambda: fit.interval(1.5)):
        with pytest.raises(UserError, match="must be"):
            ask()
