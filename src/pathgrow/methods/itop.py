"""ITOP: rewiring at long intervals, to the end, so that as many weights as possible were in use at some time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pathgrow.errors import unknown_name
from pathgrow.masks import Masks
from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import MaskUpdate, Method, MethodState, NetworkView, Progress
from pathgrow.methods.rewire import RewireLayers, count
from pathgrow.methods.schedules import Cosine, RewireEvery, interval

Criterion = Literal["gradient", "random"]
_EVERY = {"gradient": 4000, "random": 1500}
_PUBLISHED_STEPS = 250 * 390
"""Of the paper's trainings on CIFAR."""


def itop(
    *,
    density: float = 0.1,
    allocation: str = "erk",
    num_steps: int = 10_000,
    criterion: Criterion = "gradient",
    every: int | None = None,
    rate: float = 0.5,
) -> Method:
    """In-time over-parameterization (Liu et al. 2021, Do We Actually Need Dense Over-Parameterization?).

    Rule: RigL's rewiring (`criterion="gradient"`, every 4000 steps) or SET's ("random", every 1500), so seldom that new
    weights have time to grow; no end; the dropped share falls from `rate` to a hundredth of it over `num_steps`.
    `memory["explored"]` of the attachment is the share of all switchable weights that was on at some time (the paper's
    R_s).

    Differences: shorter trainings than the paper's 97,500 steps change their masks as many times as those, at shorter
    intervals, unless `every` says otherwise; at its own intervals a short one would never change them. Exact counts in
    place of Bernoulli masks. The change comes before the optimizer's step, which is made.
    """
    if criterion not in _EVERY:
        raise unknown_name("criterion", criterion, _EVERY)
    by_gradient = criterion == "gradient"
    every = interval(every, published=_EVERY[criterion], of_steps=_PUBLISHED_STEPS, num_steps=num_steps)
    score = NetworkView.gradients if by_gradient else None
    return Method(
        name="itop",
        start=RandomByLaw(allocation),
        start_density=density,
        schedule=RewireEvery(every=every, num_steps=num_steps, first=every),
        update=_Explore(RewireLayers(rate=Cosine(first=rate, last=rate / 100, num_steps=num_steps), score=score)),
        init_state=_first_seen,
        clock="step",
        needs=frozenset({"gradients"}) if by_gradient else frozenset(),
        cost="dense_gradient_at_changes" if by_gradient else "sparse",
    )


def _first_seen(net: NetworkView) -> MethodState:
    return {"ever_on": dict(net.masks.present()), "explored": net.masks.density}


@dataclass(frozen=True)
class _Explore:
    layers: RewireLayers

    def __call__(self, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        masks, ever_on = self.layers(net, change, progress, draw), net.method_state["ever_on"]
        for name, on in masks.present().items():
            ever_on[name] |= on
        net.method_state["explored"] = sum(map(count, ever_on.values())) / masks.num
        return masks
