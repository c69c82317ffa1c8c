"""Progress of a run: bars on a terminal, an element in a notebook, one line per event in logs and pipes."""

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from pathgrow.report.formats import (
    ScoreFormat,
    duration,
    evaluation,
    length,
    percent,
    percent_range,
    plural,
    stage_label,
)

_LOG_INTERVAL = 60.0
"""Seconds between log lines about the epochs of one stage."""
_NOTEBOOK_INTERVAL = 0.3
"""Seconds between two updates of a notebook, each of which is a message to the browser."""


class ProgressBar:
    """Receives the events of a run and counts; this base class shows nothing."""

    unit = "epochs"
    """What lengths are counted in."""
    scores: ScoreFormat | None = None
    """How scores are written; None: as plain numbers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._num_stages = self._num_epochs = 0
        """Expected in all; 0: unknown."""
        self._stage, self._stage_epochs = "starting", 0
        self._number = self._finished = self._ticks = self._num_concurrent = 0
        """Number of the current stage; epochs of finished stages; those of the current ones; how many these are."""
        self._epochs_trained_here = 0.0
        """Epochs that this process has trained, from which its speed is computed."""
        self._began: float | None = None
        """When it began to train."""
        self._resumed: Mapping[str, float] = {}
        self._cost: float | None = None
        self._evaluation = self._estimate = ""

    def expects(self, num_stages: int, num_epochs: int) -> None:
        """The run will probably have this many stages and epochs, including those before; 0 stages: unknown."""
        self._num_stages, self._num_epochs = num_stages, num_epochs

    def resumes(self, num_stages: int, epochs: Mapping[str, float], note: str = "") -> None:
        """The run resumes with `num_stages` finished stages; `epochs` are those done of partly trained stages."""
        self._resumed = epochs

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        """A stage starts; `epochs` is None if its length is unknown."""
        self._stage, self._stage_epochs = stage_label(name, density), epochs or 0
        self._number, self._num_concurrent = self._number + 1, 1
        self._began = self._clock() if self._began is None else self._began

    def concurrent_stage(self, name: str, density: float, epochs: int | None) -> None:
        """Another stage starts and trains concurrently; from here on `epoch` refers to any of them."""
        self._stage_epochs += epochs or 0
        self._number, self._num_concurrent = self._number + 1, self._num_concurrent + 1

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        """`done` epochs of the stage are finished."""
        self._ticks, self._epochs_trained_here = self._ticks + 1, self._epochs_trained_here + 1

    def observed(self, stage: str, density: float, score: float, *, epochs: int = 0, cost: float | None = None) -> None:
        """The network of a stage was evaluated, after `epochs` at a `cost` in dense trainings."""
        ticks = min(self._ticks, epochs)
        self._epochs_trained_here += max(
            0.0, epochs - ticks - self._resumed.get(stage, 0.0)
        )  # a user's fit may report nothing
        self._ticks -= ticks
        self._evaluation = evaluation(stage, density, score, self.scores)
        self._count(epochs, cost)

    def stored(self, epochs: int, cost: float | None) -> None:
        """A stage was found in the store."""
        self._number += 1
        self._count(epochs, cost)

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        """The density rule has a new estimate of the operating density."""
        between = f" (90% interval {percent_range(interval)})" if interval else ""
        self._estimate = "" if density is None else f"current estimate {percent(density)}{between}"

    def close(self) -> None:
        """No more events follow; release the terminal."""

    def _length(self, number: int) -> str:
        return length(number, self.unit)

    def _resumption(self, num_stages: int, epochs: Mapping[str, float], note: str) -> str:
        done = [f"{plural(num_stages, 'stage')} done"] if num_stages else []
        partly = [f"{stage_label(name)} continues after {number:.3g} {self.unit}" for name, number in epochs.items()]
        return f"Resuming: {', '.join([*done, *partly])}.{' ' if note else ''}{note}"

    def _count(self, epochs: int, cost: float | None) -> None:
        self._finished += epochs
        self._cost = self._cost if cost is None else (self._cost or 0.0) + cost

    def _time_for(self, epochs: float) -> str:
        """How long so many more epochs will take, at the speed so far."""
        if self._began is None or not self._epochs_trained_here or epochs <= 0:
            return ""
        return f"about {duration(epochs * (self._clock() - self._began) / self._epochs_trained_here)} left"

    def _position(self) -> str:
        of = f" of about {self._num_stages}" if 0 < self._number <= self._num_stages else ""
        return f"stage {self._number}{of}"

    def _spent(self) -> str:
        """Cost so far, and time left of the whole run."""
        cost = "" if self._cost is None else f"cost so far {self._cost:.2f} dense trainings"
        left = self._time_for(self._num_epochs - self._finished - self._ticks) if self._num_epochs else ""
        return ", ".join(part for part in (cost, left) if part)


def create(console: Console | None = None, *, bars: bool = True) -> ProgressBar:
    """Return the progress display for a console: bars (unless excluded), an element of a notebook, or log lines."""
    console = console or Console(stderr=True)
    if console.is_jupyter:
        ipython = importlib.import_module("IPython.display")
        shown = ipython.display(ipython.HTML(""), display_id=True)
        return NotebookProgress(lambda html: shown.update(ipython.HTML(html)))
    if console.is_terminal and bars:
        return TerminalProgress(console)
    return LogProgress(lambda line: console.print(Text(line), soft_wrap=True))


class LogProgress(ProgressBar):
    """One line per evaluation, and one per minute during long stages."""

    def __init__(
        self, write: Callable[[str], Any], clock: Callable[[], float] = time.monotonic, *, is_stamped: bool = True
    ) -> None:
        super().__init__(clock)
        self._write, self._is_stamped = write, is_stamped
        self._last = self._start
        self._announced = False
        self._last_estimate = ""

    def resumes(self, num_stages: int, epochs: Mapping[str, float], note: str = "") -> None:
        super().resumes(num_stages, epochs, note)
        self._log(self._resumption(num_stages, epochs, note))
        self._announced = bool(epochs)

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        super().stage(name, density, epochs)
        if not self._announced:  # the first evaluation may be many minutes away
            length = f", {self._length(epochs)}" if epochs else ""
            where = f" ({self._position()})" if self._num_stages else ""
            self._log(f"{self._stage} starts: density {percent(density)}{length}{where}")
        self._announced = True

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        super().epoch(done, of, loss)
        if self._clock() - self._last >= _LOG_INTERVAL and done < of:
            parts = (f"{self._stage}: {done}/{self._length(of)}", "" if loss is None else f"loss {loss:.4g}")
            self._log(", ".join(part for part in (*parts, self._spent()) if part))

    def observed(self, stage: str, density: float, score: float, *, epochs: int = 0, cost: float | None = None) -> None:
        super().observed(stage, density, score, epochs=epochs, cost=cost)
        # Before the first stage that trains there is nothing to count: a pretrained network is only evaluated.
        more = [part for part in (self._position(), self._spent()) if part] if self._num_epochs and self._number else []
        self._log(self._evaluation + (f" ({', '.join(more)})" if more else ""))

    def estimate(self, density: float | None, interval: tuple[float, float] | None = None) -> None:
        super().estimate(density, interval)
        if self._estimate and self._estimate != self._last_estimate:
            self._last_estimate = self._estimate
            self._log(self._last_estimate)

    def _log(self, text: str) -> None:
        self._last = self._clock()
        self._write(f"[{duration(self._last - self._start):>10}] {text}" if self._is_stamped else text)


class NotebookProgress(ProgressBar):
    """An HTML element that is replaced; the last one remains."""

    def __init__(self, show: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._show, self._shown_at = show, -_NOTEBOOK_INTERVAL

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        super().stage(name, density, epochs)
        self._update(is_due=True)

    def concurrent_stage(self, name: str, density: float, epochs: int | None) -> None:
        super().concurrent_stage(name, density, epochs)
        self._update()

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        super().epoch(done, of, loss)
        self._update()

    def close(self) -> None:
        cost = "" if self._cost is None else f", {self._cost:.2f} dense trainings"
        self._show(f"{plural(self._number, 'stage')}{cost}, {duration(self._clock() - self._start)}")

    def _update(self, *, is_due: bool = False) -> None:
        if not is_due and self._clock() - self._shown_at < _NOTEBOOK_INTERVAL:
            return
        self._shown_at = self._clock()
        total = max(self._num_epochs, self._finished + self._stage_epochs)
        bar = Markup('<progress value="{}" max="{}"></progress> ').format(self._finished + self._ticks, total)
        of = f": {self._ticks}/{self._length(self._stage_epochs)}" if self._stage_epochs else ""
        lines = (f"{self._position()}, {self._stage}{of}", self._spent(), self._evaluation, self._estimate)
        self._show(str(bar + Markup("<br>").join(line for line in lines if line)))


class TerminalProgress(ProgressBar):
    """Bars for the stage and, if its length is known, the run; erased at the end to make room for the report."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        is_narrow = console.width < 90
        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(8 if is_narrow else 24, complete_style="blue"),
            MofNCompleteColumn(),
            *(() if is_narrow else (TextColumn("{task.fields[unit]}"), TimeElapsedColumn())),
            TextColumn("{task.fields[left]}", style="cyan", markup=False),
            *(() if is_narrow else (TextColumn("{task.fields[loss]}", style="dim", markup=False),)),
        )
        self._bars = RichProgress(*columns, console=console, get_time=clock)
        self._run_task = self._bars.add_task("run", total=None, visible=False, loss="", left="", unit=self.unit)
        self._stage_task = self._bars.add_task("starting", total=None, loss="", left="", unit=self.unit)
        self._done_before = 0
        """Epochs of the current stages that were trained before the run was resumed."""
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=5, transient=True)
        self._live.start()

    def resumes(self, num_stages: int, epochs: Mapping[str, float], note: str = "") -> None:
        super().resumes(num_stages, epochs, note)
        self._live.console.print(Text(self._resumption(num_stages, epochs, note)))

    def stage(self, name: str, density: float, epochs: int | None) -> None:
        super().stage(name, density, epochs)
        self._done_before = int(self._resumed.get(name, 0))
        self._bars.remove_task(self._stage_task)
        self._stage_task = self._bars.add_task(self._stage, total=epochs, loss="", left="", unit=self.unit)

    def concurrent_stage(self, name: str, density: float, epochs: int | None) -> None:
        super().concurrent_stage(name, density, epochs)
        self._done_before += int(self._resumed.get(name, 0))

    def epoch(self, done: int, of: int, loss: float | None = None) -> None:
        super().epoch(done, of, loss)
        self._bars.update(self._stage_task, loss="" if loss is None else f"loss {loss:.4g}")

    def close(self) -> None:
        self._live.stop()

    def render(self) -> Group:
        """What the terminal shows now."""
        done, total = self._ticks + self._done_before, self._stage_epochs
        more = f" +{self._num_concurrent - 1}" if self._num_concurrent > 1 else ""
        left = self._time_for(total - done) if total else ""
        name, unit = f"{self._stage}{more}", self.unit
        self._bars.update(self._stage_task, completed=done, total=total or None, left=left, description=name, unit=unit)
        done += self._finished
        if self._num_epochs:
            total = max(self._num_epochs, done)
            left, name = self._time_for(total - done), self._position()
            self._bars.update(
                self._run_task, completed=done, total=total, left=left, description=name, visible=True, unit=unit
            )
        cost = "" if self._cost is None else f"cost so far {self._cost:.2f} dense trainings"
        return Group(self._bars, *(Text(line, "dim") for line in (self._evaluation, self._estimate, cost) if line))
