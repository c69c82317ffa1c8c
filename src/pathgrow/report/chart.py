"""The accuracy-density curve on a terminal: character cells, with lines in braille dots (2 x 4 to a cell)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from rich.text import Text

from pathgrow.report.formats import score_format
from pathgrow.report.schema import RunReport
from pathgrow.report.text import goal_label, is_conservative, probes_label
from pathgrow.report.window import PlotWindow

# dot (column, row) of a cell -> bit of the braille pattern
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800

ROUND, PROBE, BAND, TARGET, REFERENCE, ANSWER, BELOW = "·", "●", "░", "┄", "─", "▲", "▾"
_LINE = "┊"
_STYLES = {
    ROUND: "bright_black", PROBE: "bold blue", BAND: "blue", TARGET: "yellow", REFERENCE: "yellow",
    ANSWER: "bold red", BELOW: "bright_black", _LINE: "red",
}  # fmt: skip


class _Canvas:
    """Character cells; later glyphs cover earlier ones."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells: dict[tuple[int, int], str] = {}
        self._dots: dict[tuple[int, int], int] = {}

    def put(self, x: float, y: float, glyph: str) -> None:
        """Draw a glyph at (x, y) in the unit square, y upwards; points outside are ignored."""
        if 0 <= x <= 1 and 0 <= y <= 1:
            self._cells[round(x * (self.width - 1)), round((1 - y) * (self.height - 1))] = glyph

    def line(self, points: list[tuple[float, float]]) -> None:
        """Connect points by straight lines of dots."""
        columns, rows = 2 * self.width - 1, 4 * self.height - 1
        for (x0, y0), (x1, y1) in pairwise(points):
            steps = max(1, round(max(abs(x1 - x0) * columns, abs(y1 - y0) * rows)))
            for t in np.linspace(0, 1, steps + 1):
                x, y = x0 + (x1 - x0) * t, y0 + (y1 - y0) * t
                if 0 <= x <= 1 and 0 <= y <= 1:
                    column, row = round(x * columns), round((1 - y) * rows)
                    cell = (column // 2, row // 4)
                    self._dots[cell] = self._dots.get(cell, 0) | _DOTS[column % 2][row % 4]
                    self._cells[cell] = chr(_BRAILLE + self._dots[cell])

    def row(self, row: int) -> Text:
        text = Text()
        for column in range(self.width):
            glyph = self._cells.get((column, row), " ")
            text.append(glyph, _STYLES.get(glyph, "cyan" if ord(glyph) >= _BRAILLE else ""))
        return text


def curve_chart(report: RunReport, width: int = 78, height: int = 16) -> Text:
    """Score against density, with the answer on the axis and a legend of the glyphs that occur."""
    window, scores = PlotWindow.of(report), score_format(report)
    ticks = {round((1 - window.y(tick)) * (height - 1)): scores.tick(tick) for tick in window.score_ticks()}
    margin = max(map(len, ticks.values()), default=4)
    canvas = _Canvas(max(20, width - margin - 2), height)
    _draw(canvas, report, window)
    rows = [Text(f"{ticks.get(row, ''):>{margin}} │").append(canvas.row(row)) for row in range(height)]
    axis = Text(" " * (margin + 1) + "└").append(_axis(report, window, canvas.width))
    labels = Text(" " * (margin + 2) + _tick_labels(window, canvas.width))
    title = Text(f"{'':>{margin}}  {scores.name} by density")
    return Text("\n").join([title, *rows, axis, labels, _legend(report, width)])


def _draw(canvas: _Canvas, report: RunReport, window: PlotWindow) -> None:
    fit, target = report.curve.fit, report.target_score
    columns = np.linspace(0, 1, canvas.width)
    if fit is not None:
        xs = [window.x(density) for density in fit.density]
        low, high = (np.interp(columns, xs, [window.y(y) for y in edge]) for edge in (fit.low, fit.high))
        for x, bottom, top in zip(columns, low, high, strict=True):
            for y in np.linspace(0, 1, canvas.height):
                if xs[0] <= x <= xs[-1] and bottom <= y <= top:
                    canvas.put(float(x), float(y), BAND)
    if report.reference is not None and target is not None:
        for x in columns:
            canvas.put(float(x), window.y(report.reference.score), REFERENCE)
            canvas.put(float(x), window.y(target), TARGET)
    if fit is not None:
        canvas.line([(window.x(d), window.y(s)) for d, s in zip(fit.density, fit.score, strict=True)])
    if report.answer is not None and report.answer.operating_density is not None:
        top = 1.0 if target is None else min(1.0, max(0.0, window.y(target)))
        for y in np.linspace(0, 1, canvas.height):
            if y <= top + 0.5 / canvas.height:
                canvas.put(window.x(report.answer.operating_density), float(y), _LINE)
    for point in report.curve.rounds:
        y = window.y(point.score)
        canvas.put(window.x(point.density), max(y, 0.0), ROUND if y >= 0 else BELOW)
    for point in report.curve.probes:
        canvas.put(window.x(point.density), window.y(point.score), PROBE)


def _axis(report: RunReport, window: PlotWindow, width: int) -> Text:
    """The density axis: ticks, and on top of them the answer with its interval."""

    def column(density: float) -> int:
        return round(window.x(density) * (width - 1))

    cells = ["─"] * width
    for tick in window.density_ticks():
        cells[column(tick)] = "┬"
    styles = [""] * width
    answer = report.answer
    if answer is not None and answer.interval is not None:
        low, high = answer.interval
        first, last = column(low or 0.0), column(1.0 if high is None else high)
        cells[first : last + 1] = "╪" if first == last else "╞" + "═" * (last - first - 1) + "╡"
        styles[first : last + 1] = [_STYLES[ANSWER]] * (last - first + 1)
    if answer is not None and answer.operating_density is not None:
        cells[column(answer.operating_density)] = ANSWER
        styles[column(answer.operating_density)] = _STYLES[ANSWER]
    return Text.assemble(*zip(cells, styles, strict=True))


def _tick_labels(window: PlotWindow, width: int) -> str:
    """Densities below their ticks; a label that would touch its neighbour is omitted."""
    line = ""
    for tick in window.density_ticks():
        label = f"{100 * tick:g}%"
        start = round(window.x(tick) * (width - 1)) - len(label) // 2
        if start > len(line) or not line:
            line = line.ljust(max(0, start)) + label
    return line


def _legend(report: RunReport, width: int) -> Text:
    """The glyphs that occur and what they mean; lines break between entries only."""
    curve, answer = report.curve, report.answer
    entries = [(PROBE, probes_label(report))] if curve.probes else []
    entries += [(ROUND, "rounds")] if curve.rounds else []
    entries += [(BAND, "fit (90% band)")] if curve.fit is not None else []
    entries += [(REFERENCE, "reference"), (TARGET, goal_label(report))] if report.reference is not None else []
    if answer is not None and answer.operating_density is not None:
        quantile = " (67th percentile of the fits)" if is_conservative(answer) else ""
        entries.append((ANSWER, f"operating density{quantile}"))
    lines = [Text()]
    for glyph, meaning in entries:
        entry = Text.assemble((glyph, _STYLES[glyph]), f" {meaning}")
        if lines[-1] and lines[-1].cell_len + 2 + entry.cell_len > width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1] else " ").append(entry)
    return Text("\n").join(lines)
