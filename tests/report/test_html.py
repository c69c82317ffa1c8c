"""The page: complete, self-contained, accessible, and no string of a report becomes code."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError, printable
from pathgrow.report.figure import curve_png
from pathgrow.report.html import cost_by_kind, cost_by_phase, fragment, layer_densities, page, write_all
from pathgrow.report.schema import LedgerReport, RunReport, Score, TimingReport, load_report
from pathgrow.report.terminal import summary
from pathgrow.report.text import closing
from tests.support.catalogue import Trials
from tests.support.hostile import TEXTS
from tests.support.sample_report import (
    discovery_report,
    short_probe_report,
    shrunk_report,
    training_report,
    with_answer,
    with_curve,
)


class Parsed(HTMLParser):
    """What a browser makes of the page: elements, attributes, text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def unsafe(self) -> list[tuple[str, str, str]]:
        """Attributes that run or load something; figures refer to their own parts."""
        return [
            (tag, name, value)
            for tag, name, value in self.attributes
            if name.startswith("on") or name in ("src", "style") or (name == "href" and not value.startswith("#"))
        ]


@pytest.fixture(scope="module")
def html() -> str:
    return page(discovery_report())


def test_the_page_is_complete(html: str) -> None:
    text = Parsed(html).text
    for expected in (
        "Operating density (within 1 pp of dense): 8.5% (90% interval 6.7-10.4%).",
        "Grew from 2.0% to 36.4% density in 13 rounds",
        "Trained 5 probes (2.5%, 4.9%, 9.5%, 14.9%, 36.4% density) for 80 epochs each",
        "67% quantile",
        "layers.0.weight 16.2%",
        "model_options.widths [128, 128, 128]",
        "probe 5 400 360,000 14.8 GFLOPs 0.839x 10 s",
        "total 19 436 392,400 15.8 GFLOPs 0.898x 38 s",
        "7 9.5% 13.1% 24 95.45% 0.138 96.79% 80",
        "dead units: 9 to 0",
    ):
        assert expected in text


def test_the_page_loads_and_runs_nothing(html: str) -> None:
    parsed = Parsed(html)
    assert len(html.encode()) < 300_000
    assert "script" not in parsed.elements
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert parsed.unsafe == []


def test_the_policy_admits_the_style_sheet_only(html: str) -> None:
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = re.search(r'Policy" content="([^"]*)"', html)
    assert style is not None
    assert policy is not None
    rules = dict(part.split(" ", 1) for part in policy[1].split("; "))
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in policy[1]


def test_the_page_is_accessible(html: str) -> None:
    parsed = Parsed(html)
    assert ("html", "lang", "en") in parsed.attributes
    assert parsed.elements.count("h1") == 1
    assert parsed.elements.count("table") == parsed.elements.count("caption")
    svgs = [(name, value) for tag, name, value in parsed.attributes if tag == "svg"]
    assert len([name for name, _ in svgs if name == "aria-label"]) == parsed.elements.count("svg") > 0
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    labels = {part for _, name, value in parsed.attributes if name == "aria-labelledby" for part in value.split()}
    assert labels <= set(ids)


@pytest.mark.parametrize("round", [0, 7])
def test_the_mask_of_the_returned_model_is_marked(sample_report: RunReport, round: int) -> None:
    network = dataclasses.replace(sample_report.network, round=round)
    html = page(dataclasses.replace(sample_report, network=network, topology=()))
    assert re.findall(r'<tr class="marked"><th scope="row">(\d+)</th>', html) == [str(round)]


def test_a_pruning_search_has_a_page() -> None:
    report = shrunk_report()
    html = page(report)
    text = Parsed(html).text
    assert report.answer is not None
    check = report.answer.check
    assert check is not None
    assert check.outcome in ("consistent", "not verified"), "a missed goal has another sentence"
    side = "below" if check.shortfall >= 0 else "above"
    gap = f"{100 * abs(check.shortfall):.2f} ± {100 * check.error:.2f} pp {side} dense (estimated)"
    for expected in (
        f"check {check.outcome}, {gap}",
        "tolerances 0.25 pp: ",
        "Pruned it in 8 rounds (40.0%, 25.2%",
        "pruning rounds 8 32 28,800",
        "Every network that was evaluated; the returned model is highlighted",
    ):
        assert expected in text
    assert re.findall(r'<tr class="marked"><th scope="row">(\w+)</th><td>([\d.]+%)', html) == [("finished", "9.5%")]


