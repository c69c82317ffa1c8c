"""The report on a terminal: right words, marks in their places, readable at 80 columns without colour."""

import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report import wording
from pathgrow.report.chart import ANSWER, BAND, GOAL, PROBE, REFERENCE, curve_chart
from pathgrow.report.frame import Frame
from pathgrow.report.terminal import show, summary


def rendered(renderable, width=80, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(renderable)
    return console.file.getvalue()


def test_the_summary_says_everything_a_person_asks_for(sample_report):
    text = " ".join(rendered(summary(sample_report)).split())
    for wanted in (
        "8.48% of the switchable weights keep the accuracy within 1 point of the reference.",
        "6.71% to 10.4%",  # the interval
        "9.54% of the switchable weights",  # both densities of the network
        "13.1% of the whole model",
        "96.8% validation, 96.5% test",
        "the densest network grown",
        "10.5% (90% interval 8.1% to 13.9%)",  # the gain answer
        "0.90 times a dense training (15.9 GFLOP); 48 s of growing, training and scoring, 1 min 15 s from beginning to",
        "stricter wish than one point",  # the rule's own words
        ">7 9.54% 13.09% 24 95.4% 0.138 96.8% 80 8 11.92%",  # the round of the network handed back, with its copy
    ):
        assert wanted in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_none_is_coloured_without_one(sample_report, width):
    text = rendered(summary(sample_report, width), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\x1b[" in rendered(summary(sample_report, width), width, force_terminal=True, color_system="standard")


def test_marks_stand_where_the_numbers_say(sample_report):
    height, width = 16, 78
    lines = curve_chart(sample_report, width, height).plain.splitlines()
    body, axis = lines[1 : 1 + height], lines[1 + height]
    frame = Frame.of(sample_report)
    left = axis.index("└") + 1
    cells = width - left
    place = left + round(frame.x(0.0848) * (cells - 1))
    assert axis.index(ANSWER) == place
    interval = [left + round(frame.x(density) * (cells - 1)) for density in (0.0671, 0.1042)]
    assert [axis.index("╞"), axis.index("╡")] == interval
    for probe in sample_report["curve"]["probes"]:
        column = left + round(frame.x(probe["density"]) * (cells - 1))
        row = round((1 - frame.y(probe["score"])) * (height - 1))
        assert body[row][column] == PROBE
    reference = sample_report["reference"]["score"]
    for score, glyph in ((reference, REFERENCE), (reference - 0.01, GOAL)):
        row = round((1 - frame.y(score)) * (height - 1))
        assert [number for number, line in enumerate(body) if glyph in line] == [row]
    fit = sample_report["curve"]["fit"]
    columns = [frame.x(density) * (cells - 1) for density in fit["density"]]
    for column in range(math.ceil(columns[0]), math.floor(columns[-1]) + 1):
        low, high = (frame.y(np.interp(column, columns, fit[edge])) for edge in ("low", "high"))
        for row in range(height):
            is_inside = low <= 1 - row / (height - 1) <= high
            glyph = body[row][left + column]
            assert glyph != " " if is_inside else glyph != BAND  # other marks may cover it
    # The first rough point lies far below: it is drawn at the bottom, as such.
    assert body[-1][left + round(frame.x(0.02) * (cells - 1))] == "▾"


def test_axis_labels_stand_under_their_ticks(sample_report):
    sample_report["answer"] |= {"operating_density": None, "interval": None}  # they would cover ticks
    axis, labels = curve_chart(sample_report).plain.splitlines()[17:19]
    ticks = [column for column, glyph in enumerate(axis) if glyph == "┬"]
    places = {label.group(): label.start() + len(label.group()) // 2 for label in re.finditer(r"[0-9.]+%", labels)}
    assert list(places) == ["2%", "3%", "5%", "10%", "20%", "30%"]
    assert list(places.values()) == ticks


@pytest.mark.parametrize(
    ("status", "density", "words"),
    [
        ("flat", None, "Even 2.5%, the least density trained out, lies within 1 point of the reference on the curve."),
        ("unreached", None, "No density trained out, up to 36.4%, comes within 1 point of the reference."),
        ("open", None, "Too little was observed"),
    ],
)
def test_an_answer_that_is_no_number_is_said_in_words(sample_report, status, density, words):
    sample_report["answer"] |= {"status": status, "operating_density": density, "interval": None}
    assert words in " ".join(rendered(summary(sample_report)).split())
    assert ANSWER not in curve_chart(sample_report).plain


def test_an_interval_from_zero_reaches_the_edge_and_is_said_as_an_upper_end(sample_report):
    sample_report["answer"] |= {"status": "flat", "operating_density": None, "interval": [0.0, 0.02]}
    text = " ".join(rendered(summary(sample_report)).split())
    assert "90% interval up to 2% of the switchable weights" in text
    axis = curve_chart(sample_report).plain.splitlines()[17]
    assert "└╞═" in axis


def test_a_density_that_was_asked_for_is_the_headline(sample_report):
    sample_report["config"]["target_density"] = 0.0954
    assert wording.headline(sample_report) == (
        "The density asked for, 9.54% of the switchable weights, reaches a validation accuracy of 96.8%."
    )


def test_a_headline_claims_no_more_than_the_rule_knows(sample_report):
    assert wording.headline(sample_report).startswith("8.48% of the switchable weights keep the accuracy within")
    sample_report["curve"]["probes"] = []
    sample_report["answer"]["rule"] = "trajectory"
    assert wording.headline(sample_report).startswith("8.48% of the switchable weights should keep the accuracy within")
    sample_report["answer"]["rule"] = "exponential"
    assert wording.headline(sample_report) == (
        "8.48% of the switchable weights should be enough: there the fitted curve has made 95% of its rise."
    )
    sample_report["answer"]["gain_level"] = 0.8
    assert wording.headline(sample_report).endswith("80% of its rise.")
    assert "gain answer" not in dict(wording.findings(sample_report)), "it is the answer"
    sample_report["answer"]["rule"] = "probe"
    assert dict(wording.findings(sample_report))["gain answer"].endswith("80% of its rise")


def test_time_is_told_as_far_as_it_was_measured(sample_report):
    del sample_report["timing"]["run_seconds"]
    assert dict(wording.findings(sample_report))["price"].endswith(
        "(15.9 GFLOP); 48 s of growing, training and scoring"
    )
    del sample_report["timing"]
    assert dict(wording.findings(sample_report))["price"].endswith("(15.9 GFLOP)")


def test_words_stand_in_lines_under_the_headline_which_takes_the_place_of_the_first(sample_report):
    sample_report["answer"]["rule"] = "own"
    text = [line.rstrip() for line in rendered(summary(sample_report)).splitlines()]
    begin = text.index(" How the answer was found")
    told = text[begin + 1 : text.index("", begin)]
    assert [line for line in told if not line.startswith("   ")] == [
        " - Five copies were trained out for 80 epochs each; the curve through them",
        " - The gain answer is 1.2 times larger: it asks for 95% of the fitted gain,",
    ]
    assert "8.5% of the switchable weights are enough" not in " ".join(text)
    sample_report["answer"]["words"] = "All that a rule of one's own had to say."
    assert wording.explanation(sample_report) == ["All that a rule of one's own had to say."]
    sample_report["answer"]["words"] = ""
    assert "How the answer was found" not in rendered(summary(sample_report))


def test_scores_that_are_no_shares_are_plain_numbers(sample_report):
    for row in (*sample_report["curve"]["rough"], *sample_report["curve"]["probes"]):
        row["score"] -= 3
    sample_report["reference"]["score"] -= 3
    sample_report["config"] = {}
    assert "keep the score within 0.01 of the reference" in wording.headline(sample_report)
    assert "-2.03" in rendered(summary(sample_report))


def test_control_characters_and_markup_in_names_are_only_text(sample_report):
    sample_report["config"]["model"] = "\x1b[31mred[/][bold]mlp\x07"
    sample_report["answer"]["words"] = "[link=https://example.org]\x9b31m here[/link]"
    text = rendered(summary(sample_report))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\x9b" not in text
    assert "?[31mred[/][bold]mlp?" in text


def test_showing_an_unfinished_run_says_where_it_is(tmp_path):
    with RunDir.open(tmp_path / "run", {"data": "digits", "seed": 0}) as folder:
        folder.save("seed", {"round": 0, "density": 0.02, "score": 0.81})
        show(folder.path, one := Console(file=io.StringIO(), width=200))
        assert "1 stage finished;" in one.file.getvalue()
        folder.log("round-001", event="begin")
        folder.save("trunk-000", {"other": 1})
        console = Console(file=io.StringIO(), width=200)
        show(folder.path, console)
    show(folder.path, console)
    running, stopped = console.file.getvalue().split("an unfinished run", 2)[1:]
    assert "in stage round-001" in running
    assert "1 stage finished; being worked on by another process (pid" in running, "as many as are listed"
    assert "seed" in running
    assert "0.81" in running
    assert "not running; give its command again to resume it" in stopped


def test_an_unfinished_call_is_told_from_a_command(tmp_path):
    """There is no command to give again."""
    with RunDir.open(tmp_path / "store", {"budget": 4}) as folder:
        folder.save("seed", {"round": 0, "density": 0.02, "score": 0.81})
    show(folder.path, console := Console(file=io.StringIO(), width=200))
    text = console.file.getvalue()
    assert "an unfinished call of discover." in text
    assert "1 stage finished; not running; the same call goes on from there." in text
    assert "command" not in text
    assert "0.81" in text


def test_showing_what_is_no_run_is_a_sentence(tmp_path, sample_report):
    with pytest.raises(UserError, match="is no folder"):
        show(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no run"):
        show(tmp_path)
    with RunDir.open(tmp_path / "run", {}) as folder:
        for other in (0, 7):
            folder.write_report({**sample_report, "format": other})
            with pytest.raises(UserError, match=f"format {other}, wanted 1"):
                show(folder.path)
        folder.write_report({"format": 7})
        with pytest.raises(UserError, match=r"that wrote it$"):
            show(folder.path)
        folder.write_report({})
        with pytest.raises(UserError, match="names no format, so it is no report"):
            show(folder.path)
        del sample_report["answer"]["interval"]
        folder.write_report(sample_report)
        with pytest.raises(UserError, match=r"lacks 'answer\.interval'"):
            show(folder.path)


def test_showing_a_finished_run_prints_the_summary(tmp_path, sample_report):
    with RunDir.open(tmp_path / "run", {}) as folder:
        folder.write_report(sample_report)
    console = Console(file=io.StringIO(), width=80)
    show(folder.path, console)
    assert console.file.getvalue() == rendered(summary(sample_report))


densities = st.lists(st.floats(0.0005, 1.0), min_size=1, max_size=12)


@given(densities=densities, scores=st.lists(st.floats(-1e3, 1e3), min_size=12, max_size=12), delta=st.floats(1e-4, 1))
def test_a_frame_holds_every_probe_and_has_readable_ticks(densities, scores, delta):
    rows = [{"density": density, "score": score} for density, score in zip(densities, scores, strict=False)]
    answer = {"operating_density": None, "interval": None, "gain_density": None, "delta": delta}
    frame = Frame.of({"curve": {"rough": [], "probes": rows}, "answer": answer, "reference": None})
    assert all(0 < frame.x(row["density"]) < 1 and 0 < frame.y(row["score"]) < 1 for row in rows)
    for ticks, most in ((frame.density_ticks(), 7), (frame.score_ticks(), 7)):
        assert ticks == sorted(set(ticks))
        assert len(ticks) <= most
    assert all(math.isfinite(tick) and frame.scores[0] - 1e-6 <= tick <= frame.scores[1] + 1e-6
               for tick in frame.score_ticks())  # fmt: skip
    assert len(frame.score_ticks()) >= 2
    assert all(frame.densities[0] <= tick <= min(1.0, frame.densities[1]) for tick in frame.density_ticks())
