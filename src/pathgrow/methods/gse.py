"""Guided stochastic exploration (GSE): look for large gradients in a small random sample of weights."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pathgrow.errors import UserError, unknown_name
from pathgrow.masks import Masks
from pathgrow.masks.sampling import ZeroScores, sample_proportional, top_k
from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.layer_signals import gradient_estimates
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress, floor_of
from pathgrow.methods.picks import magnitudes
from pathgrow.methods.rewire import Rate, any_of, count
from pathgrow.methods.schedules import Cosine, RewireEvery, interval

Guide = Literal["uniform", "grabo", "graest"]
_GUIDES = ("uniform", "grabo", "graest")
_PUBLISHED_STEPS = 200 * 390
"""Of the paper's trainings on CIFAR."""
_DENSE_ENOUGH = 0.5
"""From this density on, a layer's missing weights are all candidates."""


def gse(
    *,
    density: float = 0.1,
    allocation: str = "er_matrix",
    num_steps: int = 10_000,
    every: int | None = None,
    rate: float = 0.2,
    end: float = 0.6,
    guide: Guide = "graest",
    gamma: float = 1.0,
) -> Method:
    """GSE (Heddes et al. 2024, Always-Sparse Training by Growing Connections with Guided Stochastic Exploration).

    Rule: every 1000 steps each layer draws `gamma` times its number of weights as candidates among those that are off:
    any ("uniform"), or in proportion to what its input and its output say about its gradient, a bound ("grabo") or a
    random-sign sketch of it ("graest"). Over all layers the candidates with the largest |gradient| grow, a share of the
    weights that falls from `rate` along a cosine to zero at `end`; as many of the old go, the smallest |weight| over
    all layers. "grabo" and "graest" need `loss` and `batches`.

    Differences: trainings shorter than the paper's 78,000 steps change their masks as many times as those, at shorter
    intervals, unless `every` says otherwise. The reference code draws candidates with replacement, some of them already
    on, and reads only the first row of a convolution's output gradient; here they are distinct, off, and read
    everywhere. Counts are exact where it uses Bernoulli masks and clips layer densities above one. Signs are drawn, not
    hashed. Input and output are read on one batch of `batches` (the code takes ten samples of each class), while
    candidates are ranked by the gradient of the step. Weights move between layers as in the code; its supplement also
    describes moves within them. At first they are the model's own, where the code draws them for the number of inputs
    that are on. Weights that no linear or convolution layer uses as its own are drawn uniformly.

    Parameters
    ----------
    density, allocation
        Of all switchable weights, and how it is shared out at first.
    num_steps, every, end
        Steps of the training, between changes, and the share of the training after which masks stay.
    rate, guide, gamma
        Share of weights that moves at first; how candidates are drawn, and how many per weight that is on.
    """
    every = interval(every, published=1000, of_steps=_PUBLISHED_STEPS, num_steps=num_steps)
    if guide not in _GUIDES:
        raise unknown_name("guide", guide, _GUIDES)
    if not 0 < gamma < math.inf:
        raise UserError(f"gamma {gamma!r} was given, a number of candidates per weight above 0 is wanted: give 1.0")
    return Method(
        name="gse",
        start=RandomByLaw(allocation),
        start_density=density,
        schedule=RewireEvery(every=every, num_steps=num_steps, first=every, end=end),
        update=_Explore(Cosine(first=rate, num_steps=end * num_steps), guide, gamma),
        clock="step",
        needs=frozenset({"gradients"} if guide == "uniform" else {"gradients", "data"}),
        cost="sparse" if guide == "uniform" else "batch_at_changes",
    )


@dataclass(frozen=True)
class _Explore:
    rate: Rate
    guide: Guide
    gamma: float

    def __call__(self, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        candidates = self._candidates(net, draw)
        num_moved = min(floor_of(self.rate(progress.step) * progress.num_on), candidates.num_on)
        grown = top_k(net.gradients(), candidates, num_moved, draw)
        kept = top_k(magnitudes(net), net.masks.present(), progress.num_on - num_moved, draw)
        return Masks.empty(net.masks.scope) | kept | grown

    def _candidates(self, net: NetworkView, draw: torch.Generator) -> Masks:
        estimates: dict[str, Tensor] = {}
        if self.guide != "uniform":
            estimates = gradient_estimates(net, "bound" if self.guide == "grabo" else "sketch", draw)
        scope, missing, chosen = net.masks.scope, net.masks.missing(), {}
        for name, off in missing.items():
            num_all, num_off = count(scope[name]), count(off)
            num_on = num_all - num_off
            num = min(max(1, floor_of(self.gamma * num_on)), num_off)
            if num_on >= _DENSE_ENOUGH * num_all:
                chosen[name] = off
            elif name not in estimates:
                chosen[name] = any_of(off, num, draw)
            else:
                layer = Masks.select({name: off}, {name: scope[name]})
                with warnings.catch_warnings():
                    # Units that nothing passes through leave zeros, which are drawn uniformly and last.
                    warnings.simplefilter("ignore", ZeroScores)
                    chosen[name] = sample_proportional(estimates, layer, num, draw)[name]
        return Masks.select(chosen, scope)
