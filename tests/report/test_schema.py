"""The report schema: lossless JSON, damaged reports refused in one sentence, and what is derived from a report."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.compare import compare_runs
from pathgrow.report.compare_table import TABLE_FORMATS, render_comparison
from pathgrow.report.html import page
from pathgrow.report.loading import StageResult, Unfinished, load_finished, load_run
from pathgrow.report.schema import RunReport, load_report
from pathgrow.report.terminal import summary
from tests.support.command import leave
from tests.support.finished_runs import finished
from tests.support.sample_report import discovery_report, point, shrunk_report, training_report

REPORTS = {"discover": discovery_report(), "train": training_report(), "pruned": shrunk_report()}


def shortened(value: Any) -> Any:
    """A JSON value with at most two items in each list, which makes thousands of copies cheap."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value[:2]] if isinstance(value, list) else value


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_survives_json(report: RunReport) -> None:
    assert load_report(json.loads(json.dumps(report.as_json())), "report.json") == report


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"x is not a pathgrow report \(no 'format' key\)"),
        ({"format": 1, "pathgrow": "0.0.9"}, r"x has report format 1, .* format 2; .* \(version 0\.0\.9\)"),
        ({"format": 7}, "x has report format 7, .*; use the version of pathgrow that wrote it, or run it again"),
        ({"format": 2}, "x is damaged: command is missing; restore it or run again"),
    ],
)
def test_other_formats_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_report(values, "x")


DELETED = object()


def damaged(report: dict[str, Any], at: tuple[Any, ...], value: object) -> dict[str, Any]:
    copied: dict[str, Any] = copy.deepcopy(report)
    inside: Any = copied
    for key in at[:-1]:
        inside = inside[key]
    if value is DELETED:
        del inside[at[-1]]
    else:
        inside[at[-1]] = value
    return copied


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value; of long lists the first and the last item."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*at, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1} & set(range(len(value)))):
            yield from places(value[index], (*at, index))


ODD = [DELETED, None, "high", -5, 0, 1.5, 10**400, True, [], {}, [[]], ["x"], {"score": "high"}]


@pytest.mark.parametrize("command", REPORTS)
def test_any_damage_is_refused_in_one_sentence_or_does_not_matter(command: str) -> None:
    """Each value of each field replaced by each odd value: thousands of damaged reports."""
    whole, messages = shortened(REPORTS[command].as_json()), []
    for at in places(whole):
        for value in ODD:
            try:
                report = load_report(damaged(whole, at, value), "report.json")
            except UserError as error:
                messages.append(str(error))
            else:
                assert report.task
                assert report.settings
    assert len(messages) > 500
    assert all(message.startswith("report.json ") and "\n" not in message for message in messages)


