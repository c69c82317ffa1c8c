"""Samplers on inputs small enough to check by eye, and every sentence for bad input."""

from __future__ import annotations

import warnings

import pytest
import torch

from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import sample_proportional, top_k, uniform


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


def test_a_mask_as_candidates_means_its_switchable_on_positions(generator: torch.Generator) -> None:
    masks = Masks({"w": torch.tensor([True, True, False])}, {"w": torch.tensor([False, True, True])})
    scores = {"w": torch.tensor([9.0, 1.0, 9.0])}
    for picks in (sample_proportional(scores, masks, 1, generator), top_k(scores, masks, 1, generator)):
        assert picks["w"].tolist() == [False, True, False]
    with pytest.raises(UserError, match="2 positions were asked for out of 1"):
        uniform(masks, 2, generator)


def test_too_few_positive_scores_warn_once_and_still_give_the_count(generator: torch.Generator) -> None:
    scores = {"w": torch.tensor([0.0, 2.0, 0.0, 3.0])}
    with pytest.warns(UserWarning, match="3 positions were asked for but only 2 candidates") as caught:
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
    with pytest.raises(UserError, match=r"the scores of 'w' hold .* but must be finite and not negative"):
        sample_proportional({"w": torch.tensor([1.0, bad])}, everything(2), 1, generator)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_top_k_refuses_what_has_no_order(bad: float, generator: torch.Generator) -> None:
    with pytest.raises(UserError, match=r"the scores of 'w' hold .* but must be finite:"):
        top_k({"w": torch.tensor([1.0, bad])}, everything(2), 1, generator)


@pytest.mark.parametrize(
    ("scores", "count", "sentence"),
    [
        ({"w": torch.ones(2)}, 3, "3 positions were asked for out of 2 candidates"),
        ({"w": torch.ones(2)}, -1, "-1 positions were asked for"),
        ({"w": torch.ones(2)}, 1.5, "count is 1.5 but must be a whole number"),
        ({"v": torch.ones(2)}, 1, "there are candidates in 'w' but no scores"),
        ({"w": torch.ones(3)}, 1, r"the scores of 'w' are \(3,\) but the candidates are \(2,\)"),
        ({"w": torch.ones(2, dtype=torch.int64)}, 1, "the scores of 'w' are torch.int64 but must be floating point"),
    ],
)
@pytest.mark.parametrize("sampler", [sample_proportional, top_k])
def test_bad_requests_are_refused_in_one_sentence(sampler, scores, count, sentence, generator) -> None:
    state = generator.get_state()
    with pytest.raises(UserError, match=sentence):
        sampler(scores, everything(2), count, generator)
    assert torch.equal(generator.get_state(), state)
