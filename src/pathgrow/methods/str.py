"""Soft threshold reparameterisation (STR): how sparse each layer becomes is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import Method, MethodState, NetworkView
from pathgrow.methods.picks import everything
from pathgrow.methods.schedules import require_steps

AWAKE = -5.0
"""An s from which on its gradient counts: the threshold is 0.007, a few percent of a usual weight."""


def soft_threshold(*, start: float | None = None, decay: float | None = None, num_steps: int = 10_000) -> Method:
    """STR (Kusupati et al. 2020, Soft Threshold Weight Reparameterization for Learnable Sparsity).

    Rule: the network computes with sign(W) relu(|W| - sigmoid(s)), one s for each weight tensor; the loss gradient
    moves W and s. A very negative s is no threshold and has no gradient: weight decay pulls it up. The density is
    nowhere given: it emerges from `start`, the decay and the length of training, and is reported.

    Differences: `start` follows the length of the training unless it is given: decay alone then brings every s to -5
    half-way on its whole course, so that thresholds wake in a minute's training as in a long one (the paper's ResNet-50
    would begin at -1,600; its own -3,200 stays asleep in anything much shorter). The optimizer moves W, whichever it
    is. Each s moves by SGD with the learning rate, momentum and weight decay that the optimizer has for its tensor, and
    takes no part in gradient clipping.

    Parameters
    ----------
    start : float, optional
        Of every s; None: by the length of the training. Nearer to zero leaves fewer weights.
    decay : float, optional
        Weight decay of every s; None: that of its tensor. More decay leaves fewer weights.
    num_steps : int
        Steps of the training.
    """
    require_steps(1, num_steps)
    if start is not None and not math.isfinite(start):
        raise UserError(f"start {start!r} was given, a finite number is wanted: give for example -5.0")
    if decay is not None and not 0 <= decay < math.inf:
        raise UserError(f"decay {decay!r} was given, a weight decay from 0 up is wanted: give for example 1e-4")
    weights = SoftThreshold(start, decay, num_steps)
    return Method(
        name="str",
        start=everything,
        start_density=1.0,
        init_state=weights,
        weights=weights,
        needs=frozenset({"dense"}),
        cost="dense",
    )


@dataclass(frozen=True)
class SoftThreshold:
    """Hidden weights W, and for each tensor of them an s with its momentum."""

    start: float | None
    decay: float | None
    num_steps: int

    def __call__(self, net: NetworkView) -> MethodState:
        """What is remembered at first."""
        weights, groups = net.weights(), _groups(net)
        # One number decays over the whole training: it needs more digits than a weight in half precision has.
        zeros = {n: w.new_zeros((), dtype=torch.promote_types(w.dtype, torch.float32)) for n, w in weights.items()}
        return {
            "hidden": {name: weight.clone() for name, weight in weights.items()},
            "s": {name: torch.full_like(zero, self._start(groups.get(name))) for name, zero in zeros.items()},
            "momentum": zeros,
        }

    def _start(self, group: dict[str, Any] | None) -> float:
        """Where an s begins that decay brings to `AWAKE` half-way; a schedule is taken to average half of its peak."""
        if self.start is not None:
            return self.start
        if group is None:
            return AWAKE  # it is not trained and never moves
        rate = _peak(group) * self._decay(group) / (1 - group.get("momentum", 0.0))
        return AWAKE * math.exp(min(rate * self.num_steps / 2 / 2, 20.0))

    def _decay(self, group: dict[str, Any]) -> float:
        return float(group.get("weight_decay", 0.0) if self.decay is None else self.decay)

    @torch.no_grad()
    def restore_latent_(self, net: NetworkView) -> None:
        weights, group_of = net.weights(), _groups(net)
        for name, gradient in net.signed_gradients().items():
            hidden, s = net.method_state["hidden"][name], net.method_state["s"][name]
            threshold, inside = torch.sigmoid(s), net.scope[name]
            gradient.masked_fill_((hidden.abs() <= threshold) & inside, 0)
            if name in group_of:  # else it is not trained
                slope = (gradient * hidden.sign() * inside).sum() * -threshold * (1 - threshold)
                self._move_(s, net.method_state["momentum"][name], slope, group_of[name])
            weights[name].copy_(hidden)

    def _move_(self, s: Tensor, momentum: Tensor, slope: Tensor, group: dict[str, Any]) -> None:
        slope = (-slope if group.get("maximize") else slope) + self._decay(group) * s
        inertia = group.get("momentum", 0.0)
        momentum.mul_(inertia).add_(slope)
        s.sub_(group["lr"] * (slope + inertia * momentum if group.get("nesterov") else momentum))

    @torch.no_grad()
    def apply_effective_(self, net: NetworkView) -> None:
        for name, weight in net.weights().items():
            net.method_state["hidden"][name].copy_(weight)
            weight.copy_(self._effective(net, name))

    def masks(self, net: NetworkView) -> Masks:
        return Masks({n: (self._effective(net, n) != 0) | ~inside for n, inside in net.scope.items()}, net.scope)

    def _effective(self, net: NetworkView, name: str) -> Tensor:
        hidden = net.method_state["hidden"][name]
        soft = hidden.sign() * (hidden.abs() - torch.sigmoid(net.method_state["s"][name])).relu()
        return torch.where(net.scope[name], soft, hidden)


def _peak(group: dict[str, Any]) -> float:
    """The highest learning rate to come: torch's schedulers note it, and a warm-up has set a lower one already."""
    return max(float(group[name]) for name in ("lr", "initial_lr", "max_lr") if name in group)


def _groups(net: NetworkView) -> dict[str, dict[str, Any]]:
    """The optimizer's settings for each switchable tensor that it owns."""
    assert net.optimizer is not None
    owner = {id(parameter): group for group in net.optimizer.param_groups for parameter in group["params"]}
    return {name: owner[id(p)] for name, p in net.model.named_parameters() if name in net.masks and id(p) in owner}
