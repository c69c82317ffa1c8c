"""The report of a training as JSON values; all but `timing` is the same in every repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pathgrow.graph.flops import forward_macs
from pathgrow.runs.bench import Bench
from pathgrow.runs.ledger import Ledger
from pathgrow.runs.pace import lengths
from pathgrow.runs.phases import Score
from pathgrow.runs.plan import Plan
from pathgrow.runs.records import Record
from pathgrow.sparse.attach import Attached
from pathgrow.version import __version__

FORMAT = 1
KIND = "train"


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The outcome of a training."""

    attached: Attached
    records: Sequence[Record]
    ledger: Ledger
    test: Score
    start_flops: int = 0
    """Cost of choosing the first masks; part of the first phase, as is the time it took."""
    epochs_times_parameters: float
    epochs_times_switchable: float
    """The same without parameters that are always dense."""


def report(bench: Bench, plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """The report of a finished training; the hash of its weights is added when they are written."""
    config, attached, ledger, test = bench.config, outcome.attached, outcome.ledger, outcome.test
    network = outcome.records[-1]
    method = bench.make_method(plan.epochs)
    samples_per_epoch = bench.batch_size * bench.steps_per_epoch
    dense_training = config.epochs * samples_per_epoch * 6 * bench.dense_macs
    inference, dense_inference = 2 * forward_macs(bench.graph, attached.masks), 2 * bench.dense_macs
    return {
        "format": FORMAT,
        "kind": KIND,
        "pathgrow": __version__,
        "config": config.as_dict(),
        "method": {
            "name": config.method,
            "density": config.density,
            "options": dict(config.method_options),
            "needs": sorted(method.needs),
            "cost": method.cost,
            "clock": method.clock,
        },
        "network": {
            "density": network.point.density,
            "density_model": network.density_model,
            "num_on": network.num_on,
            "num": attached.masks.num,
            "num_parameters": bench.num_parameters,
            "epochs": network.point.epochs,
            "val": {"score": network.point.score, "loss": network.point.loss},
            "test": {"score": test.score, "loss": test.loss},
        },
        "flops": {
            "inference": inference,
            "dense_inference": dense_inference,
            "inference_relative": inference / dense_inference,
        },
        "phases": [record.row() for record in outcome.records],
        "ledger": {
            **_with_epochs_trained(ledger.as_dict(), samples_per_epoch),
            "start_flops": outcome.start_flops,
            "epochs_times_parameters": outcome.epochs_times_parameters,
            "epochs_times_switchable": outcome.epochs_times_switchable,
            "dense_training_flops": dense_training,
            "relative": ledger.training_flops / dense_training,
            "match": _match(plan, outcome),
        },
        "masks_sha256": attached.masks.digest(),
        "timing": ledger.timing(),
    }


def _with_epochs_trained(ledger: dict[str, Any], samples_per_epoch: int) -> dict[str, Any]:
    """The ledger with epochs by the samples that were really trained, in all and of each phase.

    `epochs` is the length of a phase's schedule; a level that was set back to a step does only the rest of it.
    """
    phases = [{**phase, "epochs_trained": phase["samples"] / samples_per_epoch} for phase in ledger["phases"]]
    return {**ledger, "phases": phases, "epochs_trained": ledger["samples"] / samples_per_epoch}


def _match(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What was asked for, forecast and spent; `off` is what was spent beyond the budget, as a share of it.

    `lengths` lists the epochs after which the length of a training was decided, with that length; where weights move
    between layers there are several.
    """
    in_units: dict[str, float] = {
        "flops": outcome.ledger.training_flops,
        "parameters": outcome.epochs_times_parameters,
        "switchable": outcome.epochs_times_switchable,
    }
    spent = in_units.get(plan.match)
    return {
        **plan.as_dict(),
        "spent": spent,
        "off": None if spent is None or plan.budget is None else spent / plan.budget - 1,
        "lengths": lengths(outcome.attached.method_state),
    }
