"""A run without a reference as people see it: the dense copy has a name and a place in every table and picture."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pathgrow.density import types
from pathgrow.report import curve_png, page, progress, story, summary, wording
from pathgrow.report.chart import PROBE, curve_chart
from pathgrow.report.comparison import compare
from pathgrow.report.frame import Frame, threshold
from pathgrow.report.picture import Picture
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.run_discovery import expected_epochs
from pathgrow.runs.run_discovery import run as run_experiment


@pytest.fixture
def brief(sample_report: dict[str, Any]) -> dict[str, Any]:
    """Probes of 16 epochs, one of them dense; one point in the end was taken for 1.38 points."""
    report = sample_report
    for row in report["curve"]["probes"]:
        row["epochs"] = 16
    dense = {"round": types.DENSE, "density": 1.0, "density_model": 1.0, "epochs": 16, "score": 0.976, "loss": 0.08}
    report["curve"]["probes"].append(dense)
    phase = {
        "phase": "probe-dense",
        "epochs": 16,
        "samples": 14_400,
        "density": 1.0,
        "training_flops": 14_400 * 245_000,
    }
    report["ledger"]["phases"].append(phase)
    report["reference"] = {"score": 0.974, "kind": "densest", "epochs": 16}
    report["answer"]["allowed"] = 0.0138
    return report


def terminal(report: dict[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary(report, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_reports_round_is_that_of_the_rule() -> None:
    """Reports know nothing of the method, so the number stands in both."""
    assert wording.DENSE == types.DENSE


def test_tables_of_rounds_end_with_a_row_named_dense(brief: dict[str, Any]) -> None:
    headings, rows = story.rounds(brief)
    assert rows[-1] == ["dense", "100.00%", "100.00%", "", "", "", "97.6%", "16"]
    assert {len(row) for row in rows} == {len(headings)}
    assert [row[0] for row in rows[:-1]] == [str(row["round"]) for row in brief["curve"]["rough"]]
    lines = [line.split() for line in terminal(brief).splitlines()]
    assert ["dense", "100.00%", "100.00%", "97.6%", "16"] in lines
    last_round = next(k for k, line in enumerate(lines) if line[:1] == ["13"])
    assert lines[last_round + 1][0] == "dense"
    brief["curve"]["probes"].pop()
    assert story.rounds(brief)[1] == rows[:-1]
    assert "dense" not in terminal(brief).split("Rounds")[1]


def test_the_story_says_that_one_of_the_copies_was_dense(brief: dict[str, Any]) -> None:
    told = " ".join(story.paragraphs(brief))
    assert (
        "5 copies were taken along the way, at densities from 2.5% to 36.4%, and trained out to 16 epochs each; one "
        "more of the same length was dense. The answer is read from these."
    ) in told
    brief["curve"]["probes"] = brief["curve"]["probes"][-1:]
    assert "A dense copy was trained for 16 epochs. The answer" in " ".join(story.paragraphs(brief))


def test_the_reference_is_told_by_what_it_is(brief: dict[str, Any]) -> None:
    """And by both of its scores: the one that the goal is counted from is the curve's, the tables have the measured."""
    assert dict(wording.findings(brief))["reference"] == (
        "97.4% fitted, 97.6% measured: a dense copy, trained 16 epochs like the other copies (the network handed back: "
        "80)"
    )
    assert Picture.of(brief).reference[1] == "reference 97.4% (fitted)"  # type: ignore[index]
    brief["curve"]["probes"].pop()
    assert "measured: the densest network grown" in dict(wording.findings(brief))["reference"]
    brief["reference"] = {"score": 0.98, "kind": "given", "epochs": None}
    assert dict(wording.findings(brief))["reference"] == "98.0%: given by the user"
    assert Picture.of(brief).reference[1] == "reference 98.0%"  # type: ignore[index]


