"""Loss gradients outside the training loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pathgrow.errors import RunFailed, UserError
from pathgrow.methods.gradients import loss_gradients


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.drop(self.norm(self.first(x)))))


def squares(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return model(batch[0]).square().mean()


def test_probing_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = Normed()
    model.train()
    model.norm.eval()
    model.first.weight.grad = torch.full((6, 4), 3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
    state = torch.get_rng_state()
    names = ["first.weight", "frozen.weight", "unused.weight", "last.weight"]
    with torch.no_grad():
        found, num_samples = loss_gradients(model, names, squares, data, seed=5)
    assert num_samples == 8
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert bool((model.first.weight.grad == 3.0).all())
    assert model.last.weight.grad is None
    assert float(found["first.weight"].abs().sum()) > 0
    assert float(found["frozen.weight"].abs().sum()) == float(found["unused.weight"].abs().sum()) == 0.0
    again, _ = loss_gradients(model, names, squares, data, seed=5)
    other, _ = loss_gradients(model, names, squares, data, seed=6)
    assert torch.equal(found["first.weight"], again["first.weight"])
    assert not torch.equal(found["first.weight"], other["first.weight"])


def test_batch_norm_uses_the_batch() -> None:
    """In training mode a shift of all inputs changes nothing; with running statistics it would."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).eval()
    x = torch.randn(32, 4)
    one, _ = loss_gradients(model, ["2.weight"], squares, [[x]], seed=0)
    two, _ = loss_gradients(model, ["2.weight"], squares, lambda: iter([[x + 100.0]]), seed=0)
    torch.testing.assert_close(one["2.weight"], two["2.weight"], rtol=1e-3, atol=1e-5)


def test_bad_losses_and_empty_data() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="must yield at least 1 batches, got 0"):
        loss_gradients(model, ["weight"], squares, [], seed=0)
    for wrong in (lambda model, batch: 3.0, lambda model, batch: model(batch), lambda model, batch: torch.ones(())):
        with pytest.raises(UserError, match="must return a scalar tensor"):
            loss_gradients(model, ["weight"], wrong, [torch.ones(2, 2)], seed=0)
    with pytest.raises(RunFailed, match="diverged"):
        loss_gradients(model, ["weight"], squares, [[torch.full((2, 2), float("nan"))]], seed=0)
