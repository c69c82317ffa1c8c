"""When masks change and by how many weights: a progress in, exact counts out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pathgrow.errors import UserError
from pathgrow.method import Change, Progress


@dataclass(frozen=True, kw_only=True)
class GrowEachRound:
    """Add the share `gamma` of the weights that are on, round by round, up to a target or to the last weight.

    A quarter undoes one step of iterative pruning by a fifth: 1.25 * 0.8 = 1. The last step is cut to end on a target.

    >>> GrowEachRound(gamma=0.25)(Progress(round=0, step=0, num_on=10, num=100))
    Change(num_drop=0, num_grow=2)
    >>> GrowEachRound(gamma=0.25, target_density=0.11)(Progress(round=0, step=0, num_on=10, num=100))
    Change(num_drop=0, num_grow=1)
    """

    gamma: float = 0.25
    target_density: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf:
            raise UserError(f"gamma {self.gamma!r} was got, a share above 0 is wanted: give for example 0.25")
        if self.target_density is not None and not 0 < self.target_density <= 1:
            raise UserError(
                f"target_density {self.target_density!r} was got, a density in (0, 1] is wanted: "
                "give for example 0.2, or None for no target"
            )

    def __call__(self, progress: Progress) -> Change | None:
        ceiling = progress.num if self.target_density is None else count_at(self.target_density, progress.num)
        num_left = ceiling - progress.num_on
        if num_left <= 0:
            return None
        return Change(num_grow=min(max(1, _floor(self.gamma * progress.num_on)), num_left))


def count_at(density: float, num: int) -> int:
    """How many of `num` weights a density stands for: at least one.

    >>> count_at(0.096, 100), count_at(0.001, 100)
    (10, 1)
    """
    return max(1, round(density * num))


def _floor(value: float) -> int:
    # 0.29 * 100 is 28.999999999999996: a product that means a whole number must give it.
    return math.floor(value + 1e-6)
