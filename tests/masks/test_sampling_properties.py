"""What holds for every sampler, whatever the scores, shapes, layouts and devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathgrow.masks import Masks, sampling

Scores = Mapping[str, Tensor]
Sampler = Callable[[Scores, Masks, int, torch.Generator], Masks]

SAMPLERS: dict[str, Sampler] = {
    "proportional": sampling.sample_proportional,
    "top_k": sampling.top_k,
    "uniform": lambda scores, candidates, count, generator: sampling.uniform(candidates, count, generator),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_quietly(sampler: Sampler, scores: Scores, candidates: Masks, count: int, seed: int = 0) -> Masks:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*positive score")
        return sampler(scores, candidates, count, generator(seed))


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, Tensor], Masks, int]:
    """Scores of several dtypes with ties, zeros and extremes; candidates inside a partial scope; a legal count."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores, chosen, scope = {}, {}, {}
    for index in range(draw(st.integers(1, 4))):
        shape = draw(st.lists(st.integers(0, 5), max_size=4).map(tuple))
        dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
        kind = draw(st.sampled_from(["plain", "ties", "extreme", "zero"]))
        values = rng.exponential(size=shape)
        if kind == "ties":
            values = rng.integers(0, 3, size=shape).astype(float)
        elif kind == "extreme" and dtype == torch.float64:
            values = 10.0 ** rng.uniform(-320, 308, size=shape)
        elif kind == "zero":
            values = np.zeros(shape)
        name = f"layer{index}"
        scores[name] = torch.tensor(values, dtype=dtype)
        scope[name] = torch.tensor(rng.random(shape) < draw(st.sampled_from([0.5, 1.0])))
        chosen[name] = torch.tensor(rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))) & scope[name]
    candidates = Masks.select(chosen, scope)
    return scores, candidates, draw(st.integers(0, candidates.num_on))


@every_sampler
@given(problem=problems())
@settings(max_examples=60)
def test_exactly_count_and_only_candidates(sampler: Sampler, problem: tuple[Scores, Masks, int]) -> None:
    scores, candidates, count = problem
    picks = draw_quietly(sampler, scores, candidates, count)
    assert picks.num_on == count
    assert (picks - candidates).num_on == 0
    assert picks.keys() == candidates.keys()
    assert Masks.select(dict(picks), candidates.scope) == picks  # nothing outside the scope, and the same scope


@every_sampler
@given(problem=problems(), seed=st.integers(0, 1000), size=st.integers(1, 9))
@settings(max_examples=60)
def test_pieces_of_any_size_and_any_layout_give_the_same(
    sampler: Sampler, problem: tuple[Scores, Masks, int], seed: int, size: int
) -> None:
    scores, candidates, count = problem
    picks = draw_quietly(sampler, scores, candidates, count, seed)

    def relaid(tensor: Tensor) -> Tensor:
        backwards = tuple(reversed(range(tensor.dim())))
        return tensor.permute(backwards).contiguous().permute(backwards)

    other_scores = {name: relaid(score) for name, score in scores.items()}
    other_candidates = Masks.select({n: relaid(t) for n, t in candidates.items()}, candidates.scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_PIECE", size)
        assert draw_quietly(sampler, other_scores, other_candidates, count, seed) == picks


@given(problem=problems())
@settings(max_examples=60)
def test_positive_scores_go_first(problem: tuple[Scores, Masks, int]) -> None:
    scores, candidates, count = problem
    picks = draw_quietly(sampling.sample_proportional, scores, candidates, count)
    positive = sum(int(((scores[name] > 0) & flags).sum()) for name, flags in candidates.items())
    taken = sum(int(((scores[name] > 0) & flags).sum()) for name, flags in picks.items())
    assert taken == min(positive, count)


@given(problem=problems())
@settings(max_examples=60)
def test_top_k_takes_what_sorting_would(problem: tuple[Scores, Masks, int]) -> None:
    scores, candidates, count = problem
    # Half of them negative: the order must hold across zero.
    signed = {name: torch.where(torch.arange(s.numel()).reshape(s.shape) % 2 == 0, s, -s) for name, s in scores.items()}
    picks = sampling.top_k(signed, candidates, count, generator())

    def sorted_values(selection: Masks) -> list[float]:
        return sorted((v for n in signed for v in signed[n][selection[n]].double().tolist()), reverse=True)

    assert sorted_values(picks) == sorted_values(candidates)[:count]


@every_sampler
@given(seed=st.integers(0, 2**62), count=st.integers(0, 6))
@settings(max_examples=20)
def test_the_generator_advances_by_the_same_amount_always(sampler: Sampler, seed: int, count: int) -> None:
    scores = {"w": torch.arange(6.0) + 1}
    candidates = Masks.select({"w": torch.ones(6, dtype=torch.bool)})
    used, alone = generator(seed), generator(seed)
    sampler(scores, candidates, count, used)
    torch.randint(1 << 62, (2,), generator=alone)
    assert torch.equal(used.get_state(), alone.get_state())


@every_sampler
def test_many_pieces(sampler: Sampler) -> None:
    """Several pieces of the real size, a border bin spread over all of them."""
    shape = (3, 140_001)
    scores = {"w": torch.rand(shape, generator=generator(1)) ** 4, "v": torch.rand(5, generator=generator(2))}
    candidates = Masks.select({"w": torch.rand(shape, generator=generator(3)) < 0.7, "v": torch.ones(5) > 0})
    for count in (1, 30_000, candidates.num_on - 1, candidates.num_on):
        picks = sampler(scores, candidates, count, generator(4))
        assert picks.num_on == count
        assert (picks - candidates).num_on == 0


def test_proportional_equals_sorting_all_keys() -> None:
    """The two passes select what one sort of every key would."""
    num = 300_000
    scores = torch.rand(num, generator=generator(1), dtype=torch.float64) ** 3
    candidates = Masks.select({"w": torch.ones(num, dtype=torch.bool)})
    used = generator(5)
    seed = torch.randint(1 << 62, (2,), generator=generator(5)).tolist()
    noise = np.random.Generator(np.random.PCG64DXSM(seed)).standard_exponential(num)
    order = torch.from_numpy(np.argsort(noise / scores.numpy(), kind="stable"))
    for count in (1, 77, 50_000, num - 1):
        expected = torch.zeros(num, dtype=torch.bool)
        expected[order[:count]] = True
        picks = sampling.sample_proportional({"w": scores}, candidates, count, used.manual_seed(5))
        assert torch.equal(picks["w"], expected)


@pytest.mark.gpu
@every_sampler
def test_the_same_on_the_gpu(sampler: Sampler) -> None:
    scores = {"w": torch.rand(3, 50_000, generator=generator(1))}
    candidates = Masks.select({"w": torch.rand(3, 50_000, generator=generator(2)) < 0.5})
    here = sampler(scores, candidates, 10_000, generator(3))
    there = sampler({"w": scores["w"].cuda()}, candidates.to("cuda"), 10_000, generator(3))
    assert there["w"].is_cuda
    assert there.to("cpu") == here
