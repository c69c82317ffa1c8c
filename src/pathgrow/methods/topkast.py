"""Top-KAST: compute with the largest weights of each layer, and train somewhat more of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import require
from pathgrow.graph import Graph
from pathgrow.graph.flops import forward_macs, sample_flops
from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocate, check_distribution
from pathgrow.methods.latent import largest_in, parameter_groups
from pathgrow.methods.method import Method, MethodState, NetworkView, require_density
from pathgrow.methods.picks import all_candidates


def topkast(*, density: float = 0.1, extra_density: float = 0.1, allocation: str = "equal") -> Method:
    """Top-KAST (Jayakumar et al. 2020, Top-KAST: Top-K Always Sparse Training).

    Rule: the network computes with the largest |weight| of each layer, `density` of all. Gradients train these and the
    next largest, `extra_density` more; all other weights keep their values until they are among the largest. Weight
    decay is divided by `density` for weights that are trained but not computed with, so that the choice can change.

    Differences: the choice is made again at every step (the paper finds every hundredth enough). The coefficient of
    the penalty is the weight decay of the optimizer; what the division adds to it is part of the gradient, also if
    decay is decoupled (AdamW). The momentum of weights that are no longer trained fades. Clipping in a loop of your own
    sees the gradients of all weights.

    Parameters
    ----------
    density, extra_density : float
        Density of the weights that the network computes with, and of those trained in addition (at most all others).
    allocation : str
        Distribution of both over layers.
    """
    require_density("density", density)
    require(0 <= extra_density < 1, "extra_density", extra_density, "in [0, 1)", 0.1)
    check_distribution(allocation)
    weights = TopK(density, extra_density, allocation)
    return Method(
        name="topkast",
        start=all_candidates,
        start_density=1.0,
        init_state=weights,
        weights=weights,
        cost="more_gradients",
        sample_flops=SampleFlops(weights),
    )


@dataclass(frozen=True)
class TopK:
    """Latent weights: all of them."""

    density: float
    extra_density: float
    allocation: str

    def counts(self, scope: Masks) -> tuple[dict[str, int], dict[str, int]]:
        """How many weights of each tensor the network computes with, and how many are trained."""
        active = allocate(scope, self.density, self.allocation)
        trained = allocate(scope, min(1.0, self.density + self.extra_density), self.allocation)
        return active, {name: max(trained[name], num) for name, num in active.items()}

    def __call__(self, net: NetworkView) -> MethodState:
        """The initial state."""
        active, trained = self.counts(net.scope)
        latent = {name: weight.clone() for name, weight in net.weights().items()}
        return {"latent": latent, "active": active, "trained": trained}

    @torch.no_grad()
    def restore_latent_(self, net: NetworkView) -> None:
        weights, groups = net.weights(), parameter_groups(net)
        for name, gradient in net.signed_gradients().items():
            latent, trained = net.method_state["latent"][name], self._chosen(net, name, "trained")
            group = groups.get(name, {})
            decay = group.get("weight_decay", 0.0) * (1 / self.density - 1) * (-1 if group.get("maximize") else 1)
            gradient.add_(torch.where(self._chosen(net, name, "active"), 0, latent), alpha=decay).mul_(trained)
            # Weights that are not trained are zero meanwhile: decay must not give them momentum.
            weights[name].copy_(latent * trained)

    @torch.no_grad()
    def apply_effective_(self, net: NetworkView) -> None:
        for name, weight in net.weights().items():
            latent = net.method_state["latent"][name]
            latent.copy_(torch.where(self._chosen(net, name, "trained"), weight, latent))
            weight.copy_(latent * self._chosen(net, name, "active"))

    def masks(self, net: NetworkView) -> Masks:
        return Masks({name: self._chosen(net, name, "active") for name in net.scope}, net.scope)

    def _chosen(self, net: NetworkView, name: str, which: str) -> Tensor:
        sizes, inside = net.method_state["latent"][name].abs(), net.scope[name]
        return largest_in(sizes, inside, net.method_state[which][name]) | ~inside


@dataclass(frozen=True)
class SampleFlops:
    """The cost of a training sample, which depends on numbers of weights alone."""

    weights: TopK

    def __call__(self, graph: Graph, scope: Masks) -> int:
        active, trained = (
            forward_macs(graph, Masks({name: _first(inside, counts[name]) for name, inside in scope.items()}, scope))
            for counts in self.weights.counts(scope)
        )
        return sample_flops("more_gradients", active, trained)


def _first(inside: Tensor, num: int) -> Tensor:
    return (inside & (inside.flatten().cumsum(0) <= num).view(inside.shape)) | ~inside
