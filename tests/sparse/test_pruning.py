"""Pruning on request, at once and gradually: density step by step, other numbers of steps, resuming, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, Method
from pathgrow.methods.picks import all_candidates, smallness
from pathgrow.sparse.attach import Attached, attach

METHOD = Method(
    name="pruned",
    start=all_candidates,
    start_density=1.0,
    drop=ByScore(smallness, top_k),
    after_update="reset_optimizer",
)


def attached() -> Attached:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return attach(model, optimizer, METHOD, scope=Masks.full(model))


def train(sparse: Attached, num_steps: int) -> list[int]:
    """Returns the number of active weights after each step."""
    counts = []
    for step in range(num_steps):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        sparse.optimizer.zero_grad()
        sparse.model(inputs).square().mean().backward()
        sparse.optimizer.step()
        counts.append(sparse.masks.num_on)
    return counts


def weights(sparse: Attached) -> np.ndarray:
    return np.concatenate([sparse.model.get_parameter(name).detach().numpy().ravel() for name in sparse.masks])


def test_pruning_at_once_keeps_the_largest_weights() -> None:
    sparse = attached()
    train(sparse, 3)
    before = np.abs(weights(sparse))
    sparse.prune_(0.3)
    kept = weights(sparse) != 0
    assert kept.sum() == sparse.masks.num_on == round(0.3 * sparse.masks.num) == 270
    assert before[kept].min() >= before[~kept].max()
    assert not any(bool(state["momentum_buffer"].any()) for state in sparse.optimizer.state.values())
    sparse.prune_(0.5)  # it is sparser already
    assert sparse.masks.num_on == 270


def test_gradual_pruning_follows_a_cubic_curve() -> None:
    sparse = attached()
    train(sparse, 7)
    sparse.prune_gradually_(0.1, 100)
    assert sparse.masks.density == 1.0
    assert sparse.next_density == 0.1
    counts = train(sparse, 100)
    # 70 of the 100 steps, an update after every second one.
    for num_done, count in enumerate(counts, start=1):
        last = min(num_done - num_done % 2, 70)
        assert count == pytest.approx(900 * (0.1 + 0.9 * (1 - last / 70) ** 3), abs=1)
    assert counts[50] > counts[70] == counts[-1] == 90
    assert sparse.finish_pruning_() is True
    assert (sparse.density, sparse.next_density) == (0.1, 0.1)
    assert train(sparse, 2) == [90, 90]
    assert (sparse.round, sparse.step) == (1, 109)


def test_steps_that_were_not_made_do_not_leave_weights() -> None:
    sparse = attached()
    sparse.prune_gradually_(0.2, 50)
    assert train(sparse, 10)[-1] > 180
    assert sparse.finish_pruning_() is False
    assert sparse.masks.num_on == 180
    assert np.count_nonzero(weights(sparse)) == 180


def test_more_steps_than_expected_train_the_pruned_network() -> None:
    sparse = attached()
    sparse.prune_gradually_(0.2, 20)
    counts = train(sparse, 60)
    assert counts[14:] == [180] * 46


@pytest.mark.parametrize("is_gradual", [True, False], ids=["after gradual pruning", "after pruning at once"])
def test_weights_that_were_loaded_where_the_network_is_pruned_are_removed_and_reported(is_gradual: bool) -> None:
    sparse = attached()
    denser = {name: tensor.clone() for name, tensor in sparse.model.state_dict().items()}
    if is_gradual:
        sparse.prune_gradually_(0.2, 20)
        train(sparse, 20)
    else:
        sparse.prune_(0.2)
    sparse.model.load_state_dict(denser)
    assert sparse.finish_pruning_() is False
    assert np.count_nonzero(weights(sparse)) == 180
    assert sparse.finish_pruning_() is True


def test_a_diverged_weight_is_not_taken_for_one_that_was_loaded() -> None:
    sparse = attached()
    sparse.prune_(0.2)
    name = next(iter(sparse.masks))
    with torch.no_grad():
        sparse.model.get_parameter(name)[sparse.masks[name]] = float("nan")
    assert sparse.finish_pruning_() is True


def test_steps_after_the_last_pruning_do_not_wait_for_the_host() -> None:
    sparse = attached()
    sparse.prune_gradually_(0.2, 20)
    on_host = []
    for step in range(20):
        on_host.append(sparse.works_on_host)
        train(sparse, 1)
        assert sparse.is_pruning, step
    assert all(on_host[:13])  # an update after every step up to 70%, the last of which removes no weight
    assert not any(on_host[13:])


def test_a_method_that_rewinds_says_that_it_cannot_yet() -> None:
    sparse = attached()
    sparse.method = replace(METHOD, after_update="rewind", rewind_step=5)
    with pytest.raises(UserError, match="cannot rewind to step 5 after 0 steps"):
        sparse.prune_gradually_(0.5, 10)


@pytest.mark.parametrize("num_steps", [0, 1])
def test_without_steps_it_is_pruned_at_once(num_steps: int) -> None:
    gradually, at_once = attached(), attached()
    gradually.prune_gradually_(0.2, num_steps)
    at_once.prune_(0.2)
    assert gradually.masks == at_once.masks
    gradually.finish_pruning_()
    assert gradually.masks == at_once.masks


def test_a_sparser_network_is_left_alone() -> None:
    sparse = attached()
    sparse.prune_(0.2)
    sparse.prune_gradually_(0.5, 30)
    assert sparse.next_density == sparse.density == 0.2
    assert train(sparse, 30) == [180] * 30
    sparse.finish_pruning_()
    assert (sparse.round, sparse.density) == (1, 0.2)


@pytest.mark.parametrize("at", [1, 23, 49])
def test_an_interrupted_pruning_continues_with_the_same_masks_and_weights(at: int) -> None:
    whole, first, second = attached(), attached(), attached()
    for sparse in (whole, first, second):
        sparse.prune_gradually_(0.1, 50)
    train(whole, 50)
    train(first, at)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    for step in range(at, 50):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        second.optimizer.zero_grad()
        second.model(inputs).square().mean().backward()
        second.optimizer.step()
    assert second.masks == whole.masks
    assert np.array_equal(weights(second), weights(whole))


@pytest.mark.parametrize("density", [0.0, 1.5, float("nan")])
def test_other_densities_are_refused(density: float) -> None:
    sparse = attached()
    for prune_ in (sparse.prune_, lambda value: sparse.prune_gradually_(value, 10)):
        with pytest.raises(UserError, match="density must be"):
            prune_(density)
    assert sparse.masks.density == 1.0
