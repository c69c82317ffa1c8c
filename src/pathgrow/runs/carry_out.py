"""Work in a run folder, whatever the command: begin it, go on with it, or find that it is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pathgrow.checkpoint import RunFolder
from pathgrow.distributed.comm import Team, held_by_first
from pathgrow.errors import UserError
from pathgrow.runs.run_config import Setup
from pathgrow.trainer.process_group import joined

Work = Callable[[RunFolder | None, Team], None]
"""Does what is left to do; only the first process has a folder."""


def carry_out(
    config: Setup,
    out: str | os.PathLike[str],
    work: Work,
    read: Callable[[RunFolder], dict[str, Any]],
    team: Team | None = None,
) -> dict[str, Any]:
    """Do `work` in the folder unless it is finished; returns what `read` makes of it.

    If `team` is None it is the processes that `torchrun` started, else this one.
    """
    if team is None:
        with joined(config.engine.device) as team:
            return carry_out(config, out, work, read, team)
    if config.ranks != team.size:
        raise UserError(
            f"this config is for {config.ranks} processes and {team.size} were started: "
            f"start it with torchrun --nproc-per-node {config.ranks}, or set `ranks` to {team.size}"
        )
    mode = config.engine.resolved()
    with (
        _threads(config.threads),
        mode.between_trainings(),
        held_by_first(team, lambda: RunFolder.open(out, config.as_dict(), device=mode.device.type)) as folder,
    ):
        if not team.from_first(lambda: RunFolder(out).finished):
            work(folder, team)
        return team.from_first(lambda: read(RunFolder(out)))


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    """Run with this many CPU threads; their number decides how sums are split, so it is part of a run's identity."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
