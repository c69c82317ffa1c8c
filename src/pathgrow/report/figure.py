"""The curve as a PNG: what was trained out, the fit, and where the answer lies.

Drawn with matplotlib's objects and never with pyplot, so nothing global is touched and no display is needed. The
colours are those of Okabe and Ito, which colour-blind readers can tell apart, and each kind of mark has its own shape.
"""

from __future__ import annotations

import io
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pathgrow.report import wording
from pathgrow.report.frame import Frame, ends, threshold
from pathgrow.report.wording import Scores, percent

BLUE, VERMILLION, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8A8F98", "#22262B"


def curve_png(report: dict[str, Any], *, dpi: int = 160) -> bytes:
    """The picture as the bytes of a PNG file; equal reports give equal bytes on one machine."""
    figure = Figure(figsize=(8.6, 5.0), dpi=dpi, layout="constrained", facecolor="white")
    draw(figure.add_subplot(), report)
    bytes_ = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(bytes_, format="png", metadata={"Software": None})
    return bytes_.getvalue()


def draw(axes: Axes, report: dict[str, Any]) -> None:
    """Put the curve into axes of the caller's own figure."""
    frame, scores = Frame.of(report), Scores.of(report)
    _dress(axes, report, frame, scores)
    _draw_reference(axes, report, frame)
    _draw_points(axes, report, frame)
    _draw_fit(axes, report)
    _draw_answer(axes, report, frame)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", facecolor="white", edgecolor="none", framealpha=0.85, fontsize=9, labelcolor=INK)


def _dress(axes: Axes, report: dict[str, Any], frame: Frame, scores: Scores) -> None:
    axes.set_xscale("log")
    axes.set_xlim(*frame.densities)
    axes.set_ylim(*frame.scores)
    axes.xaxis.set_major_locator(FixedLocator(frame.density_ticks()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
    axes.yaxis.set_major_locator(FixedLocator(frame.score_ticks(8)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: scores(value)))
    axes.set_xlabel("density (share of the switchable weights)", color=INK, fontsize=10)
    axes.set_ylabel(f"validation {scores.name}", color=INK, fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#C9CDD3")
    axes.tick_params(colors=INK, labelsize=9, length=3, color="#C9CDD3")
    axes.grid(axis="y", color="#EEF0F3", linewidth=0.8)
    axes.set_axisbelow(True)
    # Text from a report is text, never matplotlib's formula language.
    title = textwrap.fill(wording.headline(report), 82)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=24, parse_math=False)
    axes.text(
        0,
        1.025,
        textwrap.shorten(wording.subject(report), 100, placeholder="..."),
        transform=axes.transAxes,
        fontsize=9.5,
        color="#5B626B",
        parse_math=False,
    )


def _draw_reference(axes: Axes, report: dict[str, Any], frame: Frame) -> None:
    goal = threshold(report)
    if goal is None:
        return
    reference = report["reference"]["score"]
    axes.axhline(reference, color=INK, linewidth=1.0, zorder=2)
    axes.axhline(goal, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=2)
    words = (
        (reference, f"reference {wording.reference_score(report)}", 3),
        (goal, wording.below_reference(report), -10),
    )
    for score, text, points_above in words:
        axes.annotate(text, (frame.densities[0], score), (5, points_above), textcoords="offset points", fontsize=8.5,
                      color=INK, zorder=6)  # fmt: skip


def _draw_answer(axes: Axes, report: dict[str, Any], frame: Frame) -> None:
    answer, goal = report["answer"], threshold(report)
    left, bottom = frame.densities[0], frame.scores[0]  # a logarithmic axis has no 0: that is drawn at its edge
    top = goal if goal is not None else frame.scores[1]
    density = answer["operating_density"]
    if density is not None:
        axes.plot([max(density, left)] * 2, [bottom, top], color=VERMILLION, linewidth=1.6, zorder=4)
        axes.plot(max(density, left), top, marker="D", markersize=8, color=VERMILLION, markeredgecolor="white",
                  zorder=7, linestyle="none", label=f"answer {percent(density)}")  # fmt: skip
    if interval := ends(answer["interval"]):
        low, high = (max(end, left) for end in interval)
        axes.axvspan(low, high, color=VERMILLION, alpha=0.12, linewidth=0, zorder=1, label="90% interval")
    gain = answer["gain_density"]
    if gain is not None:
        axes.plot([max(gain, left)], [0.0], marker="^", markersize=9, color=GREEN, markeredgecolor="white",
                  linestyle="none", transform=axes.get_xaxis_transform(), clip_on=False, zorder=7,
                  label=f"gain answer {percent(gain)}")  # fmt: skip


def _draw_fit(axes: Axes, report: dict[str, Any]) -> None:
    fit = report["curve"].get("fit")
    if fit:
        axes.fill_between(fit["density"], fit["low"], fit["high"], color=BLUE, alpha=0.16, linewidth=0, zorder=3)
        axes.plot(fit["density"], fit["score"], color=BLUE, linewidth=2.0, zorder=4, label="fit and its 90% band")
        if "cautious" in fit:
            axes.plot(fit["density"], fit["cautious"], color=BLUE, linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=4,
                      label=wording.CAUTIOUS_LINE)  # fmt: skip


def _draw_points(axes: Axes, report: dict[str, Any], frame: Frame) -> None:
    curve = report["curve"]
    bottom = frame.scores[0]
    probes = [(row["density"], row["score"]) for row in curve["probes"]]
    if probes:
        axes.plot(*zip(*probes, strict=True), color=BLUE, marker="o", markersize=8.5, markeredgecolor="white",
                  markeredgewidth=1.2, linestyle="none", zorder=6, label=wording.trained_copies(report))  # fmt: skip
    rough = [(row["density"], row["score"]) for row in curve["rough"]]
    if rough:
        axes.plot(*zip(*rough, strict=True), color=GREY, alpha=0.55, linewidth=1.0, marker="o", markersize=3.2,
                  zorder=3, label="while growing")  # fmt: skip
    below = [density for density, score in rough if score < bottom]
    if below:
        axes.plot(below, [0.012] * len(below), marker="v", markersize=4, color=GREY, alpha=0.7, linestyle="none",
                  transform=axes.get_xaxis_transform(), zorder=3)  # fmt: skip
