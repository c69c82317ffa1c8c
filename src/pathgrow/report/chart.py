"""The curve as text: a canvas of character cells, lines in braille dots, readable without colour.

Braille gives 2 x 4 dots to a cell, so a line of 60 cells is 120 dots wide.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rich.text import Text

from pathgrow.report.frame import Frame, ends, threshold
from pathgrow.report.wording import Scores, answer_in_legend, below_reference, percent, trained_copies

# dot (column, row) of a cell -> bit of the braille pattern
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800

ROUGH, PROBE, BAND, GOAL, REFERENCE, ANSWER = "·", "●", "░", "┄", "─", "▲"
_STYLES = {
    ROUGH: "bright_black",
    PROBE: "bold blue",
    BAND: "blue",
    GOAL: "yellow",
    REFERENCE: "yellow",
    ANSWER: "bold red",
    "▾": "bright_black",
    "┊": "red",
    "braille": "cyan",
}


class Canvas:
    """Character cells. What is drawn later covers what was drawn before, except for braille dots, which combine."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._glyphs: dict[tuple[int, int], str] = {}
        self._dots: dict[tuple[int, int], int] = {}

    def put(self, x: float, y: float, glyph: str) -> None:
        """A glyph at (x, y) in the unit square, y upwards; outside of it nothing happens."""
        if 0 <= x <= 1 and 0 <= y <= 1:
            self._glyphs[round(x * (self.width - 1)), round((1 - y) * (self.height - 1))] = glyph

    def line(self, points: list[tuple[float, float]]) -> None:
        """Straight lines from point to point, in dots."""
        columns, rows = 2 * self.width - 1, 4 * self.height - 1
        for (x0, y0), (x1, y1) in pairwise(points):
            steps = max(1, round(max(abs(x1 - x0) * columns, abs(y1 - y0) * rows)))
            for step in range(steps + 1):
                x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
                if 0 <= x <= 1 and 0 <= y <= 1:
                    column, row = round(x * columns), round((1 - y) * rows)
                    cell = (column // 2, row // 4)
                    self._dots[cell] = self._dots.get(cell, 0) | _DOTS[column % 2][row % 4]
                    self._glyphs.pop(cell, None)

    def row(self, row: int) -> Text:
        """One row of cells."""
        text = Text()
        for column in range(self.width):
            glyph = self._glyphs.get((column, row))
            dots = self._dots.get((column, row))
            if glyph is not None:
                text.append(glyph, _STYLES.get(glyph, ""))
            elif dots is not None:
                text.append(chr(_BRAILLE + dots), _STYLES["braille"])
            else:
                text.append(" ")
        return text


def curve_chart(report: dict[str, Any], width: int = 78, height: int = 16) -> Text:
    """Score by density, with the answer under the axis and a legend of the glyphs that occur."""
    frame, scores = Frame.of(report), Scores.of(report)
    ticks = {round((1 - frame.y(tick)) * (height - 1)): scores(tick) for tick in frame.score_ticks(8)}
    margin = max(map(len, ticks.values()), default=4)
    canvas = Canvas(max(20, width - margin - 2), height)
    _draw(canvas, report, frame)
    rows = [Text(f"{ticks.get(row, ''):>{margin}} │").append(canvas.row(row)) for row in range(height)]
    axis = Text(" " * (margin + 1) + "└").append(_axis(report, frame, canvas.width))
    labels = Text(" " * (margin + 2) + _labels(frame, canvas.width))
    legend = _legend(report, width)
    return Text("\n").join([Text(f"{'':>{margin}}  {scores.name} by density"), *rows, axis, labels, legend])


def _draw(canvas: Canvas, report: dict[str, Any], frame: Frame) -> None:
    curve, answer, fit = report["curve"], report["answer"], report["curve"].get("fit")
    if fit:
        _draw_band(canvas, frame, fit)
    goal = threshold(report)
    if goal is not None:
        for column in range(canvas.width):
            canvas.put(column / (canvas.width - 1), frame.y(report["reference"]["score"]), REFERENCE)
            canvas.put(column / (canvas.width - 1), frame.y(goal), GOAL)
    if fit:
        canvas.line([(frame.x(d), frame.y(s)) for d, s in zip(fit["density"], fit["score"], strict=True)])
    density = answer["operating_density"]
    if density is not None:
        top = min(1.0, max(0.0, frame.y(goal))) if goal is not None else 1.0
        for row in range(round(top * (canvas.height - 1)) + 1):
            canvas.put(frame.x(density), row / (canvas.height - 1), "┊")
    for row in curve["rough"]:
        y = frame.y(row["score"])
        canvas.put(frame.x(row["density"]), max(y, 0.0), ROUGH if y >= 0 else "▾")
    for row in curve["probes"]:
        canvas.put(frame.x(row["density"]), frame.y(row["score"]), PROBE)


def _draw_band(canvas: Canvas, frame: Frame, fit: dict[str, list[float]]) -> None:
    columns = [frame.x(density) * (canvas.width - 1) for density in fit["density"]]
    for column in range(canvas.width):
        if columns[0] <= column <= columns[-1]:
            low, high = (frame.y(_between(column, columns, fit[side])) for side in ("low", "high"))
            for row in range(canvas.height):
                y = 1 - row / (canvas.height - 1)
                if low <= y <= high:
                    canvas.put(column / (canvas.width - 1), y, BAND)


def _between(at: float, places: list[float], values: list[float]) -> float:
    """The value at a place, interpolated linearly between its neighbours."""
    right = next(index for index, place in enumerate(places) if place >= at)
    if right == 0 or places[right] == places[right - 1]:
        return values[right]
    share = (at - places[right - 1]) / (places[right] - places[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])


def _axis(report: dict[str, Any], frame: Frame, width: int) -> Text:
    """The density axis: ticks, and over them the answer with its interval."""
    cells = ["─"] * width
    for tick in frame.density_ticks():
        cells[round(frame.x(tick) * (width - 1))] = "┬"
    axis = Text("".join(cells))
    answer = report["answer"]
    if interval := ends(answer["interval"]):
        low, high = (round(frame.x(density) * (width - 1)) for density in interval)
        axis = _overlay(axis, low, "╞" + "═" * (high - low - 1) + "╡" if high > low else "╪", _STYLES[ANSWER])
    if answer["operating_density"] is not None:
        axis = _overlay(axis, round(frame.x(answer["operating_density"]) * (width - 1)), ANSWER, _STYLES[ANSWER])
    return axis


def _overlay(text: Text, start: int, glyphs: str, style: str) -> Text:
    return Text.assemble(text[:start], (glyphs, style), text[start + len(glyphs) :])


def _labels(frame: Frame, width: int) -> str:
    """The densities under the ticks; a label that would touch the one before it is left out."""
    line = ""
    for tick in frame.density_ticks():
        label = percent(tick)
        start = round(frame.x(tick) * (width - 1)) - len(label) // 2
        if start > len(line) or not line:
            line = line.ljust(max(0, start)) + label
    return line


def _legend(report: dict[str, Any], width: int) -> Text:
    """The glyphs that occur and their meanings; lines are broken between entries, not within one."""
    curve, answer = report["curve"], report["answer"]
    entries = []
    if curve["probes"]:
        entries.append((PROBE, trained_copies(report)))
    if curve["rough"]:
        entries.append((ROUGH, "growing"))
    if curve.get("fit"):
        entries.append((BAND, "fit (90%)"))
    if report.get("reference"):
        entries.append((REFERENCE, "reference"))
        entries.append((GOAL, below_reference(report)))
    if answer["operating_density"] is not None:
        entries.append((ANSWER, answer_in_legend(report)))
    parts = [Text.assemble((glyph, _STYLES[glyph]), f" {meaning}") for glyph, meaning in entries]
    lines = [Text()]
    for part in parts:
        if lines[-1] and lines[-1].cell_len + 2 + part.cell_len > width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1] else " ").append(part)
    return Text("\n").join(lines)
