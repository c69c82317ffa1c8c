"""Sparse momentum (SNFS): momentum tells which layers and which weights to grow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.masks import Masks
from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import MaskUpdate, Method, MethodState, NetworkView, Progress
from pathgrow.methods.rewire import Rate, apportioned, count, largest, present, with_present
from pathgrow.methods.schedules import Cosine, RewireEvery, interval

_MOMENTUM = 0.9
_NEARLY_DENSE = 0.2


def snfs(
    *,
    density: float = 0.1,
    allocation: str = "equal",
    num_steps: int = 10_000,
    every: int | None = None,
    rate: float = 0.5,
) -> Method:
    """Sparse momentum (Dettmers & Zettlemoyer 2019, Sparse Networks from Scratch: Faster Training without ...).

    Rule: momentum of all weights, on or off, is kept aside. After each epoch each layer drops the share p of its
    smallest |weight|, p falling along a cosine from `rate` to a hundredth of it. What was dropped is shared out again
    among layers in proportion to their mean |momentum| over weights that were on, and grows within a layer at the
    largest |momentum|. Layers that are nearly dense and matter more than the average drop at most the share that they
    lack.

    Differences: masks change every 400 steps, about an epoch of CIFAR at a batch of 128 (500 at the paper's 100), or a
    hundred times in trainings shorter than a hundred of these, unless `every` says otherwise. The total is exact, so
    the reference code's correction of past deviations has nothing to do, and a layer can be filled to the last weight,
    not to 99%; it keeps at least one. What does not fit goes to the other layers in their proportion, not evenly. New
    weights start with zero momentum in the optimizer, as everywhere here, while the reference lets them inherit it. The
    momentum aside is that of plain gradients (0.9), without weight decay and whatever the optimizer. Start masks are
    drawn with exact counts, where the reference has them come out by chance. The change comes before the optimizer's
    step.
    """
    every = interval(every, published=400, of_steps=100 * 400, num_steps=num_steps)
    return Method(
        name="snfs",
        start=RandomByLaw(allocation),
        start_density=density,
        schedule=RewireEvery(every=every, num_steps=num_steps, first=every),
        update=_Redistribute(Cosine(first=rate, last=rate / 100, num_steps=num_steps)),
        init_state=_no_momentum,
        on_gradients=_gather_,
        clock="step",
        needs=frozenset({"gradients"}),
        cost="dense_gradient_at_steps",
    )


def _no_momentum(net: NetworkView) -> MethodState:
    return {"momentum": {name: torch.zeros_like(weight) for name, weight in net.weights().items()}}


@torch.no_grad()
def _gather_(net: NetworkView) -> None:
    gradients, momenta = net.signed_gradients(), net.method_state["momentum"]
    # Two launches for all layers: this is part of every step.
    torch._foreach_mul_(list(momenta.values()), _MOMENTUM)
    torch._foreach_add_(list(momenta.values()), [gradients[name] for name in momenta])


@dataclass(frozen=True)
class _Redistribute:
    rate: Rate

    def __call__(self, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        on, inside, weights = present(net), net.masks.scope, net.weights()
        momentum = {name: tensor.abs() for name, tensor in net.method_state["momentum"].items()}
        shares = _contributions(momentum, on)
        kept = {}
        for name, here in on.items():
            num, num_all, p = count(here), count(inside[name]), self.rate(progress.step)
            lack = 1 - num / num_all if num_all else 0.0
            if lack < _NEARLY_DENSE and shares[name] > 1 / len(shares):
                p = min(p, lack)
            num_kept = max(num - math.ceil(p * num - 1e-6), min(num, 1))
            kept[name] = largest(weights[name].abs(), here, num_kept, draw)
        free = {name: inside[name] & ~kept[name] for name in on}
        num_free = {name: count(flags) for name, flags in free.items()}
        num_dropped = sum(count(on[name]) - count(kept[name]) for name in on)
        num_grow = apportioned(num_dropped, shares, num_free)
        return with_present(
            net, {name: kept[name] | largest(momentum[name], free[name], num_grow[name], draw) for name in on}
        )


def _contributions(momentum: dict[str, Tensor], on: dict[str, Tensor]) -> dict[str, float]:
    """Mean |momentum| of what is on, as shares of one."""
    means = {name: float(momentum[name][here].double().mean()) if here.any() else 0.0 for name, here in on.items()}
    total = sum(means.values())
    return {name: mean / total if total else 0.0 for name, mean in means.items()}
