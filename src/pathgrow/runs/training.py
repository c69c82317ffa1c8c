"""Train by one method in a folder: begin, go on, or find that it is done."""

from __future__ import annotations

import os
import warnings
from typing import Any

from pathgrow.checkpoint import RunDir
from pathgrow.distributed.comm import Communicator
from pathgrow.report.progress import Progress, Silent
from pathgrow.runs.bench import Bench, grows
from pathgrow.runs.carry_out import carry_out
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.doubts import doubts
from pathgrow.runs.growth import grow
from pathgrow.runs.ledger import Ledger
from pathgrow.runs.levels import Levels
from pathgrow.runs.plan import Plan, plan
from pathgrow.runs.train_report import Outcome, report
from pathgrow.sparse.partial import clear_partials


def train(
    config: TrainConfig, out: str | os.PathLike[str], progress: Progress | None = None, comm: Communicator | None = None
) -> dict[str, Any]:
    """The report of this training.

    A finished folder is read, not run again; an unfinished one goes on where it was killed and ends with the same bits.

    Parameters
    ----------
    out
        The run folder. Where several processes work together it is on the machine of the first, which alone writes.
    progress
        Shows how the run goes, in the first process.
    team
        The processes that work together; None: those that `torchrun` started, else this one.
    """
    return carry_out(
        config, out, lambda folder, comm: _work(config, folder, progress or Silent(), comm), RunDir.report, comm
    )


def _work(config: TrainConfig, folder: RunDir | None, progress: Progress, comm: Communicator) -> None:
    """Plan, train, examine, write; only the first process has a folder."""
    bench = Bench.made(config, folder, progress, comm)
    planned = plan(bench)
    notes = doubts(bench, planned.epochs)
    if folder is not None:
        for note in notes:
            warnings.warn(note, stacklevel=2)
    outcome = _trained(bench, planned)
    if folder is None:
        return
    clear_partials(folder)
    told = {**report(bench, planned, outcome), "notes": notes}
    folder.write_curve([{"kind": "phase", **record.row()} for record in outcome.records])
    told["weights_sha256"] = folder.save_network(outcome.attached.model, outcome.attached.masks)
    told["timing"]["run_seconds"] = folder.seconds
    folder.write_report(told)  # last, since its presence means that the others are there


def _trained(bench: Bench, plan: Plan) -> Outcome:
    """Train, and then, when everything is decided, look at the test split, once."""
    examine = bench.trainer.evaluate(bench.dataset.test)
    if grows(bench.make_method(plan.epochs)):
        found = grow(bench, plan)
        records = [*found.rounds, found.network]

        def epochs_times(match: str) -> int:
            return sum(record.num_epochs * (bench.num_counted_always(match) + record.num_on) for record in records)

        return Outcome(
            attached=found.attached,
            records=records,
            ledger=found.ledger,
            test=found.examine(examine)[0],
            epochs_times_parameters=epochs_times("parameters"),
            epochs_times_switchable=epochs_times("switchable"),
        )
    levels = Levels(bench, plan)
    records = levels.run()
    test = levels.phases.score(levels.attached, "test", evaluate=examine)
    levels.attached.detach()
    ledger = Ledger(dense_flops=6 * bench.dense_macs, budget=bench.config.epochs)
    for record in records:
        record.enter(ledger)
    return Outcome(
        attached=levels.attached,
        records=records,
        ledger=ledger,
        test=test,
        start_flops=levels.start_flops,
        epochs_times_parameters=levels.epochs_times("parameters"),
        epochs_times_switchable=levels.epochs_times("switchable"),
    )
