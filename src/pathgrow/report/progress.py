"""Progress of a run: bars that are updated in place on a terminal, one line per event in logs and pipes."""

import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from pathgrow.report.formats import duration, evaluation, percent, percent_range, plural, stage_label

_LOG_INTERVAL = 60.0
"""Seconds between log lines about the epochs of one stage."""
_SPEED_PERIOD = 24 * 3600.0
"""Seconds that the estimate of the time left averages over; an epoch may take longer than the 30 s of `rich`."""


class ProgressBar:
    """Receives the events of a run; this base class shows nothing."""

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None:
        """The run resumes with `num_stages` finished stages; `epochs` are those done of partly trained stages."""

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        """A stage starts; `epochs` is None if its length is unknown."""

    def beside(self, name: str, density: float, epochs: int | None) -> None:
        """Another stage starts and trains concurrently; from here on `epoch` refers to any of them."""

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        """`done` epochs of the stage are finished."""

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None:
        """The network of a stage was evaluated."""

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        """The density rule has a new estimate of the operating density."""

    def close(self) -> None:
        """No more events follow; release the terminal."""


def create(console: Console | None = None, *, total_epochs: int | None = None) -> ProgressBar:
    """Return the progress display for a console: bars on a terminal, log lines otherwise.

    `total_epochs` is the expected length of the whole run; without it the time left is that of the current stage.
    """
    console = console or Console(stderr=True)
    return TerminalProgress(console, total_epochs) if console.is_terminal else LogProgress(console)


class LogProgress(ProgressBar):
    """One line per evaluation, and one per minute during long stages."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._start = console, clock, clock()
        self._last = self._start
        self._stage = ""
        self._estimate = ""
        self._announced = False

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None:
        self._log(_resumption(num_stages, epochs))
        self._announced = bool(epochs)

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        self._stage = stage_label(name, density)
        if not self._announced:  # the first evaluation may be many minutes away
            length = f", {plural(epochs, 'epoch')}" if epochs else ""
            self._log(f"{self._stage} starts: density {percent(density)}{length}")
        self._announced = True

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        if self._clock() - self._last >= _LOG_INTERVAL and done < of:
            self._log(f"{self._stage}: {done}/{plural(of, 'epoch')}" + ("" if loss is None else f", loss {loss:.4g}"))

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None:
        self._log(evaluation(stage, density, score))

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        if density is not None and (text := _estimate(density, interval)) != self._estimate:
            self._estimate = text
            self._log(text)

    def _log(self, text: str) -> None:
        self._last = self._clock()
        self._console.print(Text(f"[{duration(self._last - self._start):>10}] {text}"), soft_wrap=True)


class TerminalProgress(ProgressBar):
    """Bars for the stage and, if its length is known, the run; erased at the end to make room for the report."""

    def __init__(
        self, console: Console, total_epochs: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        is_narrow = console.width < 90
        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(8 if is_narrow else 24, complete_style="blue"),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            *(() if is_narrow else (TimeElapsedColumn(),)),
            TimeRemainingColumn(compact=True),
            *(() if is_narrow else (TextColumn("{task.fields[loss]}", style="dim", markup=False),)),
        )
        self._bars = RichProgress(*columns, console=console, get_time=clock, speed_estimate_period=_SPEED_PERIOD)
        self._run = None if total_epochs is None else self._bars.add_task("run", total=total_epochs, loss="")
        self._stage = self._bars.add_task("starting", total=None, loss="")
        self._num_concurrent = 1
        self._resumed: Mapping[str, float] = {}
        self._evaluation = self._estimate = ""
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=5, transient=True)
        self._live.start()

    def resumes(self, num_stages: int, epochs: Mapping[str, float]) -> None:
        self._resumed = epochs
        if self._run is not None and (total := self._bars.tasks[0].total) is not None:
            self._bars.update(self._run, total=max(1.0, total - sum(map(int, epochs.values()))))
        self._live.console.print(Text(_resumption(num_stages, epochs)))

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        self._bars.remove_task(self._stage)
        done = int(self._resumed.get(name, 0))
        self._stage = self._bars.add_task(stage_label(name, density), total=epochs, completed=done, loss="")
        self._num_concurrent = 1

    def beside(self, name: str, density: float, epochs: int | None) -> None:
        task = self._bars.tasks[-1]
        task.completed += int(self._resumed.get(name, 0))
        total = None if task.total is None or epochs is None else task.total + epochs
        first = task.description.split(" +")[0]
        self._bars.update(self._stage, total=total, description=f"{first} +{self._num_concurrent}")
        self._num_concurrent += 1

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        task = self._bars.tasks[-1]
        one_by_one = self._num_concurrent > 1 or task.total is None
        advance = 1 if one_by_one else max(0, done - task.completed)
        self._bars.update(self._stage, advance=advance, loss="" if loss is None else f"loss {loss:.4g}")
        if self._run is not None:
            self._bars.advance(self._run, advance)

    def observed(self, round: int, density: float, score: float, stage: str = "") -> None:
        self._evaluation = evaluation(stage, density, score)

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        self._estimate = "" if density is None else _estimate(density, interval)

    def close(self) -> None:
        self._live.stop()

    def render(self) -> Group:
        """What the terminal shows now."""
        return Group(self._bars, *(Text(line, "dim") for line in (self._evaluation, self._estimate) if line))


def _resumption(num_stages: int, epochs: Mapping[str, float]) -> str:
    done = [f"{plural(num_stages, 'stage')} done"] if num_stages else []
    partly = [f"{stage_label(name)} continues after {number:.3g} epochs" for name, number in epochs.items()]
    return f"Resuming: {', '.join([*done, *partly])}."


def _estimate(density: float, interval: tuple[float, float] | None) -> str:
    return f"current estimate {percent(density)}" + (f" (90% interval {percent_range(interval)})" if interval else "")
