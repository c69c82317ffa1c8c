"""Comparison: groups, intervals against tables of Student's t, the dense baseline, runs that cannot be used."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.compare import Comparison, Row, compare_runs
from pathgrow.report.schema import RunReport
from pathgrow.report.terminal import print_run
from tests.support.catalogue import Trials
from tests.support.command import leave, unprivileged
from tests.support.finished_runs import finished

T_95 = {1: 6.3138, 2: 2.9200, 3: 2.3534}
"""95% quantiles of Student's t by degrees of freedom, from a printed table."""


def by_name(comparison: Comparison) -> dict[str, Row]:
    return {Path(row.runs[0]).name: row for row in comparison.rows}


# Rows


def test_seeds_become_one_row(tmp_path: Path) -> None:
    tests = [0.91, 0.93, 0.95]
    paths = [finished(tmp_path / f"run{seed}", seed=seed, test=test) for seed, test in enumerate(tests)]
    (row,) = compare_runs(paths).rows
    assert row.num_seeds == 3
    assert row.test == pytest.approx(0.93)
    margin = T_95[2] * 0.02 / 3**0.5
    assert row.test_interval == pytest.approx((0.93 - margin, 0.93 + margin), abs=1e-6)
    assert row.val_interval == (0.9, 0.9)


@pytest.mark.parametrize("num", [2, 4])
def test_intervals_agree_with_the_table(num: int, tmp_path: Path) -> None:
    scores = [0.9, 0.94, 0.91, 0.97][:num]
    paths = [finished(tmp_path / f"run{seed}", seed=seed, val=score) for seed, score in enumerate(scores)]
    interval = compare_runs(paths).rows[0].val_interval
    assert interval is not None
    assert interval[1] - interval[0] == pytest.approx(2 * T_95[num - 1] * statistics.stdev(scores) / num**0.5, rel=1e-4)
    assert compare_runs(paths[:1]).rows[0].val_interval is None


def test_what_distinguishes_configurations(tmp_path: Path) -> None:
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
    assert [row.num_seeds for row in compare_runs([*same, *others]).rows] == [2, 1, 1, 1, 1]


def test_runs_matched_each_to_its_own_seed_are_one_row(tmp_path: Path) -> None:
    paths = [
        finished(
            tmp_path / f"{like}{seed}", seed=seed, match="flops", match_run=f"gcg{seed}", match_budget=1e9 + seed,
            match_like=like,
        )
        for like in ("abc", "def")
        for seed in range(2)
    ]  # fmt: skip
    assert [row.num_seeds for row in compare_runs(paths).rows] == [2, 2]


def test_a_mean_is_over_all_seeds_or_missing(tmp_path: Path) -> None:
    for seed, test in enumerate((0.8, None, 0.9)):
        finished(tmp_path / str(seed), seed=seed, test=test, val=0.7 + 0.1 * seed)
    (row,) = compare_runs(sorted(tmp_path.iterdir())).rows
    assert (row.num_seeds, row.test, row.test_interval) == (3, None, None)
    assert row.val == pytest.approx(0.8)
    (row,) = compare_runs([tmp_path / "0", tmp_path / "2"]).rows
    assert row.test == pytest.approx(0.85)


def test_a_discovery_is_a_row_of_its_own(tmp_path: Path, sample_report: RunReport) -> None:
    config = {"data": "digits", "model": "mlp", "seed": 0, "budget": 80}
    with RunDir.open(tmp_path / "found", config) as run_dir:
        run_dir.write_report(replace(sample_report, config=config).as_json())
    (row,) = compare_runs([tmp_path / "found"]).rows
    assert (row.method, row.epochs, row.match) == ("gcg (discover)", 80, "none")
    assert row.epochs_trained == sample_report.ledger.epochs_trained
    assert row.inference_relative == sample_report.network.inference_relative
    assert row.is_accuracy
    assert row.training_relative == pytest.approx(sample_report.ledger.relative)


# Settings


def settings(comparison: Comparison) -> list[str]:
    return [row.settings for row in comparison.rows]


