"""`pathgrow compare`: groups, intervals against tables of Student's t, relative costs, folders that cannot be used."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from pathgrow.errors import UserError
from pathgrow.experiment import Experiment
from pathgrow.experiment import run as run_experiment
from pathgrow.report.comparison import compare
from pathgrow.report.comparison_text import write
from pathgrow.training import TrainRun, train
from tests.command import leave

T_95 = {1: 6.3138, 2: 2.9200, 3: 2.3534}
"""95% quantiles of Student's t by degrees of freedom, from a printed table."""


def finished(
    folder: Path, *, method: str = "rigl", seed: int = 0, val: float = 0.9, test: float = 0.88, **other: Any
) -> Path:
    """A run folder with a report of the kind that a training writes."""
    config = {
        "data": "digits",
        "data_root": other.get("data_root"),
        "fold": 0,
        "model": "mlp",
        "model_options": {"widths": [8]},
        "recipe": {"lr": 0.1},
        "engine": {"device": other.get("device", "cpu")},
        "threads": 1,
        "ranks": 1,
        "seed": seed,
        "method": method,
        "density": other.get("density", 0.2),
        "epochs": other.get("epochs", 10),
        "match": other.get("match", "none"),
        "match_run": other.get("match_run"),
        "match_budget": other.get("match_budget"),
        "match_like": other.get("match_like"),
    }
    flops = other.get("flops", 250)
    told = {
        "format": 1,
        "kind": "train",
        "config": config,
        "network": {
            "density": other.get("density", 0.2),
            "density_model": 0.21,
            "val": {"score": val, "loss": 0.3},
            "test": {"score": test, "loss": 0.3},
        },
        "flops": {"inference_relative": 0.2},
        "ledger": {
            "training_flops": flops,
            "relative": other.get("relative", flops / 1000),
            "phases": [],
            "match": {"kind": other.get("match", "none"), "off": other.get("off")},
        },
        "timing": {"seconds": other.get("seconds", 5.0)},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "report.json").write_text(json.dumps(told))
    return folder


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
        finished(tmp_path / "b", seed=1, data_root="/elsewhere", device="cuda"),
    ]
    others = [
        finished(tmp_path / "c", seed=2, density=0.3),
        finished(tmp_path / "d", seed=2, method="set"),
        finished(tmp_path / "e", seed=2, epochs=20),
        finished(tmp_path / "f", seed=2, match="flops"),
    ]
    assert [row.num_seeds for row in compare([*same, *others]).rows] == [2, 1, 1, 1, 1]


def test_rows_that_look_alike_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    names = ("plain", "other", "set", "denser")
    one, other, alone, denser = (finished(tmp_path / name, method="set" if name == "set" else "rigl") for name in names)
    for folder, changed in ((other, {"recipe": {"lr": 0.3}, "reference": "dense"}), (denser, {"density": 0.3})):
        report = json.loads((folder / "report.json").read_text())
        report["config"] |= changed
        (folder / "report.json").write_text(json.dumps(report))
    found = compare([one, other, alone])
    assert [row.settings for row in found.rows] == [
        "lr 0.1, reference none",
        "lr 0.3, reference dense",
        "",
    ]
    assert "lr 0.3, reference dense" in write(found, "table")
    assert "settings" in write(found, "markdown").splitlines()[0]
    assert "settings" not in write(compare([one, alone]), "markdown"), "nothing to tell apart"
    assert "settings" not in write(compare([one, denser]), "markdown"), "the density has a column of its own"


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


def test_trainings_of_different_lengths_are_told_apart(tmp_path: Path) -> None:
    one, other = finished(tmp_path / "long", epochs=80), finished(tmp_path / "short", epochs=10)
    rows = list(csv.DictReader(io.StringIO(write(compare([one, other]), "csv"))))
    assert [row["epochs"] for row in rows] == ["80", "10"]
    assert "epochs" in write(compare([one, other]), "markdown")
    assert "epochs" not in write(compare([one]), "markdown"), "said only where it differs"


def test_costs_are_relative_to_the_dense_runs_of_the_same_task(tmp_path: Path) -> None:
    dense = [
        finished(tmp_path / f"dense{seed}", method="dense", seed=seed, flops=flops, relative=1.0, seconds=seconds)
        for seed, (flops, seconds) in enumerate([(1900, 8.0), (2100, 12.0)])
    ]
    sparse = finished(tmp_path / "sparse", flops=500, seconds=5.0)
    elsewhere = finished(tmp_path / "longer", flops=500, epochs=20)
    bought = finished(tmp_path / "bought", method="dense", match="flops", flops=4000, relative=2.0, seconds=30.0)
    rows = {row.runs[0]: row for row in compare([bought, *dense, sparse, elsewhere]).rows}
    assert rows[str(sparse)].training_relative == pytest.approx(0.25)
    assert rows[str(sparse)].wall_relative == pytest.approx(0.5)
    assert rows[str(dense[0])].training_relative == pytest.approx(1.0)
    assert rows[str(bought)].training_relative == pytest.approx(2.0), "no reference: a budget made it longer"
    assert rows[str(bought)].wall_relative == pytest.approx(3.0)
    assert rows[str(elsewhere)].training_relative == pytest.approx(0.5), "its own ledger's figure"
    assert rows[str(elsewhere)].wall_relative is None


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
        assert str(folder) in note
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
    assert len(markdown) == 4
    assert len({line.replace("\\|", "").count("|") for line in markdown}) == 1
    assert "| a\\|b | flops |" in markdown[3]
    assert "90.50% ±3.16" in markdown[2], "6.314 times 0.01 / 2"
    text = write(found, "table")
    assert "digits mlp" in text
    assert "90.50% ±3.16" in text
    with pytest.raises(UserError, match="did you mean csv"):
        write(found, "cvs")


def test_a_discovery_stands_beside_a_training(tmp_path: Path) -> None:
    small = {"model_options": {"widths": [12]}, "threads": 1}
    run_experiment(
        Experiment.from_dict({**small, "budget": 4, "start_density": 0.2, "target_density": 0.3}), tmp_path / "found"
    )
    train(TrainRun.from_dict({**small, "method": "dense", "epochs": 4}), tmp_path / "dense")
    found, dense = compare([tmp_path / "found", tmp_path / "dense"]).rows
    assert found.method == "gcg (discover)"
    assert dense.inference_relative == 1.0
    # The output layer is dense: 120 of 888 multiply-adds, and 768 switchable ones.
    assert found.inference_relative == pytest.approx((120 + round(0.3 * 768)) / 888)
    report = json.loads((tmp_path / "found" / "report.json").read_text())
    assert found.training_relative == pytest.approx(report["ledger"]["relative"])
    assert found.wall_relative is not None
