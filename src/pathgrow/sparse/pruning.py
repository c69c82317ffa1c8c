"""Pruning that the caller asks for, at once or gradually during the steps that follow."""

import dataclasses

from pathgrow.methods.method import MaskUpdate, Method, count_at, floor_of, require_density
from pathgrow.methods.schedules import PruneCubically
from pathgrow.rng import generator
from pathgrow.sparse.hooks import MaskedOptimizer

GRADUAL = 0.7
"""Fraction of the steps during which weights are pruned gradually."""
_NUM_UPDATES = 30
"""Mask updates of a gradual pruning, about."""


class PruningOptimizer(MaskedOptimizer):
    """A masked optimizer that prunes to any density with the drop pick of its method."""

    _pruning: tuple[Method, float] | None = None
    """During a gradual pruning: the method without its schedule, and the density to end with."""

    def prune_(self, density: float) -> None:
        """Prune to a density at once, if more weights than that are active."""
        if num_drop := self._num_above(density):
            self._next_round_(MaskUpdate(num_drop=num_drop))

    def prune_gradually_(self, density: float, num_steps: int) -> None:
        """Prune to a density during the next `num_steps` steps, if more weights than that are active.

        Along a cubic curve, fast at first, that ends after 70% of the steps: the others train the weights that are
        left. Call `finish_pruning_` after the steps.
        """
        assert self._pruning is None, "the last gradual pruning was not finished"
        if not self._num_above(density):
            return
        if num_steps < 2:
            self.prune_(density)
            return
        schedule = PruneCubically(
            density=density,
            start_density=self.density,
            update_interval=max(1, floor_of(GRADUAL * num_steps / _NUM_UPDATES)),
            num_steps=num_steps,
            start_fraction=0.0,
            stop_fraction=GRADUAL,
            first_step=self.step,
        )
        self._begin_round_()
        self._pruning = (self.method, density)
        self.method = dataclasses.replace(self.method, clock="step", schedule=schedule, after_update="keep")

    def finish_pruning_(self) -> None:
        """End a gradual pruning; what is left of it, after fewer steps than expected, is pruned now."""
        if self._pruning is None:
            return
        self.method, density = self._pruning
        self._pruning = None
        if num_drop := self._num_above(density):
            self._update_masks_(MaskUpdate(num_drop=num_drop), self._view(), generator(self._seed, "change", self.step))

    @property
    def next_density(self) -> float:
        """The density that a gradual pruning ends with; otherwise the current one."""
        return self.density if self._pruning is None else count_at(self._pruning[1], self._num) / self._num

    def _num_above(self, density: float) -> int:
        require_density("density", density)
        return max(0, self._num_on - count_at(density, self._num))
