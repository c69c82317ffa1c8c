"""A running discovery: round, density, score, current estimate, time left.

On a terminal it is a few lines that are updated in place; elsewhere (a log file, a pipe) one line per finished stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pathgrow.report.wording import counted, duration, in_round, percent, percent_range, printable


class Progress(Protocol):
    """What a running discovery reports."""

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None:
        """The run goes on where it was: so many stages are over, and of others so many epochs, by name of the stage."""

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        """A stage begins; `epochs` is None where its length is not known."""

    def beside(self, name: str, density: float, epochs: int | None) -> None:
        """Another stage is trained together with the one that began; from here on `epoch` is about any of them."""

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        """`done` epochs of the stage are over."""

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None:
        """A network was scored."""

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        """What the density rule would answer now."""

    def close(self) -> None:
        """Nothing more will come; the terminal is released."""


class Silent:
    """Shows nothing."""

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None: ...

    def stage(self, name: str, density: float, epochs: int | None) -> None: ...

    def beside(self, name: str, density: float, epochs: int | None) -> None: ...

    def epoch(self, done: int, of: int, loss: float | None = None) -> None: ...

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None: ...

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None: ...

    def close(self) -> None: ...


def create(console: Console | None = None, *, total_epochs: int | None = None) -> Progress:
    """The progress that fits the console: live on a terminal, plain lines elsewhere.

    `total_epochs` is what all stages together are expected to train; without it the time left is that of the stage.
    """
    console = console or Console(stderr=True)
    return LiveProgress(console, total_epochs) if console.is_terminal else LineProgress(console)


class Pace:
    """Seconds per epoch, as measured so far, and the time that is left at this pace.

    A stage may report its epochs one by one, or only its end: both count.
    """

    def __init__(self, total_epochs: int | None, clock: Callable[[], float]) -> None:
        self.total_epochs = total_epochs
        self._clock = clock
        self._done_before = 0
        self._stage_epochs: int | None = None
        self._stage_done = 0
        self._one_by_one = False
        self._measured_epochs = 0
        self._measured_seconds = 0.0
        self._last = clock()

    def begin(self, epochs: int | None, done: int = 0) -> None:
        """A stage begins, so the one before is over; `done` epochs of it were trained by an earlier process."""
        self._one_by_one = False
        if self._stage_epochs is not None:
            self.advance(self._stage_epochs)
        self._done_before += self._stage_done
        self._stage_epochs, self._stage_done, self._last = epochs, done, self._clock()

    def widen(self, epochs: int | None, done: int = 0) -> None:
        """Another stage is trained together with this one: they count as one, whose epochs are reported one by one."""
        if self._stage_epochs is not None and epochs is not None:
            self._stage_epochs += epochs
        self._stage_done += done
        self._one_by_one = True

    def advance(self, done: int) -> None:
        """`done` epochs of the stage are over; a stage of unknown length reports its epochs one by one."""
        now = self._clock()
        if self._stage_epochs is None or self._one_by_one:
            done = self._stage_done + 1
        if done > self._stage_done:
            self._measured_epochs += done - self._stage_done
            self._measured_seconds += now - self._last
        self._stage_done, self._last = done, now

    @property
    def seconds_per_epoch(self) -> float | None:
        """None before anything was measured."""
        return self._measured_seconds / self._measured_epochs if self._measured_epochs else None

    @property
    def stage_done(self) -> float:
        """Epochs of the stage that are over; if none were reported, an estimate from the pace so far."""
        pace = self.seconds_per_epoch
        if self._stage_done or not pace or self._stage_epochs is None:
            return self._stage_done
        return min(self._stage_epochs, (self._clock() - self._last) / pace)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of the run if its total is known, else of the stage; None before anything was measured."""
        of = self._stage_epochs if self.total_epochs is None else self.total_epochs - self._done_before
        pace = self.seconds_per_epoch
        return None if of is None or pace is None else max(0.0, of - self.stage_done) * pace


_QUIET = 60.0
"""Seconds after which a log hears of an epoch although no network was scored."""


