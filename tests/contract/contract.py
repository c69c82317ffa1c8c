"""The contract of every method, as checks that take its name: one of the table, or any "module:function"."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop, Rprop

from pathgrow import methods
from pathgrow.density.types import Answer, Curve, Grow, Verdict
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs, sample_flops
from pathgrow.masks import Masks
from pathgrow.methods import Clause
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Pick, Progress
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from pathgrow.sparse.tree import flatten_state

NUM_STEPS = 12
SMALL: dict[str, Any] = {
    "density": 0.3,
    "num_steps": NUM_STEPS,
    "update_interval": 3,
    "rewind_step": 2,
    "num_search_steps": 5,
    "num_iterations": 5,
}
"""Options under which masks are updated within few steps, for methods that have them."""
OWN: dict[str, dict[str, Any]] = {"str": {"s_init": -2.5}, "dsr": {"threshold": 0.05, "update_interval": 1}}
"""Thresholds that prune at once; an interval that doubles with every quarter of the training."""
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


class Residual(nn.Module):
    """A small convolutional network with batch norm, a shortcut and dropout."""

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
class AlwaysGrow:
    """A density rule that never stops."""

    name: str = "always grow"

    def decide(self, curve: Curve) -> Verdict:
        return Grow(reason="always")

    def answer(self, curve: Curve) -> Answer:
        raise NotImplementedError


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


BATCH = (torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


def make_of(name: str) -> Callable[..., Method]:
    if ":" not in name:
        return methods.entry(name).make
    module, _, function = name.partition(":")
    made: Callable[..., Method] = getattr(importlib.import_module(module), function)
    return made


def exceptions_of(name: str) -> Mapping[Clause, str]:
    return {} if ":" in name else methods.entry(name).exceptions


def is_growth(name: str) -> bool:
    return "target_density" in inspect.signature(make_of(name)).parameters


def options_of(name: str) -> dict[str, Any]:
    known = inspect.signature(make_of(name)).parameters
    starts = {"start_density": 0.2} if is_growth(name) else {}
    return {**{key: value for key, value in SMALL.items() if key in known}, **starts, **OWN.get(name, {})}


def small(name: str, **options: Any) -> Method:
    return methods.create(name, **{**options_of(name), **options})


def attached(method: Method, seed: int, optimizer: str = "nesterov", *, model_seed: int = 0, **how: Any) -> Attached:
    """The method attached to a new network; `is_tied`: all its weights are equal, and so are their scores."""
    torch.manual_seed(model_seed)
    model, batch = Residual(), BATCH
    if how.pop("is_tied", False):
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.3)
    if (device := how.pop("precisely_on", None)) is not None:  # equal to many digits on any device
        model, batch = model.double().to(device), (BATCH[0].double().to(device), BATCH[1].to(device))
        model.drop.p = 0.0
    how = {"stop": AlwaysGrow(), "loss": loss, "batches": [batch], "ema": EMA(decay=0.9, update_interval=2), **how}
    return attach(model, OPTIMIZERS[optimizer](model.parameters()), method, batch[0][:1], seed=seed, **how)


def backward(sparse: Attached, step: int) -> None:
    """Gradients of a batch that, like dropout, depends on the step number alone, as in a resumable loop."""
    torch.manual_seed(step)
    sparse.model.train()
    sparse.optimizer.zero_grad()
    loss(sparse.model, (torch.randn(8, 2, 5, 5), torch.randint(0, 3, (8,)))).backward()


def train(sparse: Attached, first: int = 0, last: int = NUM_STEPS) -> Iterator[int]:
    """Train step by step, with an observation after every third: methods on both clocks update their masks."""
    for step in range(first, last):
        backward(sparse, step)
        sparse.optimizer.step()
        yield step
        if step % 3 == 2:
            sparse.observe((step / 10, 1.0 / (step + 1)))


def trained(sparse: Attached, first: int = 0, last: int = NUM_STEPS) -> Attached:
    for _ in train(sparse, first, last):
        pass
    return sparse


def same_state(ours: Any, theirs: Any) -> bool:
    """Whether two states are equal bit for bit."""
    (tensors, metadata), (their_tensors, their_facts) = flatten_state(ours), flatten_state(theirs)
    return (
        metadata == their_facts
        and tensors.keys() == their_tensors.keys()
        and all(torch.equal(tensor, their_tensors[key]) for key, tensor in tensors.items())
    )


def state_of(sparse: Attached, name: str) -> list[Tensor]:
    parameter = sparse.model.get_parameter(name)
    buffers = sparse.optimizer.state.get(parameter, {}).values()
    return [buffer for buffer in buffers if isinstance(buffer, Tensor) and buffer.shape == parameter.shape]


def half_scope() -> dict[str, Tensor]:
    """A scope with only a part of one tensor, and without another."""
    inside = {name: torch.ones_like(mask) for name, mask in Masks.full(Residual()).items() if name != "head.weight"}
    inside["inner.weight"].flatten()[::3] = False
    return inside


# The checks


def check_counts(name: str, seed: int, density: float) -> None:
    """Counts of active weights are exactly those of the schedule after each update, and of the options at the end."""
    known = inspect.signature(make_of(name)).parameters
    options = {"density": density} if "density" in known else {}
    if is_growth(name):
        options = {"start_density": density / 2, "target_density": density}
    elif "peak_density" in known:
        options |= {"start_density": density / 2, "peak_density": (1 + density) / 2}
    elif "start_density" in known:
        options["start_density"] = (1 + density) / 2
    method = small(name, **options)
    sparse = attached(checking(method), seed, scope=half_scope())
    num = sum(int(inside.sum()) for inside in half_scope().values())
    assert sparse.masks.num == num
    if "exact_count" in exceptions_of(name):
        check_emerging_density(sparse)
        return
    if method.weights is None:
        assert method.start_density is not None
        assert sparse.masks.num_on == max(1, round(method.start_density * num))
    for _ in train(sparse):
        assert sparse.density == sparse.masks.num_on / num
    while sparse.advance_():
        pass
    if options:
        assert sparse.masks.num_on == max(1, round(density * num))


def checking(method: Method) -> Method:
    """The same method, with every pick and update checked."""

    def checked(pick: Pick, candidates_of: Callable[[NetworkView], Masks] | None) -> Pick:
        def picked(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
            found = pick(net, candidates, count, draw)
            assert sum(int((chosen & ~candidates[name]).sum()) for name, chosen in found.present().items()) == 0
            assert found.present().num_on == count
            if candidates_of is not None:
                assert (candidates - candidates_of(net)).num_on == 0
            return found

        return picked

    def updated(net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        assert method.update is not None
        before = net.masks.clone()
        after = method.update(net, update, progress, draw)
        assert net.masks == before, "a method reads the live masks and never writes them"
        dropped, grown = (before - after).present().num_on, (after - before).present().num_on
        assert grown - dropped == update.num_grow - update.num_drop
        assert all(bool((after[name] | inside).all()) for name, inside in net.scope.scope.items())
        return after

    return dataclasses.replace(
        method,
        start=checked(method.start, None),
        drop=None if method.drop is None else checked(method.drop, _present),
        # What was dropped in the same update may grow again.
        grow=method.grow if method.grow is None or method.drop is not None else checked(method.grow, _missing),
        update=None if method.update is None else updated,
    )


def _present(net: NetworkView) -> Masks:
    return net.masks.present()


def _missing(net: NetworkView) -> Masks:
    return net.masks.missing()


def check_emerging_density(sparse: Attached) -> None:
    """Instead of exact counts: the masks are where weights are nonzero, and some weights are pruned."""
    scope = half_scope()
    for _ in train(sparse):
        reported, num_on = sparse.density, 0
        for name, inside in scope.items():
            num_on += int((sparse.model.get_parameter(name)[inside] != 0).sum())
        assert reported == num_on / sparse.masks.num == sparse.masks.density
    assert 0 < sparse.density < 1


def check_off_is_zero(name: str, optimizer: str) -> None:
    """Pruned weights are zero after any step and update; the model keeps its keys and finite values."""
    sparse = attached(small(name), seed=1, optimizer=optimizer)
    keys = list(sparse.model.state_dict())
    latent = "off_is_zero" in exceptions_of(name)
    assert latent == (sparse.method.weights is not None)
    for _ in train(sparse):
        assert_off_is_zero(sparse, weights_only=latent)
        with sparse.ema_weights():
            assert_off_is_zero(sparse, weights_only=True)
    assert_off_is_zero(sparse, weights_only=latent)
    assert list(sparse.model.state_dict()) == keys == list(Residual().state_dict())
    assert all(bool(torch.isfinite(value).all()) for value in sparse.model.state_dict().values())
    sparse.detach()
    assert_off_is_zero(sparse)  # latent or not: what is left is a plain model
    assert all(
        type(module) is type(other) for module, other in zip(sparse.model.modules(), Residual().modules(), strict=True)
    )
    assert not sparse.optimizer._optimizer_step_pre_hooks
    assert not sparse.optimizer._optimizer_step_post_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in sparse.model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in sparse.model.modules())


def assert_off_is_zero(sparse: Attached, *, weights_only: bool = False) -> None:
    assert sparse.density == sparse.masks.density  # reading the density refreshes the masks of latent weights
    for name, mask in sparse.masks.items():
        assert bool((sparse.model.get_parameter(name)[~mask] == 0).all()), name
        if not weights_only:
            assert all(bool((buffer[~mask] == 0).all()) for buffer in state_of(sparse, name)), name


def check_change_on_a_step(name: str, seed: int) -> int:
    """Kept weights keep value and optimizer state, new ones start at zero; returns the number of new weights."""
    sparse, num_new = attached(small(name), seed), 0
    for step in range(NUM_STEPS):
        before = sparse.masks.clone()
        with sparse.hooks_disabled():
            backward(sparse, step)
            sparse.record_gradients_()
            weights = {n: sparse.model.get_parameter(n).detach().clone() for n in before}
            buffers = {n: [buffer.clone() for buffer in state_of(sparse, n)] for n in before}
            skip = sparse.update_masks_if_due_()
            assert skip <= sparse.method.skip_step_on_update
            for n, mask in sparse.masks.items():
                both = mask & before[n]
                tensors = [sparse.model.get_parameter(n), *state_of(sparse, n)]
                for now, then in zip(tensors, [weights[n], *buffers[n]], strict=True):
                    assert torch.equal(now[both], then[both])
                    assert bool((now[~both] == 0).all())
                num_new += int((mask & ~before[n]).sum())
            if not skip:
                sparse.mask_gradients_()
                sparse.optimizer.step()
            sparse.mask_weights_()
        sparse.finish_step_()
    return num_new


def check_seed(name: str, seed: int) -> None:
    """Masks depend on the seed alone; the global generator is neither used nor advanced."""

    def visited(others: int) -> list[str]:
        torch.manual_seed(0)
        sparse = attached(small(name), seed)
        found = [sparse.masks.digest()]
        for step in range(4):
            backward(sparse, step)
            torch.manual_seed(others)
            before = torch.get_rng_state()
            sparse.optimizer.step()
            if step >= 2:
                sparse.observe(0.5)
            assert torch.equal(torch.get_rng_state(), before)
            found.append(sparse.masks.digest())
        return found

    assert visited(1) == visited(2)


def check_resume(name: str, optimizer: str, seed: int, killed: int) -> None:
    """A run that is killed and resumed in new objects ends bit-identical to an uninterrupted one."""
    sparse = attached(small(name), seed, optimizer)
    trained(sparse, 0, killed)
    # Torch's state dicts hold the live tensors; ours is a copy that training does not change.
    saved = [*copy.deepcopy([sparse.model.state_dict(), sparse.optimizer.state_dict()]), sparse.state_dict()]
    trained(sparse, killed)

    other = attached(small(name), seed + 1, optimizer, model_seed=7)
    loads = [other.model.load_state_dict, other.optimizer.load_state_dict, other.load_state_dict]
    for index in (0, 1, 2) if killed % 2 else (2, 1, 0):  # in any order
        loads[index](saved[index])
        if index == 2 and "off_is_zero" not in exceptions_of(name):
            assert_off_is_zero(other)
    trained(other, killed)

    assert other.masks == sparse.masks
    assert other.curve == sparse.curve
    for ours, theirs in ((other.model, sparse.model), (other.optimizer, sparse.optimizer), (other, sparse)):
        assert same_state(ours.state_dict(), theirs.state_dict())


def check_cost(name: str) -> None:
    """A sample's FLOPs from the masks by hand, at 25 positions of a convolution and one of a linear layer."""
    method = small(name)
    sparse = attached(method, 0)
    positions = {"stem.weight": 25, "inner.weight": 25, "hidden.weight": 1, "head.weight": 1}
    f_dense = sum(2 * num * sparse.model.get_parameter(n).numel() for n, num in positions.items())
    masks = {
        n: sparse.masks.get(n, torch.ones_like(sparse.model.get_parameter(n), dtype=torch.bool)) for n in positions
    }
    f_sparse = sum(2 * num * int(masks[n].sum()) for n, num in positions.items())
    if method.sample_flops is not None:
        trained = {n: int(mask.sum()) for n, mask in masks.items()} | sparse.method_state["trained"]
        f_trained = sum(2 * num * trained[n] for n, num in positions.items())
        assert f_sparse < f_trained < f_dense
        assert method.sample_flops(trace(Residual(), BATCH[0][:1]), sparse.scope) == 2 * f_sparse + f_trained
        return
    expected = {
        "sparse": 3 * f_sparse,
        "dense": 3 * f_dense,
        "dense_gradient_at_steps": 2 * f_sparse + f_dense,
        "batch_at_updates": 3 * f_sparse,
        "dense_gradient_at_updates": 3 * f_sparse,
    }
    graph = trace(Residual(), BATCH[0][:1])
    found = sample_flops(method.cost, forward_macs(graph, sparse.masks), forward_macs(graph))
    assert found == expected[method.cost]
