"""Loops as people write them: closures, loss scales that fused optimizers take out, clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.tree import flatten_state

BY_STEPS = ("rigl", "set", "itop", "snfs", "dsr", "gmp", "granet")
HIDDEN = ("str", "edge_popup")
Make = Callable[[Iterable[nn.Parameter]], Optimizer]


def attached(name: str, make: Make = lambda weights: SGD(weights, lr=0.1, momentum=0.9)) -> Attached:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    options: dict[str, Any] = {"s_init": -2.0} if name == "str" else {"density": 0.4}
    if name in BY_STEPS:
        options |= {"num_steps": 20, "update_interval": 2}
    return attach(model, make(model.parameters()), methods.create(name, **options), scope=Masks.full(model))


def loss_at(sparse: Attached, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(step)
    inputs, labels = torch.randn(5, 6, generator=draw), torch.randint(0, 3, (5,), generator=draw)
    return nn.functional.cross_entropy(sparse.model(inputs), labels)


def everything(sparse: Attached) -> dict[str, Tensor]:
    states = (sparse.model.state_dict(), sparse.optimizer.state_dict(), sparse.state_dict())
    return {f"{n} {key}": value for n, state in enumerate(states) for key, value in flatten_state(state)[0].items()}


def assert_equal(one: Attached, other: Attached) -> None:
    here, there = everything(one), everything(other)
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        torch.testing.assert_close(tensor, there[name], rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("name", [*BY_STEPS, *HIDDEN])
@pytest.mark.parametrize("by_keyword", [True, False])
def test_a_closure_gives_what_gradients_before_the_step_give(name: str, by_keyword: bool) -> None:
    plain, closed = attached(name), attached(name)
    for step in range(8):
        plain.optimizer.zero_grad()
        wanted = loss_at(plain, step)
        wanted.backward()
        plain.optimizer.step()

        def closure(step: int = step) -> Tensor:
            closed.optimizer.zero_grad()
            loss = loss_at(closed, step)
            loss.backward()
            return loss

        got = closed.optimizer.step(closure=closure) if by_keyword else closed.optimizer.step(closure)
        assert torch.equal(got.detach(), wanted.detach())
        assert_equal(plain, closed)
    assert closed.step == 8


@pytest.mark.parametrize("name", ["rigl", "str"])
def test_an_optimizer_that_asks_twice_is_refused(name: str) -> None:
    sparse = attached(name, lambda weights: LBFGS(weights, max_iter=3))

    def closure() -> Tensor:
        sparse.optimizer.zero_grad()
        loss = loss_at(sparse, 0)
        loss.backward()
        return loss

    with pytest.raises(UserError, match="calls its closure several times"):
        sparse.optimizer.step(closure)


@pytest.mark.parametrize("name", [*BY_STEPS, *HIDDEN])
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("overflow", [(), (4,), (3, 6)])
def test_a_fused_optimizer_under_a_loss_scale(name: str, kind: Any, overflow: tuple[int, ...]) -> None:
    """As where the scaler takes out the scale, and leaves out the step, by itself."""
    runs = []
    for fused in (False, True):
        sparse = attached(name, lambda weights, fused=fused: kind(weights, lr=0.02, fused=fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(8):
            sparse.optimizer.zero_grad()
            scaler.scale(loss_at(sparse, step) * (math.inf if step in overflow else 1)).backward()
            scaler.step(sparse.optimizer)
            scaler.update()
        assert sparse.step == 8 - len(overflow)
        runs.append(sparse)
    assert_equal(*runs)


@pytest.mark.parametrize("name", [name for name in BY_STEPS if name != "snfs"])
def test_between_changes_clipping_sees_only_gradients_that_count(name: str) -> None:
    sparse = attached(name)
    num_masked = num_dense = 0
    for step in range(8):
        sparse.optimizer.zero_grad()
        for _ in range(2):
            loss_at(sparse, step).backward()
        beside = [sparse.model.get_parameter(weight).grad[~mask] for weight, mask in sparse.masks.items()]
        is_dense = any(bool(gradient.any()) for gradient in beside)
        assert sparse.update_is_due or not is_dense
        num_masked += not sparse.update_is_due
        num_dense += is_dense
        sparse.optimizer.step()
    assert num_masked >= 3
    assert num_dense or name == "gmp"  # which has dropped nothing before its second change


@pytest.mark.parametrize("names", [("1.weight",), ("0.weight", "1.weight")])
def test_a_tied_weight_goes_by_one_name(names: tuple[str, ...]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    scope = {name: torch.ones(6, 6, dtype=torch.bool) for name in names}
    with pytest.raises(UserError, match=r"'1.weight', which is the same weight as '0.weight'"):
        attach(model, SGD(model.parameters(), lr=0.1), methods.create("erk", density=0.5), scope=scope)
