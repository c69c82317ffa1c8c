"""Train by one method in a folder: begin, go on, or find that it is done."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from pathgrow.checkpoint import RunDir
from pathgrow.distributed.comm import Communicator
from pathgrow.graph.flops import inference_flops, step_flops
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import (
    CurveReport,
    LedgerReport,
    MatchReport,
    MethodReport,
    NetworkReport,
    RunReport,
    Score,
)
from pathgrow.runs.bench import Bench, grows
from pathgrow.runs.carry_out import carry_out, finished_report
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.doubts import doubts
from pathgrow.runs.growth import grow
from pathgrow.runs.levels import Levels
from pathgrow.runs.plan import Plan, plan
from pathgrow.runs.records import Record, ledger_report, score_report, timing_report
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.partial import clear_partials
from pathgrow.version import __version__


def train(
    config: TrainConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
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
        config, out, lambda folder, comm: _work(config, folder, progress or ProgressBar(), comm), finished_report, comm
    )


def _work(config: TrainConfig, folder: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
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
    folder.write_curve([{"kind": "phase", **record.row()} for record in outcome.records])
    report = _report(bench, planned, outcome)
    report = dataclasses.replace(
        report,
        weights_sha256=folder.save_network(outcome.attached.model, outcome.attached.masks),
        notes=tuple(notes),
        timing=dataclasses.replace(report.timing, run_seconds=folder.seconds),
    )
    folder.write_report(report.as_json())  # last: its presence means that the run is finished


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The outcome of a training."""

    attached: Attached
    records: Sequence[Record]
    test: Score
    start_flops: int = 0
    """Cost of choosing the initial masks; included in the first phase, as is the time it took."""
    weight_epochs: float | None = None
    """Epochs times active prunable weights, where masks changed within a phase."""


def _trained(bench: Bench, plan: Plan) -> Outcome:
    """Train; then, when everything is decided, evaluate on the test split, once."""
    examine = bench.trainer.evaluate(bench.dataset.test)
    if grows(bench.make_method(plan.epochs)):
        found = grow(bench, plan)
        return Outcome(attached=found.attached, records=[*found.rounds, found.network], test=found.examine(examine)[0])
    levels = Levels(bench, plan)
    records = levels.run()
    test = levels.phases.score(levels.attached, "test", evaluate=examine)
    levels.attached.detach()
    return Outcome(
        attached=levels.attached,
        records=records,
        test=test,
        start_flops=levels.start_flops,
        weight_epochs=levels.epochs_times("switchable"),
    )


def _report(bench: Bench, plan: Plan, outcome: Outcome) -> RunReport:
    config, attached, network = bench.config, outcome.attached, outcome.records[-1]
    method = bench.make_method(plan.epochs)
    return RunReport(
        command="train",
        version=__version__,
        config=config.as_dict(),
        method=MethodReport(
            name=config.method,
            density=config.density,
            options=dict(config.method_options),
            needs=tuple(sorted(method.needs)),
            cost=method.cost,
            clock=method.clock,
        ),
        network=NetworkReport(
            density=network.point.density,
            density_model=network.density_model,
            num_on=network.num_on,
            num=attached.masks.num,
            num_parameters=bench.num_parameters,
            epochs=network.point.epochs,
            inference_flops=inference_flops(bench.graph, attached.masks),
            dense_inference_flops=inference_flops(bench.graph),
            val=score_report(network),
            test=outcome.test,
        ),
        curve=CurveReport(rounds=tuple(record.point_report() for record in outcome.records)),
        ledger=_ledger(bench, plan, outcome),
        masks_sha256=attached.masks.digest(),
        weights_sha256="",
        timing=timing_report(outcome.records),
    )


def _ledger(bench: Bench, plan: Plan, outcome: Outcome) -> LedgerReport:
    samples_per_epoch = bench.batch_size * bench.steps_per_epoch
    ledger = ledger_report(
        outcome.records,
        num_prunable=bench.scope.num,
        num_parameters=bench.num_parameters,
        dense_training_flops=bench.config.epochs * samples_per_epoch * step_flops(bench.graph),
        samples_per_epoch=samples_per_epoch,
    )
    if outcome.weight_epochs is not None:
        assert ledger.epochs_trained is not None
        always = ledger.epochs_trained * (bench.num_parameters - bench.scope.num)
        ledger = dataclasses.replace(
            ledger,
            epochs_times_parameters=outcome.weight_epochs + always,
            epochs_times_prunable=outcome.weight_epochs,
        )
    ledger = dataclasses.replace(ledger, start_flops=outcome.start_flops)
    return dataclasses.replace(ledger, match=_match(plan, ledger))


def _match(plan: Plan, ledger: LedgerReport) -> MatchReport | None:
    if plan.budget is None:
        return None
    in_units = {
        "flops": ledger.training_flops,
        "parameters": ledger.epochs_times_parameters,
        "switchable": ledger.epochs_times_prunable,
    }
    spent = in_units[plan.match]
    assert spent is not None
    return MatchReport(
        kind=plan.match,
        epochs=plan.epochs,
        budget=plan.budget,
        planned=plan.planned,
        spent=float(spent),
        relative_error=spent / plan.budget - 1,
    )
