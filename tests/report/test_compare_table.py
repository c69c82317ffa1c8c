"""The columns of a comparison: every number under its own heading, by rows in which no two are alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pathgrow.report.comparison import Comparison, Reference, Row, compare
from pathgrow.report.comparison_text import write
from tests.support.finished_runs import finished

ROW = Row(
    method="rigl",
    subject="digits mlp",
    match="none",
    settings="",
    usual="",
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
    reference=Reference(
        kind="trained", settings="", epochs=20.0, training_flops=1000.0, seconds=99.1, hardware="cpu (1 thread)",
        runs=("d",),
    ),
)  # fmt: skip


def test_every_number_stands_under_its_heading() -> None:
    other = dataclasses.replace(
        ROW, method="set", val_interval=None, test=None, test_interval=None, training_relative=None,
        inference_relative=None, num_seeds=1, runs=("d",), epochs_trained=9.5, density=0.3333, density_model=0.4444,
    )  # fmt: skip
    assert write(Comparison((ROW, other), ()), "markdown").splitlines() == [
        "**digits mlp**",
        "",
        "| method | epochs | density | of model | val | test | train FLOPs | time | infer FLOPs | seeds |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| rigl | 13 | 11.11% | 22.22% | 93.33% ±0.10 | 84.44% ±0.30 | 0.555x | 0.666x | 0.777x | 3 |",
        "| set | 9.5 | 33.33% | 44.44% | 93.33% | - | 555 | 0.666x | - | 1 |",
        "",
        "- 1x: dense, 20 epochs, 1.00 k training FLOPs, 1 min 39 s on cpu (1 thread)",
        "- infer FLOPs are relative to the dense network",
        "- ±: half of a 90% interval of the mean over seeds",
    ]


def test_what_all_rows_share_stands_in_the_title_and_what_differs_in_columns() -> None:
    both = Comparison(tuple(dataclasses.replace(ROW, method=name, match="flops") for name in ("rigl", "set")), ())
    markdown = write(both, "markdown").splitlines()
    assert markdown[0] == (
        "**digits mlp: all matched by flops, 13 epochs each, 11.11% of the switchable weights, 22.22% of the model, "
        "3 seeds each**"
    )
    assert markdown[2] == "| method | val | test | train FLOPs | time | infer FLOPs |"
    assert write(both, "table", 200).splitlines()[0].strip() == markdown[0].strip("*")
    other = dataclasses.replace(ROW, match="flops", settings="rate 0.3", epochs_trained=20.0)
    heading, _, *lines = write(Comparison((ROW, other), ()), "markdown").splitlines()[2:]
    assert heading.startswith("| method | matched | settings | epochs | val |")
    assert lines[0].startswith("| rigl | none |  | 13 | 93.33% ±0.10 |")
    assert lines[1].startswith("| rigl | flops | rate 0.3 | 20 | 93.33% ±0.10 |")


def test_other_data_or_models_have_a_table_of_their_own() -> None:
    other = dataclasses.replace(ROW, subject="cifar10 mlp", reference=None, training_relative=None)
    text = write(Comparison((ROW, other), ()), "table")
    first, second = text.split("\n\n digits mlp")[0], text[text.index(" cifar10 mlp") :]
    assert "1x: dense, 20 epochs" in first
    assert "1x" not in second
    assert "train FLOPs are as counted: no run tells what training dense would take" in second


def test_times_of_a_table_have_one_unit() -> None:
    elsewhere = dataclasses.replace(ROW, method="set", seconds=3.0, wall_relative=None, hardware="NVIDIA H200")
    text = write(Comparison((ROW, elsewhere), ()), "markdown")
    assert "| 1 min 06 s |" in text
    assert "| 3.0 s |" in text
    assert "0.666x" not in text
    assert "- time as measured: not all runs are known to be of the same hardware (cpu (1 thread), NVIDIA H200)" in text


MIXED = (
    ROW,
    dataclasses.replace(ROW, method="gcg (discover)", epochs_trained=240.5, density=1.0, density_model=1.0),
    dataclasses.replace(ROW, method="random_growth", match="parameters", num_seeds=1, val_interval=None),
    dataclasses.replace(ROW, settings="every 50, rate 0.3, lr 0.05, recipe_name cifar-augmented, widths [64, 64]"),
)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_tables_fit_the_terminal(width: int) -> None:
    text = write(Comparison(MIXED, ()), "table", width)
    assert max(map(len, text.splitlines())) <= width
    shown = [
        "0.555x", "0.666x", "0.777x", "93.33%", "±0.10", "84.44%", "±0.30", "11.11%", "22.22%", "240.5", "13",
        "gcg (discover)", "random_growth", "parameters", "every 50", "rate 0.3", "lr 0.05",
        "recipe_name", "cifar-augmented", "widths [64, 64]", "1x: dense, 20 epochs, 1.00 k training FLOPs",
        "3 seeds" if width < 200 else "seeds",
    ]  # fmt: skip
    for each in shown:
        assert each in " ".join(text.split()), "nothing is cut"
    single = dataclasses.replace(ROW, method="gcg (discover)", val_interval=None, test_interval=None, num_seeds=1)
    lines = write(Comparison((single,), ()), "table", width).splitlines()
    assert ("11.11%  22.22%  93.33%  84.44%  0.555x  0.666x  0.777x      1" in "\n".join(lines)) == (width > 80)


def test_settings_are_told_under_each_other_and_whole() -> None:
    others = [dataclasses.replace(ROW, settings=f"every {n}, rate 0.3, lr 0.05, widths [64, 64]") for n in (50, 100)]
    text = write(Comparison(tuple(others), ()), "table", 150)
    for wanted in ("every 50, rate 0.3,", "every 100, rate 0.3,", "lr 0.05, widths [64, 64]"):
        assert wanted in text
    assert max(map(len, text.splitlines())) < 120


def test_names_of_settings_are_short_unless_they_end_alike(tmp_path: Path) -> None:
    folders = [
        finished(tmp_path / str(lr), recipe={"rate": one, "lr": lr}, method_options={"rate": other})
        for lr, (one, other) in enumerate([(1, 1), (2, 1), (1, 2)])
    ]
    assert [row.settings for row in compare(folders).rows] == [
        "method_options.rate 1, lr 0",
        "method_options.rate 1, lr 1, recipe.rate 2",
        "method_options.rate 2, lr 2",
    ]
    assert compare(folders).rows[0].usual == "recipe.rate 1"


def test_a_mean_is_over_all_seeds_or_there_is_none(tmp_path: Path) -> None:
    """A run that was never tested must not vanish from a mean that says three seeds."""
    for seed, test in enumerate((0.8, None, 0.9)):
        finished(tmp_path / str(seed), seed=seed, test=test, val=0.7 + 0.1 * seed)
    (row,) = compare(sorted(tmp_path.iterdir())).rows
    assert (row.num_seeds, row.test, row.test_interval) == (3, None, None)
    assert row.val == pytest.approx(0.8)
    (row,) = compare([tmp_path / "0", tmp_path / "2"]).rows
    assert row.test == pytest.approx(0.85)
