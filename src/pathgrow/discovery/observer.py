"""Who is told how a discovery goes on. The default listens and does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathgrow.density.curve import Answer, Verdict

if TYPE_CHECKING:
    from pathgrow.discovery.stages import Record


class Observer:
    """Override what is of interest."""

    def stage_begins(self, stage: str, *, epochs: int | None, density: float) -> None:
        """A stage is about to train; `epochs` is None where its length is adaptive. Not told of resumed stages."""

    def stage_ends(self, record: Record, *, resumed: bool) -> None:
        """A stage was observed and is about to be stored, or was found in the store (`resumed`)."""

    def decided(self, verdict: Verdict, answer: Answer) -> None:
        """The density rule spoke; `answer` is its estimate so far."""
