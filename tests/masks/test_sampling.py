"""Samplers on small inputs, error messages, and invariants over all scores, shapes, layouts and devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import Masks, sampling
from pathgrow.masks.sampling import sample_in, sample_proportional, top_k, top_k_in, uniform, uniform_in


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def everything(num: int) -> Masks:
    return Masks.select({"w": torch.ones(num, dtype=torch.bool)})


def test_the_only_positive_score_is_taken(generator: torch.Generator) -> None:
    picks = sample_proportional({"w": torch.tensor([0.0, 1e-45, 0.0])}, everything(3), 1, generator)
    assert picks["w"].tolist() == [False, True, False]


def test_the_smallest_number_goes_before_any_zero(generator: torch.Generator) -> None:
    scores = torch.zeros(5000, dtype=torch.float64)
    scores[1234] = 5e-324
    picks = sample_proportional({"w": scores}, everything(5000), 1, generator)
    assert picks["w"].nonzero().tolist() == [[1234]]


def test_scores_of_other_parameters_and_of_non_candidates_are_ignored(generator: torch.Generator) -> None:
    candidates = Masks.select({"w": torch.tensor([False, True])})
    scores = {"w": torch.tensor([torch.nan, 1.0]), "unrelated": torch.tensor([-1.0])}
    for sampler in (sample_proportional, top_k):
        assert sampler(scores, candidates, 1, generator)["w"].tolist() == [False, True]


def test_a_mask_as_candidates_means_its_active_prunable_weights(generator: torch.Generator) -> None:
    masks = Masks({"w": torch.tensor([True, True, False])}, {"w": torch.tensor([False, True, True])})
    scores = {"w": torch.tensor([9.0, 1.0, 9.0])}
    for picks in (sample_proportional(scores, masks, 1, generator), top_k(scores, masks, 1, generator)):
        assert picks["w"].tolist() == [False, True, False]
    with pytest.raises(UserError, match="number of candidates, 1, got 2"):
        uniform(masks, 2, generator)


def test_too_few_positive_scores_warn_once_and_still_give_the_count(generator: torch.Generator) -> None:
    scores = {"w": torch.tensor([0.0, 2.0, 0.0, 3.0])}
    with pytest.warns(UserWarning, match="only 2 of 3 positions") as caught:
        picks = sample_proportional(scores, everything(4), 3, generator)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert picks["w"][[1, 3]].all()
    assert picks.num_on == 3


def test_no_warning_when_positive_scores_suffice(generator: torch.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample_proportional({"w": torch.tensor([0.0, 2.0, 0.0, 3.0])}, everything(4), 2, generator)


def test_counts_of_nothing_and_everything(generator: torch.Generator) -> None:
    scores = {"w": torch.tensor([3.0, 1.0, 2.0])}
    for sampler in (sample_proportional, top_k):
        assert sampler(scores, everything(3), 0, generator).num_on == 0
        assert sampler(scores, everything(3), 3, generator)["w"].all()
    assert uniform(everything(3), 0, generator).num_on == 0
    assert uniform(everything(3), 3, generator)["w"].all()


def test_top_k_orders_across_signs_zeros_and_dtypes(generator: torch.Generator) -> None:
    candidates = Masks.select({"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(3, dtype=torch.bool)})
    scores = {"a": torch.tensor([-5.0, 0.0, 2.0], dtype=torch.float64), "b": torch.tensor([-1.0, -1e-30, 1e30])}
    rank_of = [("b", 2), ("a", 2), ("a", 1), ("b", 1), ("b", 0), ("a", 0)]
    for count in range(7):
        picks = top_k(scores, candidates, count, generator)
        chosen = {(name, index) for name in picks for index in picks[name].nonzero().reshape(-1).tolist()}
        assert chosen == set(rank_of[:count])


def test_top_k_treats_both_zeros_alike(generator: torch.Generator) -> None:
    first = [bool(top_k({"w": torch.tensor([0.0, -0.0])}, everything(2), 1, generator)["w"][0]) for _ in range(60)]
    assert 15 < sum(first) < 45


def test_scores_that_carry_gradients_are_read(generator: torch.Generator) -> None:
    scores = {"w": torch.tensor([1.0, 2.0], requires_grad=True)}
    assert sample_proportional(scores, everything(2), 1, generator).num_on == 1


def test_no_candidates_at_all(generator: torch.Generator) -> None:
    assert len(uniform(Masks({}), 0, generator)) == 0


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf, -torch.inf])
def test_bad_scores_are_refused(bad: float, generator: torch.Generator) -> None:
    with pytest.raises(UserError, match="scores of 'w' must be finite and >= 0, got"):
        sample_proportional({"w": torch.tensor([1.0, bad])}, everything(2), 1, generator)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_top_k_refuses_what_has_no_order(bad: float, generator: torch.Generator) -> None:
    with pytest.raises(UserError, match="scores of 'w' must be finite, got"):
        top_k({"w": torch.tensor([1.0, bad])}, everything(2), 1, generator)


@pytest.mark.parametrize(
    ("scores", "count", "sentence"),
    [
        ({"w": torch.ones(2)}, 3, "number of candidates, 2, got 3"),
        ({"w": torch.ones(2)}, -1, "number of candidates, 2, got -1"),
        ({"w": torch.ones(2)}, 1.5, "count must be an integer, got 1.5"),
        ({"v": torch.ones(2)}, 1, "there are candidates in 'w' but no scores"),
        ({"w": torch.ones(3)}, 1, r"scores of 'w' must have the shape of the candidates, \(2,\), got \(3,\)"),
        ({"w": torch.ones(2, dtype=torch.int64)}, 1, "scores of 'w' must be floating point, got torch.int64"),
    ],
)
@pytest.mark.parametrize("sampler", [sample_proportional, top_k])
def test_bad_requests_are_refused_in_one_sentence(sampler, scores, count, sentence, generator) -> None:
    state = generator.get_state()
    with pytest.raises(UserError, match=sentence):
        sampler(scores, everything(2), count, generator)
    assert torch.equal(generator.get_state(), state)


# Invariants

Scores = Mapping[str, Tensor]
Sampler = Callable[[Scores, Masks, int, torch.Generator], Masks]

SAMPLERS: dict[str, Sampler] = {
    "proportional": sampling.sample_proportional,
    "top_k": sampling.top_k,
    "uniform": lambda scores, candidates, count, generator: sampling.uniform(candidates, count, generator),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_quietly(sampler: Sampler, scores: Scores, candidates: Masks, count: int, seed: int = 0) -> Masks:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*positive score")
        return sampler(scores, candidates, count, seeded(seed))


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
    picks = sampling.top_k(signed, candidates, count, seeded())

    def sorted_values(selection: Masks) -> list[float]:
        return sorted((v for n in signed for v in signed[n][selection[n]].double().tolist()), reverse=True)

    assert sorted_values(picks) == sorted_values(candidates)[:count]


@every_sampler
@given(seed=st.integers(0, 2**62), count=st.integers(0, 6))
@settings(max_examples=20)
def test_the_generator_advances_by_the_same_amount_always(sampler: Sampler, seed: int, count: int) -> None:
    scores = {"w": torch.arange(6.0) + 1}
    candidates = Masks.select({"w": torch.ones(6, dtype=torch.bool)})
    used, alone = seeded(seed), seeded(seed)
    sampler(scores, candidates, count, used)
    torch.randint(1 << 62, (2,), generator=alone)
    assert torch.equal(used.get_state(), alone.get_state())


@every_sampler
def test_many_pieces(sampler: Sampler) -> None:
    """Several pieces of the real size, a border bin spread over all of them."""
    shape = (3, 140_001)
    scores = {"w": torch.rand(shape, generator=seeded(1)) ** 4, "v": torch.rand(5, generator=seeded(2))}
    candidates = Masks.select({"w": torch.rand(shape, generator=seeded(3)) < 0.7, "v": torch.ones(5) > 0})
    for count in (1, 30_000, candidates.num_on - 1, candidates.num_on):
        picks = sampler(scores, candidates, count, seeded(4))
        assert picks.num_on == count
        assert (picks - candidates).num_on == 0


def test_proportional_equals_sorting_all_keys() -> None:
    """The two passes select what one sort of every key would."""
    num = 300_000
    scores = torch.rand(num, generator=seeded(1), dtype=torch.float64) ** 3
    candidates = Masks.select({"w": torch.ones(num, dtype=torch.bool)})
    used = seeded(5)
    seed = torch.randint(1 << 62, (2,), generator=seeded(5)).tolist()
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
    scores = {"w": torch.rand(3, 50_000, generator=seeded(1))}
    candidates = Masks.select({"w": torch.rand(3, 50_000, generator=seeded(2)) < 0.5})
    here = sampler(scores, candidates, 10_000, seeded(3))
    there = sampler({"w": scores["w"].cuda()}, candidates.to("cuda"), 10_000, seeded(3))
    assert there["w"].is_cuda
    assert there.to("cpu") == here


# One tensor

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**31)


@given(data=st.data(), num=sizes, kinds=st.integers(1, 6), seed=seeds)
def test_top_k_in_takes_exactly_the_largest(data: st.DataObject, num: int, kinds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores, candidates = draw.integers(0, kinds, num).astype(float), draw.random(num) < 0.7
    count = data.draw(st.integers(0, int(candidates.sum())))
    chosen = top_k_in(
        torch.tensor(scores), torch.tensor(candidates), count, torch.Generator().manual_seed(seed)
    ).numpy()
    assert chosen.sum() == count
    assert not (chosen & ~candidates).any()
    assert sorted(scores[chosen]) == sorted(scores[candidates])[len(scores[candidates]) - count :]


@given(data=st.data(), num=sizes, seed=seeds)
def test_uniform_in_takes_exactly_so_many(data: st.DataObject, num: int, seed: int) -> None:
    candidates = np.random.default_rng(seed).random(num) < 0.7
    count = data.draw(st.integers(0, int(candidates.sum())))
    chosen = uniform_in(torch.tensor(candidates), count, torch.Generator().manual_seed(seed)).numpy()
    assert chosen.sum() == count
    assert not (chosen & ~candidates).any()


def test_sample_in_draws_one_after_another_in_proportion() -> None:
    scores, draw, counts = torch.tensor([[1.0, 2.0], [5.0, 0.0], [9.0, 0.0]]), torch.Generator().manual_seed(0), {}
    candidates, num = torch.tensor([[True, True], [True, True], [False, True]]), 4000
    for _ in range(num):
        chosen = tuple(np.flatnonzero(sample_in(scores, candidates, 2, draw)).tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
    values = {0: 1 / 8, 1: 2 / 8, 2: 5 / 8}
    for a, b in ((0, 1), (0, 2), (1, 2)):  # in either order
        likely = values[a] * values[b] / (1 - values[a]) + values[b] * values[a] / (1 - values[b])
        assert abs(counts.pop((a, b)) / num - likely) < 4 * (likely * (1 - likely) / num) ** 0.5
    assert counts == {}, "zeros come last"
    assert sample_in(scores, candidates, 4, draw).flatten()[:3].all()


def test_ties_are_drawn_evenly() -> None:
    scores = torch.tensor([2.0, 1, 1, 1, 1, 0])
    counts = torch.zeros(6)
    draw = torch.Generator().manual_seed(0)
    for _ in range(1000):
        counts += top_k_in(scores, torch.ones(6, dtype=torch.bool), 3, draw)
    assert counts[0] == 1000
    assert counts[5] == 0
    assert bool((abs(counts[1:5] - 500) < 70).all())


@given(seed=seeds)
def test_memory_layout_does_not_matter(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.tensor(draw.integers(0, 4, (3, 4, 2, 2)).astype(float))
    candidates = torch.tensor(draw.random((3, 4, 2, 2)) < 0.6)
    count = int(candidates.sum()) // 2
    plain = top_k_in(scores, candidates, count, torch.Generator().manual_seed(seed))
    last = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (scores, candidates))
    assert torch.equal(top_k_in(*last, count, torch.Generator().manual_seed(seed)), plain)
