"""One line of the table of methods: how it is made, its family, where it was published, what it cannot promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pathgrow.methods.method import Method

Clause = Literal["exact_count", "off_is_zero"]
"""What a method may be excepted from.

"exact_count": as many weights are on as the asked density stands for. Promised instead: the masks are where the
weights that the network computes with are not zero, and the density is reported.

"off_is_zero": off the masks, weights and optimizer slots are zero after every step. Promised instead: the network
computes with zeros off the masks between steps, and holds plain weights once it is detached.
"""

Family = Literal["growth", "pruning", "rewiring", "one shot", "learned sparsity", "reference", "your own"]
"""When weights come and go: more and more on, fewer and fewer, exchanged for each other, chosen before the training, or
by what the training learns; the reference keeps all of them."""


@dataclass(frozen=True)
class Entry:
    """A method in the table.

    Parameters
    ----------
    make : callable
        Returns the `Method`; all its options have defaults.
    family : str
        Under which heading `pathgrow methods` lists it.
    paper : str
        Authors and year, as in docs/papers.md.
    exceptions : mapping of clause to reason
        Clauses of the contract that the method by its nature cannot meet.
    """

    make: Callable[..., Method]
    family: Family
    paper: str
    exceptions: Mapping[Clause, str] = field(default_factory=lambda: MappingProxyType({}))
