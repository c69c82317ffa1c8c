"""Who is told about a run in a folder: its metrics, and the progress display."""

from __future__ import annotations

from pathgrow.checkpoint import RunDir
from pathgrow.density.types import Answer, Verdict
from pathgrow.report.load import unfinished
from pathgrow.report.progress import ProgressBar
from pathgrow.runs.callback import Callback
from pathgrow.runs.records import Record
from pathgrow.sparse.partial import half_done


def announce_resumption(folder: RunDir, progress: ProgressBar, steps_per_epoch: int) -> None:
    """Say that a run goes on where it was, if there is anything that it need not do again."""
    num_stages = len(unfinished(folder).results)
    epochs = {stage: steps / steps_per_epoch for stage, steps in half_done(folder).items()}
    if num_stages or epochs:
        progress.resumes(num_stages, epochs)


class MetricsLogger(Callback):
    """Writes every new stage to the folder's metrics, and passes it on to the progress display."""

    def __init__(self, folder: RunDir, progress: ProgressBar) -> None:
        self._folder = folder
        self._progress = progress
        self._num_open = 0
        """Stages that have begun and not ended; several, where they are trained together."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._folder.log(stage, event="begin", epochs=epochs, density=density)
        tell = self._progress.beside if self._num_open else self._progress.stage
        tell(stage, density, epochs)
        self._num_open += 1

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        if not resumed:
            self._num_open -= 1
            self._folder.log(record.stage, event="end", **record.row(), time={"seconds": record.seconds})
            self._progress.observed(record.point.round, record.point.density, record.point.score, record.stage)

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        self._progress.estimate(answer.density, answer.interval)
