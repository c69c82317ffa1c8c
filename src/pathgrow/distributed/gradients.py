"""Gradients of several processes, made one by a single message between two captured graphs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor, nn

from pathgrow.distributed.comm import Communicator

_ALIGNMENT_BYTES = 512
"""At which torch's allocator begins every tensor: kernels over many tensors read one that begins elsewhere more slowly,
and add it up in another order."""


class SharedGradients:
    """The gradients of a network, laid one after the other in one piece of memory for each type of number.

    The memory stays where it is, so that graphs can write and read it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], comm: Communicator) -> None:
        parameters = list(parameters)
        # Else the numbers of one process would be added to others in another.
        layout = [(parameter.shape, torch.empty_like(parameter).stride(), parameter.dtype) for parameter in parameters]
        comm.check_equal("layouts of the parameters", lambda: str(layout))
        self._comm = comm
        by_type: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_type.setdefault(parameter.dtype, []).append(parameter)
        self._pieces: list[Tensor] = []
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        for kind, group in by_type.items():
            step = _ALIGNMENT_BYTES // kind.itemsize
            sizes = [-(-parameter.numel() // step) * step for parameter in group]
            piece = torch.zeros(sum(sizes), dtype=kind, device=group[0].device)
            self._pieces.append(piece)
            for parameter, end, size in zip(group, accumulate(sizes), sizes, strict=True):
                self._views.append((parameter, _laid_out_as(parameter, piece, end - size)))

    def clear_(self) -> None:
        """Let the next backward pass write here, from zero. Can be captured."""
        for piece in self._pieces:
            piece.zero_()
        for parameter, view in self._views:
            parameter.grad = view

    def average_(self) -> None:
        """Replace the gradients by their means over all processes. Cannot be captured."""
        for piece in self._pieces:
            piece.div_(self._comm.size)  # first, as DDP does: a sum might be too large for half precision
        self._comm.all_reduce_(self._pieces)


def _laid_out_as(parameter: nn.Parameter, piece: Tensor, start: int) -> Tensor:
    """A view of as many numbers, in the order that the parameter has in memory (channels last, say)."""
    plain = torch.empty_like(parameter)  # without gaps, whatever the parameter is a view of
    return piece.as_strided(plain.shape, plain.stride(), start)
