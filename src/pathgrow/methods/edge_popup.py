"""Edge-popup: the weights stay as they were drawn, what is learned is which of them to use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocated
from pathgrow.methods.method import Method, MethodState, NetworkView, require_density
from pathgrow.methods.picks import everything
from pathgrow.rng import generator


def edge_popup(*, density: float = 0.5, constant: bool = True) -> Method:
    """Edge-popup (Ramanujan et al. 2020, What's Hidden in a Randomly Weighted Neural Network?).

    Rule: weights are frozen; each has a score, and every layer computes with the same share of its weights, those with
    the largest |score|. The loss gradient goes straight through the choice: a score moves by that of its weight times
    the weight, whether it is chosen or not. Scores start Kaiming-uniform.

    Differences: the optimizer moves the scores, whichever it is; what is not in scope (biases, norms), frozen or absent
    in the paper, it trains as ever. In the authors' code one argument is the share kept while scores are trained and
    the share removed elsewhere; here it is the share kept.

    Parameters
    ----------
    density : float
        Kept share of each layer; numbers are rounded to an exact sum, and no layer is left without a weight.
    constant : bool
        Frozen weights have the sign that they were drawn with and one magnitude per layer, sqrt(2 / fan in), the
        paper's best; False: as they were drawn.
    """
    require_density("density", density)
    weights = Popup(density, constant)
    return Method(
        name="edge_popup",
        start=everything,
        start_density=1.0,
        init_state=weights,
        weights=weights,
        needs=frozenset({"dense"}),
        cost="dense",
    )


@dataclass(frozen=True)
class Popup:
    """The hidden weights that training moves are the scores; outside the scope they are the weights themselves."""

    density: float
    constant: bool

    def __call__(self, net: NetworkView) -> MethodState:
        """What is remembered at first."""
        frozen, scores = {}, {}
        for name, weight in net.weights().items():
            inside, fan_in = net.scope[name], weight[0].numel()
            size = math.sqrt(2 / fan_in)
            frozen[name] = torch.where(weight < 0, -size, size).to(weight) if self.constant else weight.clone()
            noise = torch.rand(weight.shape, generator=generator(net.seed, "scores", name))
            scores[name] = torch.where(inside, ((2 * noise - 1) / math.sqrt(fan_in)).to(weight), weight)
            weight.copy_(scores[name])
        return {"frozen": frozen, "scores": scores, "kept": allocated(net.scope, self.density, "equal")}

    @torch.no_grad()
    def restore_latent_(self, net: NetworkView) -> None:
        weights = net.weights()
        for name, gradient in net.signed_gradients().items():
            scores = net.method_state["scores"][name]
            gradient.mul_(torch.where(net.scope[name], net.method_state["frozen"][name] * scores.sign(), 1))
            weights[name].copy_(scores)

    @torch.no_grad()
    def apply_effective_(self, net: NetworkView) -> None:
        for name, weight in net.weights().items():
            net.method_state["scores"][name].copy_(weight)
            chosen = torch.where(self._chosen(net, name), net.method_state["frozen"][name], 0)
            weight.copy_(torch.where(net.scope[name], chosen, weight))

    def masks(self, net: NetworkView) -> Masks:
        return Masks({name: self._chosen(net, name) | ~inside for name, inside in net.scope.items()}, net.scope)

    def _chosen(self, net: NetworkView, name: str) -> Tensor:
        """Exactly as many as are kept, by |score|; which of two equal ones is left to the device."""
        sizes = torch.where(net.scope[name], net.method_state["scores"][name].abs(), -1).flatten()
        best = torch.topk(sizes, net.method_state["kept"][name], sorted=False).indices
        return torch.zeros_like(sizes, dtype=torch.bool).index_fill_(0, best, True).view(net.scope[name].shape)
