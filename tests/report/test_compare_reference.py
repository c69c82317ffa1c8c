"""What costs in a comparison are relative to: one training in each table, which is named."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pathgrow.report.comparison import Comparison, Row, compare
from pathgrow.report.comparison_text import write
from tests.support.finished_runs import finished


def by_folder(found: Comparison) -> dict[str, Row]:
    return {Path(row.runs[0]).name: row for row in found.rows}


def test_all_runs_of_a_task_are_relative_to_the_same_dense_training(tmp_path: Path) -> None:
    """Two seeds of 10 epochs; the shorter ones and those that a budget stretched have no 1x of their own."""
    folders = [
        finished(tmp_path / "bought", method="dense", match="flops", trained=40, flops=4000, seconds=30.0),
        finished(tmp_path / "brief", method="dense", epochs=5, flops=500, seconds=2.0),
        finished(tmp_path / "dense", method="dense", flops=1900, seconds=8.0),
        finished(tmp_path / "dense1", method="dense", seed=1, flops=2100, seconds=12.0),
        finished(tmp_path / "sparse", flops=500, seconds=5.0),
        finished(tmp_path / "stretched", match="flops", epochs=80, trained=121, flops=1998, seconds=15.0),
        finished(tmp_path / "short", epochs=5, flops=50),
    ]
    found = compare(folders)
    rows = by_folder(found)
    relative = {name: row.training_relative for name, row in rows.items()}
    assert relative == pytest.approx(
        {"bought": 2.0, "brief": 0.25, "dense": 1.0, "sparse": 0.25, "stretched": 0.999, "short": 0.025}
    )
    assert rows["sparse"].wall_relative == pytest.approx(0.5)
    assert rows["bought"].wall_relative == pytest.approx(3.0)
    for row in rows.values():
        reference = row.reference
        assert reference is not None
        assert (reference.kind, reference.epochs, reference.training_flops, reference.seconds) == (
            "trained",
            10,
            2000,
            10,
        )
        assert reference.runs == (str(tmp_path / "dense"), str(tmp_path / "dense1"))
    line = "1x: dense, 10 epochs, 2.00 k training FLOPs, 10 s on cpu (1 thread), mean of 2 seeds"
    assert line in write(found, "table")
    assert f"- {line}\n" in write(found, "markdown")
    reversed_order = by_folder(compare(folders[::-1]))
    assert reversed_order["sparse"].training_relative == rows["sparse"].training_relative


def test_sparse_runs_do_not_change_what_the_reference_is(tmp_path: Path) -> None:
    dense = [finished(tmp_path / str(n), method="dense", epochs=n, flops=100 * n) for n in (5, 20)]
    sparse = [finished(tmp_path / f"sparse{seed}", seed=seed, epochs=5) for seed in range(4)]
    for num in range(5):
        reference = compare([*sparse[:num], *dense]).rows[0].reference
        assert reference is not None
        assert reference.epochs == 20


def test_dense_runs_that_a_budget_stretched_are_better_than_none(tmp_path: Path) -> None:
    bought = finished(tmp_path / "bought", method="dense", match="flops", trained=40, flops=4000)
    row = by_folder(compare([bought, finished(tmp_path / "sparse", flops=1000)]))["sparse"]
    assert row.training_relative == pytest.approx(0.25)


def test_the_reference_is_told_from_other_dense_runs(tmp_path: Path) -> None:
    folders = [
        finished(tmp_path / "a", method="dense", recipe={"lr": 0.3}, flops=1000),
        finished(tmp_path / "b", method="dense", flops=1000),
        finished(tmp_path / "c", method="dense", flops=1000, seed=1),
    ]
    assert "1x: dense (lr 0.1), 10 epochs, 1.00 k" in write(compare(folders), "table"), "that with most seeds"


def test_without_a_dense_run_it_is_computed_and_said_so(tmp_path: Path) -> None:
    """For the most epochs that a run without a budget asked for."""
    folders = [
        finished(tmp_path / "short", epochs=5, flops=50),
        finished(tmp_path / "long", epochs=20, flops=500),
        finished(tmp_path / "stretched", epochs=80, match="flops", flops=1000),
    ]
    found = compare(folders)
    rows = by_folder(found)
    assert {name: row.training_relative for name, row in rows.items()} == pytest.approx(
        {"short": 0.025, "long": 0.25, "stretched": 0.5}
    )
    assert {row.wall_relative for row in rows.values()} == {None}
    lines = [line.strip() for line in write(found, "table").splitlines()]
    assert (
        "1x: 2.00 k training FLOPs, computed for training dense for 20 epochs, as no dense run is among these" in lines
    )
    assert "time as measured: no dense run is among these" in lines
    alone = compare(folders[2:]).rows[0]
    assert alone.training_relative == pytest.approx(1000 / 8000), "nothing else is there"


def test_programs_are_told_the_reference_too(tmp_path: Path) -> None:
    dense = finished(tmp_path / "dense", method="dense", flops=1000, seconds=4.0)
    found = compare([finished(tmp_path / "sparse", trained=13.5), dense])
    told = json.loads(write(found, "json"))["rows"][0]
    assert told["reference"] == {
        "kind": "trained", "settings": "", "epochs": 10, "training_flops": 1000, "seconds": 4.0,
        "hardware": "cpu (1 thread)", "runs": [str(dense)],
    }  # fmt: skip
    assert (told["epochs"], told["epochs_trained"], told["hardware"]) == (10, 13.5, "cpu (1 thread)")
    line = next(csv.DictReader(io.StringIO(write(found, "csv"))))
    assert (line["epochs"], line["epochs_trained"]) == ("10", "13.5")
    assert (line["reference_kind"], line["reference_epochs"], line["reference_runs"]) == ("trained", "10.0", str(dense))
    assert float(line["training_flops"]) / float(line["reference_training_flops"]) == float(line["training_relative"])


def test_times_are_relative_on_the_same_hardware_only(tmp_path: Path) -> None:
    dense = finished(tmp_path / "dense", method="dense", seconds=10.0)
    here = finished(tmp_path / "here")
    assert [row.wall_relative for row in compare([dense, here]).rows] == [1.0, 0.5]
    elsewhere = [
        finished(tmp_path / "gpu", method="set", device_name="NVIDIA H200"),
        finished(tmp_path / "threads", method="set", threads=4),
        finished(tmp_path / "unknown", method="set"),
    ]
    (elsewhere[2] / "env.json").unlink()
    for folder in elsewhere:
        found = compare([dense, here, folder])
        assert [row.wall_relative for row in found.rows] == [1.0, 0.5, None]
        text = write(found, "markdown")
        assert "0.5x" not in text, "one unit in a column"
        assert text.count("| 5.0 s |") == 2
        assert "time as measured: not all runs are known to be of the same hardware" in text
    assert "(cpu (1 thread), NVIDIA H200)" in write(compare([dense, here, elsewhere[0]]), "markdown")


def test_other_models_have_a_table_and_a_reference_of_their_own(tmp_path: Path) -> None:
    small = [finished(tmp_path / f"small-{name}", method=name, flops=100) for name in ("dense", "set")]
    large = [
        finished(tmp_path / f"large-{name}", method=name, flops=flops, model_options={"widths": [80]})
        for name, flops in (("dense", 1000), ("set", 500))
    ]
    found = compare([small[0], *large, small[1]])
    assert [(row.subject, row.method, row.training_relative) for row in found.rows] == [
        ("digits mlp, widths [8]", "dense", 1.0),
        ("digits mlp, widths [8]", "set", 1.0),
        ("digits mlp, widths [80]", "dense", 1.0),
        ("digits mlp, widths [80]", "set", 0.5),
    ]
    assert write(found, "table").count("1x: dense, 10 epochs") == 2
    assert {row.subject for row in compare(small).rows} == {"digits mlp"}, "nothing to tell apart"


def test_epochs_are_those_trained_and_stand_in_the_title_if_all_rows_have_the_same(tmp_path: Path) -> None:
    one, other = (
        finished(tmp_path / "one", epochs=80, trained=121),
        finished(tmp_path / "other", epochs=20, trained=43.57),
    )
    text = write(compare([one, other]), "markdown")
    assert "| rigl | 121 |" in text
    assert "| rigl | 43.6 |" in text
    text = write(compare([one, finished(tmp_path / "third", method="set", trained=121)]), "markdown")
    assert text.startswith("**digits mlp: 121 epochs each,")
    assert "| epochs |" not in text


def test_runs_as_long_that_were_asked_for_different_lengths_are_told_apart(tmp_path: Path) -> None:
    folders = [finished(tmp_path / str(n), match="flops", epochs=n, trained=121) for n in (80, 40)]
    assert [row.settings for row in compare(folders).rows] == ["epochs 80", "epochs 40"]
