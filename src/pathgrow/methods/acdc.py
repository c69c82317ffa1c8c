"""AC/DC: training alternates between all weights and the largest ones, and ends with the largest."""

import math
from dataclasses import dataclass

from pathgrow.errors import UserError
from pathgrow.methods.method import MaskUpdate, Method, Progress, count_at, floor_of, require_density
from pathgrow.methods.picks import all_candidates, prune_by
from pathgrow.methods.schedules import require_steps


def acdc(
    *,
    density: float = 0.1,
    num_steps: int = 10_000,
    warmup_fraction: float = 0.1,
    phase_fraction: float = 0.05,
    final_fraction: float = 0.15,
) -> Method:
    """AC/DC (Peste et al. 2021, Alternating Compressed/DeCompressed Training of Deep Neural Networks).

    Rule: after a dense warm-up, sparse and dense phases alternate. A sparse phase starts by pruning the smallest
    |weight| over all layers, and trains the others. A dense phase trains all weights, those that were pruned from zero.
    The last dense phase lasts until the final sparse phase. The fractions are those of the paper's 100 epochs of
    ImageNet: warm-up of 10, phases of 5, the last dense phase of 10, and 15 sparse ones at the end.

    Differences: at the start of a dense phase the paper resets the momentum of all weights; here that of pruned weights
    is zero and the others keep theirs. Counts are exact, with ties broken at random.

    Parameters
    ----------
    density : float
        Density of the sparse phases.
    num_steps : int
        Steps of the training.
    warmup_fraction, phase_fraction, final_fraction : float
        Fractions of the training: dense at its start, of each phase, sparse at its end. The paper's 200 epochs of
        CIFAR-100 have 0.05, 0.1 and 0.15.
    """
    return Method(
        name="acdc",
        start=all_candidates,
        start_density=1.0,
        grow=all_candidates,
        drop=prune_by("magnitude"),
        schedule=Alternate(density, num_steps, warmup_fraction, phase_fraction, final_fraction),
        final_density=density,
        num_steps=num_steps,
        clock="step",
        needs=frozenset({"dense"}),
    )


@dataclass(frozen=True)
class Alternate:
    """Schedule that alternates between a density and all weights.

    >>> schedule = Alternate(density=0.1, num_steps=100, warmup=0.1, phase=0.05, final=0.15)
    >>> schedule(Progress(round=0, step=10, num_on=1000, num=1000))
    MaskUpdate(num_drop=900, num_grow=0)
    >>> [step for step in range(1, 100) if schedule.is_sparse(step) != schedule.is_sparse(step - 1)]
    [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 85]
    """

    density: float
    num_steps: int
    warmup: float
    phase: float
    final: float

    def __post_init__(self) -> None:
        require_density("density", self.density)
        require_steps(1, self.num_steps)
        if not (self.warmup >= 0 and 0 < self.phase < math.inf and self.final > 0 and self.warmup + self.final <= 1):
            raise UserError(
                "phase_fraction and final_fraction must be > 0, warmup_fraction >= 0, and warmup_fraction + "
                f"final_fraction <= 1, got {self.phase}, {self.final} and {self.warmup} (e.g. 0.05, 0.15 and 0.1)"
            )

    def is_sparse(self, step: int) -> bool:
        """Whether a step belongs to a sparse phase."""
        first, length = floor_of(self.warmup * self.num_steps), max(1, floor_of(self.phase * self.num_steps))
        # Never beyond the last step that is made: the density must be reached.
        final = min(floor_of((1 - self.final) * self.num_steps), self.num_steps - 1)
        if step < first or step >= final:
            return step >= final
        since = (step - first) % (2 * length)
        # A sparse phase only if a dense one fits in before the end.
        return since < length and step - since + 2 * length <= final

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        target = count_at(self.density, progress.num) if self.is_sparse(progress.step) else progress.num
        missing = target - progress.num_on
        return MaskUpdate(num_drop=max(0, -missing), num_grow=max(0, missing)) if missing else None
