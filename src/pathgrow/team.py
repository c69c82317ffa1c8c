"""Several processes at work on one run: what they have to agree on, whatever connects them.

Everything that must be equal everywhere (masks, scores, what is stored) is decided by the first of them and taken over
by the others. The parts that decide know this protocol only; `pathgrow.engine.distributed` has the one that talks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Team(Protocol):
    """The processes of one run, as one of them sees it. All but the attributes is called by all of them alike."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0 on."""

    @property
    def size(self) -> int:
        """How many they are."""

    def from_first(self, work: Callable[[], T]) -> T:
        """What `work` gives the first, for all; where it fails, it fails for all."""

    def only_first(self, work: Callable[[], T]) -> T | None:
        """What `work` gives the first, for it alone: the others wait and get None, or fail if it fails."""

    def gather(self, value: T) -> list[T]:
        """The value that each of them has, by rank."""

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes its sum over all of them."""

    def spread_(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes that of the first."""

    def check_same(self, what: str, digest: Callable[[], str]) -> None:
        """Fail, with the name of the odd one, unless all have the same digest."""


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
    """Something that one process alone may hold (a locked folder): held by the first, None for the others."""
    with ExitStack() as stack:
        yield team.only_first(lambda: stack.enter_context(open()))
