"""Damaged reports: whatever one entry of them is, a sentence or a table comes out, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pathgrow.errors import UserError
from pathgrow.report import terminal
from pathgrow.report.comparison import compare
from pathgrow.report.comparison_text import FORMATS, write
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.runs.run_discovery import run as run_experiment
from pathgrow.runs.training import train
from tests.support.command import leave
from tests.support.finished_runs import finished

DELETED = object()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One real run of each kind."""
    here = tmp_path_factory.mktemp("runs")
    shared: dict[str, Any] = {"model_options": {"widths": [12]}, "threads": 1}
    train(TrainConfig.from_dict({**shared, "method": "dense", "epochs": 2}), here / "train")
    run_experiment(DiscoverConfig.from_dict({**shared, "budget": 4, "start_density": 0.1}), here / "discover")
    return {kind: here / kind for kind in ("train", "discover")}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value; of long lists the first two entries and the last."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*at, key))
    elif isinstance(value, list):
        for index in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            yield from places(value[index], (*at, index))


def changed(report: dict[str, Any], at: tuple[Any, ...], value: object) -> dict[str, Any]:
    copied: dict[str, Any] = copy.deepcopy(report)
    inside: Any = copied
    for key in at[:-1]:
        inside = inside[key]
    if value is DELETED:
        del inside[at[-1]]
    else:
        inside[at[-1]] = value
    return copied


ODD = [DELETED, None, "high", -5, 0, 1.5, 10**400, True, [], {}, [[]], ["x"], {"score": "high"}]


@pytest.mark.parametrize("kind", ["train", "discover"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_entry_can_break_a_table_or_a_page(kind: str, runs: dict[str, Path], data: st.DataObject) -> None:
    file = runs[kind] / "report.json"
    whole = file.read_text()
    report = json.loads(whole)
    at = data.draw(st.sampled_from(list(places(report))))
    try:
        file.write_text(json.dumps(changed(report, at, data.draw(st.sampled_from(ODD)))))
        found = compare(list(runs.values()))
        assert len(found.rows) + len(found.notes) >= 2
        assert all(note.startswith(f"{runs[kind]} is left out: ") for note in found.notes)
        for format in FORMATS:
            write(found, format)
        with contextlib.suppress(UserError):
            terminal.show(runs[kind], Console(file=io.StringIO(), width=80))
    finally:
        file.write_text(whole)


@pytest.mark.parametrize(
    ("at", "value", "sentence"),
    [
        (("format",), 9, "has format 9, wanted 1: show it with the version of pathgrow that wrote it"),
        (("network", "val", "score"), "high", "has \"high\" as 'network.val.score', wanted a number"),
        (("network", "num_on"), -5, "has -5 as 'network.num_on', wanted a whole number from 0 up"),
        (("network", "num_on"), 10_000, "has 10000 of 100 weights as 'network.num_on'"),
        (("network", "density"), 7, "has 7 as 'network.density', wanted a number from 0 to 1"),
        (("ledger", "training_flops"), DELETED, "lacks 'ledger.training_flops'"),
        (("ledger", "phases"), "many", "has \"many\" as 'ledger.phases', wanted a list"),
        (("ledger", "training_flops"), 0, "has 0 as 'ledger.training_flops', wanted a number above 0"),
        (("config", "seed"), True, "has true as 'config.seed', wanted a whole number from 0 up"),
    ],
)
def test_a_damaged_folder_costs_its_own_row_only(
    at: tuple[str, ...], value: object, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = finished(tmp_path / "good", val=0.91), finished(tmp_path / "bad", seed=1, val=0.5)
    report = json.loads((bad / "report.json").read_text())
    (bad / "report.json").write_text(json.dumps(changed(report, at, value)))
    assert leave("compare", str(bad), str(good)) == 0
    told = capsys.readouterr()
    assert "91.00%" in told.out
    assert told.err.startswith(f"pathgrow: {bad} is left out: its report {sentence}")
    assert told.err.count("\n") == 1
    assert leave("show", str(bad)) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"pathgrow: {bad / 'report.json'} {sentence}")
    assert told.err.count("\n") == 1


def test_whole_reports_are_not_refused(runs: dict[str, Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(list(runs.values()))
    assert len(found.rows) == 2
    assert found.notes == ()
