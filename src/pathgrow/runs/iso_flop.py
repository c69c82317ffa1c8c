"""Compute-matched (iso-FLOP) training: log what mask updates cost, forecast a run, choose its number of epochs.

The schedule of a method is a pure function of its progress, so it can be played through without a network. The cost of
future masks is estimated from the initial ones: a weight that is dropped or grown costs the average of those that can
be. The plan is made once, before training; the report says what was spent.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Self

from pathgrow.config import MAX_EPOCHS, from_json, to_json
from pathgrow.errors import UserError
from pathgrow.graph import Graph
from pathgrow.graph.flops import forward_macs, sample_flops, scoring_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import Cost, MaskUpdate, Method, MethodState, Progress, count_at, never
from pathgrow.report.schema import LedgerReport, MatchReport, RunReport
from pathgrow.runs.config import RunConfig, TrainConfig
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.session import Session
from pathgrow.sparse.attach import Attached
from pathgrow.trainer import Trainer
from pathgrow.trainer.feed import epoch_batches

_PLAN = "plan"
_LOG = "cost_log"


def grows(method: Method) -> bool:
    """Whether a method adds weights round by round."""
    return method.grow is not None and method.clock == "round"


def updates_within_training(method: Method) -> bool:
    """Whether masks, and with them the cost of a step, change within a training; latent weights are always dense."""
    return method.clock == "step" and method.weights is None


# What mask updates cost


def cost_logger(graph: Graph) -> Callable[[Attached], None]:
    """A callback for `attach` that logs, at every mask update, the number of active weights and the MACs from then on.

    The log is part of the method state, so a resumed training has the log of an uninterrupted one.
    """
    dense_macs = forward_macs(graph)

    def on_mask_update(attached: Attached) -> None:
        if attached.method.weights is not None:
            return  # latent weights are trained densely
        log, cost = attached.method_state.get(_LOG, {}), attached.last_scoring_cost
        in_step = attached.method.clock == "step"
        line = {"since": 0, "updated": -1, "macs": forward_macs(graph, attached.masks), "num_on": attached.masks.num_on}
        line["scoring"] = 0
        if log:
            macs = log["macs"][-1]
            # Gradients computed besides those of the step (GSE) are sparse; between trainings they must be dense.
            gradient = sample_flops("sparse" if in_step else "dense_gradient_at_steps", macs, dense_macs)
            line["scoring"] = cost.num_gradient_samples * gradient + _own_flops(attached.method, attached.scope)
            line["scoring"] += cost.num_path_passes * sample_flops("dense", macs, dense_macs)
            # Updates follow the backward pass: the batch of this step has still used the old masks.
            line |= {"since": attached.step + in_step, "updated": attached.step}
        attached.method_state[_LOG] = {name: [*log.get(name, []), value] for name, value in line.items()}

    return on_mask_update


@dataclass(frozen=True, kw_only=True)
class CostMeter:
    """Computes costs from the log of `cost_logger`."""

    cost: Cost
    dense_macs: int
    batch_size: int | Fraction
    """Samples per step; the mean, if it was measured."""
    num: int
    """Prunable weights."""
    per_sample: int | None = None
    """FLOPs of a sample, if they do not depend on the masks."""

    @classmethod
    def of(cls, session: Session, method: Method, batch_size: int | Fraction) -> Self:
        """The meter of a method on the model of a session."""
        return cls(
            cost=method.cost,
            dense_macs=forward_macs(session.graph),
            batch_size=batch_size,
            num=session.scope.num,
            per_sample=None if method.sample_flops is None else method.sample_flops(session.graph, session.scope),
        )

    def training_flops(self, state: MethodState, first_step: int, last_step: int) -> int:
        """FLOPs of the steps from `first_step` up to, but not including, `last_step`."""
        if self.per_sample is not None:
            return round((last_step - first_step) * self.batch_size * self.per_sample)
        log = self._log(state)
        total = scoring = 0
        for number, num_steps in enumerate(_spans(log["since"], first_step, last_step)):
            total += num_steps * sample_flops(self.cost, log["macs"][number], self.dense_macs)
            if not first_step <= log["updated"][number] < last_step:
                continue
            scoring += log["scoring"][number]
            if self.cost == "dense_gradient_at_updates":
                total += _dense_gradient_extra(log["macs"][number - 1], self.dense_macs)
        return round(total * self.batch_size) + scoring

    def weight_steps(self, state: MethodState, last_step: int) -> int:
        """Active prunable weights, summed over all steps."""
        log = self._log(state)
        return sum(n * num_on for n, num_on in zip(_spans(log["since"], 0, last_step), log["num_on"], strict=True))

    def _log(self, state: MethodState) -> dict[str, list[int]]:
        """The log; without one, all weights are trained at every step."""
        dense = {"since": [0], "updated": [-1], "macs": [self.dense_macs], "num_on": [self.num], "scoring": [0]}
        log: dict[str, list[int]] = state.get(_LOG, dense)
        return log


def _own_flops(method: Method, scope: Masks) -> int:
    return 0 if method.update_flops is None else method.update_flops(scope)


def _spans(since: Sequence[int], first_step: int, last_step: int) -> list[int]:
    """For each line of the log, how many of its steps are between two steps."""
    ends = [*since[1:], last_step]
    return [max(0, min(end, last_step) - max(start, first_step)) for start, end in zip(since, ends, strict=True)]


def _dense_gradient_extra(macs: int, dense_macs: int) -> int:
    """FLOPs per sample that a step with dense weight gradients costs in addition."""
    return sample_flops("dense_gradient_at_steps", macs, dense_macs) - sample_flops("sparse", macs, dense_macs)


# Forecast


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive steps with one number of active weights."""

    num_steps: int
    num_on: int
    num_updates: int = 0
    """Mask updates within it that keep the number, and the one at its end."""


