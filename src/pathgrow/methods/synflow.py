"""SynFlow: iteratively prune the weights that carry the least path weight, without data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import require
from pathgrow.graph.paths import signals
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import Method, NetworkView


def synflow(*, density: float = 0.1, num_iterations: int = 100) -> Method:
    """SynFlow (Tanaka et al., Pruning neural networks without any data by iteratively conserving synaptic flow, 2020).

    Rule: a weight's score is |w| dR/d|w|, with R the total over all input-output paths of the product of |weights|:
    the path weight that runs through it. Iteration k of n keeps the best density^(k/n) over all layers, with scores of
    what the previous iteration has left; a single iteration would empty whole layers.

    Differences: the authors' command line defaults to one iteration. Scores are float64 with a separate scale for every
    layer, where the authors' float32 overflows on deep networks. Batch norm counts as the identity, which it is at
    initialization, and biases as zero; the authors' R includes the magnitudes of biases, which are not pruned either.

    Parameters
    ----------
    density : float
        Fraction of the prunable weights, exact to one weight.
    num_iterations : int
        Number of pruning iterations.
    """
    require(1 <= num_iterations <= 10_000, "num_iterations", num_iterations, "in [1, 10000]", 100)
    start = BySynapticFlow(num_iterations)
    return Method(name="synflow", start=start, start_density=density, needs=frozenset({"paths"}))


@dataclass(frozen=True)
class BySynapticFlow:
    """The start pick of SynFlow."""

    num_iterations: int

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        empty, num = Masks.empty(candidates), candidates.num_on
        weights = net.weights()
        kept, opened = candidates, None
        for iteration in range(1, self.num_iterations + 1):
            num_kept = round(num * (count / num) ** (iteration / self.num_iterations))
            if num_kept == kept.num_on:
                continue
            flow = signals(net.model, net.example_input, empty | kept, opened=opened)
            opened = flow.opened
            net.charge(path_passes=1)
            if float(flow.trace.total.detach()) == 0:
                # Fewer weights than a path needs: all scores are equal.
                scores: dict[str, Tensor] = {name: torch.zeros_like(weight) for name, weight in weights.items()}
            else:
                scores = {n: score * weights[n].abs() for n, score in flow.scores() if n in weights}
            kept = top_k(scores, kept, num_kept, draw)
        return kept
