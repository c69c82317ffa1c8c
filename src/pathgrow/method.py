"""What a sparse-training method is: a frozen value made of picks and a schedule.

A *pick* takes exactly `count` positions from `candidates`. Starting masks, growth, pruning and rewiring differ only in
what they pick from and when; adding a method is a matter of composing these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pathgrow.errors import UserError

if TYPE_CHECKING:
    import torch

    from pathgrow.masks import Masks
    from pathgrow.net import Net

Need = Literal["paths", "gradients"]
Pick = Callable[["Net", "Masks", int, "torch.Generator"], "Masks"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands when its schedule is asked. `num` counts switchable weights."""

    round: int
    step: int
    num_on: int
    num: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """How many weights to switch off and on; exact counts."""

    num_drop: int = 0
    num_grow: int = 0


Schedule = Callable[[Progress], Change | None]


def never(progress: Progress) -> Change | None:
    """The schedule of a mask that stays."""
    return None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A sparse-training method as a value; `pathgrow.attach` runs it in anybody's loop."""

    name: str
    start: Pick
    """Chooses the first masks among all switchable weights."""
    start_density: float | None = None
    """None: the smallest of 1, 2, 3, 5% that leaves at most 5% of the units isolated."""
    grow: Pick | None = None
    drop: Pick | None = None
    schedule: Schedule = never
    clock: Literal["round", "step"] = "round"
    """When the schedule is asked: at each observation, or before each optimizer step."""
    needs: frozenset[Need] = frozenset()
    """What its picks read of the network; `attach` says what is missing before anything starts."""

    def __post_init__(self) -> None:
        if self.start_density is not None and not 0 < self.start_density <= 1:
            raise UserError(
                f"start_density {self.start_density!r} was got, a density in (0, 1] is wanted: "
                "give for example 0.05, or None to have one chosen"
            )
