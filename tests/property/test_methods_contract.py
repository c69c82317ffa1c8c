"""What holds for EVERY method in the table, with every optimizer. A new method is enrolled by its table line."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop, Rprop

from pathgrow import methods
from pathgrow.attach import Attached, attach
from pathgrow.average import Averaging
from pathgrow.density.curve import Answer, Curve, Grow, Verdict
from pathgrow.masks import Masks
from pathgrow.nested import take_apart

NAMES = methods.names()
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.05, weight_decay=0.1),
    "nesterov": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: Adam(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adamw_fused": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    "adagrad": lambda p: Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "adamax": lambda p: Adamax(p, lr=0.01),
    "rprop": lambda p: Rprop(p, lr=0.01),
}
PAIRS = [(name, "nesterov") for name in NAMES] + [("gcg", optimizer) for optimizer in OPTIMIZERS]
"""Every method and every optimizer; how they go together does not depend on which ones they are."""
seeds = st.integers(0, 2**31)
examples = settings(max_examples=6)


class Residual(nn.Module):
    """A small convolutional network with everything that could be disturbed: batch norm, a shortcut, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.hidden = nn.Linear(6, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.inner(x))
        return self.head(torch.relu(self.hidden(self.drop(x.mean((2, 3))))))


@dataclasses.dataclass(frozen=True)
class GoOn:
    name: str = "go on"

    def decide(self, curve: Curve) -> Verdict:
        return Grow(reason="always")

    def answer(self, curve: Curve) -> Answer:
        raise NotImplementedError


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