class Workload:
    """The training of one method on one model: what a forecast is made from."""

    def __init__(self, *, session: Session, config: TrainConfig, trainer: Trainer) -> None:
        self.session, self.config = session, config
        self.batch_size, self.steps_per_epoch = epoch_batches(len(trainer.data.train), config.recipe, config.ranks)
        self.dense_macs = forward_macs(session.graph)
        self.method = cache(lambda epochs: config.make_method(epochs * self.steps_per_epoch))
        """The method for a training of the given number of epochs, created once for each."""

    def per_sample(self, epochs: int) -> int | None:
        """FLOPs of a training sample, if they do not depend on the masks."""
        method, session = self.method(epochs), self.session
        return None if method.sample_flops is None else method.sample_flops(session.graph, session.scope)

    def num_always(self, match: str) -> int:
        """Parameters besides the prunable weights that a budget of epochs times parameters counts."""
        return 0 if match == "prunable" else self.session.num_parameters - self.session.scope.num

    @property
    def dense_epoch(self) -> float:
        """Cost of a dense epoch in the unit of the budget."""
        if self.config.match == "flops":
            return self.steps_per_epoch * self.batch_size * sample_flops("dense", 0, self.dense_macs)
        return self.num_always(self.config.match) + self.session.scope.num

    def spans(self, epochs: int, num_on: int) -> Iterator[Span]:
        """Play the schedule of a run through, from `num_on` active weights; one span per training or more."""
        method, num, per_epoch = self.method(epochs), self.session.scope.num, self.steps_per_epoch
        if grows(method):
            options = DiscoverOptions(budget=epochs, final=self.config.final, rough=self.config.rough)
            num_target, num_steps = count_at(self.config.density or 1.0, num), options.num_seed_epochs * per_epoch
            num_grown = num_steps
            while num_on < num_target and (update := _due(method, num_on, num)) is not None:
                yield Span(num_steps=num_steps, num_on=num_on, num_updates=1)
                num_on = min(num_target, num_on + update.num_grow)
                num_steps = (options.num_rough_epochs or 1) * per_epoch
                num_grown += num_steps
            yield Span(num_steps=num_steps, num_on=num_on)
            least = min(epochs, options.num_seed_epochs) * per_epoch
            left = epochs * per_epoch - (num_grown if options.final == "grown" else 0)
            yield Span(num_steps=max(left, least), num_on=num_on)
        elif method.clock == "step":
            yield from spans_of_steps(method, epochs * per_epoch, num_on, num)
        else:
            rewind = method.rewind_step if method.after_update == "rewind" else 0
            yield Span(num_steps=epochs * per_epoch, num_on=num_on)
            round = 0
            while (update := _due(method, num_on, num, round=round)) is not None:
                num_on, round = num_on + update.num_grow - update.num_drop, round + 1
                yield Span(num_steps=epochs * per_epoch - rewind, num_on=num_on)


