"""Where training made no network better, no density is told: a `fit` that does nothing, scores that are noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau
from torch import nn

import pathgrow
from pathgrow.checkpoint import MemoryStore
from pathgrow.density.types import Point
from pathgrow.report import html
from pathgrow.report import text as wording
from pathgrow.runs.learning import has_risen, learned

NUM = 150
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(NUM, 12, generator=GENERATOR)
LABELS = (INPUTS @ torch.randn(12, 4, generator=GENERATOR)).argmax(1)
UNLEARNED = "How dense the network must be cannot be told: training made no network better."


def train(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for batch in torch.randperm(NUM).split(25):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(INPUTS[batch]), LABELS[batch]).backward()
            optimizer.step()


def do_nothing(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    pass


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(INPUTS).argmax(1) == LABELS).float().mean())


def minus_loss(model: nn.Module) -> float:
    with torch.no_grad():
        return -float(nn.functional.cross_entropy(model(INPUTS), LABELS))


def noise(model: nn.Module) -> float:
    return float(0.25 + 0.02 * torch.randn(()))


def found_by(fit: Callable[..., None], evaluate: Callable[..., float], **options: Any) -> pathgrow.Discovery:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return pathgrow.discover(model, optimizer, fit, evaluate, INPUTS[:1], **{"budget": 20, **options})


@pytest.mark.parametrize("options", [{}, {"rule": "trajectory"}, {"eval_weights": "ema"}, {"reference": "dense"}])
@pytest.mark.parametrize(
    ("fit", "evaluate"),
    [(do_nothing, accuracy), (do_nothing, minus_loss), (train, noise), (train, lambda model: 0.25)],
)
def test_scores_that_training_does_not_raise_give_no_density(
    fit: Callable[..., None], evaluate: Callable[..., float], options: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match="training made no network better, so how dense"):
        found = found_by(fit, evaluate, **options)
    assert found.answer.status == "unlearned"
    assert (found.operating_density, found.gain_density, found.within(0.1)) == (None, None, None)
    assert found.interval == (0.0, 1.0)
    assert found.words.splitlines()[0] == UNLEARNED
    assert "whether fit trains the model and the optimizer that it is given" in found.words
    told = found.report()
    assert told["answer"]["operating_density"] is None
    assert told["answer"]["interval"] == [0.0, 1.0]
    compared = told["curve"]["probes"] or told["curve"]["rounds"]
    assert {row["round"] for row in told["curve"]["untrained"]} == {row["round"] for row in compared}
    assert told["curve"]["fit"] is None
    assert (told["reference"] is not None) == (options.get("reference") == "dense"), "none that was fitted"
    assert wording.headline(told) == UNLEARNED
    assert dict(wording.findings(told))["90% interval"] == (
        "up to 100% of the switchable weights: the scores tell no densities apart"
    )
    shown = html.page(told)
    assert UNLEARNED in shown
    assert "Growth ended because" not in shown, "a reason that speaks of answers"


def test_before_and_after_are_told_in_numbers() -> None:
    with pytest.warns(UserWarning, match="training made no network better"):
        found = found_by(do_nothing, accuracy)
    scores = sorted(point.score for point in found.curve.probes)
    assert sorted(point.score for point in found.untrained) == scores, "a probe that was not trained is what it was"
    both = f"{scores[0]:.5g} to {scores[-1]:.5g}"
    assert f"Before training the networks compared scored {both}, after it {both}, and" in found.words


def test_a_network_that_learns_is_not_scored_untrained() -> None:
    found = found_by(train, accuracy)
    assert found.answer.status != "unlearned"
    assert has_risen(found.curve.rough)
    assert found.untrained == ()
    assert found.report()["curve"]["untrained"] == []


@pytest.mark.filterwarnings("error")
def test_an_easy_task_is_no_reason_to_withhold_the_answer() -> None:
    """The seed network knows it all, so nothing rises; but untrained networks know nothing."""
    found = found_by(train, lambda model: float(accuracy(model) > 0.5), start_density=0.3, seed_epochs=40, budget=60)
    assert not has_risen(found.curve.rough)
    assert [point.score for point in found.untrained] == [0.0] * len(found.curve.probes)
    assert found.answer.status == "flat"


def test_the_doubt_is_settled_once() -> None:
    store = MemoryStore()
    with pytest.warns(UserWarning, match="training made no network better"):
        first = found_by(do_nothing, accuracy, store=store)

    def never(*args: object) -> float:
        raise AssertionError("everything is stored")

    with pytest.warns(UserWarning, match="training made no network better"):
        again = found_by(never, never, store=store)
    assert again.untrained == first.untrained
    assert again.words == first.words


def points(scores: list[float]) -> list[Point]:
    return [Point(round=k, density=0.1, epochs=1, score=score) for k, score in enumerate(scores)]


def test_rises_are_those_of_kendalls_test() -> None:
    rng = torch.Generator().manual_seed(3)
    for num in (6, 9, 14):
        for slope in (0.0, 0.2, 0.5):
            scores = (slope * torch.arange(num) + torch.randn(num, generator=rng)).mul(2).round().tolist()
            exact = kendalltau(range(num), scores, alternative="greater", method="asymptotic").pvalue
            if abs(exact - 0.01) > 1e-3:
                assert has_risen(points(scores)) == (exact < 0.01)
    assert not has_risen(points([0.5] * 10))


def test_chance_seldom_looks_like_learning() -> None:
    """Of all orders of six different scores, three of them after training: all beat all others in one of twenty."""
    cases = [([*before], [s for s in range(6) if s not in before]) for before in itertools.combinations(range(6), 3)]
    assert sum(min(after) > max(before) for before, after in cases) == len(cases) / 20 == 1
    for before, after in cases:
        stands_out = max(after) - max(before) > max(before) - min(before)
        assert learned(points(before), points(after)) == (min(after) > max(before) or stands_out)
    assert not learned(points([0.1, 0.2]), points([0.1, 0.2])), "nothing has changed"
