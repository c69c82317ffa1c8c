"""The samplers' distributions against enumeration, dynamic programming and pairwise odds."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from pathgrow.masks import Masks, sampling
from pathgrow.masks.sampling import sample_proportional, top_k, uniform

Outcome = tuple[int, ...]


def order_probability(scores: Sequence[float], order: Sequence[int]) -> float:
    """Sequential sampling: each draw in proportion to the score among those still there."""
    left, probability = sum(scores), 1.0
    for index in order:
        probability *= scores[index] / left
        left -= scores[index]
    return probability


def set_probabilities(scores: Sequence[float], count: int) -> dict[Outcome, float]:
    return {
        chosen: sum(order_probability(scores, order) for order in itertools.permutations(chosen))
        for chosen in itertools.combinations(range(len(scores)), count)
    }


def assert_follows(observed: Counter[Outcome], expected: Mapping[Outcome, float]) -> None:
    assert set(observed) <= set(expected)
    total = sum(observed.values())
    counts = [observed[outcome] for outcome in expected]
    assert stats.chisquare(counts, [probability * total for probability in expected.values()]).pvalue > 1e-3


def chosen_indices(picks: Masks) -> Outcome:
    return tuple(torch.cat([picks[name].reshape(-1) for name in picks]).nonzero().reshape(-1).tolist())


def draws(draw: Callable[[torch.Generator], Masks], seed: int, num: int) -> Counter[Outcome]:
    generator = torch.Generator().manual_seed(seed)
    return Counter(chosen_indices(draw(generator)) for _ in range(num))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_sets_follow_sequential_sampling(count: int) -> None:
    scores = {"a": torch.tensor([1.0, 2.0, 99.0]), "b": torch.tensor([[0.5, 7.0], [99.0, 3.0]])}
    candidates = Masks.select(
        {"a": torch.tensor([True, True, False]), "b": torch.tensor([[True, True], [False, True]])}
    )
    observed = draws(lambda generator: sample_proportional(scores, candidates, count, generator), seed=count, num=1200)

    positions = [0, 1, 3, 4, 6]
    expected = set_probabilities([1.0, 2.0, 0.5, 7.0, 3.0], count)
    assert_follows(observed, {tuple(positions[i] for i in chosen): p for chosen, p in expected.items()})


def test_class_counts_follow_sequential_sampling_in_a_larger_urn() -> None:
    num_light, num_heavy, heavy, count = 25, 15, 6.0, 12
    # distribution[h]: probability that h heavy ones are among those drawn so far
    distribution = np.zeros(count + 1)
    distribution[0] = 1.0
    for num_drawn in range(count):
        following = np.zeros_like(distribution)
        for h in range(num_drawn + 1):
            weight_heavy, weight_light = heavy * (num_heavy - h), num_light - (num_drawn - h)
            following[h + 1] += distribution[h] * weight_heavy / (weight_heavy + weight_light)
            following[h] += distribution[h] * weight_light / (weight_heavy + weight_light)
        distribution = following

    scores = {"w": torch.tensor([1.0] * num_light + [heavy] * num_heavy)}
    candidates = Masks.select({"w": torch.ones(num_light + num_heavy, dtype=torch.bool)})
    observed = draws(lambda generator: sample_proportional(scores, candidates, count, generator), seed=3, num=1200)
    num_heavy_drawn = Counter[Outcome]()
    for chosen, times in observed.items():
        num_heavy_drawn[(sum(index >= num_light for index in chosen),)] += times

    # The rare ends in one class each, so that every class has a few expected draws.
    low, high = 5, 11
    pooled = Counter[Outcome]()
    for (h,), times in num_heavy_drawn.items():
        pooled[(min(max(h, low), high),)] += times
    expected = {(h,): float(distribution[h]) for h in range(low + 1, high)}
    expected |= {(low,): float(distribution[: low + 1].sum()), (high,): float(distribution[high:].sum())}
    assert_follows(pooled, expected)


def keys_of(scores: np.ndarray, seed: int) -> np.ndarray:
    """All keys in one array, as the sampler computes them piece by piece."""
    none = np.zeros(0)
    pieces = ((none, none, scores[start : start + sampling._PIECE]) for start in range(0, scores.size, sampling._PIECE))
    return np.concatenate(
        [sampling._keys(s, noise).copy() for (_, _, s), noise in sampling._with_noise(pieces, [seed])]
    )


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 5e-324 * 2**40])
def test_the_order_of_keys_is_plackett_luce(scale: float) -> None:
    """All 24 orders of four scores, many times over: far sharper than drawing sets one by one."""
    scores = [1.0, 2.0, 4.0, 0.25]
    num_rows = 200_000
    keys = keys_of(np.tile(np.array(scores) * scale, num_rows), seed=7).reshape(num_rows, len(scores))
    observed = Counter[Outcome](map(tuple, np.argsort(keys, axis=1).tolist()))
    assert_follows(
        observed, {order: order_probability(scores, order) for order in itertools.permutations(range(len(scores)))}
    )


def test_noise_is_fine_near_zero() -> None:
    """The smallest keys decide; float32 noise would have thousands of equal ones here."""
    keys = np.sort(keys_of(np.ones(2_000_000), seed=11))[:20_000]
    assert np.unique(keys).size == keys.size
    # Below the 1% quantile the noise is all but uniform; its spread is tested on that scale.
    exponents = (keys >> 52) + sampling._EXPONENT_SHIFT + 1 - 1023  # `frexp` gives 1 the mantissa 1/2, exponent 1
    values = np.ldexp(1 + (keys & ((1 << 52) - 1)) * 2.0**-52, exponents - 1)
    quantile = -math.log1p(-0.01)
    below = values[values < 0.9 * quantile]
    truncated = -np.expm1(-below) / -math.expm1(-0.9 * quantile)
    assert stats.kstest(truncated, "uniform").pvalue > 1e-3


def test_scores_far_apart_are_taken_in_order_and_twins_fairly() -> None:
    scores = {"w": torch.tensor([1e-300, 1e300, 1.0, 1e-300, 5e-324], dtype=torch.float64)}
    candidates = Masks.select({"w": torch.ones(5, dtype=torch.bool)})
    observed = draws(lambda generator: sample_proportional(scores, candidates, 3, generator), seed=5, num=500)
    assert_follows(observed, {(0, 1, 2): 0.5, (1, 2, 3): 0.5})


@pytest.mark.filterwarnings("ignore:.*positive score")
def test_zero_scores_fill_up_uniformly() -> None:
    scores = {"w": torch.tensor([0.0, 3.0, 0.0, 0.0, 5e-45])}
    candidates = Masks.select({"w": torch.ones(5, dtype=torch.bool)})
    observed = draws(lambda generator: sample_proportional(scores, candidates, 3, generator), seed=6, num=800)
    assert_follows(observed, {(0, 1, 4): 1 / 3, (1, 2, 4): 1 / 3, (1, 3, 4): 1 / 3})


def test_uniform_draws_every_set_equally_often() -> None:
    candidates = Masks.select({"a": torch.tensor([True, False, True]), "b": torch.tensor([True, True, True])})
    observed = draws(lambda generator: uniform(candidates, 2, generator), seed=8, num=1000)
    positions = [0, 2, 3, 4, 5]
    assert_follows(observed, {pair: 1 / 10 for pair in itertools.combinations(positions, 2)})


def test_top_k_breaks_ties_fairly_over_tensors() -> None:
    scores = {"a": torch.tensor([2.0, 5.0, -1.0]), "b": torch.tensor([2.0, 2.0], dtype=torch.float64)}
    candidates = Masks.select({"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(2, dtype=torch.bool)})
    observed = draws(lambda generator: top_k(scores, candidates, 3, generator), seed=9, num=800)
    assert_follows(observed, {(0, 1, 3): 1 / 3, (0, 1, 4): 1 / 3, (1, 3, 4): 1 / 3})