@pytest.mark.parametrize("command", REPORTS)
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_accepted_can_be_shown(command: str, data: st.DataObject) -> None:
    whole = shortened(REPORTS[command].as_json())
    at, value = data.draw(st.sampled_from(list(places(whole)))), data.draw(st.sampled_from(ODD))
    with contextlib.suppress(UserError):
        report = load_report(damaged(whole, at, value), "report.json")
        Console(file=io.StringIO(), width=80).print(summary(report))
        if data.draw(st.integers(0, 9)) == 0:  # drawing is slow
            assert "<h1>" in page(report)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (("format",), 9, "has report format 9"),
        (("network", "val", "score"), "high", "is damaged: network.val.score must be a number, got 'high'"),
        (("network", "num_on"), -5, "is damaged: network.num_on must be >= 0, got -5"),
        (("network", "num_on"), 10_001, "is damaged: network.num_on must be <= network.num (10000), got 10001"),
        (("network", "density"), 7, "is damaged: network.density must be in (0, 1], got 7"),
        (("ledger", "training_flops"), DELETED, "is damaged: ledger.training_flops is missing"),
        (("ledger", "phases"), "many", "is damaged: ledger.phases must be a list, got 'many'"),
        (("network", "colour"), 3, "is damaged: unknown "),
    ],
)
def test_a_damaged_run_is_skipped_by_compare_and_refused_by_show(
    at: tuple[str, ...], value: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = finished(tmp_path / "good", val=0.91), finished(tmp_path / "bad", seed=1, val=0.5)
    report = json.loads((bad / "report.json").read_text())
    (bad / "report.json").write_text(json.dumps(damaged(report, at, value)))
    assert leave("compare", str(bad), str(good)) == 0
    printed = capsys.readouterr()
    assert "91.00%" in printed.out
    assert printed.err.startswith(f"pathgrow: {bad} skipped: report.json {message}")
    assert printed.err.count("\n") == 1
    assert leave("show", str(bad)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"pathgrow: {bad / 'report.json'} {message}")
    assert printed.err.count("\n") == 1
    for format in TABLE_FORMATS:
        assert render_comparison(compare_runs([good]), format)


# Derived values


def test_the_target_score_uses_the_gap_that_short_probes_allow(sample_report: RunReport) -> None:
    answer = sample_report.answer
    assert answer is not None
    assert answer.reference is not None
    for allowed, gap in ((0.0138, 0.0138), (None, 0.01)):
        report = replace(sample_report, answer=replace(answer, allowed=allowed))
        assert report.target_score == pytest.approx(answer.reference.score - gap)
    assert replace(sample_report, answer=replace(answer, reference=None)).target_score is None
    assert training_report().target_score is None


def test_probes_are_short_if_the_returned_model_was_trained_for_longer(sample_report: RunReport) -> None:
    answer = sample_report.answer
    assert answer is not None
    assert answer.reference is not None
    assert sample_report.short_probe_epochs is None
    for kind, expected in (("densest", 16), ("dense", None), ("given", None)):
        reference = replace(answer.reference, epochs=16, kind=kind)
        assert replace(sample_report, answer=replace(answer, reference=reference)).short_probe_epochs == expected


@pytest.mark.parametrize(("excess", "is_short"), [(0.9, False), (1.1, True)])
def test_probes_are_too_short_if_the_growing_network_is_better_by_more_than_delta(
    sample_report: RunReport, excess: float, is_short: bool
) -> None:
    assert sample_report.answer is not None
    best = max(probe.score for probe in sample_report.curve.probes)
    last = point(13, 0.3638, 36, best + excess * sample_report.answer.delta)
    curve = replace(sample_report.curve, rounds=(*sample_report.curve.rounds[:-1], last))
    assert replace(sample_report, curve=curve).probes_too_short is is_short


def test_settings_leave_out_what_repetitions_may_differ_in() -> None:
    report = training_report(
        seed=7, data_root="/data", threads=4, ranks=2, engine={"device": "cpu"}, recipe={"lr": 0.1}
    )
    assert report.settings == {
        "scope": "auto", "data": "digits", "model": "mlp", "method": "rigl", "epochs": "40", "match": "none",
        "recipe.lr": "0.1",
    }  # fmt: skip
    matched = {"match_run": "a", "match_budget": 1e9, "match_like": "abc"}
    assert {key: value for key, value in training_report(**matched).settings.items() if key.startswith("match_")} == {
        "match_like": "abc"
    }
    assert "match_run" in training_report(**matched | {"match_like": None}).settings


def test_a_call_of_discover_is_identified_by_the_sizes_of_its_network() -> None:
    report = replace(training_report(), config={"seed": 1})
    assert (report.dataset, report.model, report.seed) == (None, None, 1)
    assert report.task == {"prunable": "10000", "dense_inference_flops": "1000", "mode": "max"}


@pytest.mark.parametrize(
    ("environment", "config", "expected"),
    [
        ({"device": "cpu"}, {"threads": 1}, "cpu (1 thread)"),
        ({"device": "cpu"}, {"threads": 4, "ranks": 2}, "2 x cpu (4 threads)"),
        ({"device": "cuda:0", "device_name": "NVIDIA H200"}, {"threads": 4}, "NVIDIA H200"),
        ({}, {}, None),
    ],
)
def test_hardware_is_device_threads_and_ranks(
    environment: dict[str, Any], config: dict[str, Any], expected: str | None
) -> None:
    assert training_report(**config).hardware(environment) == expected


def test_a_finished_run_is_its_report(tmp_path: Path, sample_report: RunReport) -> None:
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        run_dir.write_report(sample_report.as_json())
    assert load_run(run_dir.path) == load_finished(run_dir.path) == sample_report


def test_an_unfinished_run_is_its_results_and_current_stage(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", {"data": "digits"}) as run_dir:
        run_dir.stages.save("seed", {"round": 0, "density": 0.02, "score": 0.81})
        run_dir.stages.save("trunk-000", {"other": 1})
        run_dir.log("round-001", event="begin")
    seed = StageResult(stage="seed", density=0.02, score=0.81)
    assert load_run(run_dir.path) == Unfinished(current="round-001", worker=None, results=(seed,))
    with pytest.raises(UserError, match=r"is unfinished \(stages done: 1\); rerun it to resume"):
        load_finished(run_dir.path)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run directory: it has no config\.json"):
        load_run(tmp_path)
    with RunDir.open(tmp_path / "run", {}) as run_dir:
        run_dir.write_report({"format": 1})
        with pytest.raises(UserError, match=r"report\.json has report format 1"):
            load_run(run_dir.path)
