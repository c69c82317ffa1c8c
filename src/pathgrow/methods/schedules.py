"""When masks change and by how many weights: a progress in, exact counts out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pathgrow.errors import UserError, is_number
from pathgrow.methods.method import MaskUpdate, Progress, count_at, floor_of, require_density


@dataclass(frozen=True, kw_only=True)
class PruneEachRound:
    """Take away `share` of what is left, round by round, down to a density; the last step is cut to end on it.

    >>> PruneEachRound(density=0.1)(Progress(round=1, step=0, num_on=800, num=1000))
    MaskUpdate(num_drop=160, num_grow=0)
    """

    density: float
    share: float = 0.2

    def __post_init__(self) -> None:
        require_density("density", self.density)
        if not 0 < self.share < 1:
            raise UserError(f"share {self.share!r} was given, a share between 0 and 1 is wanted: give for example 0.2")

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        # From the number of the round, so that rounding does not add up; at least one, so that it always ends.
        rung = min(count_at((1 - self.share) ** (progress.round + 1), progress.num), progress.num_on - 1)
        num_drop = progress.num_on - max(rung, count_at(self.density, progress.num))
        return MaskUpdate(num_drop=num_drop) if num_drop > 0 else None


@dataclass(frozen=True, kw_only=True)
class PruneCubically:
    """From one density to another along a cubic curve, fast at first: every so many steps, and at the last.

    `begin` and `end` are shares of `num_steps`.

    >>> schedule = PruneCubically(density=0.1, every=100, num_steps=1000, begin=0.1, end=0.5)
    >>> schedule.density_at(0), schedule.density_at(500)
    (1.0, 0.1)
    >>> schedule(Progress(round=0, step=500, num_on=107, num=1000))
    MaskUpdate(num_drop=7, num_grow=0)
    """

    density: float
    start_density: float = 1.0
    every: int
    num_steps: int
    begin: float
    end: float

    def __post_init__(self) -> None:
        require_density("density", self.density)
        require_steps(self.every, self.num_steps)
        if self.start_density < self.density:
            raise UserError(
                f"pruning from density {self.start_density} to {self.density} was asked for, which is no way down: "
                "give a density below the first"
            )
        if not 0 <= self.begin < self.end <= 1:
            raise UserError(
                f"pruning from {self.begin} to {self.end} of the training was asked for, 0 <= begin < end <= 1 is "
                "wanted: give for example begin=0.2, end=0.75"
            )

    def density_at(self, step: int) -> float:
        """Of all switchable weights, when this step is made."""
        first, last = self._steps
        if step >= last:
            return self.density
        left = 1 - max((step - first) / (last - first), 0.0)
        return self.density + (self.start_density - self.density) * left**3

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        first, last = self._steps
        on_the_grid = progress.step >= first and (progress.step - first) % self.every == 0
        # After the last step too: where a training is cut shorter on its way, the density has still to be reached.
        if not on_the_grid and progress.step < last:
            return None
        num_drop = progress.num_on - count_at(self.density_at(progress.step), progress.num)
        return MaskUpdate(num_drop=num_drop) if num_drop > 0 else None

    @property
    def _steps(self) -> tuple[int, int]:
        # Never beyond the last step that is made, which is num_steps - 1: the density must be reached.
        last = min(max(1, floor_of(self.end * self.num_steps)), self.num_steps - 1)
        return max(0, min(floor_of(self.begin * self.num_steps), last - 1)), last


@dataclass(frozen=True, kw_only=True)
class RewireEvery:
    """Move weights at a constant density: every so many steps from `first` on, up to `end` as a share of `num_steps`.

    >>> schedule = RewireEvery(every=100, num_steps=1000, end=0.75)
    >>> [step for step in range(1000) if schedule(Progress(round=0, step=step, num_on=1, num=9)) is not None]
    [0, 100, 200, 300, 400, 500, 600, 700]
    """

    every: int
    num_steps: int
    first: int = 0
    end: float = math.inf

    def __post_init__(self) -> None:
        require_steps(self.every, self.num_steps)
        require_end(self.end)

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        due = progress.step >= self.first and progress.step % self.every == 0
        return MaskUpdate() if due and progress.step <= self.end * self.num_steps else None


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """A share that falls along half a cosine, from `first` at step 0 to `last` at step `num_steps`, and stays there.

    >>> fall = Cosine(first=0.3, num_steps=1000)
    >>> fall(0), round(fall(500), 6), fall(1000), fall(2000)
    (0.3, 0.15, 0.0, 0.0)
    """

    first: float
    last: float = 0.0
    num_steps: float

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first < 1:
            raise UserError(
                f"a drop rate from {self.first} to {self.last} was given, shares from 0 up to below 1 that do not rise "
                "are wanted: give for example 0.3"
            )

    def __call__(self, step: int) -> float:
        if step >= self.num_steps:
            return self.last
        return self.last + (self.first - self.last) / 2 * (1 + math.cos(math.pi * step / self.num_steps))


@dataclass(frozen=True)
class Constant:
    """A share that stays."""

    value: float

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1:
            raise UserError(f"a drop rate of {self.value} was given, a share in [0, 1) is wanted: give for example 0.3")

    def __call__(self, step: int) -> float:
        return self.value


def interval(every: int | None, *, published: int, of_steps: int, num_steps: int) -> int:
    """Steps between changes: `every` where it is given, else the published number, for trainings of `of_steps` or more.

    Shorter ones change their masks as many times as a published one, at shorter intervals; at its own interval they
    would hardly change them, if at all.

    >>> interval(None, published=1000, of_steps=78_000, num_steps=100_000)
    1000
    >>> interval(None, published=1000, of_steps=78_000, num_steps=2_240)
    29
    """
    require_steps(1 if every is None else every, num_steps)
    return max(1, round(published * min(num_steps, of_steps) / of_steps)) if every is None else int(every)


def require_steps(every: int, num_steps: int) -> None:
    """Refuse a clock that cannot tick."""
    for name, value in (("every", every), ("num_steps", num_steps)):
        if not is_number(value) or value < 1 or value != int(value):
            raise UserError(f"{name} {value!r} was given, a whole number of steps from 1 up is wanted: give one")


def require_end(end: float) -> None:
    """Refuse what is no share of a training after which masks stay."""
    if not end > 0:
        raise UserError(f"end {end!r} was given, a share of the training above 0 is wanted: give 0.75")
