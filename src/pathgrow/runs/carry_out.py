"""Work in a run folder, whatever the command: begin it, go on with it, or find that it is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from pathgrow.checkpoint import RunDir
from pathgrow.distributed.comm import Communicator, held_by_rank0
from pathgrow.errors import UserError
from pathgrow.report.schema import RunReport, load_report
from pathgrow.runs.config import RunConfig
from pathgrow.trainer.process_group import join_process_group

Work = Callable[[RunDir | None, Communicator], None]
"""Does what is left to do; only the first process has a folder."""


def carry_out(
    config: RunConfig,
    out: str | os.PathLike[str],
    work: Work,
    read: Callable[[RunDir], RunReport],
    comm: Communicator | None = None,
) -> RunReport:
    """Do `work` in the folder unless it is finished; returns what `read` makes of it.

    If `team` is None it is the processes that `torchrun` started, else this one.
    """
    if comm is None:
        with join_process_group(config.engine.device) as comm:
            return carry_out(config, out, work, read, comm)
    if config.ranks != comm.size:
        raise UserError(
            f"this config is for {config.ranks} processes and {comm.size} were started: "
            f"start it with torchrun --nproc-per-node {config.ranks}, or set `ranks` to {comm.size}"
        )
    plan = config.engine.resolve()
    with (
        _threads(config.threads),
        plan.flags_between_trainings(),
        held_by_rank0(comm, lambda: RunDir.open(out, config.as_dict(), device=plan.device.type)) as folder,
    ):
        if not comm.broadcast_from_rank0(lambda: RunDir(out).finished):
            work(folder, comm)
        return comm.broadcast_from_rank0(lambda: read(RunDir(out)))


def finished_report(folder: RunDir) -> RunReport:
    """The report of a finished run."""
    return load_report(folder.report(), str(folder.path / "report.json"))


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    """Run with this many CPU threads; their number decides how sums are split, so it is part of a run's identity."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
