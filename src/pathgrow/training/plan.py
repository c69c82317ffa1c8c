"""What a training will cost before it begins, and how long it may be where the cost is to equal a budget.

The schedule of a method is a pure function of its progress, so it can be played through without a network. What the
masks of a later moment cost is read off the first ones: each weight that is dropped or grown as the average of those
that can be. The ledger of the finished run has what it did cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pathgrow.density import words
from pathgrow.discovery import Options
from pathgrow.errors import UserError
from pathgrow.flops import forward_macs
from pathgrow.ledger import start_flops
from pathgrow.masks import Masks
from pathgrow.method import Change, Method, Progress
from pathgrow.methods.schedules import count_at
from pathgrow.net import Reading
from pathgrow.revise import decided, start_masks
from pathgrow.training.bench import Bench, grows
from pathgrow.training.meter import sample_flops

_STAGE = "plan"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps that are trained with one number of weights."""

    num_steps: int
    num_on: int
    num_changes: int = 0
    """Changes on the way that leave the number as it is, and the one at the end."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train, and what was matched by it."""

    epochs: int
    """Of a training; of each level where there are several."""
    match: str
    budget: float | None = None
    """Epochs times parameters, or FLOPs; None where nothing is matched."""
    planned: float | None = None
    """The same of this training, as it was foreseen."""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.match, "epochs": self.epochs, "budget": self.budget, "planned": self.planned}


def plan(bench: Bench) -> Plan:
    """The plan of a run, found in its store or made now."""
    found = bench.store.load(_STAGE)
    if found is None:
        made = _made(bench)
        bench.store.save(_STAGE, made.as_dict())
        return made
    facts = found.facts
    return Plan(epochs=facts["epochs"], match=facts["kind"], budget=facts["budget"], planned=facts["planned"])


def stretches(bench: Bench, method: Method, epochs: int, num_on: int) -> Iterator[Stretch]:
    """A whole run of a method, played through from masks of `num_on` weights."""
    num, per_epoch = bench.scope.num, bench.steps_per_epoch
    if grows(method):
        options = Options(budget=epochs)
        num_wanted = count_at(bench.config.density or 1.0, num)
        yield Stretch(num_steps=options.num_seed_epochs * per_epoch, num_on=num_on)
        while num_on < num_wanted and (change := _due(method, num_on, num)) is not None:
            num_on = min(num_wanted, num_on + change.num_grow)
            yield Stretch(num_steps=(options.num_rough_epochs or 1) * per_epoch, num_on=num_on)
        yield Stretch(num_steps=epochs * per_epoch, num_on=num_on)
    elif method.clock == "step":
        yield from _by_steps(method, epochs * per_epoch, num_on, num)
    else:
        yield Stretch(num_steps=epochs * per_epoch, num_on=num_on)
        first = method.rewind_step if method.afterwards == "rewind" else 0
        round = 0
        while (change := _due(method, num_on, num, round=round)) is not None:
            num_on += change.num_grow - change.num_drop
            round += 1
            yield Stretch(num_steps=epochs * per_epoch - first, num_on=num_on)


def _by_steps(method: Method, num_steps: int, num_on: int, num: int) -> Iterator[Stretch]:
    began, num_changes = 0, 0
    for step in range(num_steps):
        change = _due(method, num_on, num, step=step)
        if change is None:
            continue
        num_changes += 1
        if change.num_grow != change.num_drop:
            yield Stretch(num_steps=step + 1 - began, num_on=num_on, num_changes=num_changes)
            num_on += change.num_grow - change.num_drop
            began, num_changes = step + 1, 0
    yield Stretch(num_steps=num_steps - began, num_on=num_on, num_changes=num_changes)


def _due(method: Method, num_on: int, num: int, *, round: int = 0, step: int = 0) -> Change | None:
    change = method.schedule(Progress(round=round, step=step, num_on=num_on, num=num))
    if change is None or (method.revise is None and not change.num_drop and not change.num_grow):
        return None
    return change


def _made(bench: Bench) -> Plan:
    config = bench.config
    if config.match == "none":
        return Plan(epochs=config.epochs, match="none")
    start, looked = _start_masks(bench)
    at_start = start_flops(bench.wiring, **asdict(looked)) if config.match == "flops" else 0
    price = _parameters_price(bench) if config.match == "parameters" else _flops_price(bench, start)
    budget = config.match_budget
    if budget is None:
        dense = bench.num_parameters if config.match == "parameters" else 6 * bench.dense_macs * _samples(bench)
        budget = float(config.epochs * dense)

    def cost(epochs: int) -> float:
        method = bench.make_method(epochs)
        return at_start + sum(price(method, stretch) for stretch in stretches(bench, method, epochs, start.num_on))

    epochs = nearest(cost, budget)
    if cost(epochs) > 2 * budget:
        raise UserError(
            f"one epoch of method {method_words(bench)} costs {cost(1):.3g} and the budget is {budget:.3g} "
            f"({config.match}): give a larger budget"
        )
    return Plan(epochs=epochs, match=config.match, budget=budget, planned=cost(epochs))


def method_words(bench: Bench) -> str:
    density = bench.config.density
    return repr(bench.config.method) + ("" if density is None else f" at density {words.density(density)}")


def nearest(cost: Callable[[int], float], budget: float) -> int:
    """The number of epochs, from 1 up, whose cost is nearest to a budget; costs rise with the number.

    >>> nearest(lambda epochs: 3.0 * epochs, 100.0)
    33
    """
    high = 1
    while cost(high) < budget:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < budget else (low, middle)
    return high if low < 1 or cost(high) - budget < budget - cost(low) else low


def _samples(bench: Bench) -> int:
    """Of an epoch."""
    return bench.batch_size * bench.steps_per_epoch


def _start_masks(bench: Bench) -> tuple[Masks, Reading]:
    method, trainer = bench.make_method(bench.config.epochs), bench.trainer
    return decided(
        bench.team,
        bench.scope,
        lambda: start_masks(
            bench.model,
            method,
            bench.scope,
            bench.example_input,
            bench.config.seed,
            trainer.loss,
            trainer.batches,
        ),
    )


def _parameters_price(bench: Bench) -> Callable[[Method, Stretch], float]:
    """Epochs times trainable parameters, those that are always dense among them."""
    num_dense = bench.num_parameters - bench.scope.num

    def price(method: Method, stretch: Stretch) -> float:
        return stretch.num_steps / bench.steps_per_epoch * (num_dense + stretch.num_on)

    return price


def _flops_price(bench: Bench, start: Masks) -> Callable[[Method, Stretch], float]:
    dense_macs, num = bench.dense_macs, bench.scope.num
    start_macs = forward_macs(bench.wiring, start)
    fixed_macs = forward_macs(bench.wiring, Masks.empty(bench.scope))

    def macs(num_on: int) -> int:
        if num_on <= start.num_on:
            return fixed_macs + (start_macs - fixed_macs) * num_on // start.num_on
        return start_macs + (dense_macs - start_macs) * (num_on - start.num_on) // (num - start.num_on)

    def price(method: Method, stretch: Stretch) -> float:
        here = macs(stretch.num_on)
        a_step = sample_flops(method.cost, here, dense_macs)
        at_changes = 2 * (dense_macs - here) if method.cost == "dense_gradient_at_changes" else 0
        return float(bench.batch_size * (stretch.num_steps * a_step + stretch.num_changes * at_changes))

    return price