def spans_of_steps(method: Method, num_steps: int, num_on: int, num: int) -> Iterator[Span]:
    """Play the schedule of one training through, from `num_on` active weights; one span for each number of them."""
    began = num_updates = 0
    for step in range(num_steps):
        if (update := _due(method, num_on, num, step=step)) is None:
            continue
        num_updates += 1
        if update.num_grow != update.num_drop:
            yield Span(num_steps=step + 1 - began, num_on=num_on, num_updates=num_updates)
            num_on += update.num_grow - update.num_drop
            began, num_updates = step + 1, 0
    yield Span(num_steps=num_steps - began, num_on=num_on, num_updates=num_updates)


def _due(method: Method, num_on: int, num: int, *, round: int = 0, step: int = 0) -> MaskUpdate | None:
    return method.due(Progress(round=round, step=step, num_on=num_on, num=num))


class Forecast:
    """Costs of a run in the unit of its budget, estimated from its initial masks."""

    def __init__(self, workload: Workload) -> None:
        session, config = workload.session, workload.config
        self.workload = workload
        masks, scoring = session.start_masks(workload.method(config.epochs))
        self.num_on = masks.num_on
        self._macs = forward_macs(session.graph, masks)
        self._fixed_macs = forward_macs(session.graph, Masks.empty(session.scope))
        self._start = scoring_flops(session.graph, **asdict(scoring)) if config.match == "flops" else 0

    def cost(self, epochs: int) -> float:
        """Cost of a run whose trainings have this many epochs."""
        return self._start + sum(self.price(epochs, span) for span in self.workload.spans(epochs, self.num_on))

    def price(self, epochs: int, span: Span) -> float:
        """Cost of a span of such a run."""
        load = self.workload
        if load.config.match != "flops":
            return span.num_steps / load.steps_per_epoch * (load.num_always(load.config.match) + span.num_on)
        method, macs = load.method(epochs), self._macs_at(span.num_on)
        per_sample = load.per_sample(epochs)
        if per_sample is None:
            per_sample = sample_flops(method.cost, macs, load.dense_macs)
        step = load.batch_size * per_sample
        return float(span.num_steps * step + span.num_updates * self._update_flops(method, macs))

    def _macs_at(self, num_on: int) -> int:
        if num_on <= self.num_on:
            return self._fixed_macs + (self._macs - self._fixed_macs) * num_on // self.num_on
        load = self.workload
        missing = load.session.scope.num - self.num_on
        return self._macs + (load.dense_macs - self._macs) * (num_on - self.num_on) // missing

    def _update_flops(self, method: Method, macs: int) -> int:
        """Cost of choosing new masks, in addition to the training step that an update may be part of."""
        load, world_size = self.workload, self.workload.session.comm.size
        scored = load.batch_size // (load.config.recipe.accumulate * world_size)
        if method.cost == "dense_gradient_at_updates":
            return load.batch_size * _dense_gradient_extra(macs, load.dense_macs)
        if method.cost == "batch_at_updates":  # on rank 0 only
            return scored * sample_flops("sparse", macs, load.dense_macs)
        if grows(method) and "gradients" in method.needs:  # a batch on each rank
            return world_size * scored * sample_flops("dense_gradient_at_steps", macs, load.dense_macs)
        return _own_flops(method, load.session.scope)  # and maybe a pass over the paths, as cheap as one sample


# Plan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train, and the budget that this is to spend."""

    match: str
    epochs: int
    """Length of a training; the phases of growth follow from it."""
    lengths: tuple[int, ...] = ()
    """Epochs of each level, or of the final training of growth, if a budget is shared; empty: all have `epochs`."""
    budget: float | None = None
    """Epochs times parameters or prunable weights, or FLOPs; None if nothing is matched."""
    planned: float | None = None
    """Expected cost in the same unit."""

    def length(self, number: int) -> int:
        """Epochs of a level."""
        return self.lengths[number] if self.lengths else self.epochs

    def report(self, ledger: LedgerReport) -> MatchReport | None:
        """The plan compared with what was spent."""
        if self.budget is None:
            return None
        spent = ledger.spent(self.match)
        assert spent is not None
        return MatchReport(
            kind=self.match,
            epochs=self.epochs,
            budget=self.budget,
            planned=self.planned,
            spent=spent,
            relative_error=spent / self.budget - 1,
        )


