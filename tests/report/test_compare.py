"""`pathgrow compare`: groups, intervals against tables of Student's t, relative costs, folders that cannot be used."""

from __future__ import annotations

import csv
import io
import json
import statistics
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import pathgrow
from pathgrow.errors import UserError
from pathgrow.report.comparison import compare
from pathgrow.report.comparison_text import write
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.runs.run_discovery import run as run_experiment
from pathgrow.runs.training import train
from tests.support.command import leave
from tests.support.finished_runs import finished

T_95 = {1: 6.3138, 2: 2.9200, 3: 2.3534}
"""95% quantiles of Student's t by degrees of freedom, from a printed table."""


def heading(markdown: str) -> str:
    return next(line for line in markdown.splitlines() if line.startswith("|"))


def test_seeds_become_one_row_with_an_interval_of_their_mean(tmp_path: Path) -> None:
    tests = [0.91, 0.93, 0.95]
    folders = [finished(tmp_path / f"run{seed}", seed=seed, test=test) for seed, test in enumerate(tests)]
    (row,) = compare(folders).rows
    assert row.num_seeds == 3
    assert row.test == pytest.approx(0.93)
    margin = T_95[2] * 0.02 / 3**0.5
    assert row.test_interval == pytest.approx((0.93 - margin, 0.93 + margin), abs=1e-6)
    assert row.val_interval == (0.9, 0.9)


@pytest.mark.parametrize("num", [2, 4])
def test_the_interval_is_as_wide_as_its_table_says(num: int, tmp_path: Path) -> None:
    scores = [0.9, 0.94, 0.91, 0.97][:num]
    folders = [finished(tmp_path / f"run{seed}", seed=seed, val=score) for seed, score in enumerate(scores)]
    interval = compare(folders).rows[0].val_interval
    assert interval is not None
    wanted = 2 * T_95[num - 1] * statistics.stdev(scores) / num**0.5
    assert interval[1] - interval[0] == pytest.approx(wanted, rel=1e-4)
    assert compare(folders[:1]).rows[0].val_interval is None


def test_what_makes_another_run_and_what_does_not(tmp_path: Path) -> None:
    same = [
        finished(tmp_path / "a", seed=0),
        finished(tmp_path / "b", seed=1, data_root="/elsewhere", device_name="NVIDIA H200"),
    ]
    others = [
        finished(tmp_path / "c", seed=2, density=0.3),
        finished(tmp_path / "d", seed=2, method="set"),
        finished(tmp_path / "e", seed=2, epochs=20),
        finished(tmp_path / "f", seed=2, match="flops"),
    ]
    assert [row.num_seeds for row in compare([*same, *others]).rows] == [2, 1, 1, 1, 1]


def test_rows_that_look_alike_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    one = finished(tmp_path / "one", method_options={"every": 5, "rate": 0.3})
    other = finished(tmp_path / "other", method_options={"every": 9, "rate": 0.3})
    alone, denser = finished(tmp_path / "alone", method="set"), finished(tmp_path / "denser", density=0.3)
    found = compare([one, other, alone])
    assert [row.settings for row in found.rows] == ["every 5", "every 9", ""]
    assert "every 9" in write(found, "table")
    assert "settings" in heading(write(found, "markdown"))
    assert "settings" not in write(compare([one, alone]), "markdown"), "nothing to tell apart"
    assert "settings" not in write(compare([alone, denser]), "markdown"), "the density has a column of its own"


def test_scope_and_recipe_are_told_of_different_methods_too(tmp_path: Path) -> None:
    """Densities are shares of the scope, and accuracies belong to a recipe, whatever the method."""
    folders = [
        finished(tmp_path / "rigl", scope="all", method_options={"every": 5}),
        finished(tmp_path / "set", method="set", method_options={"every": 9}),
        finished(tmp_path / "snip", method="snip", recipe={"lr": 0.3}),
        finished(tmp_path / "dense", method="dense", recipe_name="other", recipe={"lr": 7, "momentum": 0.5}),
    ]
    assert [row.settings for row in compare(folders).rows] == [
        "lr 0.1, scope all",
        "lr 0.1",
        "lr 0.3",
        "recipe_name other",
    ]
    found = compare(folders)
    assert {row.usual for row in found.rows} == {"recipe_name digits, scope auto"}, "what most of them have"
    assert "recipe_name digits, scope auto unless said otherwise" in write(found, "markdown")
    found = compare(folders[1:3])
    assert [row.settings for row in found.rows] == ["lr 0.1", "lr 0.3"]
    assert {row.usual for row in found.rows} == {""}, "half of them are not most"
    found = compare([*folders[1:3], finished(tmp_path / "gmp", method="gmp", recipe={"lr": 0.3})])
    assert [row.settings for row in found.rows] == ["lr 0.1", "", ""]
    assert found.rows[0].usual == "lr 0.3"


def test_runs_matched_each_to_its_own_seed_are_one_row(tmp_path: Path) -> None:
    folders = [
        finished(
            tmp_path / f"{like}{seed}",
            seed=seed,
            match="flops",
            match_run=f"gcg{seed}",
            match_budget=1e9 + seed,
            match_like=like,
        )
        for like in ("abc", "def")
        for seed in range(2)
    ]
    assert [row.num_seeds for row in compare(folders).rows] == [2, 2]


