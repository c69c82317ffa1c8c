"""Sparse momentum (SNFS): momentum decides which layers and which weights to grow."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k_in
from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import MaskUpdate, Method, MethodState, NetworkView, Progress
from pathgrow.methods.rewire import Cosine, DropFraction, RewireEvery, active, apportion, masks_with, num_true
from pathgrow.methods.schedules import scaled_interval

_MOMENTUM = 0.9
_NEARLY_DENSE = 0.2


def snfs(
    *,
    density: float = 0.1,
    allocation: str = "equal",
    num_steps: int = 10_000,
    update_interval: int | None = None,
    drop_fraction: float = 0.5,
) -> Method:
    """Sparse momentum (Dettmers & Zettlemoyer 2019, Sparse Networks from Scratch: Faster Training without ...).

    Rule: the method keeps the momentum of all weights, active or not. After each epoch each layer drops a fraction p of
    its smallest |weight|, p falling along a cosine from `drop_fraction` to a hundredth of it. The dropped number is
    redistributed among layers in proportion to their mean |momentum| over active weights, and grows within a layer at
    the largest |momentum|. Layers that are nearly dense and contribute more than the average drop at most the fraction
    that they lack.

    Differences: masks are updated every 400 steps, about an epoch of CIFAR at batch size 128 (500 at the paper's 100),
    or a hundred times in shorter trainings, unless `update_interval` is given. The total is exact, so the reference
    code's correction of past deviations is not needed, and a layer can become fully dense, not only 99%; it keeps at
    least one weight. What does not fit goes to the other layers in proportion, not evenly. New weights start with zero
    momentum in the optimizer, as everywhere here, while the reference lets them inherit it. The method's momentum is
    that of plain gradients (0.9), without weight decay and for any optimizer. Initial masks have exact counts, not
    Bernoulli ones. The update comes before the optimizer step.
    """
    interval = scaled_interval(update_interval, published=400, of_steps=100 * 400, num_steps=num_steps)
    return Method(
        name="snfs",
        start=RandomInLayers(allocation),
        start_density=density,
        schedule=RewireEvery(update_interval=interval, num_steps=num_steps, first_step=interval),
        update=_Redistribute(Cosine(first=drop_fraction, last=drop_fraction / 100, num_steps=num_steps)),
        init_state=_zero_momentum,
        on_gradients=_accumulate_,
        clock="step",
        needs=frozenset({"gradients"}),
        cost="dense_gradient_at_steps",
    )


def _zero_momentum(net: NetworkView) -> MethodState:
    return {"momentum": {name: torch.zeros_like(weight) for name, weight in net.weights().items()}}


@torch.no_grad()
def _accumulate_(net: NetworkView) -> None:
    gradients, momenta = net.signed_gradients(), net.method_state["momentum"]
    # Two launches for all layers: this is part of every step.
    torch._foreach_mul_(list(momenta.values()), _MOMENTUM)
    torch._foreach_add_(list(momenta.values()), [gradients[name] for name in momenta])


@dataclass(frozen=True)
class _Redistribute:
    drop_fraction: DropFraction

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        on, inside, weights = active(net), net.masks.scope, net.weights()
        momentum = {name: tensor.abs() for name, tensor in net.method_state["momentum"].items()}
        shares = _contributions(momentum, on)
        kept = {}
        for name, here in on.items():
            num, num_all, p = num_true(here), num_true(inside[name]), self.drop_fraction(progress.step)
            lack = 1 - num / num_all if num_all else 0.0
            if lack < _NEARLY_DENSE and shares[name] > 1 / len(shares):
                p = min(p, lack)
            num_kept = max(num - math.ceil(p * num - 1e-6), min(num, 1))
            kept[name] = top_k_in(weights[name].abs(), here, num_kept, draw)
        free = {name: inside[name] & ~kept[name] for name in on}
        num_free = {name: num_true(flags) for name, flags in free.items()}
        num_dropped = sum(num_true(on[name]) - num_true(kept[name]) for name in on)
        num_grow = apportion(num_dropped, shares, num_free)
        return masks_with(
            net, {name: kept[name] | top_k_in(momentum[name], free[name], num_grow[name], draw) for name in on}
        )


def _contributions(momentum: dict[str, Tensor], on: dict[str, Tensor]) -> dict[str, float]:
    """Mean |momentum| of the active weights of each layer, normalized to sum to one."""
    means = {name: float(momentum[name][here].double().mean()) if here.any() else 0.0 for name, here in on.items()}
    total = sum(means.values())
    return {name: mean / total if total else 0.0 for name, mean in means.items()}
