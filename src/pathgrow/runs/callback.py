"""Who is told about the progress of a discovery; the default does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathgrow.density.types import Answer, Verdict

if TYPE_CHECKING:
    from pathgrow.runs.records import Record


class Callback:
    """Is told about stages and decisions; override the methods of interest."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        """A stage is about to train; `epochs` is None where its length is adaptive. Not called for resumed stages."""

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        """A stage was trained and scored and is about to be stored, or was found in the store (`resumed`)."""

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        """The density rule gave its verdict; `answer` is its estimate so far."""
