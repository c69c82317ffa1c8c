"""A command in a run directory: the directory is opened, data, model and trainer are built, and the report is read."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from pathgrow.checkpoint import RunDir
from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import Communicator, held_by_rank0
from pathgrow.distributed.process_group import join_process_group
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.scope import scope_of
from pathgrow.masks import Masks
from pathgrow.report.loading import unfinished
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport, load_report
from pathgrow.runs.config import EVERYTHING, RunConfig
from pathgrow.runs.records import Callback, CallbackList, MetricsLogger, ProgressCallback
from pathgrow.runs.session import Session
from pathgrow.sparse.training_state import unfinished_steps
from pathgrow.trainer import Trainer
from pathgrow.trainer.feed import epoch_batches

_Config = TypeVar("_Config", bound=RunConfig)


def run_in(
    config: _Config,
    out: str | os.PathLike[str],
    work: Callable[[_Config, RunDir | None, ProgressBar, Communicator], None],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
    on_finished: Callable[[RunDir], None] = lambda run_dir: None,
) -> RunReport:
    """Do `work` in a run directory and return its report.

    A finished run is only read; an interrupted one resumes and ends with the same bits.

    Parameters
    ----------
    out
        The run directory. In distributed training only rank 0 writes to it.
    work
        Called with the resolved config; only rank 0 has a run directory.
    progress
        Progress display, used by rank 0.
    comm
        The ranks of the run; None: those that `torchrun` started, or a single process.
    on_finished
        Called on rank 0 with the run directory when the report is written, before the manifest is.
    """
    if comm is None:
        with join_process_group(config.engine.device) as comm:
            return run_in(config, out, work, progress, comm, on_finished)
    if config.ranks != comm.size:
        raise UserError(
            f"this config is for {config.ranks} processes, but {comm.size} were started: "
            f"use torchrun --nproc-per-node {config.ranks}, or set `ranks` to {comm.size}"
        )

    plan = config.engine.resolve()
    config = comm.broadcast_from_rank0(lambda: config.resolved(RunDir(out).config))
    assert config.threads is not None
    with (
        using_threads(config.threads),
        plan.flags_between_trainings(),
        held_by_rank0(comm, lambda: RunDir.open(out, config.as_dict(), device=plan.device.type)) as run_dir,
    ):
        if not comm.broadcast_from_rank0(lambda: RunDir(out).finished):
            with interrupts.save_if_interrupted():
                work(config, run_dir, progress or ProgressBar(), comm)

        def report() -> RunReport:
            assert run_dir is not None, "on rank 0"
            if run_dir.is_owner:
                on_finished(run_dir)
            return load_report(run_dir.report(), str(run_dir.path / "report.json"))

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
    dataset, callback = config.load_data(), Callback()
    if run_dir is not None:
        callback = CallbackList([MetricsLogger(run_dir), ProgressCallback(progress)])
        _, steps_per_epoch = epoch_batches(len(dataset.train), config.recipe, config.ranks)
        num_stages = len(unfinished(run_dir).results)
        epochs = {stage: steps / steps_per_epoch for stage, steps in unfinished_steps(run_dir).items()}
        if num_stages or epochs:
            progress.resumes(num_stages, epochs)
    trainer = Trainer(dataset, config.recipe, config.engine, num_epochs=num_epochs, comm=comm)
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
        callback=callback,
        loss=trainer.loss,
        batches=trainer.batches,
        use_ema=use_ema,
        comm=comm,
    )
    return session, trainer


@contextmanager
def using_threads(num_threads: int) -> Iterator[None]:
    """Run with this many CPU threads; their number decides how sums are split, so it is part of a config."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
