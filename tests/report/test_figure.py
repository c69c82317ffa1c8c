"""The figure: what it draws is what the report says, as PNG and as inline SVG."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pathgrow.report.figure import BLUE, GREEN, INK, VERMILLION, curve_png, curve_svg, draw_curve, topology_svg
from pathgrow.report.schema import RunReport
from tests.support.sample_report import discovery_report, short_probe_report, shrunk_report, with_answer, with_curve


def drawn(report: RunReport) -> Axes:
    axes = Figure().add_subplot()
    draw_curve(axes, report)
    return axes


def colors(png: bytes) -> set[tuple[int, ...]]:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return {tuple(color) for color in np.asarray(image).reshape(-1, 3)}


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def legend(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def test_the_png_shows_probes_answer_and_gain(sample_report: RunReport) -> None:
    png = curve_png(sample_report, dpi=100)
    assert Image.open(io.BytesIO(png)).size[0] >= 500
    assert {rgb(BLUE), rgb(VERMILLION), rgb(GREEN)} <= colors(png)
    without = with_answer(sample_report, operating_density=None, interval=None, gain_density=None)
    assert not {rgb(VERMILLION), rgb(GREEN)} & colors(curve_png(without, dpi=100))


def test_lines_and_bands_are_those_of_the_numbers(sample_report: RunReport) -> None:
    axes, fit = drawn(sample_report), sample_report.curve.fit
    assert fit is not None
    assert sample_report.reference is not None
    (band,) = axes.collections
    corners = {tuple(corner) for corner in np.asarray(band.get_paths()[0].vertices).tolist()}
    assert corners == {*zip(fit.density, fit.low, strict=True), *zip(fit.density, fit.high, strict=True)}
    levels = {line.get_ydata()[0] for line in axes.lines if [*line.get_xdata()] == [0, 1]}
    assert levels == {sample_report.reference.score, sample_report.target_score}
    lines = {str(line.get_label()): line for line in axes.lines}
    for label, points in (("probes", sample_report.curve.probes), ("rounds", sample_report.curve.rounds)):
        xy = list(zip(lines[label].get_xdata(), lines[label].get_ydata(), strict=True))
        assert xy == [(point.density, point.score) for point in points]
    answer = lines["operating density 8.5%"]
    assert (answer.get_xdata()[0], answer.get_ydata()[0]) == (0.0848, sample_report.target_score)
    assert lines["gain density 10.5%"].get_xdata()[0] == 0.1049


def test_the_conservative_quantile_is_drawn_with_such_an_answer_only(sample_report: RunReport) -> None:
    assert "fit (33% quantile)" in legend(drawn(sample_report))
    assert "fit (33% quantile)" not in legend(drawn(with_answer(sample_report, details={})))


def test_pruned_finished_and_trained_networks_have_their_own_marks() -> None:
    report = shrunk_report()
    axes = drawn(report)
    lines = {str(line.get_label()): line for line in axes.lines}
    for label, points in (
        ("trained network", report.curve.rounds[-1:]),
        ("pruned networks", report.curve.probes),
        ("finished networks", report.curve.finished),
    ):
        assert [*lines[label].get_xdata()] == [point.density for point in points]
    kinds = ("trained network", "pruned networks", "finished networks")
    assert len({lines[kind].get_marker() for kind in kinds}) == 3
    assert "rounds" not in legend(axes)
    assert "rounds" in legend(drawn(shrunk_report(grown=3)))
    assert axes.texts[0].get_text().endswith("% (estimated)")


@pytest.mark.parametrize(("mode", "outlier", "marker", "height"), [("max", 0.1, "v", 0.0), ("min", 5.0, "^", 1.0)])
def test_networks_outside_the_plotted_range_are_marked_at_the_edge(
    mode: str, outlier: float, marker: str, height: float
) -> None:
    report = shrunk_report()
    report = replace(report, config={**report.config, "mode": mode})
    first, *others = report.curve.probes
    probes = (replace(first, score=outlier), *(replace(point, score=0.97) for point in others))
    axes = drawn(with_curve(report, probes=probes))
    (mark,) = (line for line in axes.lines if line.get_marker() == marker and line.get_markersize() == 4)
    assert [*mark.get_xdata()] == [first.density]
    assert mark.get_transform() == axes.get_xaxis_transform()
    assert mark.get_ydata()[0] == pytest.approx(height, abs=0.05)


def test_labels_of_lines_are_on_the_side_where_less_is_drawn() -> None:
    """The target crosses the curve where the answer is."""
    report = shrunk_report()
    assert report.answer is not None
    for density, side in ((0.02, "right"), (0.6, "left")):
        moved = replace(report, answer=replace(report.answer, operating_density=density))
        axes = Figure().add_subplot()
        draw_curve(axes, with_curve(moved, probes=(), finished=(), fit=None))
        assert axes.texts[1].get_horizontalalignment() == side


def test_short_probes_are_named_by_their_length() -> None:
    report = short_probe_report()
    axes = drawn(report)
    assert "probes (16 epochs)" in legend(axes)
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["reference 97.40% (fitted)", "target: 1.38 pp below the reference (1 pp after full training)"]
    assert axes.get_xlim()[1] > 1.0, "the dense probe is inside"


def test_an_interval_from_zero_starts_at_the_edge(sample_report: RunReport) -> None:
    axes = drawn(with_answer(sample_report, status="flat", operating_density=None, interval=(0.0, 0.02)))
    (span,) = axes.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == pytest.approx((axes.get_xlim()[0], 0.02))  # type: ignore[attr-defined]


def test_figures_are_reproducible_and_leave_pyplot_alone(sample_report: RunReport) -> None:
    assert curve_png(sample_report, dpi=60) == curve_png(discovery_report(), dpi=60)
    assert curve_svg(sample_report) == curve_svg(discovery_report())
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_the_svg_is_an_element_without_styles_or_foreign_names(sample_report: RunReport) -> None:
    svgs = [curve_svg(sample_report), topology_svg(sample_report)]
    for svg in svgs:
        assert svg is not None
        root = ElementTree.fromstring(svg)
        assert root.tag == "svg"
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        names = {name for element in root.iter() for name in element.attrib}
        assert "style" not in names
        assert all(value.startswith("#") for element in root.iter() if (value := element.get("href")))
        ids = {element.get("id") for element in root.iter()}
        assert set(re.findall(r"(?:url\(|href=\")#(\w+)", svg)) <= ids, "clip paths and markers"
        assert "://" not in svg
        assert INK.lower() not in svg, "ink follows the page"
    ids = [re.findall(r' id="(\w+)"', svg or "") for svg in svgs]
    assert not set(ids[0]) & set(ids[1])


def test_the_svg_has_the_text_of_the_figure(sample_report: RunReport) -> None:
    texts = [element.text for element in ElementTree.fromstring(curve_svg(sample_report)).iter("text")]
    for expected in ("operating density 8.5%", "90% interval", "validation accuracy", "2%", "96%"):
        assert expected in texts


def test_topology_needs_two_rounds(sample_report: RunReport) -> None:
    svg = topology_svg(sample_report)
    assert svg is not None
    assert "dead units: 9 to 0" in svg
    assert "tau-core (units): 35 to 102" in svg, "from round 1 on"
    assert topology_svg(replace(sample_report, topology=sample_report.topology[:1])) is None


def test_scores_that_are_no_fractions_have_plain_ticks(sample_report: RunReport) -> None:
    shifted = tuple(replace(round, score=round.score - 3) for round in sample_report.curve.rounds)
    report = with_answer(with_curve(sample_report, rounds=shifted, probes=(), fit=None), reference=None)
    labels = [label.get_text() for label in drawn(report).get_yticklabels()]
    assert all(re.fullmatch(r"-?[\d.]+", label.replace("\N{MINUS SIGN}", "-")) for label in labels)