def test_a_training_has_a_page() -> None:
    text = Parsed(page(training_report())).text
    assert "rigl at 12.3% density: 82.22% test accuracy." in text
    assert "training 1 57 570 4.56 GFLOPs 0.678x 1 min 23 s" in text
    assert "How the answer was found" not in text


def test_a_notebook_gets_the_answer_the_curve_and_the_findings() -> None:
    report = shrunk_report()
    shown = fragment(report)
    parsed = Parsed(shown)
    assert "script" not in parsed.elements
    assert len(shown.encode()) < 40_000
    assert "More about this run" in parsed.text
    assert "tolerances 0.25 pp: " in parsed.text
    position = -1
    for line in closing(report)[0]:
        assert (position := parsed.text.find(line, position + 1)) >= 0
    assert "<svg" not in fragment(with_curve(report, rounds=(), probes=(), finished=(), fit=None))


# Tables


def test_costs_are_summed_by_kind_of_phase() -> None:
    report = short_probe_report()
    rows = {row[0]: row[1:] for row in cost_by_kind(report)[1]}
    assert rows["dense probe"] == ["1", "16", "14,400", "3.64 GFLOPs", "0.206x", "-"]
    assert rows["probe"] == ["5", "400", "360,000", "14.8 GFLOPs", "0.839x", "10 s"]
    assert rows["round"][0] == "14"
    assert rows["total"][:3] == ["20", "452", "406,800"]
    assert rows["total"][-1] == "38 s"
    headings, phases = cost_by_phase(report)
    assert {len(headings)} == {len(row) for row in phases}
    assert [row[0] for row in phases[:2]] == ["round 0", "round 1"]
    assert [row[:2] for row in phases[-2:]] == [["probe at 36.4%", "36.4%"], ["dense probe", "100%"]]
    report = dataclasses.replace(report, ledger=dataclasses.replace(report.ledger, dense_training_flops=None))
    assert cost_by_kind(report)[1][-1][5] == "-"


def test_layers_are_those_of_the_returned_model(sample_report: RunReport) -> None:
    """It has the mask of round 7, at 9.54%; the synthetic layers have 1.7, 0.8 and 0.85 times that."""
    density = 0.02 * 1.25**7
    assert [value for _, value in layer_densities(sample_report)] == pytest.approx(
        [1.7 * density, 0.8 * density, 0.85 * density]
    )
    others = tuple(row for row in sample_report.topology if row.round != 7)
    assert layer_densities(dataclasses.replace(sample_report, topology=others)) == []


# Strings


def poisoned(value: Any, poison: str) -> Any:
    """Every string of a report and some of its keys, with something nasty in front."""
    if isinstance(value, dict):
        named = {"layers.0.weight", "lr"} & value.keys()
        return {(f"{poison}{key}" if key in named else key): poisoned(item, poison) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, poison) for item in value]
    return f"{poison}{value}" if isinstance(value, str) else value


@pytest.mark.item(24)
def test_no_string_of_a_report_becomes_code(sample_report: RunReport, html: str, trials: Trials) -> None:
    clean, clean_part = Parsed(html), Parsed(fragment(sample_report))
    for poison in trials.draw.sample(TEXTS, trials.count(quick=8, full=len(TEXTS))):
        values = poisoned(sample_report.as_json(), poison)
        values["command"], values["answer"]["status"] = "discover", "found"
        with trials.one(poison):
            report = load_report(values, "report.json")
            shown = page(report)
            parsed = Parsed(shown)
            assert set(parsed.elements) <= set(clean.elements)
            assert parsed.unsafe == []
            assert {name for _, name, _ in parsed.attributes} <= {name for _, name, _ in clean.attributes}
            assert " ".join(printable(poison).split()) in parsed.text
            assert "49" not in parsed.text or "49" in clean.text
            assert "unsafe" not in re.findall(r'Policy" content="([^"]*)"', shown)[0]
            parsed = Parsed(fragment(report))
            assert set(parsed.elements) <= set(clean_part.elements)
            assert set(parsed.unsafe) <= set(clean_part.unsafe)
            assert curve_png(report, dpi=40)
            Console(file=io.StringIO(), width=80).print(summary(report))


