"""Guided stochastic exploration (GSE): grow by gradient within a small random sample of the missing weights.

The gradient of a weight is a sum, over samples and positions, of an input times the gradient of an output. Summing the
two factors separately needs no array of the weight's size. It gives a bound if magnitudes are summed, and an unbiased
sketch of the gradient if both are summed with the same random signs.
"""

import math
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathgrow.errors import require, unknown_name
from pathgrow.graph.running import uncompiled
from pathgrow.masks import Masks
from pathgrow.masks.sampling import ZeroScores, sample_proportional, top_k, uniform_in
from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress, floor_of
from pathgrow.methods.picks import magnitudes
from pathgrow.methods.rewire import Cosine, DropFraction, RewireEvery, num_true
from pathgrow.methods.schedules import scaled_interval

Guide = Literal["uniform", "grabo", "graest"]
Estimate = Literal["bound", "sketch"]
_GUIDES = ("uniform", "grabo", "graest")
_PUBLISHED_STEPS = 200 * 390
"""On CIFAR."""
_DENSE_ENOUGH = 0.5
"""From this density on, all missing weights of a layer are candidates."""
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def gse(
    *,
    density: float = 0.1,
    allocation: str = "er_matrix",
    num_steps: int = 10_000,
    update_interval: int | None = None,
    drop_fraction: float = 0.2,
    stop_fraction: float = 0.6,
    guide: Guide = "graest",
    gamma: float = 1.0,
) -> Method:
    """GSE (Heddes et al. 2024, Always-Sparse Training by Growing Connections with Guided Stochastic Exploration).

    Rule: every 1000 steps each layer samples `gamma` times its number of active weights as candidates among the missing
    ones: uniformly ("uniform"), or in proportion to an estimate of their gradient from the inputs and outputs of the
    layer, a bound ("grabo") or a random-sign sketch ("graest"). Over all layers the candidates with the largest
    |gradient| grow, a fraction of the active weights that falls along a cosine from `drop_fraction` to zero at
    `stop_fraction`; as many active weights are dropped, the smallest |weight| over all layers. "grabo" and "graest"
    need `loss` and `batches`.

    Differences: trainings shorter than the paper's 78,000 steps make as many updates as those, at shorter intervals,
    unless `update_interval` is given. The reference code samples candidates with replacement, some of them already
    active, and reads only the first row of a convolution's output gradient; here they are distinct, missing, and the
    whole gradient is read. Counts are exact where it uses Bernoulli masks and clips layer densities above one. Signs
    are drawn, not hashed. Inputs and outputs are read on one batch of `batches` (the code takes ten samples of each
    class), while candidates are ranked by the gradient of the step. Weights move between layers as in the code; its
    supplement also describes moves within them. Initial weights are the model's own, where the code draws them for the
    number of active inputs. Weights that are not used by their own linear or convolution layer are sampled uniformly.

    Parameters
    ----------
    density, allocation
        Overall density of the prunable weights, and its initial distribution over layers.
    num_steps, update_interval, stop_fraction
        Steps of the training, steps between mask updates, and the fraction of the training after which masks are final.
    drop_fraction, guide, gamma
        Initial fraction of active weights that move; how candidates are sampled, and how many per active weight.
    """
    interval = scaled_interval(update_interval, published=1000, of_steps=_PUBLISHED_STEPS, num_steps=num_steps)
    if guide not in _GUIDES:
        raise unknown_name("guide", guide, _GUIDES)
    require(0 < gamma < math.inf, "gamma", gamma, "a number of candidates per active weight > 0", 1.0)
    return Method(
        name="gse",
        start=RandomInLayers(allocation),
        start_density=density,
        schedule=RewireEvery(
            update_interval=interval, num_steps=num_steps, first_step=interval, stop_fraction=stop_fraction
        ),
        update=_Explore(Cosine(first=drop_fraction, num_steps=stop_fraction * num_steps), guide, gamma),
        clock="step",
        needs=frozenset({"gradients"} if guide == "uniform" else {"gradients", "data"}),
        cost="sparse" if guide == "uniform" else "batch_at_updates",
    )


