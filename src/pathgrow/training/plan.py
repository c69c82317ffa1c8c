"""How long a training has to be to spend a given budget, as far as that can be decided beforehand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pathgrow.density import words
from pathgrow.errors import UserError
from pathgrow.flops import forward_macs
from pathgrow.ledger import start_flops
from pathgrow.revise import decided, start_masks
from pathgrow.training.bench import Bench
from pathgrow.training.forecast import Price, Standing, cost_by_epochs, flops_price, nearest, parameters_price

_STAGE = "plan"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train, and which budget that is to match."""

    epochs: int
    """Epochs of the training, or of each level where there are several; where FLOPs are matched, a forecast."""
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
    facts = found.facts
    return Plan(epochs=facts["epochs"], match=facts["kind"], budget=facts["budget"], planned=facts["planned"])


def _made(bench: Bench) -> Plan:
    config = bench.config
    if config.match == "none":
        return Plan(epochs=config.epochs, match="none")
    at = _start(bench)
    if config.match == "flops":
        price: Price = flops_price(bench, at)
        dense_epoch = 6 * bench.dense_macs * bench.batch_size * bench.steps_per_epoch
    else:
        price = parameters_price(bench)
        dense_epoch = bench.num_counted_always(config.match) + bench.scope.num
    budget = float(config.epochs * dense_epoch) if config.match_budget is None else config.match_budget
    cost = cost_by_epochs(bench, at, price)
    epochs = nearest(cost, budget)
    if cost(epochs) > 2 * budget:
        raise UserError(
            f"one epoch of method {_method_words(bench)} costs {cost(1):.3g} and the budget is {budget:.3g} "
            f"({config.match}): give a larger budget"
        )
    return Plan(epochs=epochs, match=config.match, budget=budget, planned=cost(epochs))


def _method_words(bench: Bench) -> str:
    density = bench.config.density
    return repr(bench.config.method) + ("" if density is None else f" at density {words.density(density)}")


def _start(bench: Bench) -> Standing:
    """Where a run begins: the first masks, and what choosing them costs."""
    method, trainer, config = bench.make_method(bench.config.epochs), bench.trainer, bench.config
    masks, reading_cost = decided(
        bench.team,
        bench.scope,
        lambda: start_masks(
            bench.model, method, bench.scope, bench.example_input, config.seed, trainer.loss, trainer.batches
        ),
    )
    spent = start_flops(bench.wiring, **asdict(reading_cost)) if config.match == "flops" else 0
    return Standing(num_on=masks.num_on, macs=forward_macs(bench.wiring, masks), spent=float(spent))
