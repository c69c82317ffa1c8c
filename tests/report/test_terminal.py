"""A run on the terminal: readable at any width and without color, whether finished or not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from pathgrow.checkpoint import RunDir
from pathgrow.report.schema import RunReport
from pathgrow.report.terminal import print_run, summary
from tests.support.sample_report import point, short_probe_report, training_report, with_answer, with_curve


def rendered(renderable: RenderableType, width: int = 80, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def printed(path: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_run(path, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_summary_has_answer_findings_explanations_and_rounds(sample_report: RunReport) -> None:
    text = " ".join(rendered(summary(sample_report)).split())
    for expected in (
        "pathgrow mlp on digits, seed 0 accuracy by density",
        ">7 9.5% 13.1% 24 95.45% 0.138 96.79% 80 8 11.9%",
        "> mask of the returned model",
        "How the answer was found - The reported density is the 67% quantile",
    ):
        assert expected in text
    assert text.index("worth their cost.") < text.index("Operating density: 8.5% of the prunable weights (90% interval")
    assert text.endswith("time training 48 s, wall clock 1 min 15 s"), "the result comes last"


def test_a_training_is_shown_without_curve_and_rounds() -> None:
    text = rendered(summary(training_report()))
    assert "rigl at 12.3% density: 82.22% test accuracy." in text
    assert "by density" not in text
    assert "Rounds" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_and_are_colored_on_terminals_only(sample_report: RunReport, width: int) -> None:
    text = rendered(summary(sample_report, width), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\x1b[" in rendered(summary(sample_report, width), width, force_terminal=True, color_system="standard")


def test_the_headline_is_green_if_the_answer_can_be_trusted() -> None:
    report = short_probe_report()
    best = max(probe.score for probe in report.curve.probes)
    too_short = with_curve(report, rounds=(*report.curve.rounds[:-1], point(13, 0.36, 36, best + 0.011)))
    for shown, color in ((report, "32"), (too_short, "33"), (with_answer(report, status="flat"), "33")):
        assert f"\x1b[1;{color}m" in rendered(summary(shown), force_terminal=True, color_system="standard")


def test_control_characters_and_markup_are_text(sample_report: RunReport) -> None:
    report = with_answer(sample_report, reason="[link=https://example.org]\x9b31m here[/link]", details={})
    report = type(report)(**{**vars(report), "config": {"model": "\x1b[31mred[/][bold]mlp\x07"}})
    text = rendered(summary(report))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert "?[31mred[/][bold]mlp?" in text
    assert "[link=https://example.org]?31m here[/link]" in text


# Run directories


def test_a_finished_run_is_printed_as_its_summary(tmp_path: Path, sample_report: RunReport) -> None:
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        run_dir.write_report(sample_report.as_json())
    console = Console(file=io.StringIO(), width=80)
    print_run(tmp_path / "run", console)
    assert console.file.getvalue() == rendered(summary(sample_report))  # type: ignore[attr-defined]


def test_an_unfinished_run_is_shown_as_far_as_it_got(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", {"data": "digits", "seed": 0}) as run_dir:
        run_dir.stages.save("seed", {"round": 0, "density": 0.02, "score": 0.81})
        assert "1 stage finished;" in printed(run_dir.path)
        run_dir.log("round-001", event="begin")
        run_dir.stages.save("trunk-000", {"other": 1})
        running = printed(run_dir.path)
    stopped = printed(run_dir.path)
    assert "run: unfinished run, in stage round 1" in running
    assert "1 stage finished; in use by" in running, "stages without a score do not count"
    assert "  round 0: density 2.0%, score 0.81" in running
    assert "1 stage finished; not running; repeat the command to resume." in stopped


def test_an_unfinished_call_has_no_command_to_repeat(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "store", {"budget": 4}) as run_dir:
        run_dir.stages.save("seed", {"round": 0, "density": 0.02, "score": 0.81})
    text = printed(run_dir.path)
    assert "unfinished call of discover" in text
    assert "not running; repeat the call to resume." in text
