"""Loss gradients outside the training loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pathgrow import methods
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.methods.gradients import loss_gradients
from pathgrow.methods.method import Method, never
from pathgrow.sparse.attach import attach


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


# Half precision


def masks_of(method: Method, dtype: torch.dtype | None) -> tuple[Masks, dict[str, Tensor]]:
    """The masks after one update, and SNIP's scores of the dense network, with the loss in this precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    inputs, labels = torch.randn(256, 32), torch.randint(4, (256,))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

    scope, batch = Masks.full(model), (inputs, labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)  # the weights stay the same but for the masks
    gradients, _ = loss_gradients(model, list(scope), loss, [batch], seed=0)
    scores = {name: (model.get_parameter(name).detach() * g).abs() for name, g in gradients.items()}
    sparse = attach(model, optimizer, method, inputs[:1], scope=scope, loss=loss, batches=[batch])
    if method.clock == "step":
        for _ in range(2):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    elif method.grow is not None:
        sparse.grow_(500)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return sparse.masks, scores


@pytest.mark.parametrize("name", ["snip", "grasp", "rigl", "granet", "itop", "snfs", "gradient_growth"])
def test_masks_under_autocast_are_those_in_full_precision_up_to_ties(name: str) -> None:
    known = methods.defaults(name)
    wanted = {"density": 0.2, "update_interval": 1, "num_steps": 100, "start_density": 0.3}
    options = {key: value for key, value in wanted.items() if key in known}
    method = methods.create(name, **options)
    full, exact = masks_of(method, None)
    mixed, rounded = masks_of(method, torch.bfloat16)
    assert mixed.num_on == full.num_on
    start, _ = masks_of(replace(method, schedule=never, grow=None, update=None), None)
    changed = max(1, (full - start).num_on) if (full - start).num_on else full.num_on
    assert (mixed - full).num_on <= 0.03 * changed
    if name == "snip":
        # The weights in which they differ have scores as close to the threshold as those in bfloat16 are wrong.
        threshold = torch.cat([score.flatten() for score in exact.values()]).topk(full.num_on).values[-1]
        error = max(float((exact[key] - rounded[key]).abs().max()) for key in exact)
        for key in exact:
            swapped = exact[key][full[key] != mixed[key]]
            assert bool(((swapped - threshold).abs() <= 2 * error).all())
        assert 0 < error < 0.1 * max(float(score.max()) for score in exact.values())


def test_weights_in_half_precision_raise_a_warning() -> None:
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        model = nn.Linear(8, 8).to(dtype)
        with pytest.warns(UserWarning, match=f"'weight' is {name}: .* keep the weights in float32") as caught:
            attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "random", scope=Masks.full(model))
        assert caught[0].filename == __file__
