"""Grow, train, shrink (GTS): grow along paths to a peak density, train there, prune by magnitude."""

from dataclasses import dataclass
from functools import cached_property

from pathgrow.errors import UserError, is_number, require
from pathgrow.masks.sampling import sample_proportional
from pathgrow.methods.method import (
    ByScore,
    MaskUpdate,
    Method,
    NetworkView,
    Progress,
    count_at,
    floor_of,
    require_density,
)
from pathgrow.methods.picks import by_walks, prune_by
from pathgrow.methods.schedules import PruneCubically, scaled_interval


def gts(
    *,
    density: float = 0.1,
    start_density: float | None = None,
    peak_density: float = 0.7,
    num_growths: int = 8,
    grow_fraction: float = 0.15,
    num_steps: int = 10_000,
    update_interval: int | None = None,
    start_fraction: float = 0.4,
    stop_fraction: float = 0.87,
) -> Method:
    """Grow, train, shrink (our own): path-based growth to 70% of the weights, then gradual pruning, in one training.

    Rule: a PHEW mask grows by PathGrow, the rule of `gcg`, in `num_growths` updates of equal ratio that end on
    `peak_density` at `grow_fraction` of the training. Between `start_fraction` and `stop_fraction` the smallest
    |weight| over all layers are pruned along the cubic curve of `gmp`, down to `density`. No step trains more than
    `peak_density` of the weights.

    Differences: not a method of a paper. Growth is that of Yao & Dovrolis, pruning that of Zhu & Gupta.

    Parameters
    ----------
    density, peak_density : float
        Density at the end of the training, and the highest one.
    start_density : float, optional
        Density of the PHEW mask; None: automatic, as in `gcg`.
    num_growths, grow_fraction
        Number of growth updates, evenly spaced over this first fraction of the training. Very short trainings make
        fewer, one per step.
    num_steps, update_interval
        Steps of the training, and steps between prunings; None: 100, or a hundredth of trainings shorter than 10,000.
    start_fraction, stop_fraction : float
        Fractions of the training between which weights are pruned.
    """
    require_density("peak_density", peak_density)
    if start_density is not None:
        require_density("start_density", start_density)
    if start_density is not None and start_density > peak_density:
        raise UserError(f"start_density must be <= peak_density, got {start_density} > {peak_density}")
    if density > peak_density:
        raise UserError(f"density must be <= peak_density, got {density} > {peak_density}; use a higher peak_density")
    interval = scaled_interval(update_interval, published=100, of_steps=10_000, num_steps=num_steps)
    prune = PruneCubically(
        density=density,
        start_density=peak_density,
        update_interval=interval,
        num_steps=num_steps,
        start_fraction=start_fraction,
        stop_fraction=stop_fraction,
    )
    return Method(
        name="gts",
        start=by_walks,
        start_density=start_density,
        grow=ByScore(NetworkView.path_scores, sample_proportional),
        drop=prune_by("magnitude"),
        schedule=GrowThenPrune(num_growths=num_growths, grow_fraction=grow_fraction, prune=prune),
        final_density=density,
        num_steps=num_steps,
        clock="step",
        needs=frozenset({"paths"}),
    )


@dataclass(frozen=True, kw_only=True)
class GrowThenPrune:
    """Grow to the start density of a pruning schedule in updates of equal ratio, then follow that schedule.

    >>> prune = PruneCubically(
    ...     density=0.1, start_density=0.4, update_interval=9, num_steps=100, start_fraction=0.5, stop_fraction=0.9
    ... )
    >>> schedule = GrowThenPrune(num_growths=2, grow_fraction=0.2, prune=prune)
    >>> schedule(Progress(round=0, step=10, num_on=100, num=1000))
    MaskUpdate(num_drop=0, num_grow=100)
    """

    num_growths: int
    grow_fraction: float
    prune: PruneCubically

    def __post_init__(self) -> None:
        whole = is_number(self.num_growths) and self.num_growths >= 1 and self.num_growths == int(self.num_growths)
        require(whole and self.num_growths <= 1000, "num_growths", self.num_growths, "an integer in [1, 1000]", 8)
        if not 0 < self.grow_fraction <= self.prune.start_fraction:
            raise UserError(
                "grow_fraction must be > 0 and <= start_fraction, "
                f"got {self.grow_fraction} and {self.prune.start_fraction} (e.g. 0.15 and 0.4)"
            )

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        step, num_on = progress.step, progress.num_on
        if step in self.growth_steps:
            num_left = sum(at >= step for at in self.growth_steps)
            peak = count_at(self.prune.start_density, progress.num)
            num_grow = round(num_on * (peak / num_on) ** (1 / num_left)) - num_on
            return MaskUpdate(num_grow=num_grow) if num_grow > 0 else None
        if step >= self.prune.steps[1] and num_on < count_at(self.prune.density, progress.num):
            # A training too short to grow still has to reach the density.
            return MaskUpdate(num_grow=count_at(self.prune.density, progress.num) - num_on)
        return self.prune(progress)

    @cached_property
    def growth_steps(self) -> set[int]:
        """The steps that grow; computed once, since a schedule is called at every step."""
        length = self.grow_fraction * self.prune.num_steps / self.num_growths
        steps = {floor_of(number * length) for number in range(1, self.num_growths + 1)}
        return {step for step in steps if step < self.prune.steps[1]}
