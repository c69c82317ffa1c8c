"""The accuracy-density curve as a figure: PNG for the run directory, inline SVG for the page.

Drawn with matplotlib's objects and never with pyplot, so no global state changes and no display is needed. The colors
are those of Okabe and Ito, which color-blind readers can distinguish, and every kind of mark has its own shape.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from pathgrow.errors import printable
from pathgrow.report.formats import percent, score_format
from pathgrow.report.networks import grown, other_finishers, trained
from pathgrow.report.schema import PointReport, RunReport
from pathgrow.report.text import goal_label, headline, probes_label, quantile, reference_label, subject

BLUE, VERMILLION, GREEN, PURPLE, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A8F98", "#22262B"
_OTHERS = (("#E69F00", "P"), ("#56B4E9", "X"), (PURPLE, "*"), (GREY, "h"))
"""Colors and marks of other finishers."""
_WIDTH = 5.2
_MARK: dict[str, Any] = {"markeredgecolor": "white", "linestyle": "none"}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pathgrow",  # equal figures get equal ids
    "text.parse_math": False,  # names in a report are not formulas
}
_MEASURES = {
    "log10_total": "path weight (log10)",
    "tau_core_size": "tau-core (units)",
    "mean_tau_core_ratio": "mean tau-core ratio",
    "num_dead": "dead units",
    "num_isolated": "isolated units",
}
"""Topology measures that are shown per round, and their names."""


def curve_png(report: RunReport, *, dpi: int = 220) -> bytes:
    """The figure as a PNG file; equal reports give equal bytes on one machine."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 4.9), dpi=dpi, layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        draw_curve(axes, report)
        axes.set_title(
            textwrap.fill(headline(report), 58), loc="left", fontsize=9, fontweight="bold", color=INK, pad=18
        )
        name = textwrap.shorten(subject(report), 80, placeholder="...")
        axes.text(0, 1.02, name, transform=axes.transAxes, fontsize=8.5, color=GREY)
        FigureCanvasAgg(figure)
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def curve_svg(report: RunReport) -> str:
    """The same figure as an SVG element for an HTML page, without a title."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 4.5), layout="constrained", facecolor="none")
        draw_curve(figure.add_subplot(), report)
        return _inline_svg(figure, f"Validation {score_format(report).name} against density")


def topology_svg(report: RunReport) -> str | None:
    """Topology measures over the rounds as an SVG element; None if fewer than two rounds were recorded."""
    recorded = [
        (label, [value for row in report.topology if (value := getattr(row, name)) is not None])
        for name, label in _MEASURES.items()
    ]
    series = [(label, values) for label, values in recorded if len(values) > 1]
    if not series:
        return None
    num_rows = (len(series) + 1) // 2
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 1.1 * num_rows), layout="constrained", facecolor="none")
        for index, (name, values) in enumerate(series):
            axes = figure.add_subplot(num_rows, 2, index + 1)
            axes.plot(values, color=BLUE, linewidth=1.8)
            axes.plot(len(values) - 1, values[-1], color=BLUE, marker="o")
            axes.set_title(f"{name}: {values[0]:,.3g} to {values[-1]:,.3g}", loc="left", fontsize=8.5, color=INK)
            axes.set_axis_off()
        return _inline_svg(figure, "Topology over the rounds")


def draw_curve(axes: Axes, report: RunReport) -> None:
    """Draw the curve into existing axes."""
    window, scores = PlotWindow.of(report), score_format(report)
    axes.set_facecolor("none")
    axes.set_xscale("log")
    axes.set_xlim(*window.densities)
    axes.set_ylim(*window.scores)
    densities, levels = window.density_ticks(), window.score_ticks()
    axes.set_xticks(densities, [f"{100 * tick:g}%" for tick in densities])
    axes.set_xticks([], minor=True)
    axes.set_yticks(levels, [scores.tick(tick) for tick in levels])
    axes.set_xlabel("density (fraction of the prunable weights)", color=INK, fontsize=9.5)
    axes.set_ylabel(f"validation {scores.name}", color=INK, fontsize=9.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelcolor=INK, labelsize=8.5, length=3, color=GREY)
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.8)
    axes.set_axisbelow(True)
    _draw_reference(axes, report, window)
    _draw_points(axes, report, window)
    _draw_finishers(axes, report)
    _draw_fit(axes, report)
    _draw_answer(axes, report, window)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=8.5, labelcolor=INK
        )


def _draw_reference(axes: Axes, report: RunReport, window: PlotWindow) -> None:
    if report.reference is None or report.target_score is None:
        return
    # Above its line the label of the target stays clear of the curve, but it needs 5% of the height there.
    has_room = window.y(report.reference.score) - window.y(report.target_score) > 0.055
    levels = (
        (report.reference.score, reference_label(report), 3, "-"),
        (report.target_score, goal_label(report), 3 if has_room else -10, (0, (4, 3))),
    )
    for score, text, offset, line in levels:
        axes.axhline(score, color=INK, linewidth=1.0, linestyle=line, zorder=2)
        is_left = _room(report, window, score, left=True) >= _room(report, window, score, left=False)
        axes.annotate(
            text,
            (window.densities[0 if is_left else 1], score),
            (5 if is_left else -5, offset),
            textcoords="offset points",
            ha="left" if is_left else "right",
            fontsize=8,
            color=INK,
            zorder=6,
        )


def _room(report: RunReport, window: PlotWindow, score: float, *, left: bool) -> float:
    """Vertical distance between a horizontal line and what is drawn over one half of the figure."""
    curve, answer = report.curve, report.answer
    drawn = [(point.density, point.score) for point in (*curve.probes, *curve.finished, *trained(curve)[-1:])]
    if curve.fit is not None:
        drawn += zip(curve.fit.density, curve.fit.score, strict=True)
    if answer is not None and answer.operating_density is not None and report.target_score is not None:
        drawn.append((answer.operating_density, report.target_score))
    heights = [window.y(y) - window.y(score) for x, y in drawn if (window.x(x) < 0.5) == left]
    return min((abs(height) for height in heights), default=1.0)


def _draw_points(axes: Axes, report: RunReport, window: PlotWindow) -> None:
    curve, rounds = report.curve, grown(report.curve)
    kinds = (
        (trained(curve)[-1:], "trained network", GREEN, "s"),
        (curve.probes, probes_label(report), BLUE, "o"),
        (curve.finished, "finished networks", PURPLE, "^"),
    )
    for points, label, color, marker in kinds:
        if points:
            style = {"color": color, "marker": marker, "markersize": 7.5, **_MARK}
            axes.plot(*_coordinates(points), zorder=6, label=label, **style)
    if rounds:
        style = {"color": GREY, "alpha": 0.55, "linewidth": 1.0, "marker": "o", "markersize": 3.2}
        axes.plot(*_coordinates(rounds), zorder=3, label="rounds", **style)
    low, high = window.scores
    below = [point.density for point in (*rounds, *curve.probes) if point.score < low]
    above = [point.density for point in (*rounds, *curve.probes) if point.score > high]
    for outside, marker, height in ((below, "v", 0.012), (above, "^", 0.988)):
        style = {"color": GREY, "alpha": 0.7, "marker": marker, "markersize": 4, "linestyle": "none"}
        axes.plot(outside, [height] * len(outside), transform=axes.get_xaxis_transform(), zorder=3, **style)


def _draw_finishers(axes: Axes, report: RunReport) -> None:
    """The networks of other finishers: small marks for those compared, a large one for the one trained fully."""
    scores = score_format(report)
    for found, (color, marker) in zip(other_finishers(report), itertools.cycle(_OTHERS), strict=False):
        points = sorted(found.points, key=lambda point: point.density)
        axes.plot(*_coordinates(points), color=color, alpha=0.6, linewidth=0.9, marker=marker, markersize=4, zorder=5)
        label = f"{printable(found.name)}: {percent(found.density)}, {scores(found.score)}"
        style = {"color": color, "marker": marker, "markersize": 9, **_MARK}
        axes.plot(found.density, found.score, zorder=6, label=label, **style)


def _coordinates(points: Sequence[PointReport]) -> tuple[list[float], list[float]]:
    return [point.density for point in points], [point.score for point in points]


def _draw_fit(axes: Axes, report: RunReport) -> None:
    fit = report.curve.fit
    if fit is None:
        return
    axes.fill_between(fit.density, fit.low, fit.high, color=BLUE, alpha=0.16, linewidth=0, zorder=3)
    axes.plot(fit.density, fit.score, color=BLUE, linewidth=2.0, zorder=4, label="fit (median, 90% band)")
    if fit.cautious is not None and report.answer is not None and (level := quantile(report.answer)) is not None:
        label = f"fit ({1 - level:.0%} quantile)"
        axes.plot(fit.density, fit.cautious, color=BLUE, linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=4, label=label)


def _draw_answer(axes: Axes, report: RunReport, window: PlotWindow) -> None:
    answer, target = report.answer, report.target_score
    if answer is None:
        return
    left, top = window.densities[0], window.scores[1] if target is None else target
    if (density := answer.operating_density) is not None:
        at = max(density, left)
        axes.plot([at, at], [window.scores[0], top], color=VERMILLION, linewidth=1.6, zorder=4)
        style = {"color": VERMILLION, "marker": "D", "markersize": 7, **_MARK}
        axes.plot(at, top, zorder=7, label=f"operating density {percent(density)}", **style)
    if answer.interval is not None:
        low, high = answer.interval
        span = max(low or 0.0, left), max(1.0 if high is None else high, left)
        axes.axvspan(*span, color=VERMILLION, alpha=0.12, linewidth=0, zorder=1, label="90% interval")
    if (gain := answer.gain_density) is not None:
        style = {"color": GREEN, "marker": "^", "markersize": 8, "clip_on": False, **_MARK}
        on_axis = axes.get_xaxis_transform()
        axes.plot(max(gain, left), 0.0, transform=on_axis, zorder=7, label=f"gain density {percent(gain)}", **style)


def _inline_svg(figure: Figure, label: str) -> str:
    """An SVG element that obeys the policy of the page: attributes instead of inline styles, the page's own fonts."""
    file = io.StringIO()
    figure.savefig(file, format="svg")
    svg = file.getvalue()
    body = re.sub(r"<style.*?</style>|<!--.*?-->", "", svg[svg.index("<defs>") :], flags=re.DOTALL)
    body = re.sub(r' id="[\w.]+_\d+"', "", body).replace("xlink:href", "href")  # ids that nothing refers to
    body = re.sub(r' style="([^"]*)"', lambda style: _presentation(style[1]), body)
    # Text and axes take the color of the page, which may be dark.
    body = body.replace(INK.lower(), "currentColor")
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    return f'<svg {box[0]} class="plot" role="img" aria-label="{html.escape(label)}">{body}'