BATCH = (torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


def made(name: str, optimizer: str, seed: int, *, model_seed: int = 0, **options: Any) -> tuple[nn.Module, Attached]:
    torch.manual_seed(model_seed)
    model = Residual()
    method = methods.create(name, **{"start_density": 0.2, **options})
    owner = OPTIMIZERS[optimizer](model.parameters())
    sparse = attach(
        model, owner, method, BATCH[0][:1],
        stop=GoOn(), loss=loss, batches=[BATCH], seed=seed, average=Averaging(decay=0.9, every=2),
    )  # fmt: skip
    return model, sparse


def train(sparse: Attached, step: int) -> None:
    """One step whose batch and dropout depend on its number alone, as a careful loop would have it."""
    torch.manual_seed(step)
    sparse.model.train()
    sparse.optimizer.zero_grad()
    loss(sparse.model, (torch.randn(8, 2, 5, 5), torch.randint(0, 3, (8,)))).backward()
    sparse.optimizer.step()


def logits(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(BATCH[0])


def assert_off_is_zero(sparse: Attached) -> None:
    for name, mask in sparse.masks.items():
        parameter = sparse.model.get_parameter(name)
        assert bool((parameter[~mask] == 0).all()), name
        for key, slot in sparse.optimizer.state.get(parameter, {}).items():
            if isinstance(slot, Tensor) and slot.shape == parameter.shape:
                assert bool((slot[~mask] == 0).all()), (name, key)


@pytest.mark.parametrize("name", NAMES)
@examples
@given(seed=seeds, density=st.floats(0.01, 1.0), gamma=st.floats(0.01, 3.0), target=st.floats(0.01, 1.0))
def test_counts_are_exact_and_growth_only_adds(
    name: str, seed: int, density: float, gamma: float, target: float
) -> None:
    options = {"start_density": min(density, target), "gamma": gamma, "target_density": target}
    _, sparse = made(name, "sgd", seed, **options)
    num = sparse.masks.num
    num_on = max(1, round(min(density, target) * num))
    goal = max(1, round(target * num))
    assert sparse.masks.num_on == num_on
    for _ in range(3):
        before = sparse.masks.clone()
        sparse.observe(0.5)
        num_on = max(num_on, min(goal, num_on + max(1, int(gamma * num_on + 1e-6))))
        assert sparse.masks.num_on == num_on
        assert (before - sparse.masks).num_on == 0


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_what_is_off_is_zero_after_any_step(name: str, optimizer: str) -> None:
    model, sparse = made(name, optimizer, seed=1)
    keys = list(model.state_dict())
    for step in range(6):
        train(sparse, step)
        assert_off_is_zero(sparse)
        if step % 2:
            sparse.observe(0.5)
            assert_off_is_zero(sparse)
    assert list(model.state_dict()) == keys == list(Residual().state_dict())
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
@settings(max_examples=3)
@given(seed=seeds, num=st.integers(1, 300))
def test_growth_changes_nothing_but_masks(name: str, optimizer: str, seed: int, num: int) -> None:
    model, sparse = made(name, optimizer, seed)
    for step in range(3):
        train(sparse, step)
    before, answers = sparse.masks.clone(), logits(model)
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(sparse.optimizer.state_dict()["state"])
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    generator = torch.get_rng_state()

    added = sparse.grow_(num)

    assert added == min(num, before.num - before.num_on) == (sparse.masks - before).num_on
    new = sparse.masks - before
    for parameter_name, positions in new.items():
        parameter = model.get_parameter(parameter_name)
        assert bool((parameter[positions] == 0).all())
        assert all(
            bool((slot[positions] == 0).all())
            for slot in sparse.optimizer.state.get(parameter, {}).values()
            if isinstance(slot, Tensor) and slot.shape == parameter.shape
        )
    assert torch.equal(logits(model), answers)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(sparse.optimizer.state_dict()["state"], state, rtol=0, atol=0)
    assert all(torch.equal(p.grad, gradients[n]) for n, p in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    model.train(modes[0])
    assert [module.training for module in model.modules()] == modes
    with sparse.averaged():
        assert all(bool((model.get_parameter(n)[positions] == 0).all()) for n, positions in new.items())


@pytest.mark.parametrize("name", NAMES)
@examples
@given(seed=seeds)
def test_the_seed_decides(name: str, seed: int) -> None:
    def visited(seed: int) -> list[Masks]:
        _, sparse = made(name, "sgd", seed)
        found = [sparse.masks.clone()]
        for _ in range(2):
            sparse.grow_(40)
            found.append(sparse.masks.clone())
        return found

    assert visited(seed) == visited(seed)
    assert visited(seed)[0] != visited(seed + 1)[0]


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
@settings(max_examples=3)
@given(seed=seeds, killed=st.integers(0, 9))
def test_a_killed_run_goes_on_bit_for_bit(name: str, optimizer: str, seed: int, killed: int) -> None:
    def go_on(sparse: Attached, start: int) -> None:
        for step in range(start, 10):
            train(sparse, step)
            if step % 3 == 2:
                sparse.observe((step / 10, 1.0 / (step + 1)))

    model, sparse = made(name, optimizer, seed)
    saved: list[Any] = []
    for step in range(10):
        if step == killed:
            saved = copy.deepcopy([model.state_dict(), sparse.optimizer.state_dict(), sparse.state_dict()])
        train(sparse, step)
        if step % 3 == 2:
            sparse.observe((step / 10, 1.0 / (step + 1)))

    other_model, other = made(name, optimizer, seed + 1, model_seed=7)
    other_model.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    go_on(other, killed)

    assert other.masks == sparse.masks
    assert other.curve == sparse.curve
    for here, there in ((other_model, model), (other.optimizer, sparse.optimizer), (other, sparse)):
        (tensors, facts), (their_tensors, their_facts) = take_apart(here.state_dict()), take_apart(there.state_dict())
        assert facts == their_facts
        assert tensors.keys() == their_tensors.keys()
        assert all(torch.equal(tensor, their_tensors[key]) for key, tensor in tensors.items())


@pytest.mark.parametrize("name", NAMES)
def test_detach_leaves_no_hooks(name: str) -> None:
    model, sparse = made(name, "nesterov", seed=0)
    assert sparse.optimizer._optimizer_step_pre_hooks
    sparse.detach()
    assert not sparse.optimizer._optimizer_step_pre_hooks
    assert not sparse.optimizer._optimizer_step_post_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