def make_plan(workload: Workload) -> Plan:
    """Return the plan of a run; it is made once and stored."""
    session = workload.session
    plan = session.stored(_PLAN, lambda stage: from_json(Plan, stage.metadata))
    if plan is None:
        plan = _plan(workload)
        session.store.save(_PLAN, to_json(plan))
    return plan


def _plan(workload: Workload) -> Plan:
    config = workload.config
    if config.match == "none":
        return Plan(match="none", epochs=config.epochs)
    forecast = Forecast(workload)
    budget = config.epochs * workload.dense_epoch if config.match_budget is None else config.match_budget
    method = workload.method(1)
    least = 1 + (method.rewind_step // workload.steps_per_epoch if method.after_update == "rewind" else 0)
    _check_budget(forecast, budget, least)
    epochs = _most_epochs(forecast.cost, budget, least)
    cost = forecast.cost(epochs)
    if method.clock == "step" or method.schedule is never:  # a single training
        if forecast.cost(epochs + 1) - budget < budget - cost:
            epochs, cost = epochs + 1, forecast.cost(epochs + 1)
        return Plan(match=config.match, epochs=epochs, budget=budget, planned=cost)
    spans = list(workload.spans(epochs, forecast.num_on))
    if grows(method):
        spans = spans[-1:]
    lengths = [epochs] * len(spans)
    prices = [forecast.price(epochs, replace(span, num_steps=workload.steps_per_epoch)) for span in spans]
    # The rest of the budget makes the shortest trainings longer, of those the latest, which are cheapest.
    while fitting := [number for number, price in enumerate(prices) if cost + price <= budget]:
        number = min(reversed(fitting), key=lengths.__getitem__)
        lengths[number], cost = lengths[number] + 1, cost + prices[number]
    if cost + prices[-1] - budget < budget - cost:
        lengths[-1], cost = lengths[-1] + 1, cost + prices[-1]
    return Plan(match=config.match, epochs=epochs, lengths=tuple(lengths), budget=budget, planned=cost)


def _most_epochs(cost: Callable[[int], float], budget: float, least: int) -> int:
    """The largest number of epochs that does not exceed the budget, but `least` at least.

    >>> _most_epochs(lambda epochs: 3.0 * epochs, 100.0, 1)
    33
    """
    low, step = least, 1
    while low + step <= MAX_EPOCHS and cost(low + step) <= budget:
        low, step = low + step, 2 * step
    while step > 1:
        step //= 2
        if cost(low + step) <= budget:
            low += step
    return low


def _check_budget(forecast: Forecast, budget: float, least: int) -> None:
    """Refuse a budget that the shortest run exceeds by more than rounding to whole epochs explains: half an epoch.

    Or a budget of so many epochs that it can only be a mistake, and that playing its schedule would take hours.
    """
    workload, cost = forecast.workload, forecast.cost(least)
    method, config = workload.method(least), workload.config
    *before, last = workload.spans(least, forecast.num_on)
    epoch = cost
    if several := bool(before) and method.clock == "round":
        num_steps = min(workload.steps_per_epoch, last.num_steps)
        epoch = forecast.price(least, Span(num_steps=num_steps, num_on=last.num_on))
    if cost - budget > epoch / 2:
        shortest = f"{least} epoch{'' if least == 1 else 's'}{' per training' if several else ''}"
        density = "" if config.density is None else f" at density {config.density:g}"
        raise UserError(
            f"{shortest} of method {config.method!r}{density} would cost {cost:.3g} ({config.match}), more than the "
            f"budget of {budget:.3g}; use a larger budget"
        )
    if budget / cost > MAX_EPOCHS / least:
        raise UserError(
            f"a budget of {budget:.3g} ({config.match}) is more than {MAX_EPOCHS:,} epochs of method "
            f"{config.method!r} would cost: use a smaller budget"
        )


def matched_budget(run: RunReport, match: str, config: RunConfig) -> float:
    """What a finished run spent in the unit of `match`; it must have the data and model of `config`."""
    values = config.as_dict()
    for name in ("data", "fold", "model", "model_options"):
        if run.config.get(name) != values[name]:
            raise UserError(
                f"the run to match has {name} {run.config.get(name)!r}, this one {values[name]!r}; "
                "budgets are comparable for the same data and model only"
            )
    budget = run.ledger.spent(match)
    if budget is None:
        raise UserError(f"the run to match does not report epochs x {match}; use --match flops")
    return budget
