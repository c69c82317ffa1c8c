"""What the processes that work on one run have to agree on, whatever connects them.

Everything that must be equal everywhere (masks, scores, what is stored) is decided by the first process and adopted by
the others. The code that decides knows this protocol only; `pathgrow.trainer.process_group` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Communicator(Protocol):
    """The processes of one run, as one of them sees it. Every method has to be called by all of them alike."""

    @property
    def rank(self) -> int:
        """Which of them this is, counted from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        """Run `work` in the first and return its result in all of them; if it fails, it fails for all."""

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        """Run `work` in the first; the others wait and get None, or fail if it fails."""

    def gather(self, value: T) -> list[T]:
        """The values of all of them, by rank."""

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of the first."""

    def check_equal(self, what: str, digest: Callable[[], str]) -> None:
        """Fail, naming the one that differs, unless all have the same digest."""


class SingleProcess:
    """A team of one: nothing to agree on, nothing to pay for.

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
    """Open something that only one process may hold (a locked folder): in the first; the others get None."""
    with ExitStack() as stack:
        yield comm.on_rank0(lambda: stack.enter_context(open()))
