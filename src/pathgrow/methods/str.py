"""Soft threshold reparameterization (STR): the sparsity of each layer is learned."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgrow.errors import require
from pathgrow.masks import Masks
from pathgrow.methods.latent import latent_method, parameter_groups
from pathgrow.methods.method import Method, MethodState, NetworkView
from pathgrow.methods.schedules import require_steps

ACTIVE_S = -5.0
"""An s from which on its gradient matters: the threshold is 0.007, a few percent of a typical weight."""


def soft_threshold(*, s_init: float | None = None, s_decay: float | None = None, num_steps: int = 10_000) -> Method:
    """STR (Kusupati et al. 2020, Soft Threshold Weight Reparameterization for Learnable Sparsity).

    Rule: the network computes with sign(W) relu(|W| - sigmoid(s)), with one s for each weight tensor; the loss gradient
    trains W and s. A very negative s has neither effect nor gradient: weight decay raises it. The density is not an
    option: it emerges from `s_init`, the weight decay and the length of training, and is reported.

    Differences: by default `s_init` depends on the length of the training: weight decay alone brings every s to -5
    halfway through, so that thresholds become effective in short trainings as in long ones (the paper's ResNet-50 would
    start at -1,600; its own -3,200 never becomes effective in anything much shorter). Any optimizer trains W. Each s is
    trained by SGD with the learning rate, momentum and weight decay that the optimizer has for its tensor, and takes no
    part in gradient clipping. Clipping in a loop of your own sees the gradients of the effective weights, also of those
    that are zero.

    Parameters
    ----------
    s_init : float, optional
        Initial value of every s; None: derived from the length of the training. Closer to zero prunes more.
    s_decay : float, optional
        Weight decay of every s; None: that of its tensor. More decay prunes more.
    num_steps : int
        Steps of the training.
    """
    require_steps(1, num_steps)
    if s_init is not None:
        require(math.isfinite(s_init), "s_init", s_init, "finite", -5.0)
    if s_decay is not None:
        require(0 <= s_decay < math.inf, "s_decay", s_decay, ">= 0", 1e-4)
    return latent_method("str", SoftThreshold(s_init, s_decay, num_steps))


@dataclass(frozen=True)
class SoftThreshold:
    """Latent weights W, and for each tensor an s with its momentum."""

    s_init: float | None
    s_decay: float | None
    num_steps: int

    def __call__(self, net: NetworkView) -> MethodState:
        """The initial state."""
        weights, groups = net.weights(), parameter_groups(net)
        # s decays over the whole training, which half precision cannot represent.
        zeros = {n: w.new_zeros((), dtype=torch.promote_types(w.dtype, torch.float32)) for n, w in weights.items()}
        return {
            "latent": {name: weight.clone() for name, weight in weights.items()},
            "s": {name: torch.full_like(zero, self._initial_s(groups.get(name))) for name, zero in zeros.items()},
            "momentum": zeros,
        }

    def _initial_s(self, group: dict[str, Any] | None) -> float:
        """The s that decay brings to `ACTIVE_S` halfway, for a learning rate that averages half of its peak."""
        if self.s_init is not None:
            return self.s_init
        if group is None:
            return ACTIVE_S  # not trained
        rate = _peak(group) * self._decay(group) / (1 - group.get("momentum", 0.0))
        return ACTIVE_S * math.exp(min(rate * self.num_steps / 2 / 2, 20.0))

    def _decay(self, group: dict[str, Any]) -> float:
        return float(group.get("weight_decay", 0.0) if self.s_decay is None else self.s_decay)

    @torch.no_grad()
    def restore_latent_(self, net: NetworkView) -> None:
        weights, group_of = net.weights(), parameter_groups(net)
        for name, gradient in net.signed_gradients().items():
            latent, s = net.method_state["latent"][name], net.method_state["s"][name]
            threshold, inside = torch.sigmoid(s), net.scope[name]
            gradient.masked_fill_((latent.abs() <= threshold) & inside, 0)
            if name in group_of:  # otherwise it is not trained
                slope = (gradient * latent.sign() * inside).sum() * -threshold * (1 - threshold)
                self._step_(s, net.method_state["momentum"][name], slope, group_of[name])
            weights[name].copy_(latent)

    def _step_(self, s: Tensor, momentum: Tensor, slope: Tensor, group: dict[str, Any]) -> None:
        slope = (-slope if group.get("maximize") else slope) + self._decay(group) * s
        inertia = group.get("momentum", 0.0)
        momentum.mul_(inertia).add_(slope)
        s.sub_(group["lr"] * (slope + inertia * momentum if group.get("nesterov") else momentum))

    @torch.no_grad()
    def apply_effective_(self, net: NetworkView) -> None:
        for name, weight in net.weights().items():
            net.method_state["latent"][name].copy_(weight)
            weight.copy_(self._effective(net, name))

    def masks(self, net: NetworkView) -> Masks:
        return Masks({n: (self._effective(net, n) != 0) | ~inside for n, inside in net.scope.items()}, net.scope)

    def _effective(self, net: NetworkView, name: str) -> Tensor:
        latent = net.method_state["latent"][name]
        soft = latent.sign() * (latent.abs() - torch.sigmoid(net.method_state["s"][name])).relu()
        return torch.where(net.scope[name], soft, latent)


def _peak(group: dict[str, Any]) -> float:
    """The peak learning rate: torch's schedulers record it, and a warm-up has already lowered the current one."""
    return max(float(group[name]) for name in ("lr", "initial_lr", "max_lr") if name in group)
