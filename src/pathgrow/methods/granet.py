"""GraNet: gradual pruning over all layers, with rewiring inside the layers at each step of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress
from pathgrow.methods.picks import smallness
from pathgrow.methods.rewire import RewireLayers, with_present
from pathgrow.methods.schedules import Cosine, PruneCubically, RewireEvery, interval

_PUBLISHED_STEPS = 160 * 390
"""Of the paper's trainings on CIFAR."""


def granet(
    *,
    density: float = 0.1,
    start_density: float = 0.5,
    num_steps: int = 10_000,
    every: int | None = None,
    end: float = 0.6875,
    rate: float = 0.5,
    allocation: str = "erk",
) -> Method:
    """GraNet (Liu et al. 2021, Sparse Training via Boosting Pruning Plasticity with Neuroregeneration).

    Rule: every 1000 steps the smallest |weight| over all layers go, along the cubic curve of gradual pruning from
    `start_density` (shared out by `allocation`) to `density` at the share `end` of the training. Then each layer drops
    the share `rate`, falling along a cosine to a hundredth over the whole training, of its smallest |weight| and grows
    as many by |gradient|. Rewiring goes on after the pruning has ended.

    Differences: trainings shorter than the paper's 62,400 steps change their masks as many times as those, at shorter
    intervals, unless `every` says otherwise. Counts are exact. What is switched off and grown again in one change keeps
    its weight and momentum; in the reference code this holds for what layers drop, while what was pruned a moment
    before returns as zero. The change comes before the optimizer's step, which is made. `start_density=1.0` is the
    paper's pruning from a dense network.
    """
    every = interval(every, published=1000, of_steps=_PUBLISHED_STEPS, num_steps=num_steps)
    return Method(
        name="granet",
        start=RandomByLaw(allocation),
        start_density=start_density,
        schedule=_PruneThenRewire(
            PruneCubically(
                density=density, start_density=start_density, every=every, num_steps=num_steps, begin=0.0, end=end
            ),
            RewireEvery(every=every, num_steps=num_steps, first=every),
        ),
        update=_PruneAndRewire(
            RewireLayers(rate=Cosine(first=rate, last=rate / 100, num_steps=num_steps), score=NetworkView.gradients)
        ),
        clock="step",
        needs=frozenset({"gradients"}),
        cost="dense_gradient_at_changes",
    )


@dataclass(frozen=True)
class _PruneThenRewire:
    prune: PruneCubically
    rewire: RewireEvery

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        return self.prune(progress) or self.rewire(progress)


@dataclass(frozen=True)
class _PruneAndRewire:
    layers: RewireLayers

    def __call__(self, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        on = net.masks.present()
        pruned = on - top_k(smallness(net), on, change.num_drop, draw)
        return with_present(net, self.layers.rewired(net, pruned, progress.step, draw))
