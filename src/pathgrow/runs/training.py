"""Train with one method: a single training, iterative pruning in levels, or growth to a target density."""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from pathgrow.checkpoint import RunDir
from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError
from pathgrow.graph.flops import sample_training_flops
from pathgrow.methods.method import Progress, never
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import CurveReport, LedgerReport, MethodReport, RunReport, Score
from pathgrow.runs.checks import training_warnings
from pathgrow.runs.command import open_session, run_in
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.iso_flop import CostMeter, Plan, Workload, cost_logger, grows, make_plan
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record, StageOutput, ledger_report, timing_report, topology_reports, write_results
from pathgrow.runs.session import Trained
from pathgrow.runs.trunk import GrowingTrunk, Trunk, train_copies
from pathgrow.version import __version__


def train(
    config: TrainConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """Train in a run directory and return the report; for the parameters, see `run_in`."""
    return run_in(config, out, _train, progress, comm)


def _train(config: TrainConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Plan, train, test, write; only rank 0 has a run directory."""
    session, trainer = open_session(config, run_dir, progress, comm, num_epochs=config.epochs, scope=config.scope)
    workload = Workload(session=session, config=config, trainer=trainer)
    plan = make_plan(workload)
    notes = training_warnings(workload, plan.epochs)
    if run_dir is not None:
        for note in notes:
            warnings.warn(note, stacklevel=2)
    outcome = _grow(workload, plan) if grows(workload.method(plan.epochs)) else _train_levels(workload, plan)
    # Everything is decided: only now is the test split used, once.
    attached = outcome.trunk.attached
    test = session.score(attached, "test", evaluate=trainer.evaluate(trainer.data.test))
    attached.detach()
    if run_dir is None:
        return
    weights_sha256 = run_dir.save_network(attached.model, attached.masks)
    report = _report(workload, plan, outcome, test, weights_sha256)
    write_results(run_dir, dataclasses.replace(report, notes=tuple(notes)), phase=outcome.records)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Outcome:
    trunk: Trunk
    records: Sequence[Record]
    weight_steps: int | None = None
    """Active prunable weights, summed over all steps; None: masks were constant in every stage."""


def _grow(workload: Workload, plan: Plan) -> _Outcome:
    """Grow to the target density, then train the final masks from a fresh initialization or from the grown weights."""
    config = workload.config
    options = DiscoverOptions(budget=plan.epochs, final=config.final, rough=config.rough, mode=config.mode)
    trunk = GrowingTrunk(workload.session, options, workload.method(plan.epochs))
    trunk.advance_()
    while not trunk.is_full:
        trunk.advance_()
    last = len(trunk.records) - 1
    [final] = train_copies(trunk, options, {"final": last}, plan.length(-1))
    trunk.finish_(*workload.session.tensors(final.stage))
    return _Outcome(trunk=trunk, records=[*trunk.records, final])


def _train_levels(workload: Workload, plan: Plan) -> _Outcome:
    """Train until the method's schedule has no further update between trainings; most methods have none at all."""
    method, session = workload.method(plan.epochs), workload.session
    num_steps = plan.epochs * workload.steps_per_epoch
    if method.after_update == "rewind" and method.rewind_step >= num_steps:
        raise UserError(
            f"rewind_step must be < {num_steps} (steps per level), got {method.rewind_step} "
            f"(e.g. {num_steps // 10}); or train longer"
        )
    meter = CostMeter.of(session, method, workload.batch_size)
    trunk = Trunk(session, method, on_mask_update=cost_logger(session.graph))
    if method.clock == "step" or method.schedule is never:
        _train_level(trunk, meter, plan, 0, "training")
    else:
        for level in count():
            stage = f"level-{level + 1}"
            if level > 0 and session.store.load(stage) is None and not _update_is_due(trunk):
                break
            _train_level(trunk, meter, plan, level, stage)
    trunk.go_to_(len(trunk.records) - 1)
    weight_steps = meter.weight_steps(trunk.attached.method_state, trunk.attached.step)
    return _Outcome(trunk=trunk, records=trunk.records, weight_steps=weight_steps)


def _train_level(trunk: Trunk, meter: CostMeter, plan: Plan, level: int, stage: str) -> None:
    method, session = trunk.method, trunk.session
    first_step = method.rewind_step if level > 0 and method.after_update == "rewind" else 0
    step_before = 0

    def train_() -> Trained:
        nonlocal step_before
        step_before = trunk.attached.step
        if level > 0:
            trunk.attached.advance_()
        # The stage had this name when the reference results were recorded; random numbers are derived from it.
        seed_name = f"level-{level:03d}"
        return session.train_(trunk.attached, stage, plan.length(level), first_step=first_step, seed_name=seed_name)

    def finish(trained: Trained, seconds: float) -> StageOutput:
        attached = trunk.attached
        record = session.record(
            stage,
            attached,
            trained,
            round=level,
            epochs_before=sum(record.num_epochs for record in trunk.records),
            training_flops=meter.training_flops(attached.method_state, step_before, attached.step),
            update_flops=0 if level else trunk.start_flops,
            seconds=seconds,
        )
        return StageOutput(record)

    trunk.visit_(stage, train_, finish)


def _update_is_due(trunk: Trunk) -> bool:
    """Whether the schedule has another mask update after the last level."""
    trunk.go_to_(len(trunk.records) - 1)
    attached, masks = trunk.attached, trunk.attached.masks
    progress = Progress(round=attached.round, step=attached.step, num_on=masks.num_on, num=masks.num)
    return trunk.method.due(progress) is not None


def _report(workload: Workload, plan: Plan, outcome: _Outcome, test: Score, weights_sha256: str) -> RunReport:
    config, method, ledger = workload.config, workload.method(plan.epochs), _ledger(workload, plan, outcome)
    network = outcome.trunk.network_report(outcome.records[-1], test)
    if grows(method):
        network = dataclasses.replace(network, final=config.final)
    else:
        network = dataclasses.replace(network, epochs=round(ledger.total_epochs))  # fewer than planned after rewinding
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
        network=network,
        curve=CurveReport(rounds=tuple(record.point_report() for record in outcome.records)),
        ledger=ledger,
        topology=topology_reports(outcome.records),
        masks_sha256=outcome.trunk.attached.masks.digest(),
        weights_sha256=weights_sha256,
        timing=timing_report(outcome.records),
    )


def _ledger(workload: Workload, plan: Plan, outcome: _Outcome) -> LedgerReport:
    session = workload.session
    samples_per_epoch = workload.batch_size * workload.steps_per_epoch
    ledger = ledger_report(
        outcome.records,
        num_prunable=session.scope.num,
        num_parameters=session.num_parameters,
        dense_training_flops=workload.config.epochs * samples_per_epoch * sample_training_flops(session.graph),
        samples_per_epoch=samples_per_epoch,
    )
    ledger = dataclasses.replace(ledger, start_flops=outcome.trunk.start_flops)
    if outcome.weight_steps is not None:
        always = outcome.trunk.attached.step * workload.num_always("parameters")
        ledger = dataclasses.replace(
            ledger,
            epochs_times_parameters=(outcome.weight_steps + always) / workload.steps_per_epoch,
            epochs_times_prunable=outcome.weight_steps / workload.steps_per_epoch,
        )
    return dataclasses.replace(ledger, match=plan.report(ledger))
