"""Progress: sparse lines in logs, a live picture on terminals, and a time left that is what a clock would say."""

import io

import pytest
from rich.console import Console

from pathgrow.report import progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def tell(told, clock):
    """A little run of three stages of 10 epochs, a second each."""
    for number, name in enumerate(("seed", "round-001", "probe-001")):
        told.stage(name, 0.02 * (number + 1), 10)
        for epoch in range(1, 11):
            clock.now += 1
            told.epoch(epoch, 10, 1 / epoch)
        told.observed(number, 0.02 * (number + 1), 0.9 + number / 100)
        told.estimate(None if number == 0 else 0.05, (0.04, 0.06) if number == 2 else None)
    told.close()


def test_stages_that_are_trained_together_count_as_one_long_stage(clock):
    """Three probes of 10 epochs in a run of 50: the time left is that of what nobody has trained yet."""
    pace = progress.Pace(50, clock)
    pace.begin(10)
    for epoch in range(1, 11):
        clock.now += 1
        pace.advance(epoch)
    pace.begin(10)
    pace.widen(10)
    pace.widen(10)
    assert pace.seconds_left == pytest.approx(40)
    for epoch in (1, 1, 1, 2, 2, 2):
        clock.now += 1
        pace.advance(epoch)
    assert pace.stage_done == 6
    assert pace.seconds_left == pytest.approx(34)
    pace.begin(10)
    assert pace.seconds_left == pytest.approx(10 * pace.seconds_per_epoch)


