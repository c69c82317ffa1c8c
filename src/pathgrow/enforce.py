"""The tensor side of sparsity: keep what is off at zero, in weights, gradients and optimizer state.

Every function writes in place and does nothing else: no branch depends on a value in a tensor, nothing waits for the
device, no memory is rebound. A training step captured in a CUDA graph, which runs no Python hooks, can therefore hold
these very calls, while the clock that decides on changes (`attach`) stays outside and edits `keep` between replays.

`keep` is the mask as bits, all set or none, in integers as wide as the weight's numbers; what is off is taken out by a
bitwise `and`. That leaves a true zero even where a gradient overflowed (0 * inf is NaN, and would stay for good), and
does not touch what is on. On CPUs it takes the time of a multiplication in float32 and a third of it in bfloat16, where
filling under a mask takes 7 times as long, for the price of one more copy of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

Parameters = Mapping[str, Parameter]
Tensors = Mapping[str, Tensor]
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def keep_tensors(parameters: Parameters, masks: Tensors) -> dict[str, Tensor]:
    """Masks as bits: all set where a weight is on, none where it is off, on the weights' own devices."""
    keep = {
        name: torch.empty(mask.shape, dtype=_BITS[parameters[name].itemsize], device=parameters[name].device)
        for name, mask in masks.items()
    }
    set_keep_(keep, masks)
    return keep


def set_keep_(keep: Tensors, masks: Tensors) -> None:
    """Other masks into the same memory."""
    for name, bits in keep.items():
        bits.copy_(masks[name]).neg_()  # -1 has every bit set


@torch.no_grad()
def mask_(tensor: Tensor, bits: Tensor) -> None:
    """Zero the entries that are off, whatever they hold."""
    # Optimizers may keep state in wider numbers than weights: the sign is extended, so -1 stays all bits.
    as_integers = tensor.view(_BITS[tensor.itemsize])
    as_integers.bitwise_and_(bits.to(as_integers.dtype))


def mask_gradients_(parameters: Parameters, keep: Tensors) -> None:
    """Zero the gradients of weights that are off; parameters without a gradient are passed over."""
    for name, bits in keep.items():
        gradient = parameters[name].grad
        if gradient is not None:
            mask_(gradient, bits)


def mask_weights_(parameters: Parameters, keep: Tensors) -> None:
    """Zero the weights that are off."""
    for name, bits in keep.items():
        mask_(parameters[name], bits)


def mask_slots_(optimizer: Optimizer, parameters: Parameters, keep: Tensors) -> None:
    """Zero the optimizer's state at weights that are off.

    Masked gradients alone leave it at zero in SGD, Adam and most others, but not in all (Adamax adds an epsilon, Rprop
    keeps a step size), nor after somebody loaded a dense checkpoint. Counters such as Adam's `step` belong to the
    tensor, not to its entries, and stay.
    """
    for name, bits in keep.items():
        for slot in _slots(optimizer, parameters[name]):
            mask_(slot, bits)


def _slots(optimizer: Optimizer, parameter: Parameter) -> Iterator[Tensor]:
    """State with one entry per weight: momentum, first and second moments, their running maximum."""
    # `state` makes an entry for whatever it is asked for: asking must not give a parameter an empty state.
    if parameter not in optimizer.state:
        return
    for value in optimizer.state[parameter].values():
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape:
            yield value
