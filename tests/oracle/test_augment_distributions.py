"""The distributions of `draw` against closed forms and plain samplers, with fixed seeds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

from pathgrow.augment import Augment, draw
from pathgrow.augment.autoaugment import IDENTITY, POLICIES, operation
from pathgrow.augment.crops import draw_resized_crop
from pathgrow.augment.mix import draw_erasing
from pathgrow.rng import generator

NUM = 4000
ALPHA = 1e-3
"""A correct distribution fails for one seed in a thousand; the seeds below are not among them."""


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 5.0])
def test_mixup_weights_follow_the_beta_distribution(alpha):
    drawn = draw(Augment(mixup=alpha, mix_probability=1.0), NUM, 2, (1, 8, 8), generator(0, "beta"))
    weights = drawn["mix_weight"].double().numpy()
    assert torch.equal(drawn["mix_weight"], drawn["mix_share"])
    reference = np.random.default_rng(1).beta(alpha, alpha, 20_000).astype(np.float32)
    assert stats.ks_2samp(weights, reference).pvalue > ALPHA
    if alpha >= 0.4:  # below, float32 rounds much of the distribution to exactly 1
        assert stats.kstest(weights, stats.beta(alpha, alpha).cdf).pvalue > ALPHA


@pytest.mark.parametrize(
    ("mixup", "cutmix", "expected"),
    [(1.0, 1.0, (0.3, 0.3)), (1.0, 0.0, (0.6, 0.0)), (0.0, 1.0, (0.0, 0.6))],
)
def test_the_probability_of_mixing_is_shared_evenly(mixup, cutmix, expected):
    recipe = Augment(mixup=mixup, cutmix=cutmix, mix_probability=0.6)
    # On a large image a box without area is a rare accident (about one in size^2 / 4).
    drawn = draw(recipe, NUM, 2, (1, 512, 512), generator(1, "choice"))
    none = torch.zeros(NUM, dtype=torch.bool)
    cut = drawn["mix_box"][:, 2:].prod(1) > 0 if cutmix else none
    blended = drawn["mix_weight"] < 1 if mixup else none
    assert not (cut & blended).any()
    for happened, probability in ((blended, expected[0]), (cut, expected[1])):
        assert abs(happened.double().mean() - probability) <= 4 * math.sqrt(probability * (1 - probability) / NUM)


def test_cutmix_boxes_follow_a_plain_sampler():
    height, width = 20, 30
    drawn = draw(Augment(cutmix=0.7, mix_probability=1.0), NUM, 2, (1, height, width), generator(2, "cut"))
    ours = drawn["mix_box"].double().numpy()
    rng = np.random.default_rng(3)
    theirs = []
    for _ in range(20_000):
        ratio = math.sqrt(1 - rng.beta(0.7, 0.7))
        tall, wide = int(height * ratio), int(width * ratio)
        y, x = rng.integers(height), rng.integers(width)
        top, bottom = max(0, y - tall // 2), min(height, y + tall // 2)
        left, right = max(0, x - wide // 2), min(width, x + wide // 2)
        theirs.append((top, left, bottom - top, right - left))
    for k in range(4):
        assert stats.ks_2samp(ours[:, k], np.array(theirs)[:, k]).pvalue > ALPHA
    share = 1 - ours[:, 2] * ours[:, 3] / (height * width)
    np.testing.assert_allclose(drawn["mix_share"].numpy(), share, atol=1e-6)


def _plain_box(rng, height, width, area, aspect, largest):
    """Draw one box like torchvision and timm, in a loop per image."""
    for _ in range(10):
        pixels = rng.uniform(*area) * height * width
        ratio = math.exp(rng.uniform(*map(math.log, aspect)))
        tall, wide = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < tall <= largest[0] and 0 < wide <= largest[1]:
            return rng.randint(0, height - tall), rng.randint(0, width - wide), tall, wide
    return None


@pytest.mark.parametrize("size", [(32, 32), (24, 60)])
@pytest.mark.parametrize("part", ["crop", "erase"])
def test_boxes_follow_the_loop_over_tries(part, size):
    height, width = size
    if part == "crop":
        options = {"area": (0.08, 1.0), "aspect": (3 / 4, 4 / 3), "largest": size}
    else:
        options = {"area": (0.02, 1 / 3), "aspect": (0.3, 1 / 0.3), "largest": (height - 1, width - 1)}
    rng = random.Random(4)
    theirs = [_plain_box(rng, height, width, **options) for _ in range(4000)]
    if part == "crop":
        whole = (0, (width - min(width, round(height * 4 / 3))) // 2, height, min(width, round(height * 4 / 3)))
        theirs = [box or whole for box in theirs]
        ours = draw_resized_crop((4, 1000), height, width, generator(5, "crop"))["crop_box"]
    else:
        theirs = [box or (0, 0, 0, 0) for box in theirs]
        ours = draw_erasing((4, 1000), 1.0, height, width, generator(5, "erase"))["erase_box"]
    ours, theirs = ours.flatten(0, 1).double().numpy(), np.array(theirs)
    for k in range(4):
        assert stats.ks_2samp(ours[:, k], theirs[:, k]).pvalue > ALPHA
    assert stats.ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > ALPHA


@pytest.mark.parametrize("name", ["autoaugment-imagenet", "autoaugment-cifar"])
def test_operations_have_the_published_probabilities(name):
    """Chi-square over all distinct pairs of operations of a policy, including the identity."""
    pairs = POLICIES[name]
    expected: dict[tuple, float] = {}
    for pair in pairs:
        ways: list[list[tuple]] = []
        for kind, probability, level in pair:
            ways.append([(IDENTITY, 1 - probability)])
            ways[-1] += [(operation(kind, level, sign, 32, 32), probability / 2) for sign in (1, -1)]
        for (a, p), (b, q) in ((first, second) for first in ways[0] for second in ways[1]):
            key = (*a.warp, a.op, round(a.level, 4), *b.warp, b.op, round(b.level, 4))
            expected[key] = expected.get(key, 0.0) + p * q / len(pairs)
    assert math.isclose(sum(expected.values()), 1)
    drawn = draw(Augment(policy=name), 40, 500, (3, 32, 32), generator(7, "policy"))
    seen = dict.fromkeys(expected, 0)
    warp, op, level = (drawn[f"policy_{part}"].flatten(0, 1).tolist() for part in ("warp", "op", "level"))
    for w, o, v in zip(warp, op, level, strict=True):
        seen[(*w[0], o[0], round(v[0], 4), *w[1], o[1], round(v[1], 4))] += 1  # KeyError: not in the table
    possible = [key for key, probability in expected.items() if probability > 0]
    assert sum(seen[key] for key in possible) == 20_000
    counts, expected = [seen[key] for key in possible], [20_000 * expected[key] for key in possible]
    assert min(expected) > 5
    assert stats.chisquare(counts, expected).pvalue > ALPHA
