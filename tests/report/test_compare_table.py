"""A comparison as text: each number under its heading, the same numbers in every format."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pathgrow.errors import UserError
from pathgrow.report.compare import Baseline, Comparison, Row, compare_runs
from pathgrow.report.compare_table import render_comparison
from tests.support.finished_runs import finished

ROW = Row(
    method="rigl",
    subject="digits mlp",
    match="none",
    settings="",
    epochs=10,
    epochs_trained=13.0,
    density=0.1111,
    density_model=0.2222,
    val=0.9333,
    val_interval=(0.9323, 0.9343),
    test=0.8444,
    test_interval=(0.8414, 0.8474),
    training_flops=555.0,
    training_relative=0.5551,
    seconds=66.0,
    wall_relative=0.6662,
    hardware="cpu (1 thread)",
    inference_relative=0.7773,
    num_seeds=3,
    runs=("a", "b", "c"),
    baseline=Baseline(
        kind="trained", settings="", epochs=20.0, training_flops=1000.0, seconds=99.1, hardware="cpu (1 thread)",
        runs=("d",),
    ),
)  # fmt: skip


def markdown(*rows: Row) -> list[str]:
    return render_comparison(Comparison(rows, ()), "markdown").splitlines()


@pytest.mark.parametrize(("is_accuracy", "cells"), [(True, "93.33% ±0.10 | 84.44%"), (False, "0.9333 ±0.001 | 0.8444")])
def test_only_accuracies_are_percentages(is_accuracy: bool, cells: str) -> None:
    assert f"| {cells} |" in markdown(replace(ROW, is_accuracy=is_accuracy, test_interval=None))[4]


def test_each_number_is_under_its_heading() -> None:
    other = replace(
        ROW, method="set", val_interval=None, test=None, test_interval=None, training_relative=None, num_seeds=1,
        runs=("d",), epochs_trained=9.5, density=0.3333, density_model=0.4444,
    )  # fmt: skip
    assert markdown(ROW, other) == [
        "**digits mlp**",
        "",
        "| method | epochs | density | of model | val | test | train FLOPs | time | infer FLOPs | seeds |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| rigl | 13 | 11.1% | 22.2% | 93.33% ±0.10 | 84.44% ±0.30 | 0.555x | 0.666x | 0.777x | 3 |",
        "| set | 9.5 | 33.3% | 44.4% | 93.33% | - | 555 FLOPs | 0.666x | 0.777x | 1 |",
        "",
        "- 1x: dense, 20 epochs, 1.00 kFLOPs, 1 min 39 s on cpu (1 thread)",
        "- infer FLOPs: relative to the dense network",
        "- ±: half the 90% interval of the mean over seeds",
    ]


def test_lengths_are_in_the_unit_of_the_runs() -> None:
    assert ROW.baseline is not None
    steps = replace(ROW, unit="steps", baseline=replace(ROW.baseline, unit="steps"))
    more = replace(steps, epochs_trained=20.0, method="set")
    lines = markdown(steps, more)
    assert lines[2].startswith("| method | steps | val |")
    assert "- 1x: dense, 20 steps, 1.00 kFLOPs, " in "\n".join(lines)
    assert markdown(steps, replace(steps, method="set"))[0].startswith("**digits mlp: 13 steps, ")
    mixed = markdown(ROW, more)
    assert mixed[2].startswith("| method | length | val |")
    assert mixed[4].startswith("| rigl | 13 epochs |")
    assert mixed[5].startswith("| set | 20 steps |")
    assert markdown(ROW, steps)[2].startswith("| method | length | val |"), "equal numbers of different units"
    own = replace(ROW.baseline, kind="computed", epochs=4000.0, unit="steps", seconds=None, hardware=None, runs=())
    assert "- 1x: dense training of 4,000 steps, 1.00 kFLOPs (computed: no dense run)" in markdown(
        *(replace(row, baseline=own) for row in (ROW, more))
    )


def test_the_title_says_what_all_rows_share() -> None:
    rows = [replace(ROW, method=name, match="flops") for name in ("rigl", "set")]
    lines = markdown(*rows)
    assert lines[0] == (
        "**digits mlp: matched by flops, 13 epochs, 11.1% of the prunable weights, 22.2% of all parameters, "
        "3 seeds each**"
    )
    assert lines[2] == "| method | val | test | train FLOPs | time | infer FLOPs |"
    assert render_comparison(Comparison(tuple(rows), ()), "table", 200).splitlines()[0] == lines[0].strip("*")
    heading, _, *cells = markdown(ROW, replace(ROW, match="flops", settings="rate 0.3", epochs_trained=20.0))[2:]
    assert heading.startswith("| method | matched | settings | epochs | val |")
    assert cells[0].startswith("| rigl | none |  | 13 | 93.33% ±0.10 |")
    assert cells[1].startswith("| rigl | flops | rate 0.3 | 20 | 93.33% ±0.10 |")


def test_tables_have_a_legend_each() -> None:
    other = replace(ROW, subject="cifar10 mlp", baseline=None, training_relative=None, wall_relative=None)
    assert ROW.baseline is not None
    computed = replace(ROW.baseline, kind="computed", seconds=None, hardware=None, runs=())
    third = replace(ROW, subject="digits wrn", baseline=computed, wall_relative=None)
    mean = replace(ROW.baseline, settings="lr 0.1", runs=("d", "e"))
    for row, line in (
        (ROW, "- 1x: dense, 20 epochs, 1.00 kFLOPs, 1 min 39 s on cpu (1 thread)"),
        (replace(ROW, baseline=mean), "- 1x: dense (lr 0.1), 20 epochs, 1.00 kFLOPs, 1 min 39 s on cpu (1 thread), "
         "mean of 2 seeds"),
        (other, "- train FLOPs: absolute"),
        (third, "- 1x: dense training of 20 epochs, 1.00 kFLOPs (computed: no dense run)"),
        (third, "- time: absolute, no dense run"),
        (replace(ROW, mode="min"), "- val, test: lower is better"),
    ):  # fmt: skip
        assert line in markdown(row)
    text = render_comparison(Comparison((ROW, other, third), ()), "table")
    assert [text.count(subject) for subject in ("digits mlp\n", "cifar10 mlp\n", "digits wrn\n")] == [1, 1, 1]


def test_times_in_a_table_have_one_unit() -> None:
    elsewhere = replace(ROW, method="set", seconds=3.0, wall_relative=None, hardware="NVIDIA H200")
    text = "\n".join(markdown(ROW, elsewhere))
    assert "| 1 min 06 s |" in text
    assert "| 3.0 s |" in text
    assert "0.666x" not in text
    assert "- time: absolute, hardware differs or is unknown (cpu (1 thread), NVIDIA H200)" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_tables_fold_to_the_terminal(width: int) -> None:
    rows = (
        ROW,
        replace(ROW, method="gcg (discover)", epochs_trained=240.5, density=1.0, density_model=1.0),
        replace(ROW, method="random_growth", match="parameters", num_seeds=1, val_interval=None),
        replace(ROW, settings="every 50, rate 0.3, lr 0.05, recipe_name cifar-augmented, widths [64, 64]"),
    )
    text = render_comparison(Comparison(rows, ()), "table", width)
    assert max(map(len, text.splitlines())) <= width
    words = text.replace(",", "").replace(":", "").split()
    for expected in (
        "0.555x", "0.666x", "0.777x", "93.33%", "±0.10", "84.44%", "±0.30", "11.1%", "22.2%", "240.5", "13", "gcg",
        "random_growth", "parameters", "cifar-augmented",
    ):  # fmt: skip
        assert expected in words, "words are never broken"
    assert ("method" in words) == (width >= 120), "narrow terminals get a list"
    single = replace(ROW, method="gcg (discover)", val_interval=None, test_interval=None, num_seeds=1)
    line = "gcg (discover)      13    11.1%  22.2%  93.33%  84.44%"
    assert (line in render_comparison(Comparison((single,), ()), "table", width)) == (width > 80)


def test_all_formats_have_the_same_numbers(tmp_path: Path) -> None:
    paths = [finished(tmp_path / f"run{seed}", seed=seed, test=0.9 + seed / 100) for seed in range(2)]
    dense = finished(tmp_path / "dense", method="dense", flops=1000, seconds=4.0)
    other = finished(tmp_path / "other", method="a|b", match="flops", trained=13.5)
    comparison = compare_runs([*paths, other, dense, tmp_path / "nowhere"])
    values = json.loads(render_comparison(comparison, "json"))
    first = values["rows"][0]
    assert [row["method"] for row in values["rows"]] == ["rigl", "a|b", "dense"]
    assert first["test"] == pytest.approx(0.905)
    assert first["test_interval"] == list(comparison.rows[0].test_interval or ())
    assert first["runs"] == [str(path) for path in paths]
    assert first["baseline"] == {
        "kind": "trained", "settings": "", "epochs": 10, "unit": "epochs", "training_flops": 1000, "seconds": 4.0,
        "hardware": "cpu (1 thread)", "runs": [str(dense)],
    }  # fmt: skip
    assert len(values["notes"]) == 1
    cells = list(csv.DictReader(io.StringIO(render_comparison(comparison, "csv"))))
    assert float(cells[0]["test"]) == first["test"]
    assert float(cells[0]["test_interval_low"]) == first["test_interval"][0]
    assert (cells[1]["test_interval_low"], cells[1]["epochs"], cells[1]["epochs_trained"]) == ("", "10", "13.5")
    assert (cells[0]["baseline_kind"], cells[0]["baseline_runs"]) == ("trained", str(dense))
    assert float(cells[0]["training_flops"]) / float(cells[0]["baseline_training_flops"]) == float(
        cells[0]["training_relative"]
    )
    lines = [line for line in render_comparison(comparison, "markdown").splitlines() if line.startswith("|")]
    assert len(lines) == 5
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "| a\\|b | flops |" in lines[3]
    assert "90.50% ±3.16" in lines[2], "6.314 times 0.01 / 2"
    assert "90.50% ±3.16" in render_comparison(comparison, "table")
    with pytest.raises(UserError, match="csv"):
        render_comparison(comparison, "cvs")
