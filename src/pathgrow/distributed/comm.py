"""What the ranks of one run need from each other, independent of the backend that connects them.

Everything that must be equal on all ranks (masks, scores, stored stages) is decided on rank 0 and broadcast. The code
that decides knows only the `Communicator` protocol, which `pathgrow.distributed.process_group` implements.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import accumulate
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")

_ALIGNMENT_BYTES = 512
"""Alignment of tensors from torch's allocator. Multi-tensor kernels read other addresses more slowly, and sum in
another order."""


class Communicator(Protocol):
    """The processes of one run, seen from one of them. Every method is collective: all ranks must call it."""

    @property
    def rank(self) -> int:
        """Rank of this process, starting at 0."""

    @property
    def size(self) -> int:
        """World size."""

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its result on every rank; an error on rank 0 is raised on every rank."""

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0; the other ranks wait and get None, or the error if it fails."""

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank (all-gather)."""

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of rank 0."""

    def check_equal(self, what: str, digest: Callable[[], str]) -> None:
        """Raise an error that names the differing ranks unless all ranks have the same digest."""


class SingleProcess:
    """A world of size 1: every operation is local and free.

    >>> SINGLE_PROCESS.broadcast_from_rank0(lambda: 3), SINGLE_PROCESS.size
    (3, 1)
    """

    rank = 0
    size = 1

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        return work()

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        return work()

    def gather(self, value: T) -> list[T]:
        return [value]

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None: ...

    def broadcast_(self, tensors: Iterable[Tensor]) -> None: ...

    def check_equal(self, what: str, digest: Callable[[], str]) -> None: ...


SINGLE_PROCESS: Communicator = SingleProcess()


@contextmanager
def held_by_rank0(comm: Communicator, open: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
    """Open a resource that only one process may hold (a locked directory) on rank 0; other ranks get None."""
    with ExitStack() as stack:
        yield comm.on_rank0(lambda: stack.enter_context(open()))


class GradientBuckets:
    """The gradients of a network in one flat buffer per dtype, averaged by one all-reduce each.

    The buffers keep their addresses, so CUDA graphs can write and read them.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], comm: Communicator) -> None:
        parameters = list(parameters)
        # With different layouts an all-reduce would add unrelated numbers.
        layout = [(parameter.shape, torch.empty_like(parameter).stride(), parameter.dtype) for parameter in parameters]
        comm.check_equal("layouts of the parameters", lambda: str(layout))
        self._comm = comm
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        self._buffers: list[Tensor] = []
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        for dtype, group in by_dtype.items():
            step = _ALIGNMENT_BYTES // dtype.itemsize
            sizes = [-(-parameter.numel() // step) * step for parameter in group]
            buffer = torch.zeros(sum(sizes), dtype=dtype, device=group[0].device)
            self._buffers.append(buffer)
            for parameter, end, size in zip(group, accumulate(sizes), sizes, strict=True):
                plain = torch.empty_like(parameter)  # the memory format of the parameter, without gaps
                view = buffer.as_strided(plain.shape, plain.stride(), end - size)
                self._views.append((parameter, view))

    def clear_(self) -> None:
        """Zero the buffers and let the next backward pass write to them. Can be recorded in a CUDA graph."""
        for buffer in self._buffers:
            buffer.zero_()
        for parameter, view in self._views:
            parameter.grad = view

    def average_(self) -> None:
        """Average the gradients over all ranks. Cannot be recorded in a CUDA graph."""
        for buffer in self._buffers:
            buffer.div_(self._comm.size)  # before the sum, as DDP does: it might overflow in half precision
        self._comm.all_reduce_(self._buffers)
