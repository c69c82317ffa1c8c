"""MEST: drop weights that are small and have small gradients, grow random ones; optionally hold more for a while."""

import math
from dataclasses import dataclass

import torch

from pathgrow.errors import require
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k_in, uniform_in
from pathgrow.methods.allocation import RandomInLayers, allocate_count
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress, count_at, floor_of, require_density
from pathgrow.methods.rewire import active, masks_with, num_true
from pathgrow.methods.schedules import require_stop_fraction, scaled_interval

_PUBLISHED_INTERVAL, _PUBLISHED_STEPS = 5 * 782, 160 * 782
"""On CIFAR-10, with a batch size of 64."""
_HALVED_AT = 0.75
"""Fraction of the steps with updates after which half as many weights change: epoch 90 of 120."""


def mest(
    *,
    density: float = 0.1,
    extra_density: float = 0.05,
    drop_fraction: float = 0.2,
    gradient_weight: float = 0.01,
    allocation: str = "equal",
    num_steps: int = 10_000,
    update_interval: int | None = None,
    stop_fraction: float = 0.75,
) -> Method:
    """MEST (Yuan et al. 2021, MEST: Accurate and Fast Memory-Economic Sparse Training Framework on the Edge).

    Rule: at an update each layer keeps its weights with the largest |weight| + gradient_weight |gradient| and grows
    random ones. With a soft memory bound (EM&S) it keeps as many as `density` gives it and grows up to
    `density + extra_density`; new weights thus train before they compete. Without one (`extra_density=0`: EM) it
    replaces `drop_fraction` of its weights. The extra density and the drop fraction are halved at three quarters of the
    updates, and zero from `stop_fraction` of the training on. Only gradients of active weights are used.

    Differences: fractions, intervals and amounts are those of the authors' scripts for CIFAR-10 at a density of 0.1,
    which leave `gradient_weight` at zero; 0.01 is the value of later comparisons. Trainings shorter than their 160
    epochs make as many updates, unless `update_interval` is given. Their masks start from the largest initial weights,
    and all layers but block convolutions are dense; here masks start at random, and the scope decides. A weight that is
    dropped and drawn again keeps its value. The update comes before the optimizer step.

    Parameters
    ----------
    density, extra_density : float
        Density at the end of the training, and what is held in addition before (at most all weights).
    drop_fraction : float
        Fraction of a layer's weights that EM replaces; without effect for EM&S.
    gradient_weight : float
        Weight of |gradient| in the score.
    allocation : str
        Distribution of the density over layers.
    num_steps, update_interval, stop_fraction
        Steps of the training, steps between mask updates, and the fraction of the training after which masks are final.
    """
    interval = scaled_interval(
        update_interval, published=_PUBLISHED_INTERVAL, of_steps=_PUBLISHED_STEPS, num_steps=num_steps
    )
    schedule = HoldExtra(
        density=density,
        extra_density=extra_density,
        update_interval=interval,
        num_steps=num_steps,
        stop_fraction=stop_fraction,
    )
    require(0 <= drop_fraction < 1, "drop_fraction", drop_fraction, "in [0, 1)", 0.2)
    require(0 <= gradient_weight < math.inf, "gradient_weight", gradient_weight, ">= 0", 0.01)
    return Method(
        name="mest",
        start=RandomInLayers(allocation),
        start_density=schedule.density_at(0),
        schedule=schedule,
        update=Mutate(schedule, 0.0 if extra_density else drop_fraction, gradient_weight, allocation),
        final_density=density,
        num_steps=num_steps,
        clock="step",
    )


@dataclass(frozen=True, kw_only=True)
class HoldExtra:
    """Schedule of updates that hold an extra density, half of it later, and none from `stop_fraction` on."""

    density: float
    extra_density: float
    update_interval: int
    num_steps: int
    stop_fraction: float

    def __post_init__(self) -> None:
        require_density("density", self.density)
        require(0 <= self.extra_density < 1, "extra_density", self.extra_density, "in [0, 1)", 0.05)
        require_stop_fraction(self.stop_fraction)

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        step = progress.step
        on_grid = step > 0 and step % self.update_interval == 0 and step < self._last_step
        missing = count_at(self.density_at(step), progress.num) - progress.num_on
        if not on_grid and (step < self._last_step or missing >= 0):
            return None
        return MaskUpdate(num_drop=max(0, -missing), num_grow=max(0, missing))

    def density_at(self, step: int) -> float:
        """The density from an update at this step on."""
        return min(1.0, self.density + self.decayed(self.extra_density, step))

    def decayed(self, amount: float, step: int) -> float:
        """What is left of an amount at a step."""
        if step >= self._last_step:
            return 0.0
        return amount / 2 if step >= _HALVED_AT * self._last_step else amount

    @property
    def _last_step(self) -> int:
        # Never beyond num_steps - 1, the last step that is made: the density must be reached.
        return min(floor_of(min(self.stop_fraction, 1.0) * self.num_steps), self.num_steps - 1)


@dataclass(frozen=True)
class Mutate:
    """Mask update of MEST: what each layer keeps by its scores, and random weights up to the density of now."""

    schedule: HoldExtra
    drop_fraction: float
    gradient_weight: float
    allocation: str

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        weights, gradients, inside = net.weights(), net.gradients(), net.masks.scope
        fraction = self.schedule.decayed(self.drop_fraction, progress.step)
        final = self._counts(net.scope, self.schedule.density)
        held = self._counts(net.scope, self.schedule.density_at(progress.step))
        result = {}
        for name, on in active(net).items():
            scores = weights[name].abs() + self.gradient_weight * gradients[name]
            num_kept = min(final[name] - floor_of(fraction * final[name]), num_true(on), held[name])
            kept = top_k_in(scores, on, num_kept, draw)
            result[name] = kept | uniform_in(inside[name] & ~kept, held[name] - num_kept, draw)
        return masks_with(net, result)

    def _counts(self, scope: Masks, density: float) -> dict[str, int]:
        return allocate_count(scope, count_at(density, scope.num), self.allocation)
