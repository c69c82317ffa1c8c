"""A run on the terminal: readable at any width and without color, whether finished or not."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from pathgrow.checkpoint import RunDir
from pathgrow.density.types import Reference
from pathgrow.report.figure import PlotWindow
from pathgrow.report.schema import CheckReport, CurveReport, PointReport, ReferenceReport, RunReport
from pathgrow.report.terminal import (
    ABOVE,
    ANSWER,
    BAND,
    BELOW,
    FINISHED,
    PROBE,
    REFERENCE,
    ROUND,
    TARGET,
    TRAINED,
    curve_chart,
    print_other,
    print_run,
    summary,
)
from pathgrow.report.text import closing
from pathgrow.runs.tolerances import within
from tests.support.sample_report import (
    discovery_report,
    point,
    short_probe_report,
    shrunk_report,
    training_report,
    with_answer,
    with_curve,
)


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
    assert text.endswith(
        "Operating density (within 1 pp of dense): 8.5% (90% interval 6.7-10.4%). Returned model (9.5%): "
        "not verified; 96.79% validation, 96.55% test. Cost: 0.898x the FLOPs of a "
        "dense training, 5.45x its epochs (15.8 GFLOPs, 1 min 15 s)."
    ), "the result comes last"


def test_a_pruning_search_ends_with_three_lines() -> None:
    lines = rendered(summary(shrunk_report()), 100).rstrip().splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["Operating", "Returned", "Cost:"]
    text = " ".join(" ".join(lines).split())
    assert ">finished 9.5% 13.1% 76 96.90% 0.101 > the returned model" in text
    assert "tolerances 0.25 pp: " in text


CHECKS = {
    "verified": CheckReport(outcome="verified", shortfall=0.0042, error=0.003),
    "missed": CheckReport(outcome="missed", shortfall=0.019, error=0.003),
    "not verified": CheckReport(outcome="not verified", shortfall=0.012, error=0.003),
    "none": None,
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", ["given", "dense", "pretrained", "estimated"])
@pytest.mark.parametrize("status", ["found", "open", "flat", "unlearned"])
def test_every_search_ends_with_density_returned_model_and_cost(status: str, kind: str, check: str) -> None:
    """Three lines, with one density in the first; the others are in the tables above."""
    report = shrunk_report()
    assert report.answer is not None
    density = {} if status == "found" else {"operating_density": None, "interval": None}
    reference = ReferenceReport(score=0.976, kind=kind)
    report = with_answer(report, status=status, check=CHECKS[check], reference=reference, **density)
    lines = [line.strip() for line in rendered(summary(report, 120), 120).rstrip().splitlines()]
    assert lines[-4:] == ["", *closing(report)[0]]
    first, second, third = lines[-3:]
    assert len(re.findall(r"[\d.]+%", first.partition(" (90%")[0])) == (1 if status in ("found", "flat") else 0)
    assert first.startswith("Operating density" if status in ("found", "flat") else "No operating density: ")
    # A score that was given or trained can be compared with, even if the rule has not done so.
    unjudged = "verified, 0.70" if kind in ("given", "dense") else "not verified; 96.90% validation"
    judged = unjudged if check == "none" else check
    assert second.startswith(f"Returned model (9.5%): {'96.90% validation' if status == 'unlearned' else judged}")
    cost = r"Cost: [\d.]+x the FLOPs of a dense training, [\d.]+x its epochs \([\d.]+ GFLOPs, 1 min 15 s\)\."
    assert re.fullmatch(cost, third)


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
    missed = with_answer(shrunk_report(), check=CheckReport(outcome="missed", shortfall=0.03, error=0.001))
    greens, others = (report, shrunk_report()), (too_short, with_answer(report, status="flat"), missed)
    for shown, color in [*((shown, "32") for shown in greens), *((shown, "33") for shown in others)]:
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


def test_the_answer_for_another_delta_is_printed_without_the_rest() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_other(shrunk_report(), shrunk_report(delta=0.02), console)
    assert (
        console.file.getvalue().splitlines()
        == [  # type: ignore[attr-defined]
            "Within 2 pp (the run searched for 1 pp), from the same curve and without training:",
            *closing(shrunk_report(delta=0.02))[0][:2],
        ]
    )


def test_another_delta_is_printed_as_it_was_asked_for() -> None:
    report = shrunk_report(reference=Reference(score=0.975, kind="given", epochs=80))
    console = Console(file=io.StringIO(), width=200)
    print_other(report, within(report, "2%"), console)
    first, answer, _ = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first == "Within 2% (1.95 pp) (the run searched for 1 pp), from the same curve and without training:"
    assert answer.startswith("Operating density (within 2% (1.95 pp) of dense): ")


# The chart

WIDTH, HEIGHT = 78, 16


def test_marks_are_where_the_numbers_say(sample_report: RunReport) -> None:
    lines = curve_chart(sample_report, WIDTH, HEIGHT).plain.splitlines()
    body, axis = lines[1 : 1 + HEIGHT], lines[1 + HEIGHT]
    window = PlotWindow.of(sample_report)
    left = axis.index("└") + 1
    cells = WIDTH - left

    def column(density: float) -> int:
        return left + round(window.x(density) * (cells - 1))

    def row(score: float) -> int:
        return round((1 - window.y(score)) * (HEIGHT - 1))

    assert axis.index(ANSWER) == column(0.0848)
    assert [axis.index("╞"), axis.index("╡")] == [column(0.0671), column(0.1042)]
    for probe in sample_report.curve.probes:
        assert body[row(probe.score)][column(probe.density)] == PROBE
    assert sample_report.reference is not None
    assert sample_report.target_score is not None
    for score, glyph in ((sample_report.reference.score, REFERENCE), (sample_report.target_score, TARGET)):
        assert [number for number, line in enumerate(body) if glyph in line] == [row(score)]
    assert body[-1][column(0.02)] == BELOW, "the first round is far below the window"


def test_the_band_covers_what_it_bounds(sample_report: RunReport) -> None:
    lines = curve_chart(sample_report, WIDTH, HEIGHT).plain.splitlines()
    body, left = lines[1 : 1 + HEIGHT], lines[1 + HEIGHT].index("└") + 1
    window, fit, cells = PlotWindow.of(sample_report), sample_report.curve.fit, WIDTH - left
    assert fit is not None
    columns = [window.x(density) * (cells - 1) for density in fit.density]
    for column in range(math.ceil(columns[0]), math.floor(columns[-1]) + 1):
        low, high = (window.y(float(np.interp(column, columns, edge))) for edge in (fit.low, fit.high))
        for row in range(HEIGHT):
            is_inside = low <= 1 - row / (HEIGHT - 1) <= high
            glyph = body[row][left + column]
            assert glyph != " " if is_inside else glyph != BAND  # other marks may cover it


def test_labels_are_below_their_ticks(sample_report: RunReport) -> None:
    report = with_answer(sample_report, operating_density=None, interval=None)  # they would cover ticks
    axis, labels = curve_chart(report).plain.splitlines()[17:19]
    ticks = [column for column, glyph in enumerate(axis) if glyph == "┬"]
    places = {label.group(): label.start() + len(label.group()) // 2 for label in re.finditer(r"[0-9.]+%", labels)}
    assert list(places) == ["2%", "3%", "5%", "7%", "10%", "20%", "30%"]
    assert list(places.values()) == ticks
    assert ANSWER not in curve_chart(report).plain


def test_an_interval_from_zero_starts_at_the_edge(sample_report: RunReport) -> None:
    report = with_answer(sample_report, status="flat", operating_density=None, interval=(0.0, 0.02))
    assert "└╞═" in curve_chart(report).plain.splitlines()[17]


def test_legend_entries_are_not_broken() -> None:
    lines = curve_chart(short_probe_report(), WIDTH).plain.splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[-4:] == [
        " ● probes (16 epochs)  · rounds  ▾ below the chart  ━ fit  ░ 90% band",
        " ─ reference 97.40% (fitted)",
        " ┄ target: 1.38 pp below the reference (1 pp after full training)",
        " ▲ operating density (67% quantile)",
    ]


@pytest.mark.parametrize("delta", [0.01, 1e-5])
def test_the_legend_explains_what_was_drawn_and_nothing_else(sample_report: RunReport, delta: float) -> None:
    lines = curve_chart(with_answer(sample_report, delta=delta, allowed=None), WIDTH, HEIGHT).plain.splitlines()
    body, legend = "".join(line.partition("│")[2] for line in lines[1 : 1 + HEIGHT]), " ".join(lines[3 + HEIGHT :])
    drawn = set(body) - {" ", "┊"} | {ANSWER}
    assert {glyph for glyph in legend if not glyph.isascii()} == drawn
    assert (REFERENCE in legend) is (delta == 0.01), "the target covers a reference in the same row"


def test_pruned_finished_and_trained_networks_have_their_own_marks() -> None:
    report = shrunk_report()
    window, lines = PlotWindow.of(report), curve_chart(report, WIDTH, HEIGHT).plain.splitlines()
    left, legend = lines[17].index("└") + 1, " ".join(lines[19:])
    for points, mark in (
        (report.curve.rounds[-1:], TRAINED),
        (report.curve.finished, FINISHED),
        ([probe for probe in report.curve.probes if probe.score > window.scores[0]], PROBE),
    ):
        for shown in points:
            column = left + round(window.x(shown.density) * (WIDTH - left - 1))
            assert lines[1 + round((1 - window.y(shown.score)) * (HEIGHT - 1))][column] == mark
    assert sum(line.count(BELOW) for line in lines[1 : 1 + HEIGHT]) == 3, "collapsed networks do not squeeze the rest"
    probes = (replace(report.curve.probes[0], score=5.0), *report.curve.probes[1:])
    losses = replace(with_curve(report, probes=probes), config={**report.config, "mode": "min"})
    top, *_ = rows = curve_chart(losses, WIDTH, HEIGHT).plain.splitlines()[1:]
    assert top.count(ABOVE) == 1, "of losses, the high ones are far away"
    assert f"{ABOVE} above the chart" in " ".join(rows)
    assert ROUND not in legend
    assert "● pruned networks" in legend
    assert report.reference is not None
    assert report.reference.score == pytest.approx(0.98, abs=0.01), "estimated from 0.973 and 0.976"
    assert f"{REFERENCE} reference {100 * report.reference.score:.2f}% (estimated)" in legend
    assert f"{ROUND} rounds" in curve_chart(shrunk_report(grown=3)).plain


def test_the_window_holds_the_dense_probe() -> None:
    report = short_probe_report()
    window = PlotWindow.of(report)
    assert window.densities[1] > 1.0
    lines = curve_chart(report, WIDTH, HEIGHT).plain.splitlines()
    left = lines[17].index("└") + 1
    column = left + round(window.x(1.0) * (WIDTH - left - 1))
    assert lines[1 + round((1 - window.y(0.976)) * (HEIGHT - 1))][column] == PROBE


def test_intervals_do_not_squeeze_the_points(sample_report: RunReport) -> None:
    wide = PlotWindow.of(with_answer(sample_report, interval=(1e-30, 1.0)))
    first, last = sample_report.curve.probes[0].density, sample_report.curve.probes[-1].density
    assert wide.x(last) - wide.x(first) > 0.5


def test_a_training_has_a_chart() -> None:
    assert curve_chart(training_report()).plain.count("·") == 2, "its point, and the legend"


densities = st.lists(st.floats(0.0005, 1.0), min_size=1, max_size=12)


@given(densities=densities, scores=st.lists(st.floats(-1e3, 1e3), min_size=12, max_size=12), delta=st.floats(1e-4, 1))
def test_a_window_holds_every_probe_and_has_readable_ticks(
    densities: list[float], scores: list[float], delta: float
) -> None:
    probes = [PointReport(round=0, density=d, score=s) for d, s in zip(densities, scores, strict=False)]
    report = with_answer(
        replace(discovery_report(), curve=CurveReport(probes=tuple(probes))),
        operating_density=None, interval=None, gain_density=None, delta=delta, reference=None,
    )  # fmt: skip
    window = PlotWindow.of(report)
    assert all(0 < window.x(probe.density) < 1 and 0 < window.y(probe.score) < 1 for probe in probes)
    for ticks, (low, high) in (
        (window.density_ticks(), window.densities),
        (window.score_ticks(), window.scores),
    ):
        assert ticks == sorted(set(ticks))
        assert 2 <= len(ticks) <= 9
        assert all(low - 1e-6 <= tick <= high + 1e-6 for tick in ticks)


@pytest.mark.parametrize("window", [PlotWindow((0.2, 0.21), (0.5, 0.5001)), PlotWindow((1e-12, 1.0), (-5.0, 1e6))])
def test_extreme_windows_have_ticks(window: PlotWindow) -> None:
    assert len(window.density_ticks()) >= 2
    assert len(window.score_ticks()) >= 2
