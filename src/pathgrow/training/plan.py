"""How long a training is to be where its cost is to equal a budget: decided beforehand, as far as it can be."""

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
    """How long to train, and what is matched by it."""

    epochs: int
    """Of a training; of each level where there are several. Where FLOPs are matched, those foreseen."""
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


def _made(bench: Bench) -> Plan:
    config = bench.config
    if config.match == "none":
        return Plan(epochs=config.epochs, match="none")
    at = _start(bench)
    price: Price = parameters_price(bench) if config.match == "parameters" else flops_price(bench, at)
    budget = config.match_budget
    if budget is None:
        samples = bench.batch_size * bench.steps_per_epoch
        dense = bench.num_parameters if config.match == "parameters" else 6 * bench.dense_macs * samples
        budget = float(config.epochs * dense)
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
    """Where a run begins: the first masks, and what they cost to find."""
    method, trainer, config = bench.make_method(bench.config.epochs), bench.trainer, bench.config
    masks, looked = decided(
        bench.team,
        bench.scope,
        lambda: start_masks(
            bench.model, method, bench.scope, bench.example_input, config.seed, trainer.loss, trainer.batches
        ),
    )
    spent = start_flops(bench.wiring, **asdict(looked)) if config.match == "flops" else 0
    return Standing(num_on=masks.num_on, macs=forward_macs(bench.wiring, masks), spent=float(spent))
