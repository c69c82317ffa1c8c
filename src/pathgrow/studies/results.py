"""What the finished cells of a study say so far: means over seeds, a table and a figure."""

from __future__ import annotations

import dataclasses
import io
import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pathgrow.checkpoint import strict_json
from pathgrow.errors import UserError, printable, unknown_name
from pathgrow.report.compare import mean_interval
from pathgrow.report.formats import ScoreFormat, duration, percent, plural, ratio
from pathgrow.studies.calibration import Calibration, calibrations
from pathgrow.studies.definition import Study
from pathgrow.studies.lines import load_lines
from pathgrow.studies.worker import failure

_SCORES = ("val", "test", "val_rough")
_DENSITIES = ("density", "answer", "low", "high")
_Point = Mapping[str, Any]
METRICS = {
    "val": "validation accuracy", "test": "test accuracy", "val_rough": "validation accuracy after rough training",
    "val_loss": "validation loss", "test_loss": "test loss", "density": "density", "epochs": "epochs trained",
    "flops": "training FLOPs / dense", "seconds": "training time", "answer": "operating density",
    "low": "lower end of its interval", "high": "upper end of its interval", "log10_total": "total path weight (log10)",
    "tau_core_size": "tau-core (units)", "mean_tau_core_ratio": "mean tau-core ratio",
}  # fmt: skip
"""What a point may have, beside its place in the grid."""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Mean over seeds; the interval is that of 90% and None for a single seed."""

    mean: float
    interval: tuple[float, float] | None
    num: int


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """Points of equal series and x."""

    panel: str
    series: str
    x: float | str | None
    values: Mapping[str, Mean]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a study says so far."""

    study: Study
    rows: tuple[ResultRow, ...]
    is_fraction: bool
    """Whether scores are accuracies in [0, 1]."""
    caption: str
    """Question, cells that are finished, and what has to be said about the scale."""
    lines: tuple[Mapping[str, Any], ...]
    """The finished cells, see `load_lines`."""
    calibrations: tuple[Calibration, ...]
    """Answers beside brute force, for studies that have both."""


def load_results(study: Study, scale: str | None, out: Path) -> Results:
    """Read the finished cells of a study in a directory."""
    if not (lines := load_lines(study, scale, out)):
        raise UserError(f"{out} has no finished cell of study {study.name!r}; run `pathgrow study {study.name}` first")
    return results_of(study, scale, lines, sum(failure(out, cell) is not None for cell in study.cells(scale)))


def results_of(study: Study, scale: str | None, lines: Sequence[Mapping[str, Any]], num_failed: int = 0) -> Results:
    """Average the lines of finished cells over seeds."""
    failed = f", {num_failed} failed" if num_failed else ""
    note = study.scaled(scale).note
    named = f"{study.name} ({scale or next(iter(study.scale), 'user-defined')})"
    num_unfinished = sum(bool(line.get("unfinished")) for line in lines)
    finished = f"{len(lines) - num_unfinished} of {plural(len(study.cells(scale)), 'cell')} finished"
    unfinished = f", {num_unfinished} unfinished (levels or rounds so far)" if num_unfinished else ""
    caption = f"{named}: {study.question} {finished}{unfinished}{failed}."
    points = [point for line in lines for point in line["points"]]
    return Results(
        study=study,
        rows=tuple(_means(study, points)),
        is_fraction=all(line["is_fraction"] for line in lines),
        caption=printable(" ".join(filter(None, (caption, note)))),
        lines=tuple(lines),
        calibrations=tuple(calibrations(study.view, points)),
    )


def _means(study: Study, points: Sequence[_Point]) -> Iterator[ResultRow]:
    view = study.view

    def place(point: _Point) -> tuple[str, str, float | str | None]:
        x = point.get(view.x)
        x = float(f"{x:.3g}") if isinstance(x, float) else x  # counts of weights are rounded differently
        series = ", ".join(_named(name, point[name]) for name in view.series if point.get(name) is not None)
        return str(point.get(view.panel, "")) if view.panel else "", series, x

    order = {at: number for number, at in enumerate(dict.fromkeys(place(point)[:2] for point in points))}
    keyed = sorted(points, key=lambda point: (order[place(point)[:2]], _sortable(place(point)[2])))
    for (panel, series, x), equal in itertools.groupby(keyed, place):
        group = list(equal)
        values = {}
        for name in view.y:
            if found := [float(point[name]) for point in group if point.get(name) is not None]:
                values[name] = Mean(mean=fmean(found), interval=mean_interval(found), num=len(found))
        yield ResultRow(panel=panel, series=series, x=x, values=values)