class LineProgress:
    """One line per observed network, for logs and pipes; in long stages also how far they are, once a minute."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._began = clock()
        self._stage = ""
        self._said: str | None = None
        self._last: float | None = None
        self._is_under_way = False

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None:
        self._say(_resumption_words(num_stages, epochs))
        self._is_under_way = bool(epochs)

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        self._stage = printable(name)
        if not self._is_under_way:  # the first score may be many minutes away
            length = f", {counted(epochs, 'epoch')}" if epochs else ""
            self._say(f"{self._stage} begins: density {percent(density)}{length}")
        self._is_under_way = True

    def beside(self, name: str, density: float, epochs: int | None) -> None: ...

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        if self._last is not None and self._clock() - self._last >= _QUIET and done < of:
            self._say(f"{self._stage}: {done}/{counted(of, 'epoch')}" + ("" if loss is None else f", loss {loss:.4g}"))

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None:
        name = printable(stage) or self._stage  # of several stages trained together the last was told
        self._say(f"{f'{name}: ' if name else ''}{in_round(round)}, density {percent(density)}, score {score:.4g}")

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        text = _estimate_words(density, interval)
        if text and text != self._said:
            self._said = text
            self._say(text)

    def close(self) -> None: ...

    def _say(self, text: str) -> None:
        self._last = self._clock()
        self._console.print(Text(f"[{duration(self._clock() - self._began):>10}] {text}"), soft_wrap=True)


class LiveProgress:
    """Three lines that are updated in place and removed when the run ends, to make room for the report."""

    def __init__(
        self, console: Console, total_epochs: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pace = Pace(total_epochs, clock)
        self._console = console
        self._clock, self._began = clock, clock()
        self._stage, self._density, self._done, self._of = "", 0.0, 0, 0
        self._num_beside = 0
        self._loss: float | None = None
        self._observed = ""
        self._estimate = ""
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=5, transient=True)
        self._had: Mapping[str, float] = {}
        """Epochs that stages of a resumed run have had."""
        self._live.start()

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None:
        self._had = epochs
        self._console.print(Text(_resumption_words(num_stages, epochs)))  # above the lines that are updated

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        had = int(self._had.get(name, 0))
        self.pace.begin(epochs, had)
        self._stage, self._density, self._done, self._of = printable(name), density, had, epochs or 0
        self._num_beside = 0
        self._loss = None

    def beside(self, name: str, density: float, epochs: int | None) -> None:
        had = int(self._had.get(name, 0))
        self.pace.widen(epochs, had)
        self._num_beside += 1
        self._done, self._of = self._done + had, self._of + (epochs or 0)

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        self.pace.advance(done)
        if self._num_beside:
            self._done, self._loss = self._done + 1, loss
        else:
            self._done, self._of, self._loss = done, of, loss

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None:
        self._observed = f"{in_round(round)}, density {percent(density)}, score {score:.4g}"

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        self._estimate = _estimate_words(density, interval)

    def close(self) -> None:
        self._live.stop()

    def render(self) -> RenderableType:
        """What the terminal shows now."""
        table = Table.grid(padding=(0, 2))
        for label, value in (("observed", self._observed), ("estimate", self._estimate)):
            if value:
                table.add_row(Text(label, "dim"), Text(value))
        table.add_row(Text("time", "dim"), Text(self._time_words()))
        narrow = self._console.width < 80
        bar = Table.grid(padding=(0, 2))
        for _ in range(3 if narrow else 4):
            bar.add_column(no_wrap=True)
        loss = f"loss {self._loss:.4g}" if self._loss is not None else ""
        epochs = counted(self._of, "epoch") if self._of else ""
        if self._done and self._of:
            epochs = f"{self._done}/{epochs}"
        where = f"  with {self._num_beside} more" if self._num_beside else f"  at {percent(self._density)}"
        stage = Text(self._stage, "bold").append(where if self._stage else "", "not bold")
        # The default of a bar that is not yet full is pink, which looks like a fault.
        done = ProgressBar(self._of or 1, self.pace.stage_done, width=8 if narrow else 24, complete_style="blue")
        bar.add_row(stage, done, Text(epochs), *(() if narrow else (Text(loss, "dim"),)))
        return Group(bar, table)

    def _time_words(self) -> str:
        left = self.pace.seconds_left
        words = duration(self._clock() - self._began)
        if left is None:
            return words
        return f"{words}, about {duration(left)} left{'' if self.pace.total_epochs else ' in this stage'}"


def _resumption_words(num_stages: int, epochs: Mapping[str, float]) -> str:
    done = [f"{counted(num_stages, 'stage')} {'is' if num_stages == 1 else 'are'} done"] if num_stages else []
    lengths = {printable(name): f"{number:.3g}" for name, number in epochs.items()}
    halfway = [f"{name} goes on after {had} epoch{'' if had == '1' else 's'}" for name, had in lengths.items()]
    return f"This run goes on where it was: {', '.join([*done, *halfway])}."


def _estimate_words(density: float | None, interval: tuple[float, float] | None) -> str:
    if density is None:
        return ""
    return f"answer so far {percent(density)}" + (f" (90%: {percent_range(interval)})" if interval else "")
