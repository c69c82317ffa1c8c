"""Our own training functions: what they compute, and on what their results depend."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from pathgrow.data.dataset import Split
from pathgrow.errors import RunFailed, UserError
from pathgrow.train import Recipe, few_threads, make_evaluate, make_fit, make_optimizer, recipe_for


def blobs(num: int = 48) -> Split:
    """Two classes that a linear network separates."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % 2
    images = torch.randint(0, 100, (num, 1, 2, 2), generator=draw) + 100 * labels.view(-1, 1, 1, 1)
    return Split(images.to(torch.uint8), labels, (100.0,), (50.0,))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class Spy(nn.Module):
    """Sees what it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.fed: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.fed.append(x.detach().clone())
        return self.layer(x.flatten(1))


def test_fit_learns_and_evaluate_measures_it() -> None:
    model, recipe = network(), Recipe(lr=0.05, batch_size=16)
    evaluate = make_evaluate(blobs())
    before = evaluate(model)
    torch.manual_seed(0)
    make_fit(blobs(), recipe)(model, make_optimizer(model, recipe), 20)
    accuracy, loss = evaluate(model)
    assert accuracy > 0.95
    assert loss < before[1]


def test_evaluate_equals_a_plain_loop_and_leaves_the_mode() -> None:
    split, model = blobs(), network()
    model.train()
    accuracy, loss = make_evaluate(split, batch_size=7)(model)
    assert model.training
    model.eval()
    with torch.no_grad():
        logits = model((split.images.float() - 100) / 50)
    chance = torch.softmax(logits.double(), dim=1)[torch.arange(len(split)), split.labels]
    assert accuracy == pytest.approx(float((logits.argmax(1) == split.labels).double().mean()))
    assert loss == pytest.approx(float(-chance.log().mean()), rel=1e-6)


def test_every_epoch_sees_every_sample_once_in_its_own_order() -> None:
    split, spy, recipe = blobs(), Spy(), Recipe(batch_size=20)
    make_fit(split, recipe)(spy, make_optimizer(spy, recipe), 2)
    assert [len(batch) for batch in spy.fed] == [20, 20, 8] * 2
    epochs = torch.cat(spy.fed[:3]), torch.cat(spy.fed[3:])
    wanted = sorted(split.normalised().flatten(1).tolist())
    assert sorted(epochs[0].flatten(1).tolist()) == wanted
    assert sorted(epochs[1].flatten(1).tolist()) == wanted
    assert not torch.equal(*epochs)


def test_the_order_depends_on_the_seed_of_the_call_alone() -> None:
    split, recipe = blobs(), Recipe(batch_size=8)
    fit = make_fit(split, recipe)

    def order(seed: int) -> Tensor:
        spy = Spy()
        torch.manual_seed(seed)
        fit(spy, make_optimizer(spy, recipe), 1)
        return torch.cat(spy.fed)

    first = order(3)
    assert not torch.equal(first, order(4))
    assert torch.equal(first, order(3))


def test_rates_rise_then_fall_to_zero() -> None:
    recipe = Recipe(warmup=0.1)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[:3] == pytest.approx([1 / 11, 2 / 11, 3 / 11])
    assert rates[10] == 1
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[55] == pytest.approx(0.5)
    assert rates[-1] < 1e-3
    assert Recipe(warmup=0.1).rate(0, 5) == 1  # a phase too short for a warm-up has none


def test_learning_rates_stand_at_their_peak_again() -> None:
    model, recipe = network(), Recipe(lr=0.07)
    optimizer = make_optimizer(model, recipe)
    make_fit(blobs(), recipe)(model, optimizer, 1)
    assert optimizer.param_groups[0]["lr"] == 0.07


def test_a_diverging_loss_ends_in_one_sentence() -> None:
    model, recipe = network(), Recipe(lr=0.05)
    optimizer = make_optimizer(model, recipe)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(RunFailed, match=r"became nan in epoch 1 of 3: lower the learning rate \(0.05 was used\)"):
        make_fit(blobs(), recipe)(model, optimizer, 3)


@pytest.mark.parametrize(
    "wrong",
    [{"lr": 0.0}, {"lr": math.nan}, {"batch_size": 0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"warmup": 1.5}],
)
def test_recipes_check_themselves(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Recipe(**wrong)


def test_unknown_recipe_lists_the_known() -> None:
    with pytest.raises(UserError, match="digits"):
        recipe_for("digit")


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with few_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
