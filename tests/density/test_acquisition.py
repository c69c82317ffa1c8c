"""Where probes are placed: nearness by ratio, a spread that fits its range, and worth for the price by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pathgrow.density.acquisition import _explained, most_informative, nearest, probe_cost, spread
from pathgrow.density.posterior import PosteriorSamples, sample_posterior
from pathgrow.density.types import Point


def points(*densities: float) -> list[Point]:
    return [Point(round=k, density=x, epochs=16, score=0.5) for k, x in enumerate(densities)]


def test_nearness_is_a_ratio() -> None:
    """0.22 is nearer to 0.1 by what lies between, and nearer to 0.4 by how many times."""
    assert nearest(points(0.1, 0.4), 0.22).density == 0.4
    assert nearest(points(0.1, 0.4), 0.19).density == 0.1


def test_a_short_range_is_spread_over_from_end_to_end() -> None:
    ladder = points(*(0.2 * 2 ** (k / 12) for k in range(13)))
    assert [point.round for point in spread(ladder, 3.0, 3)] == [12, 6, 0]
    assert [point.round for point in spread(ladder, 3.0, 2)] == [12, 0]
    assert [point.round for point in spread(ladder, 2 ** (1 / 4), 3)] == [12, 9, 6], "no farther apart than asked"
    assert [point.round for point in spread(ladder[:2], 3.0, 3)] == [1, 0]


def simulated(curves: PosteriorSamples, answer: np.ndarray, densities: list[float], num: int = 200) -> float:
    """The share of the answer's variance that a straight-line reading of noisy scores at these densities takes away."""
    rng = np.random.default_rng(0)
    truth = np.stack([curves.at(x) for x in densities], axis=1)
    scores = np.concatenate([truth + curves.noise[:, None] * rng.normal(size=truth.shape) for _ in range(num // 10)])
    wanted = np.tile(answer, num // 10)
    design = np.column_stack([np.ones(len(scores)), scores])
    left = wanted - design @ np.linalg.lstsq(design, wanted)[0]
    return 1 - float(np.var(left) / np.var(wanted))


@pytest.fixture(scope="module")
def question() -> tuple[PosteriorSamples, np.ndarray]:
    """Three probes have left much open."""
    curves = sample_posterior([0.05, 0.3, 1.0], [0.75, 0.86, 0.9], noise_hint=0.004)
    return curves, np.log(np.clip(curves.reach(curves.top - 0.02), 0.025, 2.0))


def test_what_a_probe_would_tell_is_what_it_tells_in_simulation(question: tuple[PosteriorSamples, np.ndarray]) -> None:
    for densities in ([0.1], [0.45], [0.45, 0.6], [0.1, 0.2, 0.7]):
        assert _explained(*question, densities) == pytest.approx(simulated(*question, densities), abs=0.02)


def test_below_all_probes_a_curve_is_believed_for_three_rises_and_no_further() -> None:
    """Long tails fall without end there; their outliers would drown what scores have in common with the answer."""
    flat = sample_posterior([0.2, 0.5, 1.0], [0.897, 0.9, 0.9], noise_hint=0.002)
    answer = np.log(np.clip(flat.reach(flat.top - 0.003), 0.1, 2.0))
    held = np.maximum(flat.at(0.02), flat.top - 3 * flat.rise)
    assert float(np.std(flat.at(0.02))) > 10 * float(np.std(held)), "the case is what it says"
    covariance = np.cov(held, answer, ddof=0)
    known = covariance[0, 1] ** 2 / (covariance[0, 0] + np.mean(flat.noise**2)) / covariance[1, 1]
    assert _explained(flat, answer, [0.02]) == pytest.approx(known, rel=1e-6)


def test_the_most_telling_is_worth_most_for_its_price(question: tuple[PosteriorSamples, np.ndarray]) -> None:
    """A probe costs its density and 0.05 of a dense one beside; what was chosen before it is known already."""
    candidates = points(*np.geomspace(0.06, 0.95, 16).tolist())
    assert probe_cost(candidates[:2]) == pytest.approx(candidates[0].density + candidates[1].density + 0.1)
    num_found = 0
    for chosen in ([], [candidates[10]], [candidates[9], candidates[4]]):
        taken, left = [point.density for point in chosen], [point for point in candidates if point not in chosen]
        known = simulated(*question, taken) if taken else 0.0
        value = {point: simulated(*question, [*taken, point.density]) - known for point in left}
        # What takes less than 3% off is not worth a training; at the edge the simulation cannot tell.
        worth = [value[point] / (point.density + 0.05) for point in left if value[point] > 0.035]
        best = most_informative([question], left, chosen)
        if best is None:
            assert not worth
            continue
        num_found += 1
        assert value[best] > 0.025
        assert value[best] / (best.density + 0.05) > 0.9 * max(worth)
    assert num_found >= 2
    sure = (question[0], np.full_like(question[1], math.log(0.3)))
    assert most_informative([sure], candidates, []) is None
