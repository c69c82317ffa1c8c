"""The exponential moving average of the weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.sparse.attach import attach
from pathgrow.sparse.ema import EMA
from tests.support.sparse_mlp import growing, off, sparse_mlp, train


def test_it_is_a_mean_at_first_and_forgets_later() -> None:
    model, optimizer, sparse = sparse_mlp(ema=EMA(decay=0.75, update_interval=2))
    seen: list[Tensor] = []
    expected = torch.zeros(())
    for step in range(1, 17):
        train(model, optimizer, steps=1, seed=step)
        if step % 2 == 0:
            seen.append(model[0].weight.detach().double())
            n = len(seen)
            expected = torch.stack(seen).mean(0) if n <= 4 else 0.75 * expected + 0.25 * seen[-1]
    with sparse.ema_weights():
        torch.testing.assert_close(model[0].weight.double(), expected, rtol=1e-5, atol=1e-7)
        assert bool((model[0].weight[off(sparse, "0.weight")] == 0).all())


def test_swapping_is_exact_includes_statistics_and_survives_errors() -> None:
    model, optimizer, sparse = sparse_mlp(ema=EMA(update_interval=1))
    train(model, optimizer, steps=6)
    before = copy.deepcopy(model.state_dict())

    def inside() -> dict[str, Tensor]:
        with sparse.ema_weights():
            return copy.deepcopy(model.state_dict())

    shown = inside()
    assert not torch.equal(shown["1.running_var"], before["1.running_var"])
    assert torch.equal(shown["1.num_batches_tracked"], before["1.num_batches_tracked"])
    with pytest.raises(RuntimeError, match="boom"), sparse.ema_weights():
        raise RuntimeError("boom")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(value, shown[name]) for name, value in inside().items())


def test_training_or_growing_inside_is_refused() -> None:
    model, optimizer, sparse = sparse_mlp(ema=EMA(update_interval=1))
    train(model, optimizer)
    with sparse.ema_weights():
        with pytest.raises(UserError, match=r"optimizer.step\(\) is not allowed inside ema_weights"):
            train(model, optimizer)
        with pytest.raises(UserError, match="a mask update is not allowed inside ema_weights"):
            sparse.grow_(1)
        with pytest.raises(UserError, match=r"observe\(\) is not allowed inside ema_weights"):
            sparse.observe(0.5)


def test_without_an_ema_the_model_is_unchanged() -> None:
    model, _, sparse = sparse_mlp()
    before = model[0].weight.clone()
    with sparse.ema_weights():
        assert torch.equal(model[0].weight, before)


def test_half_precision_is_averaged_in_float32() -> None:
    """Steps of a hundredth vanish in bfloat16; the mean must still follow."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    optimizer = SGD(model.parameters(), lr=0.0)
    sparse = attach(model, optimizer, growing(1.0), scope=Masks.full(model), ema=EMA(update_interval=1))
    for step in range(400):
        with torch.no_grad():
            model.weight.fill_(0.0 if step < 100 else 1.0)
        optimizer.step()
    with sparse.ema_weights():
        assert model.weight.item() == pytest.approx(1 - 0.99**300, abs=5e-3)


@pytest.mark.parametrize("options", [{"decay": 1.0}, {"decay": 0.0}, {"update_interval": 0}])
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must be"):
        EMA(**options)


def test_an_ema_of_another_library_is_masked_by_hand() -> None:
    """The truth: the mean of the weights after each step, by hand, without those that are pruned now."""
    model, optimizer, sparse = sparse_mlp(method=methods.create("rigl", density=0.3, num_steps=20, update_interval=2))
    averaged, seen = AveragedModel(model), []
    for step in range(8):
        train(model, optimizer, steps=1, seed=step)
        averaged.update_parameters(model)
        seen.append(model[0].weight.detach().clone())
    mean, mask = torch.stack(seen).mean(0), sparse.masks["0.weight"]
    torch.testing.assert_close(averaged.module[0].weight.detach(), mean)
    assert bool((mean[~mask] != 0).any()), "weights that were pruned meanwhile"
    sparse.masks.apply_(averaged.module)
    torch.testing.assert_close(averaged.module[0].weight.detach(), mean * mask)