def _named(name: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{name} {value}"


def _sortable(x: object) -> tuple[bool, float, str]:
    return (isinstance(x, int | float), float(x) if isinstance(x, int | float) else 0.0, str(x))


# Table


def render_results(results: Results, format: str) -> str:
    """The results in one of `RESULT_FORMATS`."""
    if format not in RESULT_FORMATS:
        raise unknown_name("format", format, RESULT_FORMATS)
    return RESULT_FORMATS[format](results)


def _cells(results: Results) -> list[list[str]]:
    view = results.study.view
    heading = [*([view.panel] if view.panel else []), ", ".join(view.series), view.x, *view.y, "seeds"]
    lines = [heading]
    for row in results.rows:
        shown = [_shown(results, name, row.values.get(name)) for name in view.y]
        x = _written(results, view.x, row.x)
        num = max((value.num for value in row.values.values()), default=0)
        lines.append([*([row.panel] if view.panel else []), row.series, x, *shown, str(num)])
    return [[printable(cell) for cell in line] for line in lines]


def _shown(results: Results, name: str, value: Mean | None) -> str:
    if value is None:
        return "-"
    text = _written(results, name, value.mean)
    if value.interval is None:
        return text
    half = (value.interval[1] - value.interval[0]) / 2
    in_percent = name in _DENSITIES or (name in _SCORES and results.is_fraction)
    return f"{text} ±{100 * half:.2f}" if in_percent else f"{text} ±{half:.2g}"


def _written(results: Results, name: str, value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, int | float):
        return str(value)
    if name in _DENSITIES:
        return percent(value)
    if name in _SCORES:
        return ScoreFormat(results.is_fraction)(value)
    if name == "flops":
        return ratio(value)
    if name.endswith("_loss"):
        return f"{value:.4f}"
    return duration(value) if name == "seconds" else f"{value:.4g}"


def _calibration_cells(results: Results) -> list[list[str]]:
    """Every search beside brute force."""
    if not results.calibrations:
        return []
    view, lines = results.study.view, []
    for found in results.calibrations:
        true, error = found.truth, found.median_error
        shown = f"{'at most ' if true.is_bound else ''}{percent(true.density)}"
        shown += "" if true.interval is None else f" ({' - '.join(map(percent, true.interval))})"
        answers = ", ".join("open" if answer is None else percent(answer) for answer in found.answers)
        lines.append([
            *([found.panel] if view.panel else []), found.series, shown, answers,
            "-" if error is None else f"{error:.0%}", f"{found.num_covering} of {found.num_intervals}",
        ])  # fmt: skip
    heading = [*([view.panel] if view.panel else []), ", ".join(view.series), "true density", "answers"]
    heading += ["median error", "intervals that cover it"]
    return [[printable(cell) for cell in line] for line in [heading, *lines]]


def _calibration_summary(results: Results) -> str:
    """The error and the coverage over all searches."""
    errors = [found.median_error for found in results.calibrations if found.median_error is not None]
    covering, num = (
        sum(getattr(found, name) for found in results.calibrations) for name in ("num_covering", "num_intervals")
    )
    no_answer = sum(answer is None for found in results.calibrations for answer in found.answers)
    median_error = f"{median(errors):.0%}" if errors else "-"
    return (
        f"Median of the median errors: {median_error}. Intervals that cover the true density: {covering} of {num}. "
        f"Searches without an answer: {no_answer}."
    )


def _terminal(results: Results) -> str:
    parts = [results.caption, "", *_aligned(_cells(results)), "", "±: half the 90% interval of the mean over seeds", ""]
    if answers := _calibration_cells(results):
        parts += [*_aligned(answers), "", _calibration_summary(results), ""]
    return "\n".join(parts)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _markdown(results: Results) -> str:
    answers = [calibration_markdown(results), ""] if results.calibrations else []
    return "\n".join([results.caption, "", *answers, *_markdown_table(_cells(results), results.study.view.y), ""])


def calibration_markdown(results: Results) -> str:
    """Every search beside brute force, and the error and coverage of all."""
    return "\n".join([*_markdown_table(_calibration_cells(results), ()), "", _calibration_summary(results)])


def _markdown_table(cells: Sequence[Sequence[str]], numbers: Sequence[str]) -> list[str]:
    heading, *lines = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    rule = ["--:" if name in numbers else ":--" for name in heading]
    return [f"| {' | '.join(line)} |" for line in (heading, rule, *lines)]


def _json(results: Results) -> str:
    rows = [
        {"panel": row.panel, "series": row.series, results.study.view.x: row.x}
        | {name: vars(value) for name, value in row.values.items()}
        for row in results.rows
    ]
    answers = [dataclasses.asdict(found) for found in results.calibrations]
    shown = {"caption": results.caption, "rows": rows} | ({"calibrations": answers} if answers else {})
    return strict_json.dumps(strict_json.nulled(shown), indent=1) + "\n"


def _jsonl(results: Results) -> str:
    return "".join(strict_json.dumps(line) + "\n" for line in results.lines)


RESULT_FORMATS: dict[str, Callable[[Results], str]] = {
    "table": _terminal, "markdown": _markdown, "json": _json, "jsonl": _jsonl,
}  # fmt: skip


# Figure


def results_png(results: Results, *, dpi: int = 160) -> bytes:
    """The results as a PNG file: a panel for each metric and value of the panel axis, a line for each series.

    A series without a value on the x axis, and a dense network on an axis of densities, is a horizontal line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from pathgrow.report.figure import BLUE, GREEN, GREY, INK, PURPLE, VERMILLION, PlotWindow

    colors = (BLUE, VERMILLION, GREEN, PURPLE, "#E69F00", "#56B4E9", INK, GREY)
    view, panels = results.study.view, list(dict.fromkeys(row.panel for row in results.rows))
    all_series = list(dict.fromkeys(row.series for row in results.rows))
    size = (4.6 * len(panels), 3.4 * len(view.y) + 0.9)
    figure = Figure(figsize=size, dpi=dpi, layout="constrained", facecolor="white")
    grid = figure.subplots(len(view.y), len(panels), squeeze=False)
    for (down, name), (right, panel) in itertools.product(enumerate(view.y), enumerate(panels)):
        axes = grid[down][right]
        for number, series in enumerate(all_series):
            own = [row for row in results.rows if (row.series, row.panel) == (series, panel) and name in row.values]
            color, marker = colors[number % len(colors)], "os^Dv<>P"[number // len(colors) % 8]
            at = [row for row in own if not (row.x is None or (series == "dense" and view.x == "density"))]
            for row in own:
                if row not in at:
                    axes.axhline(row.values[name].mean, color=color, linestyle="--", linewidth=1.2, label=series)
            if at:
                means = [row.values[name] for row in at]
                error = [0.0 if m.interval is None else (m.interval[1] - m.interval[0]) / 2 for m in means]
                axes.errorbar(
                    [row.x for row in at], [m.mean for m in means], error,
                    color=color, marker=marker, markersize=4, linewidth=1.4, capsize=2, label=series,
                )  # fmt: skip
        if name in _SCORES:
            for found in results.calibrations:
                if found.panel == panel:
                    _draw_answers(axes, found, colors[all_series.index(found.series) % len(colors)])
        xs = [row.x for row in results.rows if isinstance(row.x, float) and row.x < 1]
        if view.x == "density" and xs:
            ticks = PlotWindow((min(xs), max(xs)), (0, 1)).density_ticks()
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
            axes.set_xticks([], minor=True)
        axes.set_xlabel(METRICS.get(view.x, view.x))
        axes.set_ylabel(METRICS.get(name, name))
        axes.set_title(panel, fontsize=9)
        axes.grid(color=GREY, alpha=0.2)
    drawn = dict(pair for axes in grid.flat for pair in zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    handles = {series: drawn[series] for series in all_series if series in drawn}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(textwrap.fill(results.caption, int(15 * size[0])), fontsize=9, x=0.01, ha="left")
    FigureCanvasAgg(figure)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _draw_answers(axes: Any, found: Calibration, color: str) -> None:
    """The true density as a vertical line; the answers with their intervals at the height of dense minus delta."""
    axes.axvline(found.truth.density, color=color, linestyle=":", linewidth=1.4)
    if found.truth.interval is not None:
        axes.axvspan(*found.truth.interval, color=color, alpha=0.1, linewidth=0)
    for answer, ends in zip(found.answers, found.intervals, strict=True):
        if ends is not None:
            axes.hlines(found.level, *ends, color=color, linewidth=1, alpha=0.5)
        if answer is not None:
            axes.plot([answer], [found.level], marker="|", markersize=12, color=color)