def test_rows_that_look_the_same_show_what_differs(tmp_path: Path) -> None:
    one = finished(tmp_path / "one", method_options={"every": 5, "rate": 0.3})
    other = finished(tmp_path / "other", method_options={"every": 9, "rate": 0.3})
    alone, denser = finished(tmp_path / "alone", method="set"), finished(tmp_path / "denser", density=0.3)
    assert settings(compare_runs([one, other, alone])) == ["every 5", "every 9", ""]
    assert settings(compare_runs([alone, denser])) == ["", ""], "the density has a column"
    lengths = [finished(tmp_path / str(n), match="flops", epochs=n, trained=121) for n in (80, 40)]
    assert settings(compare_runs(lengths)) == ["epochs 80", "epochs 40"]


def test_scope_and_recipe_are_shown_for_all_methods(tmp_path: Path) -> None:
    """Densities are relative to the scope, and accuracies belong to a recipe."""
    paths = [
        finished(tmp_path / "rigl", scope="all", method_options={"every": 5}),
        finished(tmp_path / "set", method="set", method_options={"every": 9}),
        finished(tmp_path / "snip", method="snip", recipe={"lr": 0.3}),
        finished(tmp_path / "dense", method="dense", recipe_name="other", recipe={"lr": 7, "momentum": 0.5}),
    ]
    assert settings(compare_runs(paths)) == [
        "lr 0.1, recipe_name digits, scope all",
        "lr 0.1, recipe_name digits, scope auto",
        "lr 0.3, recipe_name digits, scope auto",
        "recipe_name other, scope auto",
    ]
    assert settings(compare_runs(paths[1:3])) == ["lr 0.1", "lr 0.3"]


def test_names_of_settings_are_short_unless_ambiguous(tmp_path: Path) -> None:
    paths = [
        finished(tmp_path / str(lr), recipe={"rate": one, "lr": lr}, method_options={"rate": other})
        for lr, (one, other) in enumerate([(1, 1), (2, 1), (1, 2)])
    ]
    assert settings(compare_runs(paths)) == [
        "method_options.rate 1, lr 0, recipe.rate 1",
        "method_options.rate 1, lr 1, recipe.rate 2",
        "method_options.rate 2, lr 2, recipe.rate 1",
    ]


# Tables and their baselines


def test_a_table_has_one_dense_baseline(tmp_path: Path) -> None:
    """Two seeds of 10 epochs; dense runs that are shorter or matched to a budget do not count."""
    paths = [
        finished(tmp_path / "matched", method="dense", match="flops", trained=40, flops=4000, seconds=30.0),
        finished(tmp_path / "brief", method="dense", epochs=5, flops=500, seconds=2.0),
        finished(tmp_path / "dense", method="dense", flops=1900, seconds=8.0),
        finished(tmp_path / "dense1", method="dense", seed=1, flops=2100, seconds=12.0),
        finished(tmp_path / "sparse", flops=500, seconds=5.0),
        finished(tmp_path / "longer", match="flops", epochs=80, trained=121, flops=1998, seconds=15.0),
        finished(tmp_path / "short", epochs=5, flops=50),
    ]
    rows = by_name(compare_runs(paths))
    assert {name: row.training_relative for name, row in rows.items()} == pytest.approx(
        {"matched": 2.0, "brief": 0.25, "dense": 1.0, "sparse": 0.25, "longer": 0.999, "short": 0.025}
    )
    assert rows["sparse"].wall_relative == pytest.approx(0.5)
    assert rows["matched"].wall_relative == pytest.approx(3.0)
    for row in rows.values():
        baseline = row.baseline
        assert baseline is not None
        assert (baseline.kind, baseline.epochs, baseline.training_flops, baseline.seconds) == ("trained", 10, 2000, 10)
        assert baseline.runs == (str(tmp_path / "dense"), str(tmp_path / "dense1"))
    assert by_name(compare_runs(paths[::-1]))["sparse"].training_relative == rows["sparse"].training_relative


