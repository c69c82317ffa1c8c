"""CHTs: drop weights at random, the smaller the likelier; grow where a layer's graph predicts links."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import require
from pathgrow.masks import Masks
from pathgrow.masks.sampling import sample_in
from pathgrow.methods.allocation import allocate_count, check_distribution
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress, floor_of
from pathgrow.methods.rewire import Cosine, DropFraction, RewireEvery, active, masks_with, num_true
from pathgrow.methods.schedules import scaled_interval

_FIRST_EXPONENT, _LAST_EXPONENT = 1.0, 9.0


def chts(
    *,
    density: float = 0.1,
    randomness: float = 0.3,
    allocation: str = "equal",
    num_steps: int = 10_000,
    update_interval: int | None = None,
    drop_fraction: float = 0.1,
    stop_fraction: float = 0.75,
) -> Method:
    """CHTs (Zhang et al. 2025, Brain network science modelling of sparse neural networks ...).

    Rule: the initial mask of each layer (BRF) prefers connections between units at similar positions on two rings. At
    an update each layer keeps weights drawn in proportion to |weight|^a, where a rises linearly from 1 to 9, and drops
    a fraction that falls along a cosine from `drop_fraction` to zero at `stop_fraction` of the training. It grows as
    many, drawn in proportion to the link prediction score CH2-L3n: over the units u' on its own side that are connected
    to the other end and share c > 0 neighbors with this end, the sum of (c + 1) / max(degree - c, 1), from both ends.
    The score reads masks only; it takes products of matrices as large as the layers, which small batches do not repay.
    The update replaces the optimizer step.

    Differences: the paper has linear layers; a convolution is a matrix with a column for each kernel position of its
    inputs. New weights are drawn, as in the paper; the reference code takes the largest scores, treats attention heads
    separately, and can remove connections to units that lost all others. Degrees of initial masks vary as in
    independent draws. The paper's density decay (CHTss) and its learning-rate warm-up after updates are left out.
    Trainings shorter than its 10,000 steps make as many updates, unless `update_interval` is given.

    Parameters
    ----------
    density, allocation
        Overall density of the prunable weights, and its distribution over layers.
    randomness : float
        The paper's r, in (0, 1]: 1 draws initial masks uniformly. The paper reports the best of a grid for each
        network; 0.3 is the example of the reference code.
    num_steps, update_interval, stop_fraction
        Steps of the training, steps between mask updates, and the fraction of the training after which masks are final.
    drop_fraction : float
        Initial fraction of a layer's active weights to drop.
    """
    interval = scaled_interval(update_interval, published=100, of_steps=10_000, num_steps=num_steps)
    last_step = stop_fraction * num_steps
    return Method(
        name="chts",
        start=ReceptiveFields(randomness, allocation),
        start_density=density,
        schedule=RewireEvery(
            update_interval=interval, num_steps=num_steps, first_step=interval, stop_fraction=stop_fraction
        ),
        update=_Rewire(Cosine(first=drop_fraction, num_steps=last_step), last_step),
        clock="step",
        skip_step_on_update=True,
        update_flops=_link_flops,
    )


@dataclass(frozen=True)
class ReceptiveFields:
    """Start pick: bipartite receptive fields (BRF), drawn in proportion to (1 + distance)^-((1 - r) / r)."""

    randomness: float
    allocation: str

    def __post_init__(self) -> None:
        require(0 < self.randomness <= 1, "randomness", self.randomness, "in (0, 1]", 0.3)
        check_distribution(self.allocation)

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        counts = allocate_count(candidates, count, self.allocation)
        free = candidates.present()
        picked = {name: sample_in(self.closeness(here), here, counts[name], draw) for name, here in free.items()}
        return Masks.select(picked, candidates.scope)

    def closeness(self, tensor: Tensor) -> Tensor:
        """What connections of a weight tensor are drawn in proportion to."""
        num_out, num_in = tensor.shape[0], math.prod(tensor.shape[1:])
        few, many = min(num_out, num_in), max(num_out, num_in)
        centers = torch.arange(few, dtype=torch.float64) * (many // few)
        gaps = (torch.arange(many, dtype=torch.float64) - centers[:, None]).abs()
        scores = (1 + torch.minimum(gaps, many - gaps)) ** (1 - 1 / self.randomness)
        return (scores if num_out == few else scores.T).reshape(tensor.shape).to(tensor.device)


def link_scores(kept: Tensor) -> Tensor:
    """CH2-L3n of every position of a layer, for which it is a bipartite graph of outputs and inputs."""
    graph = kept.flatten(1).double()
    return (_one_side(graph) + _one_side(graph.T).T).view(kept.shape)


def _one_side(graph: Tensor) -> Tensor:
    shared = graph @ graph.T
    likeness = (shared + 1) * (shared > 0) / (graph.sum(1) - shared).clamp_(min=1)
    return likeness @ graph


def _link_flops(scope: Masks) -> int:
    """Of the four matrix products for the scores of each layer."""
    shapes = [(inside.shape[0], math.prod(inside.shape[1:])) for inside in scope.values()]
    return sum(4 * num_out * num_in * (num_out + num_in) for num_out, num_in in shapes)


@dataclass(frozen=True)
class _Rewire:
    drop_fraction: DropFraction
    last_step: float

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        weights, inside, result = net.weights(), net.masks.scope, {}
        fraction, done = self.drop_fraction(progress.step), min(1.0, progress.step / self.last_step)
        exponent = _FIRST_EXPONENT + (_LAST_EXPONENT - _FIRST_EXPONENT) * done
        for name, on in active(net).items():
            num = num_true(on)
            num_drop = floor_of(fraction * num)
            kept = sample_in(weights[name].double().abs() ** exponent, on, num - num_drop, draw)
            result[name] = kept | sample_in(link_scores(kept), inside[name] & ~kept, num_drop, draw)
        return masks_with(net, result)