def _presentation(style: str) -> str:
    """CSS declarations as presentation attributes without font families.

    >>> _presentation("fill: none; stroke-width: 0.8; font-family: 'DejaVu Sans', sans-serif")
    ' fill="none" stroke-width="0.8"'
    """
    declarations = (declaration.partition(":") for declaration in style.split(";"))
    pairs = ((name.strip(), value.strip()) for name, _, value in declarations)
    return "".join(f' {name}="{value}"' for name, value in pairs if name and name != "font-family")


_DEPTH = 1.0
"""How far the window reaches beyond the probes, on the side of worse scores, relative to their spread: rounds may
start at chance level."""
_REACH = 2.0
"""Factor by which an interval may widen the window beyond the evaluated densities; its lower end may be 0."""


@dataclass(frozen=True)
class PlotWindow:
    """Limits of density (log scale) and score; `x` and `y` map into [0, 1]."""

    densities: tuple[float, float]
    scores: tuple[float, float]

    @classmethod
    def of(cls, report: RunReport) -> PlotWindow:
        """Cover all densities, and all scores except those of rounds and pruned networks that are far worse."""
        curve, answer = report.curve, report.answer
        densities = [point.density for point in (*curve.rounds, *curve.probes, *curve.finished)]
        main = (*trained(curve)[-1:], *curve.finished) or curve.probes or curve.rounds
        scores = [point.score for point in main]
        for found in report.finishers:
            densities += [found.density, *(point.density for point in found.points)]
            scores.append(found.score)
        if answer is not None:
            densities += [density for density in (answer.operating_density, answer.gain_density) if density]
        if densities and answer is not None and answer.interval is not None:
            least, most = min(densities) / _REACH, max(densities) * _REACH
            densities += [min(max(end, least), most) for end in answer.interval if end]
        if report.reference is not None and report.target_score is not None:
            scores += [report.reference.score, report.target_score]
        low, high = min(scores, default=0.0), max(scores, default=1.0)
        # Equal scores still need a window: twice the tolerance, or 1% of a score for `train`.
        spread = max(high - low, 2 * answer.delta if answer is not None else 0.01 * max(abs(high), 1.0), 1e-9)
        least, most = low - _DEPTH * spread, high + (_DEPTH * spread if report.mode == "min" else math.inf)
        others = (*grown(curve), *curve.probes)
        above = [point.score for point in others if least <= point.score <= most]
        low, high = min([low, *above]), max([high, *above])
        margin = 0.08 * max(high - low, spread)
        left, right = min(densities, default=0.01), max(densities, default=1.0)
        factor = max(right / left, 2.0) ** 0.05
        return cls((left / factor, right * factor), (low - margin, high + margin))

    def x(self, density: float) -> float:
        """Position of a density; one outside the window is moved to its edge."""
        left, right = self.densities
        return math.log(min(max(density, left), right) / left) / math.log(right / left)

    def y(self, score: float) -> float:
        """Position of a score."""
        low, high = self.scores
        return (score - low) / (high - low)

    def density_ticks(self) -> list[float]:
        """Two to seven round densities.

        >>> PlotWindow((0.009, 0.5), (0, 1)).density_ticks()
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
        """
        left, right = self.densities[0], min(self.densities[1], 1.0)
        locators = [LogLocator(subs=subs) for subs in ((1, 2, 3, 5, 7), (1, 2, 5), (1,))]
        for locator in (*locators, MaxNLocator(6)):
            ticks = [float(f"{tick:.3g}") for tick in locator.tick_values(left, right)]
            ticks = sorted({tick for tick in ticks if left <= tick <= right})
            if 2 <= len(ticks) <= 7:
                return ticks
        return [left, right]

    def score_ticks(self) -> list[float]:
        """Evenly spaced round scores.

        >>> PlotWindow((0.01, 1), (0.881, 0.98)).score_ticks()
        [0.9, 0.92, 0.94, 0.96, 0.98]
        """
        low, high = self.scores
        ticks = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high)
        return [float(f"{tick:.10g}") for tick in ticks if low <= tick <= high + 1e-9]
