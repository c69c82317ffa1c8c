"""The columns of a comparison: every number under its own heading, by rows in which no two are alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pathgrow.report.comparison import Comparison, Row, compare
from pathgrow.report.comparison_text import write
from pathgrow.runs import RunFolder

ROW = Row(
    method="rigl",
    subject="digits mlp",
    match="none",
    settings="",
    epochs=10,
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
    inference_relative=0.7773,
    num_seeds=3,
    runs=("a", "b", "c"),
)


def test_every_number_stands_under_its_heading() -> None:
    single = dataclasses.replace(
        ROW, method="set", val_interval=None, test=None, test_interval=None, training_relative=None, wall_relative=None,
        inference_relative=None, num_seeds=1, runs=("d",),
    )  # fmt: skip
    lines = write(Comparison((ROW, single), ()), "markdown").splitlines()
    assert lines == [
        "| method | density | of model | val | test | train FLOPs | time | infer FLOPs | seeds |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| rigl | 11.11% | 22.22% | 93.33% ±0.10 | 84.44% ±0.30 | 0.555x | 0.666x | 0.777x | 3 |",
        "| set | 11.11% | 22.22% | 93.33% | - | - | 1 min 06 s | - | 1 |",
    ]


def test_what_differs_between_rows_gets_a_column() -> None:
    other = dataclasses.replace(ROW, subject="cifar10 mlp", match="flops", settings="rate 0.3", epochs=20)
    heading, _, *lines = write(Comparison((ROW, other), ()), "markdown").splitlines()
    assert heading.startswith("| method | runs on | matched | settings | epochs | density |")
    assert lines[0].startswith("| rigl | digits mlp | none |  | 10 | 11.11% |")
    assert lines[1].startswith("| rigl | cifar10 mlp | flops | rate 0.3 | 20 | 11.11% |")


def test_a_table_without_seeds_and_settings_fits_an_ordinary_terminal() -> None:
    single = dataclasses.replace(ROW, method="gcg (discover)", val_interval=None, test_interval=None, num_seeds=1)
    lines = write(Comparison((single,), ()), "table").splitlines()
    assert max(map(len, lines)) <= 80
    assert "11.11%  22.22%  93.33%  84.44%  0.555x  0.666x  0.777x      1" in lines[-1]


def test_settings_are_told_under_each_other_and_whole() -> None:
    others = [dataclasses.replace(ROW, settings=f"every {n}, rate 0.3, lr 0.05, widths [64, 64]") for n in (50, 100)]
    text = write(Comparison(tuple(others), ()), "table")
    for wanted in ("every 50, rate 0.3,", "every 100, rate 0.3,", "lr 0.05, widths [64, 64]"):
        assert wanted in text
    assert max(map(len, text.splitlines())) < 120


def test_names_of_settings_are_short_unless_they_end_alike(tmp_path: Path) -> None:
    folders = []
    for number, (one, other) in enumerate([(1, 1), (2, 1), (1, 2)]):
        config = {
            "data": "digits", "model": "mlp", "method": "set", "match": "none", "epochs": 10, "seed": 0,
            "recipe": {"rate": one, "lr": number}, "method_options": {"rate": other},
        }  # fmt: skip
        score = {"score": 0.5}
        network = {"density": 0.1, "density_model": 0.2, "val": score, "test": score}
        with RunFolder.open(tmp_path / str(number), config) as folder:
            folder.write_report(
                {
                    "format": 1,
                    "kind": "train",
                    "config": config,
                    "network": network,
                    "flops": {"inference_relative": 0.5},
                    "ledger": {"training_flops": 5, "relative": 0.5},
                    "timing": {"seconds": 1.0},
                }
            )
        folders.append(folder.path)
    assert [row.settings for row in compare(folders).rows] == [
        "method_options.rate 1, lr 0, recipe.rate 1",
        "method_options.rate 1, lr 1, recipe.rate 2",
        "method_options.rate 2, lr 2, recipe.rate 1",
    ]


def test_a_mean_is_over_all_seeds_or_there_is_none(tmp_path: Path) -> None:
    """A run that was never tested must not vanish from a mean that says three seeds."""
    for seed, test in enumerate((0.8, None, 0.9)):
        config = {"data": "digits", "model": "mlp", "method": "set", "match": "none", "epochs": 10, "seed": seed}
        network = {"density": 0.1, "density_model": 0.2, "val": {"score": 0.7 + 0.1 * seed}}
        with RunFolder.open(tmp_path / str(seed), config) as folder:
            folder.write_report(
                {
                    "format": 1,
                    "kind": "train",
                    "config": config,
                    "network": {**network, "test": None if test is None else {"score": test}},
                    "flops": {"inference_relative": 0.5},
                    "ledger": {"training_flops": 3, "relative": 0.3, "phases": []},
                    "timing": {"seconds": 1.0},
                }
            )
    (row,) = compare(sorted(tmp_path.iterdir())).rows
    assert (row.num_seeds, row.test, row.test_interval) == (3, None, None)
    assert row.val == pytest.approx(0.8)
    (row,) = compare([tmp_path / "0", tmp_path / "2"]).rows
    assert row.test == pytest.approx(0.85)