def test_sparse_runs_do_not_change_the_baseline(tmp_path: Path) -> None:
    dense = [finished(tmp_path / str(n), method="dense", epochs=n, flops=100 * n) for n in (5, 20)]
    sparse = [finished(tmp_path / f"sparse{seed}", seed=seed, epochs=5) for seed in range(4)]
    for num in range(5):
        baseline = compare_runs([*sparse[:num], *dense]).rows[0].baseline
        assert baseline is not None
        assert baseline.epochs == 20


def test_matched_dense_runs_are_better_than_none(tmp_path: Path) -> None:
    matched = finished(tmp_path / "matched", method="dense", match="flops", trained=40, flops=4000)
    row = by_name(compare_runs([matched, finished(tmp_path / "sparse", flops=1000)]))["sparse"]
    assert row.training_relative == pytest.approx(0.25)


def test_equally_long_dense_runs_are_told_apart(tmp_path: Path) -> None:
    paths = [
        finished(tmp_path / "a", method="dense", recipe={"lr": 0.3}, flops=1000),
        finished(tmp_path / "b", method="dense", flops=1000),
        finished(tmp_path / "c", method="dense", flops=1000, seed=1),
    ]
    baseline = compare_runs(paths).rows[0].baseline
    assert baseline is not None
    assert baseline.settings == "lr 0.1", "the one with most seeds"


def test_without_a_dense_run_the_baseline_is_computed(tmp_path: Path) -> None:
    """For the longest run that was not matched to a budget."""
    paths = [
        finished(tmp_path / "short", epochs=5, flops=50),
        finished(tmp_path / "long", epochs=20, flops=500),
        finished(tmp_path / "matched", epochs=80, match="flops", flops=1000),
    ]
    rows = by_name(compare_runs(paths))
    assert {name: row.training_relative for name, row in rows.items()} == pytest.approx(
        {"short": 0.025, "long": 0.25, "matched": 0.5}
    )
    assert {row.wall_relative for row in rows.values()} == {None}
    assert compare_runs(paths[2:]).rows[0].training_relative == pytest.approx(1000 / 8000), "the only run"


def test_times_are_relative_on_the_same_hardware_only(tmp_path: Path) -> None:
    dense, here = finished(tmp_path / "dense", method="dense", seconds=10.0), finished(tmp_path / "here")
    assert [row.wall_relative for row in compare_runs([dense, here]).rows] == [1.0, 0.5]
    elsewhere = [
        finished(tmp_path / "gpu", method="set", device_name="NVIDIA H200"),
        finished(tmp_path / "threads", method="set", threads=4),
        finished(tmp_path / "unknown", method="set"),
    ]
    (elsewhere[2] / "env.json").unlink()
    for path in elsewhere:
        assert [row.wall_relative for row in compare_runs([dense, here, path]).rows] == [1.0, 0.5, None]


def test_other_models_have_a_table_and_a_baseline_of_their_own(tmp_path: Path) -> None:
    small = [finished(tmp_path / f"small-{name}", method=name, flops=100) for name in ("dense", "set")]
    large = [
        finished(tmp_path / f"large-{name}", method=name, flops=flops, model_options={"widths": [80]})
        for name, flops in (("dense", 1000), ("set", 500))
    ]
    comparison = compare_runs([small[0], *large, small[1]])
    assert [(row.subject, row.method, row.training_relative) for row in comparison.rows] == [
        ("digits mlp, widths [8]", "dense", 1.0),
        ("digits mlp, widths [8]", "set", 1.0),
        ("digits mlp, widths [80]", "dense", 1.0),
        ("digits mlp, widths [80]", "set", 0.5),
    ]
    assert [len(rows) for rows in comparison.tables] == [2, 2]
    assert {row.subject for row in compare_runs(small).rows} == {"digits mlp"}


