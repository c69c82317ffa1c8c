"""Run a study: keep its workers alive, show progress, report what failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pathgrow.errors import RunFailed
from pathgrow.report.formats import duration, plural
from pathgrow.studies.definition import Cell
from pathgrow.studies.pools import WorkerPool
from pathgrow.studies.price import price_of
from pathgrow.studies.worker import MAX_ATTEMPTS, failed_names, failure, forget_failures, is_finished

_REFRESH_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class StudyOutcome:
    """The cells of a study after it ran."""

    num_finished: int
    failed: dict[str, str]
    """Message of each cell that failed."""
    num_lost: int
    """Workers that died and were replaced."""


def run_study(cells: Sequence[Cell], out: Path, pool: WorkerPool, show: StudyProgress | None = None) -> StudyOutcome:
    """Run all cells that are not finished; those that failed before are tried again."""
    out.mkdir(parents=True, exist_ok=True)
    remaining = [cell for cell in cells if not is_finished(out, cell)]
    forget_failures(out, remaining)
    show = show or StudyProgress(Console(quiet=True))
    show.begin(cells, remaining)
    workers: list[Any] = []
    num_lost = 0
    try:
        workers = [pool.start(out, remaining, is_alone=pool.num == 1) for _ in range(min(pool.num, len(remaining)))]
        while workers:
            ended = pool.ended(workers, _REFRESH_SECONDS)
            workers = [worker for worker in workers if worker not in ended]
            settled = _settled(out, remaining)
            remaining = [cell for cell in remaining if cell.name not in settled]
            show.settle(settled, len(workers))
            for ending in ended.values():
                num_lost += ending is None
                if num_lost > MAX_ATTEMPTS * (len(cells) + pool.num):
                    raise RunFailed(f"{num_lost} workers died, some before they took a cell; see their logs")
                # One that ran out of memory is not replaced while others may do with the memory that is left.
                if remaining and (ending is None or not workers):
                    workers.append(pool.start(out, remaining, is_alone=ending == "out of memory" or pool.num == 1))
    finally:
        pool.stop(workers)
        show.close()
    failed = {cell.name: reason for cell in cells if (reason := failure(out, cell)) is not None}
    return StudyOutcome(num_finished=len(cells) - len(failed), failed=failed, num_lost=num_lost)


def _settled(out: Path, cells: Sequence[Cell]) -> dict[str, str | None]:
    """The cells that have finished, or failed with a message; only those are read that left a trace."""
    has_failed, has_started = failed_names(out), set(os.listdir(out))
    return {
        cell.name: failure(out, cell) for cell in cells
        if cell.name in has_failed or (cell.name in has_started and is_finished(out, cell))
    }  # fmt: skip


class StudyProgress:
    """Cells finished, failed and left, with the time left: a bar on a terminal, log lines otherwise."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console or Console(stderr=True), clock
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[status]}", markup=False),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip

    def begin(self, cells: Sequence[Cell], remaining: Sequence[Cell]) -> None:
        """Start the clock; cells that were finished before do not count for the time left."""
        self._prices = {cell.name: price_of(cell).seconds for cell in remaining}
        self._before, self._num, self._failed = len(cells) - len(remaining), len(cells), 0
        self._start = self._clock()
        self._total, self._left = sum(self._prices.values()), dict(self._prices)
        self._task = self._bar.add_task("cells", total=self._num, completed=self._before, status="")
        if self._before:
            self._console.print(f"{plural(self._before, 'cell')} of {self._num} finished before.")
        self._bar.start()

    def settle(self, settled: dict[str, str | None], num_workers: int) -> None:
        """Take note of cells that have finished, or failed with a message."""
        for name, reason in settled.items():
            self._left.pop(name)
            self._failed += reason is not None
            line = f"{name} failed: {reason}" if reason is not None else name
            if reason is not None or not self._console.is_terminal:
                self._console.print(f"[{self.status}] {line}", markup=False, soft_wrap=True, highlight=False)
        status = f"{self.status}, {plural(num_workers, 'worker')}"
        self._bar.update(self._task, completed=self._num - len(self._left), status=status)

    @property
    def status(self) -> str:
        """The state of the study in a line."""
        failed = f", {self._failed} failed" if self._failed else ""
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"{self._num - len(self._left)}/{self._num}{failed}{left}"

    @property
    def seconds_left(self) -> float | None:
        """The elapsed time, scaled from the price of the settled cells to that of the others; None: unknown yet."""
        left = sum(self._left.values())
        done = self._total - left
        return (self._clock() - self._start) * left / done if done > 0 else None

    def close(self) -> None:
        """Release the terminal."""
        self._bar.stop()