def test_a_run_that_has_not_spent_its_budget_is_named(tmp_path: Path) -> None:
    folders = [
        finished(tmp_path / str(seed), seed=seed, match="flops", off=off)
        for seed, off in enumerate((None, 0.0, 0.0099, -0.0099, 0.031, -0.02))
    ]
    found = compare(folders)
    assert found.rows[0].num_seeds == 6
    assert len(found.notes) == 2
    assert found.notes[0].startswith(f"{folders[4]} has spent 3.1% more than the budget of FLOPs")
    assert found.notes[1].startswith(f"{folders[5]} has spent 2.0% less")
    other = finished(tmp_path / "other", match="switchable", off=0.02)
    assert "than the budget of epochs times switchable weights that it was to match" in compare([other]).notes[0]


def test_folders_that_cannot_be_used_are_named_and_do_not_stop_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = finished(tmp_path / "good")
    unfinished = finished(tmp_path / "unfinished")
    (unfinished / "report.json").unlink()
    damaged = finished(tmp_path / "damaged")
    (damaged / "report.json").write_text("{")
    poor = finished(tmp_path / "poor")
    (poor / "report.json").write_text('{"format": 1, "config": {}}')
    odd = finished(tmp_path / "odd")
    (odd / "report.json").write_text('{"format": 1, "config": 3, "network": 1, "ledger": 2}')
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    twin = finished(tmp_path / "twin")
    bad = [unfinished, damaged, poor, odd, foreign, tmp_path / "nowhere", twin]
    assert leave("compare", *map(str, [bad[0], good, *bad[1:]])) == 0
    told = capsys.readouterr()
    assert "90.00%" in told.out
    notes = told.err.splitlines()
    assert len(notes) == len(bad)
    for note, folder in zip(notes, bad, strict=True):
        assert note.startswith(f"pathgrow: {folder} is left out: ")
    assert "not finished (0 stages so far)" in notes[0]
    assert "repeats seed 0" in notes[-1]
    with pytest.raises(UserError, match="none of 2 folders holds a finished run"):
        compare([foreign, unfinished])


def test_the_same_numbers_in_every_format(tmp_path: Path) -> None:
    folders = [finished(tmp_path / f"run{seed}", seed=seed, test=0.9 + seed / 100) for seed in range(2)]
    found = compare([*folders, finished(tmp_path / "other", method="a|b", match="flops"), tmp_path / "nowhere"])
    told = json.loads(write(found, "json"))
    assert [row["method"] for row in told["rows"]] == ["rigl", "a|b"]
    assert told["rows"][0]["test"] == pytest.approx(0.905)
    assert told["rows"][0]["test_interval"] == list(found.rows[0].test_interval or ())
    assert told["rows"][0]["runs"] == [str(folder) for folder in folders]
    assert len(told["notes"]) == 1
    table = list(csv.DictReader(io.StringIO(write(found, "csv"))))
    assert float(table[0]["test"]) == told["rows"][0]["test"]
    assert float(table[0]["test_interval_low"]) == told["rows"][0]["test_interval"][0]
    assert (table[1]["test_interval_low"], table[1]["wall_relative"]) == ("", "")
    markdown = write(found, "markdown").splitlines()
    rows = [line for line in markdown if line.startswith("|")]
    assert len(rows) == 4
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "| a\\|b | flops |" in rows[3]
    assert "90.50% ±3.16" in rows[2], "6.314 times 0.01 / 2"
    text = write(found, "table")
    assert "digits mlp" in text
    assert "90.50% ±3.16" in text
    with pytest.raises(UserError, match="did you mean csv"):
        write(found, "cvs")


def test_a_discovery_stands_beside_a_training(tmp_path: Path) -> None:
    small = {"model_options": {"widths": [12]}, "threads": 1}
    run_experiment(
        DiscoverConfig.from_dict({**small, "budget": 4, "start_density": 0.2, "target_density": 0.3}),
        tmp_path / "found",
    )
    train(TrainConfig.from_dict({**small, "method": "dense", "epochs": 4}), tmp_path / "dense")
    found, dense = compare([tmp_path / "found", tmp_path / "dense"]).rows
    assert found.method == "gcg (discover)"
    assert dense.inference_relative == 1.0
    # The output layer is dense: 120 of 888 multiply-adds, and 768 switchable ones.
    assert found.inference_relative == pytest.approx((120 + round(0.3 * 768)) / 888)
    report = json.loads((tmp_path / "found" / "report.json").read_text())
    assert found.training_relative == pytest.approx(report["ledger"]["relative"])
    assert found.wall_relative is not None


def test_calls_of_discover_on_other_networks_are_other_tasks(tmp_path: Path) -> None:
    """They know no names of data and models; seeds of one network are seeds all the same."""
    folders = []
    for seed, width in ((0, 8), (1, 8), (1, 20)):
        model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

        def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
            for _ in range(epochs):
                model(torch.zeros(3, 4)).sum().backward()
                optimizer.step()

        folders.append(tmp_path / f"{width}-{seed}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it learns nothing
            pathgrow.discover(
                model, optimizer, fit, lambda model: 0.5, torch.zeros(1, 4), seed=seed, budget=2,
                start_density=0.5, target_density=0.6, store=folders[-1],
            )  # fmt: skip
    rows = compare(folders).rows
    assert [row.num_seeds for row in rows] == [2, 1]
    # Samples are 3 an epoch, multiply-adds 4w + ww + 2w, of which those of the output cannot be switched.
    assert [row.reference.training_flops for row in rows if row.reference] == [2 * 3 * 6 * n for n in (112, 520)]
    assert rows[0].subject == f"a call of discover, dense_flops {2 * 3 * 6 * 112}, weights 96"
