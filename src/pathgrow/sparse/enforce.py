"""The tensor side of sparsity: keep what is off at zero, in weights, gradients and optimizer state.

Every function writes in place and does nothing else: no branch depends on a value in a tensor, nothing waits for the
device, no memory is rebound. A training step captured in a CUDA graph, which runs no Python hooks, can therefore hold
these very calls, while the clock that decides on changes (`live`) stays outside and edits `keep` between replays.

`keep` is the mask as ones and zeros, in integers as wide as the numbers of the weight, and the bits of what is masked
are multiplied by it as integers. This gives a true zero even where a gradient overflowed (0 * inf is NaN, and would
stay NaN), and does not touch what is on. Filling under a mask takes four times as long on a CPU, and on a GPU it cannot
be done for all tensors in one launch. The price is the memory of one more copy of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

Parameters = Mapping[str, Parameter]
Tensors = Mapping[str, Tensor]
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def keep_tensors(parameters: Parameters, masks: Tensors) -> dict[str, Tensor]:
    """Masks as integers: one where a weight is on, zero where it is off, laid out as the weights are."""
    keep = {
        name: torch.empty_like(parameters[name], dtype=_INTEGERS[parameters[name].itemsize], requires_grad=False)
        for name in masks
    }
    set_keep_(keep, masks)
    return keep


def set_keep_(keep: Tensors, masks: Tensors) -> None:
    """Write other masks into the same memory."""
    for name, ones in keep.items():
        ones.copy_(masks[name])


@torch.no_grad()
def mask_(tensor: Tensor, keep: Tensor) -> None:
    """Zero the entries that are off, whatever they hold."""
    bits = tensor.view(_INTEGERS[tensor.itemsize])
    bits.mul_(keep.to(bits.dtype))  # optimizers may keep state in wider numbers than weights


def mask_gradients_(parameters: Parameters, keep: Tensors) -> None:
    """Zero the gradients of weights that are off; parameters without a gradient are passed over."""
    _mask_all_((gradient, ones) for name, ones in keep.items() if (gradient := parameters[name].grad) is not None)


def mask_weights_(parameters: Parameters, keep: Tensors) -> None:
    """Zero the weights that are off."""
    _mask_all_((parameters[name], ones) for name, ones in keep.items())


def mask_optimizer_state_(optimizer: Optimizer, parameters: Parameters, keep: Tensors) -> None:
    """Zero the optimizer's state at weights that are off.

    In SGD, Adam and most others masked gradients are enough to keep it at zero, but not in all (Adamax adds an epsilon,
    Rprop keeps a step size), and not after a dense checkpoint was loaded. Counters such as Adam's `step` belong to the
    tensor as a whole and stay.
    """
    _mask_all_((slot, ones) for name, ones in keep.items() for slot in _slots(optimizer, parameters[name]))


@torch.no_grad()
def _mask_all_(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Mask many tensors; on a GPU in one launch, since one for each would cost several percent of a small step."""
    together: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for tensor, keep in pairs:
        if tensor.is_cuda and tensor.itemsize == keep.itemsize:
            bits, ones = together.setdefault(keep.dtype, ([], []))
            bits.append(tensor.view(keep.dtype))
            ones.append(keep)
        else:
            mask_(tensor, keep)
    for bits, ones in together.values():
        torch._foreach_mul_(bits, ones)


def _slots(optimizer: Optimizer, parameter: Parameter) -> Iterator[Tensor]:
    """State with one entry per weight: momentum, first and second moments, their running maximum."""
    # `state` makes an entry for whatever it is asked for: asking must not give a parameter an empty state.
    if parameter not in optimizer.state:
        return
    for value in optimizer.state[parameter].values():
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape:
            yield value
