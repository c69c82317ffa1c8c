"""Run a config in its run directory: start it, resume it, or find it finished; and the command `pathgrow discover`."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from pathgrow.checkpoint import RunDir
from pathgrow.distributed.comm import Communicator, held_by_rank0
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.scope import scope_of
from pathgrow.masks import Masks
from pathgrow.methods.method import GrowEachRound
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport, load_report, unfinished
from pathgrow.runs.config import EVERYTHING, DiscoverConfig, RunConfig
from pathgrow.runs.discovery import draw_figures, search, write_results
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Callback, MetricsLogger
from pathgrow.runs.session import MAX_ADAPTIVE_EPOCHS, Session
from pathgrow.sparse.training_state import unfinished_steps
from pathgrow.trainer import Trainer
from pathgrow.trainer.feed import epoch_batches
from pathgrow.trainer.process_group import join_process_group

_Config = TypeVar("_Config", bound=RunConfig)


def run_in(
    config: _Config,
    out: str | os.PathLike[str],
    work: Callable[[_Config, RunDir | None, Communicator], None],
    comm: Communicator | None = None,
    on_finished: Callable[[RunDir], None] = lambda run_dir: None,
) -> RunReport:
    """Do `work` in a run directory unless it is finished, and return its report.

    Parameters
    ----------
    work
        Called with the resolved config; only rank 0 has a run directory.
    comm
        The ranks of the run; None: those that `torchrun` started, or a single process.
    on_finished
        Called on rank 0 with the finished run directory.
    """
    if comm is None:
        with join_process_group(config.engine.device) as comm:
            return run_in(config, out, work, comm, on_finished)
    if config.ranks != comm.size:
        raise UserError(
            f"this config is for {config.ranks} processes, but {comm.size} were started: "
            f"use torchrun --nproc-per-node {config.ranks}, or set `ranks` to {comm.size}"
        )

    def report() -> RunReport:
        run_dir = RunDir(out)
        on_finished(run_dir)
        return load_report(run_dir.report(), str(run_dir.path / "report.json"))

    plan = config.engine.resolve()
    config = comm.broadcast_from_rank0(lambda: config.resolved(RunDir(out).config))
    assert config.threads is not None
    with (
        _num_threads(config.threads),
        plan.flags_between_trainings(),
        held_by_rank0(comm, lambda: RunDir.open(out, config.as_dict(), device=plan.device.type)) as run_dir,
    ):
        if not comm.broadcast_from_rank0(lambda: RunDir(out).finished):
            work(config, run_dir, comm)
        return comm.broadcast_from_rank0(report)


def open_session(
    config: RunConfig,
    run_dir: RunDir | None,
    progress: ProgressBar,
    comm: Communicator,
    *,
    num_epochs: int | None,
    scope: str | None = None,
    use_ema: bool = False,
) -> tuple[Session, Trainer]:
    """Load the data, build model and trainer, and say where an interrupted run resumes.

    `num_epochs` is the expected length of the run, `scope` the name of a preset.
    """
    dataset = config.load_data()
    if run_dir is not None:
        _, steps_per_epoch = epoch_batches(len(dataset.train), config.recipe, config.ranks)
        num_stages = len(unfinished(run_dir).results)
        epochs = {stage: steps / steps_per_epoch for stage, steps in unfinished_steps(run_dir).items()}
        if num_stages or epochs:
            progress.resumes(num_stages, epochs)
    trainer = Trainer(dataset, config.recipe, config.engine, num_epochs=num_epochs, on_epoch=progress.epoch, comm=comm)
    device = trainer.plan.device
    model, optimizer = trainer.place(config.new_model(dataset.classes))
    example_input = dataset.example_input().to(device)
    masks = None
    if scope is not None:
        full = scope == EVERYTHING
        masks = (Masks.full(model) if full else scope_of(model, trace(model, example_input), scope)).to(device)
    session = Session(
        model,
        optimizer,
        trainer,
        trainer.evaluate(dataset.val),
        example_input,
        scope=masks,
        seed=config.seed,
        store=None if run_dir is None else run_dir.stages,
        callback=MetricsLogger(run_dir, progress) if run_dir is not None else Callback(),
        loss=trainer.loss,
        batches=trainer.batches,
        use_ema=use_ema,
        comm=comm,
    )
    return session, trainer


@contextmanager
def _num_threads(num_threads: int) -> Iterator[None]:
    """Run with this many CPU threads; their number decides how sums are split, so it is part of a config."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# The command `pathgrow discover`

_USUAL_PROBES = {"reference": 8, "no reference": 5}


def run_discovery(
    config: DiscoverConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """Run a discovery in a run directory and return its report.

    A finished run is not repeated; an interrupted one resumes and ends with the same bits.

    Parameters
    ----------
    out
        The run directory. In distributed training only rank 0 writes to it.
    progress
        Progress display, used by rank 0.
    comm
        The ranks of the run; None: those that `torchrun` started, or a single process.
    """
    return run_in(
        config,
        out,
        lambda config, run_dir, comm: _discover(config, run_dir, progress or ProgressBar(), comm),
        comm,
        draw_figures,
    )


def expected_epochs(config: DiscoverConfig, out: str | os.PathLike[str]) -> int:
    """Estimate how many epochs are left to train; the number of probes is up to the rule."""
    options = DiscoverOptions(**config.search())
    schedule = options.growth_method().schedule
    gamma = schedule.gamma if isinstance(schedule, GrowEachRound) else GrowEachRound.gamma
    num_rounds = math.ceil(-math.log(config.start_density or 0.05) / math.log1p(gamma))
    expected = options.num_seed_epochs + num_rounds * (options.num_rough_epochs or MAX_ADAPTIVE_EPOCHS)
    expected += _USUAL_PROBES["no reference" if config.reference is None else "reference"] * options.num_probe_epochs
    if options.num_probe_epochs < config.budget:
        expected += config.budget
    if config.reference == "dense":
        expected += config.budget
    stages = RunDir(out).stages
    done = [int((stages.metadata(stage) or {}).get("num_epochs", 0)) for stage in stages.names()]
    return max(0, expected - sum(done))


def _discover(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Search, test, write; only rank 0 has a run directory."""
    # Without the number of validation examples (`num_val`), which would make answers more cautious still: the rule was
    # tuned without it, and its intervals cover the truth without it, see docs/design/train_and_compare.md.
    options = DiscoverOptions(**config.search(), comm=comm)
    session, trainer = open_session(
        config,
        run_dir,
        progress,
        comm,
        num_epochs=None if run_dir is None else expected_epochs(config, run_dir.path),
        use_ema=options.eval_weights == "ema",
    )
    num_val = len(trainer.data.val)
    if run_dir is not None and config.delta * num_val < 1.0:
        warnings.warn(
            f"delta ({config.delta:g}) is less than one of the {num_val} validation examples "
            f"({1 / num_val:.2g}), so the answer will be noise; use a larger --delta or more data",
            stacklevel=2,
        )
    found = search(session, options)
    # Everything is decided: only now is the test split used, once.
    test, dense_test = found.examine(trainer.evaluate(trainer.data.test))
    masks = [found.masks_at(round) for round in range(len(found.rounds))]
    if run_dir is None:
        return
    for round, grown in enumerate(masks):
        run_dir.save_masks(round, grown)
    weights_sha256 = run_dir.save_network(found.attached.model, found.masks)
    report = found.report(test=test, dense_test=dense_test)
    report = dataclasses.replace(report, config=config.as_dict(), weights_sha256=weights_sha256)
    write_results(run_dir, found, report)
