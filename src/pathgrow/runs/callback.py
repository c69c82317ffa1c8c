"""Callbacks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathgrow.checkpoint import RunDir
from pathgrow.density.types import Answer, Verdict
from pathgrow.report.progress import ProgressBar

if TYPE_CHECKING:
    from pathgrow.runs.records import Record


class Callback:
    """Base class of callbacks; override the methods of interest."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        """Called before a stage trains; `epochs` is None if its length is adaptive. Not called for resumed stages."""

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        """Called when a stage was trained and evaluated, before it is stored, or found in the store (`resumed`)."""

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        """Called with each verdict of the density rule and its estimate so far."""


class MetricsLogger(Callback):
    """Writes every new stage to the metrics of a run directory and to the progress display."""

    def __init__(self, run_dir: RunDir, progress: ProgressBar) -> None:
        self._run_dir = run_dir
        self._progress = progress
        self._num_open = 0
        """Stages that were started and have not ended; several if they train concurrently."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._run_dir.log(stage, event="begin", epochs=epochs, density=density)
        show = self._progress.beside if self._num_open else self._progress.stage
        show(stage, density, epochs)
        self._num_open += 1

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        if not resumed:
            self._num_open -= 1
            self._run_dir.log(record.stage, event="end", **record.row(), time={"seconds": record.seconds})
            self._progress.observed(record.point.round, record.point.density, record.point.score, record.stage)

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        self._progress.estimate(answer.density, answer.interval)
