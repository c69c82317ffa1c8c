"""ITOP: rewiring at long intervals to the end of training, so that many weights are active at some time."""

from dataclasses import dataclass
from typing import Literal

import torch

from pathgrow.errors import unknown_name
from pathgrow.masks import Masks
from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import MaskUpdate, Method, MethodState, NetworkView, Progress
from pathgrow.methods.rewire import Cosine, RewireEvery, RewireLayers, num_true
from pathgrow.methods.schedules import scaled_interval

Criterion = Literal["gradient", "random"]
_PUBLISHED_INTERVAL = {"gradient": 4000, "random": 1500}
_PUBLISHED_STEPS = 250 * 390
"""On CIFAR."""


def itop(
    *,
    density: float = 0.1,
    allocation: str = "erk",
    num_steps: int = 10_000,
    criterion: Criterion = "gradient",
    update_interval: int | None = None,
    drop_fraction: float = 0.5,
) -> Method:
    """In-time over-parameterization (Liu et al. 2021, Do We Actually Need Dense Over-Parameterization?).

    Rule: the updates of RigL (`criterion="gradient"`, every 4000 steps) or SET ("random", every 1500), rare enough for
    new weights to train; no stop; the drop fraction falls from `drop_fraction` to a hundredth of it over `num_steps`.
    `method_state["explored"]` of the attachment is the fraction of all prunable weights that was active at some time
    (the paper's R_s).

    Differences: trainings shorter than the paper's 97,500 steps make as many updates as those, at shorter intervals,
    unless `update_interval` is given; at the published intervals a short one would make none. Counts are exact, not
    Bernoulli; the number that a layer drops is rounded down, in the reference code up. The update comes before the
    optimizer step, which is still made.
    """
    if criterion not in _PUBLISHED_INTERVAL:
        raise unknown_name("criterion", criterion, _PUBLISHED_INTERVAL)
    by_gradient = criterion == "gradient"
    interval = scaled_interval(
        update_interval, published=_PUBLISHED_INTERVAL[criterion], of_steps=_PUBLISHED_STEPS, num_steps=num_steps
    )
    fraction = Cosine(first=drop_fraction, last=drop_fraction / 100, num_steps=num_steps)
    return Method(
        name="itop",
        start=RandomInLayers(allocation),
        start_density=density,
        schedule=RewireEvery(update_interval=interval, num_steps=num_steps, first_step=interval),
        update=_Explore(RewireLayers(drop_fraction=fraction, score=NetworkView.gradients if by_gradient else None)),
        init_state=_initially_explored,
        clock="step",
        needs=frozenset({"gradients"}) if by_gradient else frozenset(),
        cost="dense_gradient_at_updates" if by_gradient else "sparse",
    )


def _initially_explored(net: NetworkView) -> MethodState:
    return {"ever_on": dict(net.masks.present()), "explored": net.masks.density}


@dataclass(frozen=True)
class _Explore:
    layers: RewireLayers

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        masks, ever_on = self.layers(net, update, progress, draw), net.method_state["ever_on"]
        for name, on in masks.present().items():
            ever_on[name] |= on
        net.method_state["explored"] = sum(map(num_true, ever_on.values())) / masks.num
        return masks
