"""Pruning schedules and update intervals: progress in, exact counts out. Growth has `GrowEachRound` (`method`)."""

from dataclasses import dataclass

from pathgrow.errors import UserError, is_number, require
from pathgrow.methods.method import MaskUpdate, Progress, count_at, floor_of, require_density


@dataclass(frozen=True, kw_only=True)
class PruneEachRound:
    """Prune a fraction of the remaining weights per round, down to a density; the last step ends exactly on it.

    >>> PruneEachRound(density=0.1)(Progress(round=1, step=0, num_on=800, num=1000))
    MaskUpdate(num_drop=160, num_grow=0)
    """

    density: float
    prune_fraction: float = 0.2

    def __post_init__(self) -> None:
        require_density("density", self.density)
        require(0.001 <= self.prune_fraction < 1, "prune_fraction", self.prune_fraction, "in [0.001, 1)", 0.2)

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        # From the round number, so that rounding errors do not accumulate; at least one weight, so that it ends.
        kept = count_at((1 - self.prune_fraction) ** (progress.round + 1), progress.num)
        num_drop = progress.num_on - max(min(kept, progress.num_on - 1), count_at(self.density, progress.num))
        return MaskUpdate(num_drop=num_drop) if num_drop > 0 else None


@dataclass(frozen=True, kw_only=True)
class PruneCubically:
    """Prune from one density to another along a cubic curve, fast at first, every `update_interval` steps.

    `start_fraction` and `stop_fraction` are fractions of `num_steps`, which are counted from `first_step`.

    >>> schedule = PruneCubically(
    ...     density=0.1, update_interval=100, num_steps=1000, start_fraction=0.1, stop_fraction=0.5
    ... )
    >>> schedule.density_at(0), schedule.density_at(500)
    (1.0, 0.1)
    >>> schedule(Progress(round=0, step=500, num_on=107, num=1000))
    MaskUpdate(num_drop=7, num_grow=0)
    """

    density: float
    start_density: float = 1.0
    update_interval: int
    num_steps: int
    start_fraction: float
    stop_fraction: float
    first_step: int = 0

    def __post_init__(self) -> None:
        require_density("density", self.density)
        require_steps(self.update_interval, self.num_steps)
        if self.start_density < self.density:
            raise UserError(f"density must be <= start_density, got {self.density} > {self.start_density}")
        if not 0 <= self.start_fraction < self.stop_fraction <= 1:
            raise UserError(
                "start_fraction and stop_fraction must satisfy 0 <= start_fraction < stop_fraction <= 1, "
                f"got {self.start_fraction} and {self.stop_fraction} (e.g. 0.2 and 0.75)"
            )

    def density_at(self, step: int) -> float:
        """Overall density from this step on."""
        first, last = self.steps
        if step >= last:
            return self.density
        left = 1 - max((step - first) / (last - first), 0.0)
        return self.density + (self.start_density - self.density) * left**3

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        if not self.is_due_at(progress.step):
            return None
        num_drop = progress.num_on - count_at(self.density_at(progress.step), progress.num)
        return MaskUpdate(num_drop=num_drop) if num_drop > 0 else None

    def is_due_at(self, step: int) -> bool:
        """Whether the density of this step is looked up."""
        first, last = self.steps
        on_grid = step >= first and (step - first) % self.update_interval == 0
        # Also after the last step of the curve: a training that was shortened still has to reach the density.
        return on_grid or step >= last

    @property
    def steps(self) -> tuple[int, int]:
        """The step at which pruning starts, and the one from which on the density is the final one."""
        # Never beyond num_steps - 1, the last step that is made: the density must be reached.
        last = min(max(1, floor_of(self.stop_fraction * self.num_steps)), self.num_steps - 1)
        first = max(0, min(floor_of(self.start_fraction * self.num_steps), last - 1))
        return self.first_step + first, self.first_step + last


def scaled_interval(update_interval: int | None, *, published: int, of_steps: int, num_steps: int) -> int:
    """The update interval: as given, or the published one, shortened for trainings of fewer than `of_steps` steps.

    Shorter trainings then make as many mask updates as a published one; at the published interval they would make
    hardly any.

    >>> scaled_interval(None, published=1000, of_steps=78_000, num_steps=100_000)
    1000
    >>> scaled_interval(None, published=1000, of_steps=78_000, num_steps=2_240)
    29
    """
    require_steps(1 if update_interval is None else update_interval, num_steps)
    if update_interval is None:
        return max(1, round(published * min(num_steps, of_steps) / of_steps))
    return int(update_interval)


def require_steps(update_interval: int, num_steps: int) -> None:
    """Raise a `UserError` unless both are positive integers."""
    for name, value in (("update_interval", update_interval), ("num_steps", num_steps)):
        require(is_number(value) and value >= 1 and value == int(value), name, value, "an integer >= 1", 100)


def require_stop_fraction(stop_fraction: float) -> None:
    """Raise a `UserError` unless a value is a fraction of the training after which masks are final."""
    require(stop_fraction > 0, "stop_fraction", stop_fraction, "> 0", 0.75)