def test_calls_of_discover_are_grouped_by_the_sizes_of_their_network(tmp_path: Path, sample_report: RunReport) -> None:
    for seed, num in ((0, 40_960), (1, 40_960), (0, 50_000)):
        config = {"seed": seed, "budget": 80, "unit": "steps"}
        report = replace(sample_report, config=config, network=replace(sample_report.network, num=num))
        with RunDir.open(tmp_path / f"{num}-{seed}", config) as run_dir:
            run_dir.write_report(report.as_json())
    rows = compare_runs(sorted(tmp_path.iterdir())).rows
    assert {row.unit for row in rows} == {"steps"}
    assert {row.baseline.unit for row in rows if row.baseline is not None} == {"steps"}
    assert [(row.num_seeds, row.subject) for row in rows] == [
        (2, "calls of discover, 40,960 prunable weights"),
        (1, "calls of discover, 50,000 prunable weights"),
    ]


def test_losses_and_accuracies_are_not_in_one_table(tmp_path: Path, sample_report: RunReport) -> None:
    """Nor do seeds differ in a tolerance that is relative to their scores."""
    for seed, mode in ((0, "max"), (0, "min"), (1, "min")):
        config = {"seed": seed, "budget": 80, "mode": mode, "delta": 0.01, "delta_is_relative": True}
        answer = replace(sample_report.answer, delta=0.01 + 0.001 * seed)
        with RunDir.open(tmp_path / f"{mode}-{seed}", config) as run_dir:
            run_dir.write_report(replace(sample_report, config=config, answer=answer).as_json())
    comparison = compare_runs(sorted(tmp_path.iterdir()))
    assert [(row.num_seeds, row.mode, row.subject) for row in comparison.rows] == [
        (1, "max", "calls of discover, higher is better"),
        (2, "min", "calls of discover, lower is better"),
    ]


# Notes


def test_runs_that_missed_their_budget_are_noted(tmp_path: Path) -> None:
    paths = [
        finished(tmp_path / str(seed), seed=seed, match="flops", off=off)
        for seed, off in enumerate((None, 0.0, 0.0099, -0.0099, 0.031, -0.02))
    ]
    comparison = compare_runs(paths)
    assert comparison.rows[0].num_seeds == 6
    assert comparison.notes == (
        f"{paths[4]} spent 3.1% more than its matched budget of FLOPs",
        f"{paths[5]} spent 2.0% less than its matched budget of FLOPs",
    )
    other = finished(tmp_path / "other", match="prunable", off=0.02)
    assert "its matched budget of epochs times prunable weights" in compare_runs([other]).notes[0]


def test_unusable_directories_are_skipped_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, twin = finished(tmp_path / "good"), finished(tmp_path / "twin")
    contents = {
        "unfinished": None, "damaged": "{", "poor": '{"format": 2, "config": {}}', "old": '{"format": 1, "config": 3}'
    }  # fmt: skip
    bad = []
    for name, content in contents.items():
        bad.append(finished(tmp_path / name))
        if content is None:
            (bad[-1] / "report.json").unlink()
        else:
            (bad[-1] / "report.json").write_text(content)
    (tmp_path / "foreign").mkdir()
    bad += [tmp_path / "foreign", tmp_path / "nowhere", twin]
    assert leave("compare", *map(str, [bad[0], good, *bad[1:]])) == 0
    printed = capsys.readouterr()
    assert "90.00%" in printed.out
    notes = printed.err.splitlines()
    assert len(notes) == len(bad)
    for note, path in zip(notes, bad, strict=True):
        assert note.startswith(f"pathgrow: {path} skipped: ")
    assert notes[0].endswith("skipped: it is unfinished (stages done: 0); rerun it to resume")
    assert "repeats seed 0" in notes[-1]
    with pytest.raises(UserError, match="no finished run in 2 paths"):
        compare_runs([tmp_path / "foreign", bad[0]])


# Directories that somebody else made


def deep(path: Path, name: str) -> None:
    (path / name).write_text('{"a":' * 10_000 + "1" + "}" * 10_000)


def forged(path: Path, name: str) -> None:
    with RunDir.open(path, json.loads((path / "config.json").read_text())):
        pass  # writes the manifest
    (path / name).write_text((path / name).read_text().replace("0.9", "0.1"))