# Reports with missing parts


def one_point(report: RunReport) -> RunReport:
    report = with_curve(report, rounds=report.curve.rounds[:1], probes=(), fit=None)
    return with_answer(report, status="open", operating_density=None, interval=None, gain_density=None, reference=None)


def equal_scores(report: RunReport) -> RunReport:
    rounds, probes = (
        tuple(dataclasses.replace(point, score=0.5, loss=None) for point in points)
        for points in (report.curve.rounds, report.curve.probes)
    )
    report = with_curve(report, rounds=rounds, probes=probes, fit=None)
    assert report.reference is not None
    reference = dataclasses.replace(report.reference, score=0.5)
    return with_answer(report, status="flat", operating_density=None, interval=None, reference=reference)


def bare(report: RunReport) -> RunReport:
    return dataclasses.replace(
        report,
        config={},
        topology=(),
        timing=TimingReport(),
        ledger=LedgerReport(phases=(), training_flops=0, samples=0),
        network=dataclasses.replace(report.network, test=None, round=None),
    )


CHANGES: dict[str, Callable[[RunReport], RunReport]] = {
    "no probes": lambda report: with_curve(report, probes=(), fit=None),
    "no reference": lambda report: with_answer(report, reference=None),
    "no rounds": lambda report: with_curve(report, rounds=(), probes=(), fit=None),
    "one point": one_point,
    "one point and an interval": lambda report: with_answer(one_point(report), interval=(0.0, 0.02)),
    "equal scores": equal_scores,
    "bare": bare,
    "dense baseline": lambda report: with_answer(report, dense=Score(score=0.98), dense_test=Score(score=0.97)),
    "narrow interval": lambda report: with_answer(report, interval=(0.0848, 0.0848)),
    "interval from 0": lambda report: with_answer(report, operating_density=None, interval=(0.0, 0.02)),
    "open intervals": lambda report: with_answer(report, interval=(0.0, None), gain_interval=(None, None)),
    "empty interval": lambda report: with_answer(report, operating_density=None, interval=(0.0, 0.0)),
    "interval far away": lambda report: with_answer(report, operating_density=None, interval=(1e-30, 1.0)),
    "gain far away": lambda report: with_answer(report, gain_density=1e-12),
    "training": lambda report: training_report(),
    "pruned": lambda report: shrunk_report(),
    "grown and pruned": lambda report: shrunk_report(grown=3),
    "pruned too briefly": lambda report: shrunk_report(lowest=0.2),
}


@pytest.mark.filterwarnings("error")  # matplotlib warns if an axis cannot hold what is drawn
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_reports_with_missing_parts_can_be_shown(
    sample_report: RunReport, change: Callable[[RunReport], RunReport]
) -> None:
    report = dataclasses.replace(change(sample_report), topology=())
    html = page(report)
    console = Console(file=io.StringIO(), width=80)
    console.print(summary(report))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "<h1>" in html
    for text in (shown, Parsed(html).text):
        assert "None" not in text
        assert "nan" not in text


# Files


def test_write_all_adds_figure_and_page_to_a_finished_run(tmp_path: Path, sample_report: RunReport) -> None:
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        with pytest.raises(UserError, match="is unfinished"):
            write_all(run_dir.path)
        run_dir.write_report(sample_report.as_json())
        written = write_all(run_dir.path)
    assert [path.name for path in written] == ["curve.png", "report.html"]
    assert written[0].read_bytes() == curve_png(sample_report)
    assert written[1].read_text() == page(sample_report)
