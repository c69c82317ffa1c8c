"""How strongly the inputs and outputs of each layer take part, from one batch: estimates of a gradient's size.

The gradient of a weight is a sum, over samples and positions, of an input times the gradient of an output. Its two
sides summed separately need no array of the weight's size: a bound if magnitudes are summed, an unbiased sketch of the
gradient if both are summed under the same random signs.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathgrow.graph.tracer import uncompiled
from pathgrow.methods.method import NetworkView

Estimate = Literal["bound", "sketch"]
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def gradient_estimates(net: NetworkView, estimate: Estimate, draw: torch.Generator) -> dict[str, Tensor]:
    """The product of both sides for each weight, in float64, of every linear and convolution layer that ran.

    A layer that runs several times has the sum; weights that are used in other ways than by their own layer are
    missing.
    """
    found: dict[str, Tensor] = {}
    seed = int(torch.randint(1 << 62, (), generator=draw))
    with ExitStack() as hooks:
        for name in net.masks:
            owner, _, kind = name.rpartition(".")
            layer = net.model.get_submodule(owner)
            if kind == "weight" and isinstance(layer, _LAYERS) and layer.weight.requires_grad:
                on_gradients = partial(_watch, found, name, estimate, draw)
                handle = layer.register_forward_hook(on_gradients, with_kwargs=True)
                hooks.callback(handle.remove)
        with uncompiled():  # which would run past the hooks
            net.probe_gradients(seed)
    return found


def _watch(
    found: dict[str, Tensor],
    name: str,
    estimate: Estimate,
    draw: torch.Generator,
    layer: Any,
    inputs: tuple[Tensor, ...],
    named_inputs: dict[str, Tensor],
    output: Tensor,
) -> None:
    if not output.requires_grad:  # a pass under no_grad, which leaves nothing in the gradient
        return
    # From the end: there is a dimension of samples or there is none.
    channel = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
    signs = torch.ones_like(output.select(channel, 0)).unsqueeze(channel)
    given = (inputs[0] if inputs else named_inputs["input"]).detach()
    if estimate == "bound":
        given = given.abs()
    else:
        flips = torch.randint(0, 2, signs.shape, generator=draw)
        signs = (2 * flips - 1).to(signs)
    incoming = _incoming(layer, given, signs)

    def with_gradient(gradient: Tensor) -> None:
        gradient = gradient.abs() if estimate == "bound" else gradient
        dims = [dim for dim in range(gradient.dim()) if dim != channel % gradient.dim()]
        outgoing = (gradient * signs).sum(dims, dtype=torch.float64).abs()
        product = incoming.abs().double() * outgoing.view(-1, *[1] * (incoming.dim() - 1))
        found[name] = found[name] + product if name in found else product

    output.register_hook(with_gradient)


def _incoming(layer: Any, given: Tensor, signs: Tensor) -> Tensor:
    """For each weight, its inputs summed over samples and positions under the signs.

    That is what a gradient of `signs` at every output would do to the weight: the layer itself knows its strides,
    padding and groups. Its forward is called without hooks, which would call this again.
    """
    # Tensors are saved as they are: checkpointing, which runs the layer again in their place, would draw other signs.
    with torch.autograd.graph.saved_tensors_hooks(_same, _same):
        incoming: Tensor = torch.autograd.grad((layer.forward(given) * signs).sum(), layer.weight)[0]
    return incoming


def _same(tensor: Tensor) -> Tensor:
    return tensor