def test_the_headline_says_that_short_trainings_were_compared(brief: dict[str, Any]) -> None:
    percent = wording.percent(brief["answer"]["operating_density"])
    assert wording.headline(brief) == (
        f"{percent} of the switchable weights should keep the accuracy within 1 point of dense, "
        "judged by trainings of 16 epochs."
    )
    brief["answer"] |= {"status": "unreached", "operating_density": None, "interval": None}
    assert wording.headline(brief) == (
        "No density trained out, up to 36.4%, comes within 1 point of dense, judged by trainings of 16 epochs."
    ), "the dense copy was not grown"
    brief["network"]["epochs"] = 16
    assert wording.headline(brief).endswith("within 1 point of the reference."), "all were trained alike"


def test_a_headline_owns_up_to_trainings_that_were_too_short(brief: dict[str, Any]) -> None:
    """Told by scores: nothing trained out came within delta of where the growing network had been."""
    best, delta = max(row["score"] for row in brief["curve"]["probes"]), brief["answer"]["delta"]
    brief["curve"]["rough"][-1]["score"] = best + 0.9 * delta
    assert wording.headline(brief).endswith("judged by trainings of 16 epochs.")
    brief["curve"]["rough"][-1]["score"] = best + 1.1 * delta
    assert wording.headline(brief).endswith("judged by trainings of 16 epochs, too short to tell.")
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    console.print(summary(brief, 100))
    assert "\x1b[1;33m" in console.file.getvalue(), "yellow: no answer to rely on"  # type: ignore[attr-defined]
    brief["network"]["epochs"] = 16
    assert wording.headline(brief).endswith("of the reference, judged by trainings too short to tell.")


def test_legends_call_short_trainings_by_their_length(brief: dict[str, Any]) -> None:
    chart = curve_chart(brief, 78).plain.splitlines()
    assert "● trained 16 epochs" in chart[-3]
    assert chart[-2:] == [  # no entry is broken
        " ┄ goal: 1.38 points below (1 after full training)",
        " ▲ answer: two thirds of the fits reach the goal",
    ]
    assert all(len(line) <= 78 for line in chart)
    assert "</svg>trained 16 epochs</li>" in page(brief)
    brief["network"]["epochs"] = 16
    assert "● trained out" in curve_chart(brief, 78).plain
    assert "</svg>trained out</li>" in page(brief)


def test_where_the_answer_and_the_network_stand_is_said(brief: dict[str, Any]) -> None:
    brief["answer"]["rule"] = "probe"
    line = "The answer is where two thirds of the curves that the points allow have reached the goal, to be on the safe"
    assert wording.explanation(brief)[0].startswith(f"{line} side; the fitted curve, their middle, reaches it at ")
    assert line in page(brief)
    brief["reference"]["score"] += 0.5  # so that the fitted curve never gets there
    assert wording.explanation(brief)[0] == f"{line} side."
    brief["reference"]["score"] -= 0.5
    assert dict(wording.findings(brief))["network"].endswith(
        "; a grown one near the answer, sparser by a tenth at most"
    )
    brief["reference"]["kind"] = "dense"
    assert dict(wording.findings(brief))["network"].endswith(
        "; the sparsest grown one of at least the answer's density"
    )
    brief["config"]["answer"] = "gain"
    assert dict(wording.findings(brief))["network"].endswith("; chosen by the gain answer")
    brief["config"]["target_density"] = 0.1
    assert dict(wording.findings(brief))["network"].endswith(" epochs"), "nobody asked for an answer"
    assert not any("two thirds" in line for line in wording.explanation(brief))


def test_a_dense_reference_is_a_row_beside_the_rounds(sample_report: dict[str, Any]) -> None:
    sample_report["dense"] = {"val": {"score": 0.981, "loss": 0.1}, "test": None}
    sample_report["reference"] = {"score": 0.981, "kind": "dense", "epochs": 80}
    assert story.rounds(sample_report)[1][-1] == ["dense", "100.00%", "100.00%", "", "", "", "98.1%", "80"]
    assert ["dense", "100.00%", "100.00%", "98.1%", "80"] in [s.split() for s in terminal(sample_report).splitlines()]
    assert dict(wording.findings(sample_report))["accuracy"] == "96.8% validation, 96.5% test (dense: 98.1%)"
    sample_report["dense"]["test"] = {"score": 0.973, "loss": 0.2}
    assert dict(wording.findings(sample_report))["accuracy"].endswith("96.5% test (dense: 98.1%, 97.3% test)")
    assert story.rounds(sample_report)[1][-1][6] == "98.1%"


