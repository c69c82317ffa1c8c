"""How long a training has to be to spend a given budget, as far as that can be decided beforehand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pathgrow.density import words
from pathgrow.errors import UserError
from pathgrow.graph.flops import forward_macs, start_flops
from pathgrow.runs.bench import Bench
from pathgrow.runs.forecast import Standing, Stretch, cost_by_epochs, nearest, price_of, stretches
from pathgrow.sparse.attach import start_masks
from pathgrow.sparse.method_state import decide_on_rank0

_STAGE = "plan"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train, and which budget that is to match."""

    epochs: int
    """Epochs of the training, or of the first level where there are several; where FLOPs are matched, a forecast."""
    match: str
    budget: float | None = None
    """Epochs times parameters or switchable weights, or FLOPs; None where nothing is matched."""
    planned: float | None = None
    """What this training is expected to spend, in the same unit."""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.match, "epochs": self.epochs, "budget": self.budget, "planned": self.planned}


def plan(bench: Bench) -> Plan:
    """The plan of a run, from its store or made now."""
    found = bench.store.load(_STAGE)
    if found is None:
        made = _made(bench)
        bench.store.save(_STAGE, made.as_dict())
        return made
    metadata = found.metadata
    return Plan(
        epochs=metadata["epochs"], match=metadata["kind"], budget=metadata["budget"], planned=metadata["planned"]
    )


def _made(bench: Bench) -> Plan:
    config = bench.config
    if config.match == "none":
        return Plan(epochs=config.epochs, match="none")
    at = _start(bench)
    if config.match == "flops":
        dense_epoch = 6 * bench.dense_macs * bench.batch_size * bench.steps_per_epoch
    else:
        dense_epoch = bench.num_counted_always(config.match) + bench.scope.num
    budget = float(config.epochs * dense_epoch) if config.match_budget is None else config.match_budget
    cost, least = cost_by_epochs(bench, at, price_of(bench, at)), _least_epochs(bench)
    epochs = nearest(cost, budget, least=least)
    if epochs == least:
        _refuse_too_small(budget, bench, at, least, cost(least))
    return Plan(epochs=epochs, match=config.match, budget=budget, planned=cost(epochs))


def _least_epochs(bench: Bench) -> int:
    """Of a training that is set back to a step: enough to go beyond it."""
    method = bench.make_method(1)
    return 1 + (method.rewind_step // bench.steps_per_epoch if method.after_update == "rewind" else 0)


def _refuse_too_small(budget: float, bench: Bench, at: Standing, least: int, cost: float) -> None:
    """Refuse a budget that the shortest run, which costs `cost`, exceeds by more than whole epochs account for.

    That is half an epoch: of the only training, or of the last, whose epoch is the cheapest where weights have gone.
    """
    method, per_epoch, density = bench.make_method(least), bench.steps_per_epoch, bench.config.density
    *before, last = stretches(bench, method, least, at)
    several = bool(before) and method.clock == "round"
    an_epoch = cost
    if several:
        final = Stretch(num_steps=min(per_epoch, last.num_steps), num_on=last.num_on)
        an_epoch = price_of(bench, at)(method, final)
    if cost - budget > an_epoch / 2:
        shortest = "one epoch" if least == 1 else f"{least} epochs"
        shortest += " in each training" if several else ""
        told = repr(bench.config.method) + ("" if density is None else f" at density {words.density(density)}")
        raise UserError(
            f"{shortest} of method {told} costs {cost:.3g} and the budget is {budget:.3g} ({bench.config.match}): "
            "give a larger budget"
        )


def _start(bench: Bench) -> Standing:
    """Where a run begins: the first masks, and what choosing them costs."""
    method, trainer, config = bench.make_method(bench.config.epochs), bench.trainer, bench.config
    masks, scoring_cost = decide_on_rank0(
        bench.comm,
        bench.scope,
        lambda: start_masks(
            bench.model, method, bench.scope, bench.example_input, config.seed, trainer.loss, trainer.batches
        ),
    )
    spent = start_flops(bench.graph, **asdict(scoring_cost)) if config.match == "flops" else 0
    return Standing(num_on=masks.num_on, macs=forward_macs(bench.graph, masks), spent=float(spent))
