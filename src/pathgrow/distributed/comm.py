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


class Team(Protocol):
    """The processes of one run, as one of them sees it. Every method has to be called by all of them alike."""

    @property
    def rank(self) -> int:
        """Which of them this is, counted from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def from_first(self, work: Callable[[], T]) -> T:
        """Run `work` in the first and return its result in all of them; if it fails, it fails for all."""

    def only_first(self, work: Callable[[], T]) -> T | None:
        """Run `work` in the first; the others wait and get None, or fail if it fails."""

    def gather(self, value: T) -> list[T]:
        """The values of all of them, by rank."""

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""

    def spread_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of the first."""

    def check_same(self, what: str, digest: Callable[[], str]) -> None:
        """Fail, naming the one that differs, unless all have the same digest."""


class Alone:
    """A team of one: nothing to agree on, nothing to pay for.

    >>> ALONE.from_first(lambda: 3), ALONE.size
    (3, 1)
    """

    rank = 0
    size = 1

    def from_first(self, work: Callable[[], T]) -> T:
        return work()

    def only_first(self, work: Callable[[], T]) -> T | None:
        return work()

    def gather(self, value: T) -> list[T]:
        return [value]

    def sum_(self, tensors: Iterable[Tensor]) -> None: ...

    def spread_(self, tensors: Iterable[Tensor]) -> None: ...

    def check_same(self, what: str, digest: Callable[[], str]) -> None: ...


ALONE: Team = Alone()


@contextmanager
def held_by_first(team: Team, open: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
    """Open something that only one process may hold (a locked folder): in the first; the others get None."""
    with ExitStack() as stack:
        yield team.only_first(lambda: stack.enter_context(open()))
