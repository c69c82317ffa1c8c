"""The accuracy-density curve as a figure: PNG for the run directory, inline SVG for the page.

Drawn with matplotlib's objects and never with pyplot, so no global state changes and no display is needed. The colors
are those of Okabe and Ito, which color-blind readers can distinguish, and every kind of mark has its own shape.
"""

from __future__ import annotations

import io
import re
import textwrap
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from pathgrow.report.formats import percent, score_format
from pathgrow.report.schema import RunReport
from pathgrow.report.tables import topology_series
from pathgrow.report.text import goal_label, headline, is_conservative, probes_label, reference_label, subject
from pathgrow.report.window import PlotWindow

BLUE, VERMILLION, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8A8F98", "#22262B"
_WIDTH = 5.2
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pathgrow",  # equal figures get equal ids
    "text.parse_math": False,  # names in a report are not formulas
}


def curve_png(report: RunReport, *, dpi: int = 220) -> bytes:
    """The figure as a PNG file; equal reports give equal bytes on one machine."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 4.9), dpi=dpi, layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        draw_curve(axes, report)
        axes.set_title(
            textwrap.fill(headline(report), 62), loc="left", fontsize=9, fontweight="bold", color=INK, pad=18
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
    series = topology_series(report)
    if not series:
        return None
    num_rows = (len(series) + 1) // 2
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 1.1 * num_rows), layout="constrained", facecolor="none")
        for index, (name, values) in enumerate(series):
            axes = figure.add_subplot(num_rows, 2, index + 1)
            axes.plot(values, color=BLUE, linewidth=1.8)
            axes.plot(len(values) - 1, values[-1], color=BLUE, marker="o")
            axes.set_title(f"{name}: {values[0]:,.4g} to {values[-1]:,.4g}", loc="left", fontsize=8.5, color=INK)
            axes.set_axis_off()
        return _inline_svg(figure, "Topology over the rounds")


def draw_curve(axes: Axes, report: RunReport) -> None:
    """Draw the curve into existing axes."""
    window, scores = PlotWindow.of(report), score_format(report)
    axes.set_facecolor("none")
    axes.set_xscale("log")
    axes.set_xlim(*window.densities)
    axes.set_ylim(*window.scores)
    ticks = window.density_ticks()
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    ticks = window.score_ticks()
    axes.set_yticks(ticks, [scores.tick(tick) for tick in ticks])
    axes.set_xlabel("density (fraction of the prunable weights)", color=INK, fontsize=9.5)
    axes.set_ylabel(f"validation {scores.name}", color=INK, fontsize=9.5)
    _style(axes)
    _draw_reference(axes, report, window)
    _draw_points(axes, report, window)
    _draw_fit(axes, report)
    _draw_answer(axes, report, window)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=8.5, labelcolor=INK
        )


def _style(axes: Axes) -> None:
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.tick_params(labelcolor=INK, labelsize=8.5, length=3, color=GREY)
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_reference(axes: Axes, report: RunReport, window: PlotWindow) -> None:
    if report.reference is None or report.target_score is None:
        return
    levels = (
        (report.reference.score, reference_label(report), 3, "-"),
        (report.target_score, goal_label(report), -10, (0, (4, 3))),
    )
    for score, text, offset, line in levels:
        axes.axhline(score, color=INK, linewidth=1.0, linestyle=line, zorder=2)
        axes.annotate(
            text, (window.densities[0], score), (5, offset), textcoords="offset points", fontsize=8, color=INK, zorder=6
        )


def _draw_answer(axes: Axes, report: RunReport, window: PlotWindow) -> None:
    answer, target = report.answer, report.target_score
    if answer is None:
        return
    left, top = window.densities[0], window.scores[1] if target is None else target
    if (density := answer.operating_density) is not None:
        at = max(density, left)
        axes.plot([at, at], [window.scores[0], top], color=VERMILLION, linewidth=1.6, zorder=4)
        mark: dict[str, Any] = {"marker": "D", "markersize": 7, "markeredgecolor": "white", "linestyle": "none"}
        axes.plot(at, top, color=VERMILLION, zorder=7, label=f"operating density {percent(density)}", **mark)
    if answer.interval is not None:
        low, high = answer.interval
        span = max(low or 0.0, left), max(1.0 if high is None else high, left)
        axes.axvspan(*span, color=VERMILLION, alpha=0.12, linewidth=0, zorder=1, label="90% interval")
    if (gain := answer.gain_density) is not None:
        axes.plot(
            max(gain, left), 0.0, marker="^", markersize=8, color=GREEN, markeredgecolor="white", linestyle="none",
            transform=axes.get_xaxis_transform(), clip_on=False, zorder=7, label=f"gain density {percent(gain)}",
        )  # fmt: skip


def _draw_fit(axes: Axes, report: RunReport) -> None:
    fit = report.curve.fit
    if fit is None:
        return
    axes.fill_between(fit.density, fit.low, fit.high, color=BLUE, alpha=0.16, linewidth=0, zorder=3)
    axes.plot(fit.density, fit.score, color=BLUE, linewidth=2.0, zorder=4, label="fit (median, 90% band)")
    if fit.cautious is not None and report.answer is not None and is_conservative(report.answer):
        axes.plot(
            fit.density, fit.cautious, color=BLUE, linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=4,
            label="fit, 33rd percentile",
        )  # fmt: skip


def _draw_points(axes: Axes, report: RunReport, window: PlotWindow) -> None:
    probes, rounds = report.curve.probes, report.curve.rounds
    if probes:
        axes.plot(
            [point.density for point in probes], [point.score for point in probes], color=BLUE, marker="o",
            markersize=7.5, markeredgecolor="white", linestyle="none", zorder=6, label=probes_label(report),
        )  # fmt: skip
    if rounds:
        axes.plot(
            [point.density for point in rounds], [point.score for point in rounds], color=GREY, alpha=0.55,
            linewidth=1.0, marker="o", markersize=3.2, zorder=3, label="rounds",
        )  # fmt: skip
    below = [point.density for point in rounds if point.score < window.scores[0]]
    if below:
        axes.plot(
            below, [0.012] * len(below), marker="v", markersize=4, color=GREY, alpha=0.7, linestyle="none",
            transform=axes.get_xaxis_transform(), zorder=3,
        )  # fmt: skip


def _inline_svg(figure: Figure, label: str) -> str:
    """An SVG element that obeys the policy of the page: attributes instead of inline styles, the page's own fonts."""
    svg = io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(svg.getvalue())
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag.endswith(("}metadata", "}style"))]:
            parent.remove(child)
    used = set(re.findall(r"#(\w+)", svg.getvalue().decode()))
    for element in root.iter():
        attributes: dict[str, str] = {}
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2]
            if name == "style":
                attributes |= _presentation(value)
            elif name != "id" or value in used:
                attributes[name] = value
        element.tag, element.attrib = element.tag.rpartition("}")[2], attributes
    root.attrib = {"viewBox": root.attrib["viewBox"], "class": "plot", "role": "img", "aria-label": label}
    # Text and axes take the color of the page, which may be dark.
    return ElementTree.tostring(root, encoding="unicode").replace(INK.lower(), "currentColor")


def _presentation(style: str) -> dict[str, str]:
    """CSS declarations as presentation attributes; of fonts only size and weight are kept.

    >>> _presentation("fill: none; stroke-width: 0.8")
    {'fill': 'none', 'stroke-width': '0.8'}
    >>> _presentation("font: bold 10px 'DejaVu Sans', sans-serif; text-anchor: middle")
    {'font-size': '10px', 'font-weight': 'bold', 'text-anchor': 'middle'}
    """
    attributes: dict[str, str] = {}
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # the shorthand that matplotlib wrote before 3.9
            found = re.match(r"(?:(bold|\d+)\s+)?([\d.]+px)", value)
            attributes |= {"font-size": found[2]} if found else {}
            attributes |= {"font-weight": found[1]} if found and found[1] else {}
        elif name and name != "font-family":
            attributes[name] = value
    return attributes
