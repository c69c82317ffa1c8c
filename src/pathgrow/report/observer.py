"""Between a discovery and its progress: what the loop tells, as the terminal shows it."""

from __future__ import annotations

from pathgrow.density.curve import Answer, Verdict
from pathgrow.discovery import Observer, Record
from pathgrow.report.progress import Progress


class ProgressObserver(Observer):
    """Hands on what a discovery tells; `discover(..., observer=ProgressObserver(progress.create()))`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def stage_begins(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._progress.stage(stage, density, epochs)

    def stage_ends(self, record: Record, *, resumed: bool) -> None:
        self._progress.observed(record.point.round, record.point.density, record.point.score)

    def decided(self, verdict: Verdict, answer: Answer) -> None:
        self._progress.estimate(answer.density, answer.interval)