def linked(path: Path, name: str) -> None:
    (path / name).rename(path.parent / f"{path.name}.elsewhere")
    (path / name).symlink_to(path.parent / f"{path.name}.elsewhere")


def piped(path: Path, name: str) -> None:
    (path / name).unlink()
    os.mkfifo(path / name)


def foldered(path: Path, name: str) -> None:
    (path / name).unlink()
    (path / name).mkdir()


def unreadable(path: Path, name: str) -> None:
    (path / name).chmod(0)


DAMAGES = {
    deep: "is not JSON (nested more than 64 levels deep)",
    linked: "it is a symbolic link",
    piped: "it is not a regular file",
    foldered: "it is not a regular file",
    unreadable: "Permission denied",
}


@pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and permissions")
def test_directories_that_cannot_be_read_are_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, expected = finished(tmp_path / "good"), []
    for damage, reason in DAMAGES.items():
        for name in ("report.json", "env.json"):
            path = finished(tmp_path / f"{damage.__name__} {name}", seed=1)
            damage(path, name)
            expected.append((path, name, reason))
    forged(finished(tmp_path / "forged", seed=1), "report.json")
    expected.append((tmp_path / "forged", "report.json", "does not match its SHA-256 in manifest.sha256"))
    odd = [tmp_path / "nowhere", tmp_path / ("x" * 300), good / "report.json"]
    with unprivileged(tmp_path):
        found = compare_runs([good, *(path for path, _, _ in expected), *odd])
    assert [row.runs for row in found.rows] == [(str(good),)]
    assert len(found.notes) == len(expected) + len(odd)
    for note, (path, name, reason) in zip(found.notes, expected, strict=False):
        assert note.startswith(f"{path} skipped: ")
        assert name in note
        assert reason in note
        assert note.isprintable()
    assert print_run.__module__ in sys.modules  # imports need the rights that are dropped here
    for path in (*(path for path, _, _ in expected), *odd):
        for command in ("show", "check"):
            with unprivileged(tmp_path):
                assert leave(command, str(path)) in (0, 1, 2)
            assert capsys.readouterr().err.count("\n") <= 1


@pytest.mark.item(23)
@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_many_directories_some_of_them_corrupt_are_compared_in_seconds(tmp_path: Path, trials: Trials) -> None:
    num = trials.count(quick=200, full=1000)
    paths = [finished(tmp_path / str(n), seed=n % 2, method_options={"every": n // 2}) for n in range(num)]
    corrupt = trials.draw.sample(paths, num // 20)
    for path in corrupt:
        trials.draw.choice([damage for damage in DAMAGES if damage is not unreadable])(path, "report.json")
    tracemalloc.start()
    compare_runs(paths)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    start = time.process_time()
    found = compare_runs(paths)
    seconds = time.process_time() - start
    trials.peak("seconds of CPU time", seconds)
    trials.peak("MB", memory / 2**20)
    assert memory < 2**30
    assert seconds < 3 * num / 1000 + 0.5
    notes = {note.partition(" skipped: ")[0] for note in found.notes}
    for path in paths:
        with trials.one(path.name):
            assert (str(path) in notes) == (path in corrupt)


def test_hundreds_of_configurations_are_compared_in_a_second(tmp_path: Path) -> None:
    paths = [finished(tmp_path / str(n), seed=n % 2, method_options={"every": n // 2}) for n in range(400)]
    start = time.process_time()
    found = compare_runs(paths)
    assert len(found.rows) == 200
    assert {row.num_seeds for row in found.rows} == {2}
    assert found.rows[7].settings == "every 7"
    assert time.process_time() - start < 2


def test_the_error_about_many_directories_stays_short(tmp_path: Path) -> None:
    paths = [tmp_path / f"run{number}" for number in range(100)]
    with pytest.raises(UserError, match=r"^no finished run in 100 paths \(.*; and 96 more\)$") as error:
        compare_runs(paths)
    assert len(str(error.value)) < 1500
