"""Which networks to probe (checked by simulation) and which one to return (checked by definition)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathgrow.density.acquisition import (
    _explained,
    most_informative,
    nearest,
    probe_cost,
    select_network,
    sparsest_sufficient,
    spread,
)
from pathgrow.density.posterior import PosteriorSamples, sample_posterior
from pathgrow.density.types import Answer, Curve, Point


def points(*densities: float) -> list[Point]:
    return [Point(round=k, density=x, epochs=16, score=0.5) for k, x in enumerate(densities)]


def test_nearest_is_by_ratio() -> None:
    """0.22 is nearer to 0.1 by difference, and nearer to 0.4 by ratio."""
    assert nearest(points(0.1, 0.4), 0.22).density == 0.4
    assert nearest(points(0.1, 0.4), 0.19).density == 0.1


def test_spread_covers_a_short_range_from_end_to_end() -> None:
    ladder = points(*(0.2 * 2 ** (k / 12) for k in range(13)))
    assert [point.round for point in spread(ladder, 3.0, 3)] == [12, 6, 0]
    assert [point.round for point in spread(ladder, 3.0, 2)] == [12, 0]
    assert [point.round for point in spread(ladder, 2 ** (1 / 4), 3)] == [12, 9, 6], "no further apart than the ratio"
    assert [point.round for point in spread(ladder[:2], 3.0, 3)] == [1, 0]


def simulated(curves: PosteriorSamples, answer: np.ndarray, densities: list[float], num: int = 200) -> float:
    """Fraction of the answer's variance that a linear regression on noisy scores at these densities explains."""
    rng = np.random.default_rng(0)
    truth = np.stack([curves.at(x) for x in densities], axis=1)
    scores = np.concatenate([truth + curves.noise[:, None] * rng.normal(size=truth.shape) for _ in range(num // 10)])
    target = np.tile(answer, num // 10)
    design = np.column_stack([np.ones(len(scores)), scores])
    residual = target - design @ np.linalg.lstsq(design, target)[0]
    return 1 - float(np.var(residual) / np.var(target))


@pytest.fixture(scope="module")
def question() -> tuple[PosteriorSamples, np.ndarray]:
    """Three probes, and an answer that is still wide."""
    curves = sample_posterior([0.05, 0.3, 1.0], [0.75, 0.86, 0.9], noise_hint=0.004)
    return curves, np.log(np.clip(curves.reach(curves.top - 0.02), 0.025, 2.0))


def test_explained_variance_agrees_with_simulation(question: tuple[PosteriorSamples, np.ndarray]) -> None:
    for densities in ([0.1], [0.45], [0.45, 0.6], [0.1, 0.2, 0.7]):
        assert _explained(*question, densities) == pytest.approx(simulated(*question, densities), abs=0.02)


def test_below_all_probes_a_curve_is_trusted_for_three_rises() -> None:
    """Long tails fall without bound there; their outliers would dominate the covariance with the answer."""
    flat = sample_posterior([0.2, 0.5, 1.0], [0.897, 0.9, 0.9], noise_hint=0.002)
    answer = np.log(np.clip(flat.reach(flat.top - 0.003), 0.1, 2.0))
    held = np.maximum(flat.at(0.02), flat.top - 3 * flat.rise)
    assert float(np.std(flat.at(0.02))) > 10 * float(np.std(held)), "otherwise this tests nothing"
    covariance = np.cov(held, answer, ddof=0)
    known = covariance[0, 1] ** 2 / (covariance[0, 0] + np.mean(flat.noise**2)) / covariance[1, 1]
    assert _explained(flat, answer, [0.02]) == pytest.approx(known, rel=1e-6)


def test_the_most_informative_probe_explains_most_per_cost(question: tuple[PosteriorSamples, np.ndarray]) -> None:
    """A probe costs its density plus 0.05; what the probes chosen before it explain does not count."""
    candidates = points(*np.geomspace(0.06, 0.95, 16).tolist())
    assert probe_cost(candidates[:2]) == pytest.approx(candidates[0].density + candidates[1].density + 0.1)
    num_found = 0
    for chosen in ([], [candidates[10]], [candidates[9], candidates[4]]):
        taken, left = [point.density for point in chosen], [point for point in candidates if point not in chosen]
        known = simulated(*question, taken) if taken else 0.0
        value = {point: simulated(*question, [*taken, point.density]) - known for point in left}
        # Less than 3% is not worth a training; near that limit the simulation is too noisy.
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


# The network to return.

densities = st.lists(st.integers(1, 100).map(lambda k: k / 100), min_size=1, max_size=8, unique=True).map(sorted)


@given(densities, st.sets(st.integers(0, 7)), st.floats(0.005, 1.2), st.booleans())
def test_sparsest_sufficient_by_definition(
    visited: list[float], probed: set[int], needed: float, short_probes: bool
) -> None:
    rough = tuple(points(*visited))
    probes = tuple(point for point in rough if point.round in probed)
    curve = Curve(rough=rough, probes=probes, can_probe_dense=short_probes)
    chosen = sparsest_sufficient(curve, needed).density
    if not short_probes or not probes:
        assert chosen == min((x for x in visited if x >= needed), default=visited[-1])
        return
    close = [x for x in visited if 1.1 * x >= needed] or visited[-1:]
    seen = [point.density for point in probes if point.density in close and point.density <= 1.25 * needed]
    assert chosen == (min(seen) if seen else min(close))


@pytest.mark.parametrize(
    ("status", "density", "gain", "by", "chosen"),
    [
        ("found", 0.15, 0.35, "delta", 0.2),
        ("found", 0.15, 0.35, "gain", 0.4),
        ("found", 0.2, None, "delta", 0.2),
        ("found", 0.15, None, "gain", 0.8),
        ("flat", None, None, "delta", 0.1),
        ("unreached", None, 0.15, "delta", 0.8),
        ("unreached", None, 0.15, "gain", 0.2),
        ("open", None, None, "delta", 0.8),
    ],
)
def test_the_selected_network_is_the_sparsest_of_at_least_the_density(status, density, gain, by, chosen) -> None:
    """A flat curve gives the sparsest network, no answer the densest."""
    curve = Curve(rough=tuple(points(0.1, 0.2, 0.4, 0.8)))
    answer = Answer(rule="probe", delta=0.01, status=status, density=density, gain_density=gain)
    assert select_network(curve, answer, by=by).density == chosen