def test_its_price_stands_apart(brief: dict[str, Any]) -> None:
    kinds = {row[0]: row for row in story.cost_by_kind(brief)[1]}
    assert kinds["probe-dense"][1:6] == ["1", "16", "14,400", "3.53 G", "20.0%"]
    assert kinds["probe"][1] == "5"
    assert story.cost_by_phase(brief)[1][-1][:2] == ["probe-dense", "100.00%"]


def test_the_goal_is_drawn_where_the_answer_was_read(brief: dict[str, Any]) -> None:
    """And says what it stands for in the end; a report that says nothing of it is read as before."""
    assert threshold(brief) == pytest.approx(0.974 - 0.0138)
    assert "┄ goal: 1.38 points below (1 after full training)" in curve_chart(brief, 120).plain
    assert Picture.of(brief).goal[1] == "goal: 1.38 points below (1 after full training)"  # type: ignore[index]
    for same in ({"allowed": 0.01}, {}):
        brief["answer"].pop("allowed", None)
        brief["answer"] |= same
        assert threshold(brief) == pytest.approx(0.964)
        assert "┄ goal: 1 point below\n" in curve_chart(brief, 120).plain


def test_pictures_hold_it_at_full_density(brief: dict[str, Any]) -> None:
    frame = Frame.of(brief)
    assert frame.densities[1] > 1.0
    lines = curve_chart(brief, 78, 16).plain.splitlines()
    left = lines[17].index("└") + 1
    column = left + round(frame.x(1.0) * (78 - left - 1))
    assert lines[1 + round((1 - frame.y(0.976)) * 15)][column] == PROBE
    x, _, words = Picture.of(brief).probes[-1]
    assert x == max(mark[0] for mark in Picture.of(brief).probes)
    assert words == "dense copy: density 100%, accuracy 97.6%, 16 epochs"
    text = page(brief)
    assert "<title>trained out, dense copy: density 100%" in text
    assert re.search(r'<tr><th scope="row">dense</th>', text), "a row that is not marked as the chosen one"
    assert not re.search(r"round -1|>-1<", text)
    assert curve_png(brief).startswith(b"\x89PNG")


def test_progress_names_it() -> None:
    console = Console(file=io.StringIO(), width=100)
    lines = progress.LineProgress(console)
    lines.observed(types.DENSE, 1.0, 0.98, "probe-dense")
    assert "probe-dense: dense copy, density 100%, score 0.98" in console.file.getvalue()  # type: ignore[attr-defined]
    live = progress.LiveProgress(Console(file=io.StringIO(), force_terminal=True, width=100), 50)
    live.observed(types.DENSE, 1.0, 0.98)
    console.print(live.render())
    live.close()
    assert "observed  dense copy, density 100%" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_real_run_tells_of_it_in_every_file(tmp_path: Path) -> None:
    config = DiscoverConfig.from_dict(
        {"model_options": {"widths": [12]}, "threads": 1, "budget": 10, "start_density": 0.05, "delta": 0.05}
    )
    # An eighth of the budget, a step of 25% a round from 5% to all, five probes of three epochs, and the network.
    rounds = math.ceil(math.log(20) / math.log(1.25))
    assert expected_epochs(config, tmp_path / "run") == 1 + rounds + 5 * 3 + 10
    report = run_experiment(config, tmp_path / "run")
    assert [row["round"] for row in report["curve"]["probes"]][-1] == types.DENSE
    with (tmp_path / "run" / "curve.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["kind"], last["round"], last["density"], last["epochs"]) == ("probe", "-1", "1.0", "3")
    assert (tmp_path / "run" / "stages" / "probe-dense.json").exists()
    assert 'scope="row">dense</th>' in (tmp_path / "run" / "report.html").read_text()
    [row] = compare([tmp_path / "run"]).rows
    # The output layer is dense: 120 of 888 multiply-adds, and 768 switchable ones.
    assert row.inference_relative == pytest.approx((120 + report["network"]["num_on"]) / 888)
    assert row.training_relative == report["ledger"]["relative"]
