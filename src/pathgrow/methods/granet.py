"""GraNet: gradual pruning over all layers, with rewiring inside the layers at each update."""

from dataclasses import dataclass

import torch

from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress
from pathgrow.methods.picks import smallness
from pathgrow.methods.rewire import Cosine, RewireEvery, RewireLayers, masks_with
from pathgrow.methods.schedules import PruneCubically, scaled_interval

_PUBLISHED_STEPS = 160 * 390
"""On CIFAR."""


def granet(
    *,
    density: float = 0.1,
    start_density: float = 0.5,
    num_steps: int = 10_000,
    update_interval: int | None = None,
    stop_fraction: float = 0.6875,
    drop_fraction: float = 0.5,
    allocation: str = "erk",
) -> Method:
    """GraNet (Liu et al. 2021, Sparse Training via Boosting Pruning Plasticity with Neuroregeneration).

    Rule: every 1000 steps the smallest |weight| over all layers are pruned, along the cubic curve of gradual pruning
    from `start_density` (distributed by `allocation`) to `density` at `stop_fraction` of the training. Then each layer
    drops a fraction of its smallest |weight|, falling along a cosine from `drop_fraction` to a hundredth of it over the
    whole training, and grows as many by |gradient|. Rewiring continues after the pruning has ended.

    Differences: trainings shorter than the paper's 62,400 steps make as many updates as those, at shorter intervals,
    unless `update_interval` is given. Counts are exact; the number that a layer drops is rounded down, in the reference
    code up. A weight pruned and grown again in one update keeps its value and momentum; in the reference code this
    holds for what layers drop, while what was just pruned returns as zero. The update comes before the optimizer step,
    which is still made. `start_density=1.0` is the paper's pruning from a dense network.
    """
    interval = scaled_interval(update_interval, published=1000, of_steps=_PUBLISHED_STEPS, num_steps=num_steps)
    fraction = Cosine(first=drop_fraction, last=drop_fraction / 100, num_steps=num_steps)
    return Method(
        name="granet",
        start=RandomInLayers(allocation),
        start_density=start_density,
        schedule=_PruneThenRewire(
            PruneCubically(
                density=density,
                start_density=start_density,
                update_interval=interval,
                num_steps=num_steps,
                start_fraction=0.0,
                stop_fraction=stop_fraction,
            ),
            RewireEvery(update_interval=interval, num_steps=num_steps, first_step=interval),
        ),
        update=_PruneAndRewire(RewireLayers(drop_fraction=fraction, score=NetworkView.gradients)),
        final_density=density,
        num_steps=num_steps,
        clock="step",
        needs=frozenset({"gradients"}),
        cost="dense_gradient_at_updates",
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

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        on = net.masks.present()
        pruned = on - top_k(smallness(net), on, update.num_drop, draw)
        return masks_with(net, self.layers.rewired(net, pruned, progress.step, draw))
