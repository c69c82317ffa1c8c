"""A run on the terminal: a chart of the curve, rounds and result, or the progress of an unfinished run."""

import os
from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pathgrow.errors import printable
from pathgrow.report import formats, networks, text
from pathgrow.report.figure import PlotWindow
from pathgrow.report.loading import Unfinished, load_run
from pathgrow.report.schema import FinisherReport, PointReport, RunReport

ROUND, PROBE, FIT, BAND, TARGET, REFERENCE, ANSWER = "·", "●", "━", "░", "┄", "─", "▲"
BELOW, ABOVE = "▾", "▴"
TRAINED, FINISHED, OTHER = "■", "◆", "○"
_LINE = "┊"
_STYLES = {
    ROUND: "bright_black", PROBE: "bold blue", FIT: "cyan", BAND: "blue", TARGET: "yellow", REFERENCE: "yellow",
    ANSWER: "bold red", BELOW: "bright_black", ABOVE: "bright_black", _LINE: "red", TRAINED: "bold green",
    FINISHED: "bold magenta", OTHER: "bold yellow",
}  # fmt: skip


def print_run(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Print the run in a directory, finished or not; any other directory is a `UserError`."""
    console = console or Console()
    found = load_run(path)
    console.print(_unfinished(found, path) if isinstance(found, Unfinished) else summary(found, console.width))


def print_other(report: RunReport, other: RunReport, console: Console | None = None) -> None:
    """Print the answer of a discovery for another delta; `other` is the report with that answer."""
    assert report.answer is not None
    assert other.answer is not None
    console, (answer, model, _), scores = console or Console(), text.closing(other)[0], formats.score_format(report)
    own, delta = scores.tolerance(report.answer.delta), formats.score_format(other).tolerance(other.answer.delta)
    console.print(Text(f"Within {delta} (the run searched for {own}), from the same curve and without training:"))
    console.print(Text(answer, "bold"))
    console.print(Text(model))


def summary(report: RunReport, width: int = 80) -> RenderableType:
    """The report as one renderable that ends with the result; strings of the report are never markup."""
    answer = report.answer
    has_missed = answer is not None and answer.check is not None and answer.check.outcome == "missed"
    is_sure = answer is None or (answer.status == "found" and not report.probes_too_short and not has_missed)
    parts: list[RenderableType] = [Text("pathgrow", "bold").append(f"  {text.subject(report)}", "not bold dim"), Text()]
    if answer is not None:
        if report.curve.rounds or report.curve.probes:
            parts += [curve_chart(report, width=min(width, 100) - 2), _rounds(report), Text()]
        if report.finishers:
            parts += [_table(*networks.finishers(report)), Text()]
        reasons = ((Text("-", "dim"), Text(line)) for line in (*text.explanations(report), *text.advice(report)))
        parts += [Text("How the answer was found", "bold"), _grid(1, *reasons), Text()]
    (first, *others), findings = text.closing(report)
    parts += [_grid(2, *((Text(label, "dim"), Text(phrase)) for label, phrase in findings)), Text()]
    parts += [Text(first, "bold green" if is_sure else "bold yellow"), *map(Text, others)]
    return Padding(Group(*parts), (0, 1))


def _grid(gap: int, *rows: tuple[Text, Text]) -> Table:
    table = Table.grid(padding=(0, gap))
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _rounds(report: RunReport) -> Table:
    """The networks as on the page, with a mark at the returned model."""
    headings, rows = networks.table(report)
    returned = networks.returned_row(report)
    marked = [[f"{'>' if k == returned else ''}{first}", *cells] for k, (first, *cells) in enumerate(rows)]
    table = _table(headings, marked)
    if returned is not None:
        kind = "density" if networks.finishing_method(report) else "mask"
        name = "the returned model" if report.curve.finished else f"{kind} of the returned model"
        table.caption, table.caption_justify = f"> {name}", "left"
    return table


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _unfinished(run: Unfinished, path: str | os.PathLike[str]) -> RenderableType:
    kind, again = ("unfinished call of discover", "call") if run.is_store else ("unfinished run", "command")
    state = f"in use by {run.worker}" if run.worker else f"not running; repeat the {again} to resume"
    where = f", in stage {formats.stage_label(run.current)}" if run.current else ""
    lines = [
        Text(f"{printable(os.fspath(path))}: {kind}{where}", "bold"),
        Text(f"{formats.plural(len(run.results), 'stage')} finished; {state}."),
        *(Text(f"  {formats.evaluation(result.stage, result.density, result.score)}") for result in run.results),
    ]
    return Padding(Group(*lines), (0, 1))


# The chart


def curve_chart(report: RunReport, width: int = 78, height: int = 16) -> Text:
    """Score against density in character cells, with the answer on the axis and a legend of the glyphs that occur."""
    window, scores = PlotWindow.of(report), formats.score_format(report)
    ticks = {round((1 - window.y(tick)) * (height - 1)): scores.tick(tick) for tick in window.score_ticks()}
    margin = max(map(len, ticks.values()), default=4)
    num_columns = max(20, width - margin - 2)
    lines = [Text(f"{'':>{margin}}  {scores.name} by density")]
    rows = _cells(report, window, num_columns, height)
    for row, cells in enumerate(rows):
        glyphs = Text.assemble(*((glyph, _STYLES.get(glyph, "")) for glyph in cells))
        lines.append(Text(f"{ticks.get(row, ''):>{margin}} │").append(glyphs))
    lines.append(Text(" " * (margin + 1) + "└").append(_axis(report, window, num_columns)))
    lines.append(Text(" " * (margin + 2) + _tick_labels(window, num_columns)))
    return Text("\n").join([*lines, _legend(report, {ANSWER}.union(*rows), width)])


def _cells(report: RunReport, window: PlotWindow, width: int, height: int) -> list[list[str]]:
    """Rows of glyphs from top to bottom; what is drawn later covers what was drawn before."""
    cells = [[" "] * width for _ in range(height)]
    columns, levels = np.linspace(0, 1, width).tolist(), np.linspace(0, 1, height).tolist()

    def put(x: float, y: float, glyph: str) -> None:
        if 0 <= y <= 1:
            cells[round((1 - y) * (height - 1))][round(x * (width - 1))] = glyph

    fit, target = report.curve.fit, report.target_score
    xs = [] if fit is None else [window.x(density) for density in fit.density]
    inside = [x for x in columns if xs and xs[0] <= x <= xs[-1]]
    if fit is not None:
        low, middle, high = (np.interp(inside, xs, [*map(window.y, line)]) for line in (fit.low, fit.score, fit.high))
        for x, bottom, top in zip(inside, low, high, strict=True):
            for y in levels:
                if bottom <= y <= top:
                    put(x, y, BAND)
    if report.reference is not None and target is not None:
        for x in columns:
            put(x, window.y(report.reference.score), REFERENCE)
            put(x, window.y(target), TARGET)
    if fit is not None:
        for x, y in zip(inside, middle, strict=True):
            put(x, y, FIT)
    if report.answer is not None and report.answer.operating_density is not None:
        top = 1.0 if target is None else window.y(target)
        for y in levels:
            if y <= top + 0.5 / height:
                put(window.x(report.answer.operating_density), y, _LINE)
    curve = report.curve
    marks: tuple[tuple[str, Sequence[PointReport | FinisherReport]], ...] = (
        (ROUND, networks.grown(curve)),
        (PROBE, curve.probes),
        (TRAINED, networks.trained(curve)[-1:]),
        (FINISHED, curve.finished),
        *((OTHER, (found,)) for found in networks.other_finishers(report)),
    )
    for mark, points in marks:
        for point in points:
            y = window.y(point.score)
            put(window.x(point.density), min(max(y, 0.0), 1.0), BELOW if y < 0 else ABOVE if y > 1 else mark)
    return cells


def _axis(report: RunReport, window: PlotWindow, width: int) -> Text:
    """The density axis: ticks, and on top of them the answer with its interval."""

    def column(density: float) -> int:
        return round(window.x(density) * (width - 1))

    cells, styles = ["─"] * width, [""] * width
    for tick in window.density_ticks():
        cells[column(tick)] = "┬"
    answer = report.answer
    if answer is not None and answer.interval is not None:
        low, high = answer.interval
        first, last = column(low or 0.0), column(1.0 if high is None else high)
        cells[first : last + 1] = "╪" if first == last else "╞" + "═" * (last - first - 1) + "╡"
        styles[first : last + 1] = [_STYLES[ANSWER]] * (last - first + 1)
    if answer is not None and answer.operating_density is not None:
        at = column(answer.operating_density)
        cells[at], styles[at] = ANSWER, _STYLES[ANSWER]
    return Text.assemble(*zip(cells, styles, strict=True))


def _tick_labels(window: PlotWindow, width: int) -> str:
    """Densities below their ticks; a label that would touch its neighbor is omitted."""
    line = ""
    for tick in window.density_ticks():
        label = f"{100 * tick:g}%"
        start = round(window.x(tick) * (width - 1)) - len(label) // 2
        if start > len(line) or not line:
            line = line.ljust(max(0, start)) + label
    return line


def _legend(report: RunReport, drawn: set[str], width: int) -> Text:
    """The glyphs that were drawn and what they mean; lines break between entries only."""
    answer, entries = report.answer, [(TRAINED, "trained network"), (PROBE, text.probes_label(report))]
    entries += [
        (FINISHED, "finished networks"),
        (OTHER, "networks of other finishers"),
        (ROUND, "rounds"),
        (BELOW, "below the chart"),
        (ABOVE, "above the chart"),
        (FIT, "fit"),
    ]
    entries += [(BAND, "90% band")]
    if report.reference is not None:
        entries += [(REFERENCE, text.reference_label(report)), (TARGET, text.goal_label(report))]
    if answer is not None and answer.operating_density is not None:
        level = text.quantile(answer)
        entries.append((ANSWER, "operating density" + ("" if level is None else f" ({level:.0%} quantile)")))
    lines = [Text()]
    for glyph, meaning in entries:
        if glyph not in drawn:
            continue
        entry = Text.assemble((glyph, _STYLES[glyph]), f" {meaning}")
        if lines[-1] and lines[-1].cell_len + 2 + entry.cell_len > width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1] else " ").append(entry)
    return Text("\n").join(lines)