def test_the_live_picture_tells_how_many_are_trained_together(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    live = progress.LiveProgress(console, 50, clock)
    live.stage("probe-003", 0.1, 10)
    live.beside("probe-007", 0.3, 10)
    live.epoch(1, 10, 0.5)
    live.epoch(1, 10, 0.4)
    with console.capture() as shown:
        console.print(live.render())
    live.close()
    assert "with 1 more" in shown.get()
    assert "2/20 epochs" in shown.get()


@pytest.mark.parametrize("width", [50, 80])
def test_the_live_picture_does_not_break_its_lines(clock, width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    live = progress.LiveProgress(console, 5000, clock)
    live.stage("probe-003", 0.1, 800)
    live.beside("probe-007", 0.3, 800)
    for epoch in range(1, 701):
        clock.now += 1
        live.epoch(epoch, 800, 0.012345)
    live.observed(11, 0.5817, 0.95556)
    live.close()
    plain = Console(file=io.StringIO(), width=width)
    plain.print(live.render())
    first, *others = plain.file.getvalue().splitlines()
    assert first.startswith("probe-003  with 1 more")
    assert "700/1,600 epochs" in first
    assert ("loss 0.01235" in first) == (width == 80)
    assert [line.split()[0] for line in others] == ["observed", "time"]


def test_stages_that_are_trained_together_keep_their_names(clock):
    text = io.StringIO()
    told = progress.LineProgress(Console(file=text), clock)
    for name in ("probe-001", "probe-004"):
        told.stage(name, 0.1, 10)
    told.observed(1, 0.05, 0.8, "probe-001")
    told.observed(4, 0.1, 0.9, "probe-004")
    _, *lines = text.getvalue().splitlines()
    assert "probe-001: round 1" in lines[0]
    assert "probe-004: round 4" in lines[1]


def test_logs_get_one_line_per_fact_and_no_control_codes(clock):
    console = Console(file=io.StringIO(), width=40)
    tell(progress.LineProgress(console, clock), clock)
    assert console.file.getvalue().splitlines() == [
        "[     0.0 s] seed begins: density 2%, 10 epochs",
        "[      10 s] seed: round 0, density 2%, score 0.9",
        "[      20 s] round-001: round 1, density 4%, score 0.91",
        "[      20 s] answer so far 5%",
        "[      30 s] probe-001: round 2, density 6%, score 0.92",
        "[      30 s] answer so far 5% (90%: 4% to 6%)",
    ]


def test_logs_hear_of_long_stages_once_a_minute(clock):
    console = Console(file=io.StringIO(), width=80)
    lines = progress.LineProgress(console, clock)
    lines.stage("seed", 0.02, 8)
    for epoch in range(1, 9):
        clock.now += 25
        lines.epoch(epoch, 8, 1 / epoch)
    lines.observed(0, 0.02, 0.9)
    assert console.file.getvalue().splitlines() == [
        "[     0.0 s] seed begins: density 2%, 8 epochs",
        "[1 min 15 s] seed: 3/8 epochs, loss 0.3333",
        "[2 min 30 s] seed: 6/8 epochs, loss 0.1667",
        "[3 min 20 s] seed: round 0, density 2%, score 0.9",
    ]


def test_an_answer_that_stays_is_not_told_again(clock):
    console = Console(file=io.StringIO(), width=80)
    lines = progress.LineProgress(console, clock)
    for density in (0.05, 0.05, None, 0.05, 0.06, 0.05):
        lines.estimate(density)
    told = [line.split("] ")[1] for line in console.file.getvalue().splitlines()]
    assert told == ["answer so far 5%", "answer so far 6%", "answer so far 5%"]


def test_the_kind_follows_the_console():
    assert isinstance(progress.create(Console(file=io.StringIO())), progress.LineProgress)
    live = progress.create(Console(file=io.StringIO(), force_terminal=True))
    assert isinstance(live, progress.LiveProgress)
    live.close()


def test_a_live_picture_says_stage_observation_estimate_and_time_left(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    live = progress.LiveProgress(console, total_epochs=30, clock=clock)
    try:
        live.stage("seed", 0.02, 10)
        clock.now += 20
        live.epoch(5, 10, 0.25)
        live.observed(0, 0.02, 0.9123)
        live.estimate(0.05, (0.04, 0.06))
        plain = Console(file=io.StringIO(), width=80)
        plain.print(live.render())
    finally:
        live.close()
    text = " ".join(plain.file.getvalue().split())
    assert "seed at 2%" in text
    assert "5/10 epochs loss 0.25" in text
    assert "observed round 0, density 2%, score 0.9123" in text
    assert "estimate answer so far 5% (90%: 4% to 6%)" in text
    assert "time 20 s, about 1 min 40 s left" in text  # 25 epochs at 4 s
    assert "?[1m" in "".join(progress.printable("\x1b[1m"))


def test_a_live_run_ends_with_a_clean_terminal(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    tell(progress.LiveProgress(console, clock=clock), clock)
    assert console.file.getvalue().endswith("\x1b[2K")  # the last line it wrote is erased again
    assert "\x1b[?25h" in console.file.getvalue()  # and the cursor is back


def test_the_time_left_is_epochs_left_times_seconds_per_epoch(clock):
    pace = progress.Pace(40, clock)
    assert pace.seconds_left is None
    pace.begin(10)
    clock.now += 3
    pace.advance(1)
    assert pace.seconds_left == pytest.approx(39 * 3)
    clock.now += 1
    pace.advance(2)
    assert pace.seconds_left == pytest.approx(38 * 2)


def test_stages_that_tell_no_epochs_count_when_they_are_over(clock):
    pace = progress.Pace(30, clock)
    pace.begin(10)
    clock.now += 20
    pace.begin(10)
    assert pace.seconds_left == pytest.approx(20 * 2)
    clock.now += 6
    assert pace.stage_done == pytest.approx(3)  # at 2 s an epoch
    assert pace.seconds_left == pytest.approx(17 * 2)
    clock.now += 1000
    assert pace.stage_done == 10
    assert pace.seconds_left == pytest.approx(10 * 2)


def test_without_a_total_the_time_left_is_that_of_the_stage(clock):
    pace = progress.Pace(None, clock)
    pace.begin(10)
    clock.now += 2
    pace.advance(2)
    assert pace.seconds_left == pytest.approx(8)
    pace.begin(None)
    assert pace.seconds_left is None


def test_a_stage_of_unknown_length_counts_its_epochs_one_by_one(clock):
    pace = progress.Pace(10, clock)
    pace.begin(None)
    for _ in range(4):
        clock.now += 2
        pace.advance(1)
    assert pace.stage_done == 4
    assert pace.seconds_left == pytest.approx(6 * 2)


def test_silence_is_silent(capsys, clock):
    tell(progress.Silent(), clock)
    assert capsys.readouterr() == ("", "")