@dataclass(frozen=True)
class _Explore:
    drop_fraction: DropFraction
    guide: Guide
    gamma: float

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        candidates = self._candidates(net, draw)
        num_moved = min(floor_of(self.drop_fraction(progress.step) * progress.num_on), candidates.num_on)
        grown = top_k(net.gradients(), candidates, num_moved, draw)
        kept = top_k(magnitudes(net), net.masks.present(), progress.num_on - num_moved, draw)
        return Masks.empty(net.masks.scope) | kept | grown

    def _candidates(self, net: NetworkView, draw: torch.Generator) -> Masks:
        estimates: dict[str, Tensor] = {}
        if self.guide != "uniform":
            estimates = gradient_estimates(net, "bound" if self.guide == "grabo" else "sketch", draw)
        scope, missing, chosen = net.masks.scope, net.masks.missing(), {}
        for name, off in missing.items():
            num_all, num_off = num_true(scope[name]), num_true(off)
            num_on = num_all - num_off
            num = min(max(1, floor_of(self.gamma * num_on)), num_off)
            if num_on >= _DENSE_ENOUGH * num_all:
                chosen[name] = off
            elif name not in estimates:
                chosen[name] = uniform_in(off, num, draw)
            else:
                layer = Masks.select({name: off}, {name: scope[name]})
                with warnings.catch_warnings():
                    # Units without any signal have zero estimates, which are sampled uniformly and last.
                    warnings.simplefilter("ignore", ZeroScores)
                    chosen[name] = sample_proportional(estimates, layer, num, draw)[name]
        return Masks.select(chosen, scope)


def gradient_estimates(net: NetworkView, estimate: Estimate, draw: torch.Generator) -> dict[str, Tensor]:
    """Estimated gradient magnitude of each weight, in float64, for every linear and convolution layer that ran.

    Layers that run several times have the sum; weights used otherwise than by their own layer are left out.
    """
    found: dict[str, Tensor] = {}
    seed = int(torch.randint(1 << 62, (), generator=draw))
    with ExitStack() as hooks:
        for name in net.masks:
            owner, _, kind = name.rpartition(".")
            layer = net.model.get_submodule(owner)
            if kind == "weight" and isinstance(layer, _LAYERS) and layer.weight.requires_grad:
                handle = layer.register_forward_hook(partial(_estimate, found, name, estimate, draw), with_kwargs=True)
                hooks.callback(handle.remove)
        with uncompiled():  # compiled code would not run the hooks
            net.probe_gradients(seed)
    return found


def _estimate(
    found: dict[str, Tensor],
    name: str,
    estimate: Estimate,
    draw: torch.Generator,
    layer: Any,
    inputs: tuple[Tensor, ...],
    named_inputs: dict[str, Tensor],
    output: Tensor,
) -> None:
    if not output.requires_grad:  # a pass under no_grad, which does not contribute to the gradient
        return
    # Counted from the end: there may or may not be a batch dimension.
    channel = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
    signs = torch.ones_like(output.select(channel, 0)).unsqueeze(channel)
    values = (inputs[0] if inputs else named_inputs["input"]).detach()
    if estimate == "bound":
        values = values.abs()
    else:
        flips = torch.randint(0, 2, signs.shape, generator=draw)
        signs = (2 * flips - 1).to(signs)
    incoming = _incoming(layer, values, signs)

    def with_gradient(gradient: Tensor) -> None:
        gradient = gradient.abs() if estimate == "bound" else gradient
        dims = [dim for dim in range(gradient.dim()) if dim != channel % gradient.dim()]
        outgoing = (gradient * signs).sum(dims, dtype=torch.float64).abs()
        product = incoming.abs().double() * outgoing.view(-1, *[1] * (incoming.dim() - 1))
        found[name] = found[name] + product if name in found else product

    output.register_hook(with_gradient)


def _incoming(layer: Any, values: Tensor, signs: Tensor) -> Tensor:
    """For each weight, its signed inputs summed over samples and positions.

    This is the weight gradient for an output gradient of `signs`: the layer itself handles strides, padding and groups.
    Its forward is called directly, since its hooks would call this function again.
    """
    # Keep saved tensors as they are: activation checkpointing would rerun the layer and draw other signs.
    with torch.autograd.graph.saved_tensors_hooks(_same, _same):
        incoming: Tensor = torch.autograd.grad((layer.forward(values) * signs).sum(), layer.weight)[0]
    return incoming


def _same(tensor: Tensor) -> Tensor:
    return tensor
