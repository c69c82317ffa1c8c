"""Progress: few lines in logs, bars on terminals, and a time left that agrees with the clock."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from pathgrow.report import progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def log(clock: Clock) -> tuple[progress.LogProgress, Console]:
    console = Console(file=io.StringIO(), width=40)
    return progress.LogProgress(lambda line: console.print(line, soft_wrap=True, markup=False), clock), console


def written(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def rendered(bars: progress.TerminalProgress, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(bars.render())
    return [" ".join(line.split()) for line in written(console)]


def terminal(clock: Clock, total_epochs: int | None = None, width: int = 100) -> progress.TerminalProgress:
    bars = progress.TerminalProgress(Console(file=io.StringIO(), force_terminal=True, width=width), clock)
    bars.close()  # nothing is drawn in the background; `render` still works
    if total_epochs is not None:
        bars.expects(5, total_epochs)
    return bars


def run(bar: progress.ProgressBar, clock: Clock) -> None:
    """Three stages of 10 epochs, a second each."""
    for number, name in enumerate(("seed", "round-001", "probe-001")):
        density = 0.02 * (number + 1)
        bar.stage(name, density, 10)
        for epoch in range(1, 11):
            clock.now += 1
            bar.epoch(epoch, 10, 1 / epoch)
        bar.observed(name, density, 0.9 + number / 100, epochs=10, cost=0.125)
        bar.estimate(None if number == 0 else 0.05, (0.04, 0.06) if number == 2 else None)
    bar.close()


def test_logs_get_a_line_per_event_without_control_codes(clock: Clock) -> None:
    bar, console = log(clock)
    run(bar, clock)
    assert written(console) == [
        "[     0.0 s] round 0 starts: density 2.0%, 10 epochs",
        "[      10 s] round 0: density 2.0%, score 0.9",
        "[      20 s] round 1: density 4.0%, score 0.91",
        "[      20 s] current estimate 5.0%",
        "[      30 s] probe at 6.0%: score 0.92",
        "[      30 s] current estimate 5.0% (90% interval 4.0-6.0%)",
    ]


def test_logs_say_where_the_run_is(clock: Clock) -> None:
    bar, console = log(clock)
    bar.expects(3, 60)
    run(bar, clock)
    lines = [line for line in written(console) if "estimate" not in line]
    assert lines == [
        "[     0.0 s] round 0 starts: density 2.0%, 10 epochs (stage 1 of about 3)",
        "[      10 s] round 0: density 2.0%, score 0.9 (stage 1 of about 3, cost so far 0.12 dense trainings, about"
        " 50 s left)",
        "[      20 s] round 1: density 4.0%, score 0.91 (stage 2 of about 3, cost so far 0.25 dense trainings, about"
        " 40 s left)",
        "[      30 s] probe at 6.0%: score 0.92 (stage 3 of about 3, cost so far 0.38 dense trainings, about"
        " 30 s left)",
    ]


def test_the_time_left_needs_no_reports_of_epochs(clock: Clock) -> None:
    """Stored stages are done, but took no time here; more stages than expected are not "of about" any number."""
    bar, console = log(clock)
    bar.expects(2, 40)
    bar.stored(10, 0.25)
    bar.stage("probe-002", 0.5, 10)
    clock.now += 20
    bar.observed("probe-002", 0.5, 0.9, epochs=10, cost=0.25)
    bar.stage("probe-003", 0.5, 10)
    clock.now += 20
    bar.observed("probe-003", 0.5, 0.9, epochs=10, cost=None)
    assert [line.partition("(")[2] for line in written(console)[1:]] == [
        "stage 2 of about 2, cost so far 0.50 dense trainings, about 40 s left)",
        "stage 3, cost so far 0.50 dense trainings, about 20 s left)",
    ]


def test_a_notebook_shows_one_element_that_is_replaced(clock: Clock) -> None:
    shown: list[str] = []
    bar = progress.NotebookProgress(shown.append, clock)
    bar.expects(3, 60)
    run(bar, clock)
    assert shown[0] == '<progress value="0" max="60"></progress> stage 1 of about 3, round 0: 0/10 epochs'
    assert shown[15] == (
        '<progress value="14" max="60"></progress> stage 2 of about 3, round 1: 4/10 epochs<br>'
        "cost so far 0.12 dense trainings, about 46 s left<br>round 0: density 2.0%, score 0.9"
    )
    assert shown[-1] == "3 stages, 0.38 dense trainings, 30 s"
    clock.now += 1
    bar.stage("<b>", 0.1, 1000)
    before = len(shown)
    for epoch in range(1, 101):
        clock.now += 0.01
        bar.epoch(epoch, 1000)
    assert len(shown) - before <= 4, "not one message per epoch"
    assert "<b>" not in shown[-1]


def test_logs_report_long_stages_once_a_minute(clock: Clock) -> None:
    bar, console = log(clock)
    bar.stage("seed", 0.02, 8)
    for epoch in range(1, 9):
        clock.now += 25
        bar.epoch(epoch, 8, 1 / epoch)
    bar.observed("seed", 0.02, 0.9)
    assert written(console) == [
        "[     0.0 s] round 0 starts: density 2.0%, 8 epochs",
        "[1 min 15 s] round 0: 3/8 epochs, loss 0.3333",
        "[2 min 30 s] round 0: 6/8 epochs, loss 0.1667",
        "[3 min 20 s] round 0: density 2.0%, score 0.9",
    ]


def test_logs_do_not_repeat_an_estimate(clock: Clock) -> None:
    bar, console = log(clock)
    for density in (0.05, 0.05, None, 0.05, 0.06, 0.05):
        bar.estimate(density)
    estimates = [line.split()[-1] for line in written(console)]
    assert estimates == ["5.0%", "6.0%", "5.0%"]


def test_resumption_is_announced(clock: Clock) -> None:
    bar, console = log(clock)
    bar.resumes(1, {"probe-003": 4.5, "final": 1.0})
    bar.stage("probe-003", 0.1, 10)
    assert written(console) == [
        "[     0.0 s] Resuming: 1 stage done, probe of round 3 continues after 4.5 epochs, final training continues "
        "after 1 epochs."
    ]
    shown = Console(file=io.StringIO(), force_terminal=True, width=200)
    bars = progress.TerminalProgress(shown, clock)
    bars.resumes(2, {})
    bars.close()
    assert written(shown)[0].endswith("Resuming: 2 stages done.")


def test_the_display_follows_the_console() -> None:
    assert isinstance(progress.create(Console(file=io.StringIO())), progress.LogProgress)
    bars = progress.create(Console(file=io.StringIO(), force_terminal=True))
    assert isinstance(bars, progress.TerminalProgress)
    bars.close()
    lines = progress.create(Console(file=io.StringIO(), force_terminal=True), bars=False)
    assert isinstance(lines, progress.LogProgress)


def test_the_display_of_a_notebook_needs_no_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """An imitation of IPython.display: a handle that updates what it displayed."""
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    fake = SimpleNamespace(HTML=str, display=lambda html, *, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    bar = progress.create(Console(file=io.StringIO(), force_jupyter=True))
    bar.stage("seed", 0.1, 10)
    assert shown == ['<progress value="0" max="10"></progress> stage 1, round 0: 0/10 epochs']


def test_bars_show_stage_evaluation_estimate_and_time_left(clock: Clock) -> None:
    bars = terminal(clock, total_epochs=30)
    bars.stage("round-003", 0.02, 10)
    for epoch in range(1, 6):
        clock.now += 4
        bars.epoch(epoch, 10, 0.25)
    bars.observed("seed", 0.02, 0.9123, cost=0.25)
    bars.estimate(0.05, (0.04, 0.06))
    whole, stage, *lines = rendered(bars)
    assert whole.startswith("stage 1 of about 5 ")
    assert whole.endswith("5/30 epochs 0:00:20 about 1 min 40 s left"), "25 epochs at 4 s"
    assert stage.startswith("round 3 ")
    assert stage.endswith("5/10 epochs 0:00:20 about 20 s left loss 0.25")
    assert lines == [
        "round 0: density 2.0%, score 0.9123",
        "current estimate 5.0% (90% interval 4.0-6.0%)",
        "cost so far 0.25 dense trainings",
    ]


def test_concurrent_stages_share_a_bar(clock: Clock) -> None:
    bars = terminal(clock, total_epochs=50)
    bars.stage("probe-003", 0.1, 10)
    bars.concurrent_stage("probe-007", 0.3, 10)
    bars.concurrent_stage("probe-dense", 1.0, 10)
    for epoch in (1, 1, 1, 2):
        clock.now += 1
        bars.epoch(epoch, 10, 0.5)
    whole, stage = rendered(bars)
    assert "4/50 epochs 0:00:04 about 46 s left" in whole
    assert stage.startswith("probe at 10.0% +2 ")
    assert "4/30 epochs" in stage


def test_resumed_epochs_are_done_but_say_nothing_about_speed(clock: Clock) -> None:
    bars = terminal(clock, total_epochs=25)
    bars.resumes(0, {"probe-003": 4.5, "probe-007": 1.0})
    bars.stage("probe-003", 0.1, 10)
    bars.concurrent_stage("probe-007", 0.3, 10)
    for epoch in (5, 2, 6):
        clock.now += 3.0
        bars.epoch(epoch, 10, 0.5)
    whole, stage = rendered(bars)
    assert "8/25 epochs 0:00:09 about 51 s left" in whole, "17 at 3 s"
    assert "8/20 epochs" in stage


def test_a_stage_of_unknown_length_counts_its_epochs(clock: Clock) -> None:
    bars = terminal(clock)
    bars.stage("round-001", 0.1, None)
    for _ in range(4):
        clock.now += 2
        bars.epoch(1, 1)
    (stage,) = rendered(bars)
    assert "4/? epochs" in stage


def test_bars_count_in_the_unit_of_the_run(clock: Clock) -> None:
    bars = terminal(clock, total_epochs=5000)
    bars.unit = "steps"
    bars.stage("round-003", 0.02, 1000)
    bars.epoch(1, 1000)
    whole, stage = rendered(bars)
    assert "1/5000 steps" in whole
    assert "1/1000 steps" in stage


def test_a_resumption_counts_in_the_unit_of_the_run(clock: Clock) -> None:
    bar, console = log(clock)
    bar.unit = "steps"
    bar.resumes(0, {"probe-003": 450.0})
    assert written(console) == ["[     0.0 s] Resuming: probe of round 3 continues after 450 steps."]


@pytest.mark.parametrize("width", [60, 80])
def test_bars_keep_to_one_line_each(clock: Clock, width: int) -> None:
    bars = terminal(clock, 5000, width)
    bars.stage("probe-003", 0.1, 800)
    bars.concurrent_stage("probe-007", 0.3, 800)
    for epoch in range(1, 701):
        clock.now += 1
        bars.epoch(epoch, 800, 0.012345)
    bars.observed("round-011", 0.5817, 0.95556)
    lines = rendered(bars, width)
    assert len(lines) == 3
    assert "700/1600" in lines[1]


def test_the_terminal_is_clean_afterwards(clock: Clock) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    run(progress.TerminalProgress(console, clock=clock), clock)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert output.endswith("\x1b[2K"), "the last line is erased"
    assert "\x1b[?25h" in output, "the cursor is back"


def test_the_base_class_shows_nothing(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    run(progress.ProgressBar(), clock)
    assert capsys.readouterr() == ("", "")
