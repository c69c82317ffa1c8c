"""Pruning that the caller asks for, at once or gradually during the steps that follow.

It takes place after optimizer steps and not before them: magnitudes need no gradients, so nothing changes for the
optimizer, even one that calls its closure several times.
"""

from pathgrow.methods.method import MaskUpdate, count_at, floor_of, require_density
from pathgrow.methods.schedules import PruneCubically
from pathgrow.rng import generator
from pathgrow.sparse.hooks import MaskedOptimizer

GRADUAL = 0.7
"""Fraction of the steps after which gradual pruning ends."""
UNTRAINED_START = 0.2
"""Fraction of the steps after which it begins, if the weights are untrained: their magnitudes say nothing yet."""
_NUM_UPDATES = 30
"""Mask updates of a gradual pruning, about."""


class PruningOptimizer(MaskedOptimizer):
    """A masked optimizer that prunes to any density with the drop pick of its method."""

    _pruning: PruneCubically | None = None

    def prune_(self, density: float) -> None:
        """Prune to a density at once, if more weights than that are active."""
        if num_drop := self._num_above(density):
            self._next_round_(MaskUpdate(num_drop=num_drop))

    def prune_gradually_(self, density: float, num_steps: int, *, start_fraction: float = 0.0) -> None:
        """Prune to a density during the next `num_steps` steps, if more weights than that are active.

        Along a cubic curve, fast at first, from a fraction of the steps to 70% of them: the others train the weights
        that are left. Call `finish_pruning_` after the steps. The state dict does not say that this goes on: to resume,
        call it again before loading.
        """
        assert self._pruning is None, "the last gradual pruning was not finished"
        if not self._num_above(density):
            return
        if num_steps < 2:
            self.prune_(density)
            return
        self._check_rewind_point()
        self._pruning = PruneCubically(
            density=density,
            start_density=self.density,
            update_interval=max(1, floor_of((GRADUAL - start_fraction) * num_steps / _NUM_UPDATES)),
            num_steps=num_steps,
            start_fraction=start_fraction,
            stop_fraction=GRADUAL,
            first_step=self.step,
        )
        self._begin_round_()

    def finish_pruning_(self) -> bool:
        """End a gradual pruning, if there is one, and enforce the masks.

        Returns whether the weights were trained with the final masks. They were not after too few steps, or if weights
        were loaded that are pruned by now (the best ones so far, an average). What is left to prune is pruned now.
        """
        num_drop = 0 if self._pruning is None else self._num_above(self._pruning.density)
        self._pruning = None
        is_masked = self.method.weights is not None or not any(
            bool(((self._parameters[name].detach().abs() > 0) & ~mask).any()) for name, mask in self._masks.items()
        )
        if num_drop:
            self._update_masks_(MaskUpdate(num_drop=num_drop), self._view(), generator(self._seed, "change", self.step))
        self._enforce_()
        return is_masked and not num_drop

    @property
    def works_on_host(self) -> bool:
        """Whether the next step updates the masks, before or after the optimizer step."""
        if self.update_is_due or self._pruning is None:
            return self.update_is_due
        return self._pruning.is_due_at(self.step + 1) and self._num_above(self._pruning.density) > 0

    @property
    def is_pruning(self) -> bool:
        """Whether a gradual pruning was begun and not finished."""
        return self._pruning is not None

    @property
    def next_density(self) -> float:
        """The density that a gradual pruning ends with; otherwise the current one."""
        return self.density if self._pruning is None else count_at(self._pruning.density, self._num) / self._num

    def _num_above(self, density: float) -> int:
        require_density("density", density)
        return max(0, self._num_on - count_at(density, self._num))
