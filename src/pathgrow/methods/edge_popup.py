"""Edge-popup: weights stay frozen at initialization; training learns which of them to use."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocate
from pathgrow.methods.latent import largest_in, latent_method
from pathgrow.methods.method import Method, MethodState, NetworkView, require_density
from pathgrow.rng import generator


def edge_popup(*, density: float = 0.5, constant: bool = True) -> Method:
    """Edge-popup (Ramanujan et al. 2020, What's Hidden in a Randomly Weighted Neural Network?).

    Rule: weights are frozen; each has a score, and every layer computes with the same fraction of its weights, those
    with the largest |score|. The gradient is straight-through: the gradient of a score is that of its weight times the
    weight, whether it is selected or not. Scores start Kaiming-uniform.

    Differences: any optimizer trains the scores; parameters outside the scope (biases, norms), frozen or absent in the
    paper, are trained as usual. In the authors' code one argument is the fraction kept while scores are trained and the
    fraction removed elsewhere; here it is the fraction kept. Clipping in a loop of your own sees the gradients of the
    effective weights, not those of the scores, which are computed from them before the optimizer step.

    Parameters
    ----------
    density : float
        Fraction kept in each layer; counts are rounded to an exact sum, and every layer keeps at least one weight.
    constant : bool
        Frozen weights keep their initial sign and get one magnitude per layer, sqrt(2 / fan in), the paper's best
        setting; False: their initial values.
    """
    require_density("density", density)
    return latent_method("edge_popup", Popup(density, constant))


@dataclass(frozen=True)
class Popup:
    """Latent weights of edge-popup: the scores, and outside the scope the weights themselves."""

    density: float
    constant: bool

    def __call__(self, net: NetworkView) -> MethodState:
        """The initial state."""
        frozen, scores = {}, {}
        for name, weight in net.weights().items():
            inside, fan_in = net.scope[name], weight[0].numel()
            size = math.sqrt(2 / fan_in)
            frozen[name] = torch.where(weight < 0, -size, size).to(weight) if self.constant else weight.clone()
            noise = torch.rand(weight.shape, generator=generator(net.seed, "scores", name))
            scores[name] = torch.where(inside, ((2 * noise - 1) / math.sqrt(fan_in)).to(weight), weight)
            weight.copy_(scores[name])
        return {"frozen": frozen, "scores": scores, "kept": allocate(net.scope, self.density, "equal")}

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
        """The exact number to keep, by |score|."""
        return largest_in(net.method_state["scores"][name].abs(), net.scope[name], net.method_state["kept"][name])
