"""Parts of dynamic sparse training: drop weights, grow as many elsewhere, at a constant density.

Ranking happens on the device of the weights, within all layers at once: an update every hundred steps must neither copy
all gradients of a network to the CPU nor wait for every layer. Only ties and random picks draw, from the CPU generator
that is passed, over candidates in logical order, so equal scores give equal masks on every device.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.masks.by_layer import Ranked, top_k_by_layer, uniform_by_layer
from pathgrow.masks.masks import nums_true
from pathgrow.methods.method import MaskUpdate, NetworkView, Progress, ScoreFunction, floor_of
from pathgrow.methods.schedules import require_steps, require_stop_fraction

DropFraction = Callable[[int], float]
"""Fraction of the active weights to drop at a step."""


@dataclass(frozen=True, kw_only=True)
class RewireEvery:
    """Schedule of updates at a constant density: every `update_interval` steps, up to `stop_fraction` of `num_steps`.

    >>> schedule = RewireEvery(update_interval=100, num_steps=1000, stop_fraction=0.75)
    >>> [step for step in range(1000) if schedule(Progress(round=0, step=step, num_on=1, num=9)) is not None]
    [0, 100, 200, 300, 400, 500, 600, 700]
    """

    update_interval: int
    num_steps: int
    first_step: int = 0
    stop_fraction: float = math.inf

    def __post_init__(self) -> None:
        require_steps(self.update_interval, self.num_steps)
        require_stop_fraction(self.stop_fraction)

    def __call__(self, progress: Progress) -> MaskUpdate | None:
        due = progress.step >= self.first_step and progress.step % self.update_interval == 0
        return MaskUpdate() if due and progress.step <= self.stop_fraction * self.num_steps else None


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Drop fraction that falls along half a cosine from `first` at step 0 to `last` at step `num_steps`.

    It is constant if `last` equals `first`.

    >>> fraction = Cosine(first=0.3, num_steps=1000)
    >>> fraction(0), round(fraction(500), 6), fraction(1000), fraction(2000)
    (0.3, 0.15, 0.0, 0.0)
    """

    first: float
    last: float = 0.0
    num_steps: float

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first < 1:
            raise UserError(f"drop fractions must be in [0, 1) and not increase, got {self.first} to {self.last}")

    def __call__(self, step: int) -> float:
        if step >= self.num_steps:
            return self.last
        return self.last + (self.first - self.last) / 2 * (1 + math.cos(math.pi * step / self.num_steps))


@dataclass(frozen=True, kw_only=True)
class RewireLayers:
    """Mask update within layers: drop a fraction of the smallest |weight| and grow as many; layer densities stay.

    All weights that were not kept can grow, also those just dropped, which then were never pruned.
    """

    drop_fraction: DropFraction
    score: ScoreFunction | None
    """Grow the largest; None: grow at random."""
    by_sign: bool = False
    """Drop the fraction of the positive and of the negative weights separately; zeros go first."""

    def __call__(self, net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        return masks_with(net, self.rewired(net, active(net), progress.step, draw))

    def rewired(
        self, net: NetworkView, on: Mapping[str, Tensor], step: int, draw: torch.Generator
    ) -> dict[str, Tensor]:
        """The active weights after an update at `step`, given those before it."""
        weights, inside, fraction = net.weights(), net.masks.scope, self.drop_fraction(step)
        scores = None if self.score is None else self.score(net)
        sides = [self._kept(weights, on, sign, fraction) for sign in ((1, -1) if self.by_sign else (0,))]
        layers = list(zip(on, nums_true(list(on.values())), zip(*sides, strict=True), strict=True))
        # One by one only where ties are drawn: the growth of a layer draws before the next one drops.
        is_random = any(part.is_random for side in sides for part in side)
        result: dict[str, Tensor] = {}
        for group in [[layer] for layer in layers] if is_random else [layers]:
            kept = [functools.reduce(torch.logical_or, [part.draw(draw) for part in parts]) for _, _, parts in group]
            free = [inside[name] & ~flags for (name, _, _), flags in zip(group, kept, strict=True)]
            nums = [num - sum(part.num for part in parts) for _, num, parts in group]
            if scores is None:
                grown = uniform_by_layer(free, nums, draw)
            else:
                best = top_k_by_layer([scores[name] for name, _, _ in group], free, nums)
                grown = [layer.draw(draw) for layer in best]
            result |= {name: a | b for (name, _, _), a, b in zip(group, kept, grown, strict=True)}
        return result

    def _kept(
        self, weights: Mapping[str, Tensor], on: Mapping[str, Tensor], side: int, fraction: float
    ) -> list[Ranked]:
        """What each layer keeps of its active weights of one sign, or (0) of all of them."""
        sizes = [weights[name] * side if side else weights[name].abs() for name in on]
        active = [here & (size > 0) if side else here for here, size in zip(on.values(), sizes, strict=True)]
        nums = [num - floor_of(fraction * num) for num in nums_true(active)]
        return top_k_by_layer(sizes, active, nums)


def active(net: NetworkView) -> dict[str, Tensor]:
    """The active prunable weights, by layer."""
    return dict(net.masks.present())


def masks_with(net: NetworkView, on: Mapping[str, Tensor]) -> Masks:
    """Masks in which exactly these prunable weights are active."""
    return net.masks.with_active(on)


def num_true(flags: Tensor) -> int:
    """Number of True entries. Waits for the device."""
    return int(torch.count_nonzero(flags))


def apportion(num: int, shares: Mapping[str, float], capacity: Mapping[str, int]) -> dict[str, int]:
    """Integers with sum `num`, proportional to `shares`, none above its capacity.

    What exceeds a capacity goes to the others in proportion; fractions go to the largest remainders. If all shares left
    are zero, the capacities are the shares.

    >>> apportion(10, {"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 2, "b": 9, "c": 9})
    {'a': 2, 'b': 4, 'c': 4}
    """
    assert 0 <= num <= sum(capacity.values()), "more than there is capacity for"
    quotas = dict.fromkeys(shares, 0.0)
    free, left = list(shares), num  # in order: float sums depend on it
    while free and left:
        parts: Mapping[str, float] = shares if sum(shares[name] for name in free) > 0 else capacity
        total = sum(parts[name] for name in free)
        fair = {name: left * parts[name] / total for name in free}
        full = [name for name in free if fair[name] >= capacity[name]]
        if not full:
            quotas |= fair
            break
        quotas |= {name: float(capacity[name]) for name in full}
        left -= sum(capacity[name] for name in full)
        free = [name for name in free if name not in full]
    counts = {name: min(floor_of(quota), capacity[name]) for name, quota in quotas.items()}
    remainders = sorted((name for name in counts if counts[name] < capacity[name]), key=lambda n: counts[n] - quotas[n])
    for name in remainders[: num - sum(counts.values())]:
        counts[name] += 1
    return counts
