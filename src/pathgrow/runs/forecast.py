"""What the rest of a training will cost, as far as can be told from where it stands.

The schedule of a method is a pure function of its progress, so it can be played through without a network. The cost of
later masks is estimated from the present ones: a weight that is dropped or grown counts as the average of those that
can be. Where weights move between layers that is a guess, which is repeated on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from pathgrow.graph.flops import forward_macs, sample_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, Method, Progress, count_at
from pathgrow.runs.bench import Bench, grows
from pathgrow.runs.config import DiscoverOptions


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a run stands, and so where a forecast begins."""

    num_on: int
    macs: int
    """Multiply-adds of one sample forward through the present masks."""
    spent: float = 0.0
    """What the run has spent so far, in the unit of the budget."""
    step: int = 0
    """The step of a training whose masks change within it;"""
    round: int = 0
    """or the number of prunings so far, where a whole training follows each of them."""
    rewind_step: int | None = None
    """The step that these trainings are set back to; None: that of the method, which may follow from their length."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A series of steps that are trained with one number of weights."""

    num_steps: int
    num_on: int
    num_changes: int = 0
    """Changes of masks within the stretch, which leave the number as it is, and the one at its end."""


Price = Callable[[Method, Stretch], float]


def flops_price(bench: Bench, at: Standing) -> Price:
    """Prices a stretch by its training FLOPs."""
    dense_macs, num = bench.dense_macs, bench.scope.num
    fixed_macs = forward_macs(bench.graph, Masks.empty(bench.scope))

    def macs(num_on: int) -> int:
        if num_on <= at.num_on:
            return fixed_macs + (at.macs - fixed_macs) * num_on // at.num_on
        return at.macs + (dense_macs - at.macs) * (num_on - at.num_on) // (num - at.num_on)

    def a_change(method: Method, here: int) -> int:
        """What it takes to decide on new masks, beside the step that it falls into, if it falls into one."""
        if method.cost == "dense_gradient_at_changes":
            return bench.batch_size * 2 * (dense_macs - here)
        if method.cost == "batch_at_changes":  # looked at by the first of a team
            return bench.probe_size * 6 * here
        if grows(method) and "gradients" in method.needs:  # over a batch of each of a team
            return bench.comm.size * bench.probe_size * 2 * (2 * here + dense_macs)
        return 0  # or a pass over the paths, which costs as much as one sample

    def price(method: Method, stretch: Stretch) -> float:
        here = macs(stretch.num_on)
        a_step = bench.batch_size * sample_flops(method.cost, here, dense_macs)
        return float(stretch.num_steps * a_step + stretch.num_changes * a_change(method, here))

    return price


def parameters_price(bench: Bench) -> Price:
    """Prices a stretch by epochs times parameters; whether those that are always dense count is the config's choice."""
    num_always = bench.num_counted_always(bench.config.match)

    def price(method: Method, stretch: Stretch) -> float:
        return stretch.num_steps / bench.steps_per_epoch * (num_always + stretch.num_on)

    return price


def cost_by_epochs(bench: Bench, at: Standing, price: Price) -> Callable[[int], float]:
    """A function from the epochs of a training to what the whole run will have cost in the end."""

    @cache
    def cost(epochs: int) -> float:
        method = bench.make_method(epochs)
        return at.spent + sum(price(method, stretch) for stretch in stretches(bench, method, epochs, at))

    return cost


def price_of(bench: Bench, at: Standing) -> Price:
    """Prices in the unit of the budget that a run is to match."""
    return flops_price(bench, at) if bench.config.match == "flops" else parameters_price(bench)


def updates_are_due(bench: Bench, at: Standing) -> bool:
    """Whether the number of weights still has to change in a training that would end with the next epoch."""
    epochs = at.step // bench.steps_per_epoch + 1
    *_, last = stretches(bench, bench.make_method(epochs), epochs, at)
    return last.num_on != at.num_on


def nearest(cost: Callable[[int], float], budget: float, *, least: int = 1, guess: int = 1) -> int:
    """The number of epochs, at least `least`, whose cost is nearest to a budget; `cost` rises with the number.

    >>> nearest(lambda epochs: 3.0 * epochs, 100.0), nearest(lambda epochs: 3.0 * epochs, 100.0, guess=50)
    (33, 33)
    """
    low = high = max(least, guess)
    width = 1
    while cost(high) < budget:
        low, high, width = high, high + width, 2 * width
    width = 1
    while low > least and cost(low) >= budget:
        low, high, width = max(least, low - width), low, 2 * width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < budget else (low, middle)
    return high if cost(high) - budget < budget - cost(low) else low


def stretches(bench: Bench, method: Method, epochs: int, at: Standing) -> Iterator[Stretch]:
    """The rest of a run of a method, played through without a network; growth is played from its beginning."""
    num, num_on, per_epoch = bench.scope.num, at.num_on, bench.steps_per_epoch
    if grows(method):
        options = DiscoverOptions(budget=epochs)
        num_wanted = count_at(bench.config.density or 1.0, num)
        num_steps = options.num_seed_epochs * per_epoch
        while num_on < num_wanted and (change := _due(method, num_on, num)) is not None:
            yield Stretch(num_steps=num_steps, num_on=num_on, num_changes=1)
            num_on = min(num_wanted, num_on + change.num_grow)
            num_steps = (options.num_rough_epochs or 1) * per_epoch
        yield Stretch(num_steps=num_steps + epochs * per_epoch, num_on=num_on)
    elif method.clock == "step":
        yield from _by_steps(method, at.step, epochs * per_epoch, num_on, num)
    else:
        own = method.rewind_step if method.after_update == "rewind" else 0
        again = own if at.rewind_step is None else at.rewind_step
        round = at.round
        yield Stretch(num_steps=epochs * per_epoch - (again if round else 0), num_on=num_on)
        while (change := _due(method, num_on, num, round=round)) is not None:
            num_on += change.num_grow - change.num_drop
            round += 1
            yield Stretch(num_steps=epochs * per_epoch - again, num_on=num_on)


def _by_steps(method: Method, began: int, num_steps: int, num_on: int, num: int) -> Iterator[Stretch]:
    num_changes = 0
    for step in range(began, num_steps):
        change = _due(method, num_on, num, step=step)
        if change is None:
            continue
        num_changes += 1
        if change.num_grow != change.num_drop:
            yield Stretch(num_steps=step + 1 - began, num_on=num_on, num_changes=num_changes)
            num_on += change.num_grow - change.num_drop
            began, num_changes = step + 1, 0
    yield Stretch(num_steps=max(0, num_steps - began), num_on=num_on, num_changes=num_changes)


def _due(method: Method, num_on: int, num: int, *, round: int = 0, step: int = 0) -> MaskUpdate | None:
    return method.due(Progress(round=round, step=step, num_on=num_on, num=num))
