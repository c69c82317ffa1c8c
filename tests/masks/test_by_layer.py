"""Choice within all layers at once: the bits of one layer after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import by_layer
from pathgrow.masks.by_layer import top_k_by_layer, uniform_by_layer
from pathgrow.masks.sampling import top_k_in, uniform_in

shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=5)
seeds = st.integers(0, 2**31)


def layers(shapes: Sequence[tuple[int, int]], seed: int, kinds: int) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Scores with ties, candidates, and how many of them to choose."""
    draw = np.random.default_rng(seed)
    scores = [torch.tensor(draw.integers(0, kinds, shape).astype(np.float32)) for shape in shapes]
    candidates = [torch.tensor(draw.random(shape) < 0.7) for shape in shapes]
    return scores, candidates, [int(draw.integers(0, int(flags.sum()) + 1)) for flags in candidates]


@pytest.mark.parametrize("most", [1, 12, 1 << 24])
@given(shapes=shapes, seed=seeds, kinds=st.integers(1, 40))
def test_the_bits_of_one_layer_after_the_other(most: int, shapes: list[tuple[int, int]], seed: int, kinds: int) -> None:
    scores, candidates, nums = layers(shapes, seed, kinds)
    here, there = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as context:
        context.setattr(by_layer, "_MAX_TOGETHER", most)
        best = [layer.draw(here) for layer in top_k_by_layer(scores, candidates, nums)]
        drawn = uniform_by_layer(candidates, nums, here)
    triples = list(zip(scores, candidates, nums, strict=True))
    assert all(torch.equal(one, top_k_in(*triple, there)) for one, triple in zip(best, triples, strict=True))
    assert all(torch.equal(one, uniform_in(*triple[1:], there)) for one, triple in zip(drawn, triples, strict=True))
    assert torch.equal(here.get_state(), there.get_state())


@given(shapes=shapes, seed=seeds)
def test_without_ties_nothing_is_drawn(shapes: list[tuple[int, int]], seed: int) -> None:
    _, candidates, nums = layers(shapes, seed, 1)
    scores = [torch.randperm(flags.numel()).view(flags.shape).float() for flags in candidates]
    assert not any(layer.is_random for layer in top_k_by_layer(scores, candidates, nums))


def test_scores_of_candidates_must_be_finite() -> None:
    scores, flags = torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([True, False, True])
    [best] = top_k_by_layer([scores], [flags], [1])
    assert best.draw(torch.Generator()).tolist() == [False, False, True]
    for num in (0, 1):  # the last mask updates of a schedule may choose none, but show a loss that is not finite
        with pytest.raises(UserError, match="scores of weights are not finite"):
            top_k_by_layer([scores], [~flags], [num])


@pytest.mark.gpu
def test_a_gpu_chooses_the_same() -> None:
    scores, candidates, nums = layers([(5, 4), (3, 3), (2, 1)], seed=3, kinds=3)
    there = [[tensor.cuda() for tensor in group] for group in (scores, candidates)]
    first, second = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    best = [layer.draw(first) for layer in top_k_by_layer(scores, candidates, nums)]
    drawn = uniform_by_layer(candidates, nums, first)
    best_there = [layer.draw(second).cpu() for layer in top_k_by_layer(*there, nums)]
    drawn_there = [flags.cpu() for flags in uniform_by_layer(there[1], nums, second)]
    assert all(map(torch.equal, best + drawn, best_there + drawn_there))
