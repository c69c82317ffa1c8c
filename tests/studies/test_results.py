"""Tables and figures of studies, with means over seeds computed by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pathgrow.errors import UserError
from pathgrow.report.schema import Score
from pathgrow.studies.definition import Cell, Study, parse_study
from pathgrow.studies.lines import load_lines, points_of
from pathgrow.studies.results import METRICS, load_results, render_results, results_of, results_png
from tests.support.sample_report import training_report

TEXT = """
question = "Which method keeps the accuracy?"
set.epochs = 2
[grid]
seed = [0, 1, 2]
density = [0.1, 0.2]
[[part]]
grid.method = ["set"]
[[part]]
set.method = "dense"
grid.density = []
"""


def finish(study: Study, out: Path, tests: list[float]) -> None:
    """Write reports with these test scores for the first cells of a study."""
    for cell, test in zip(study.cells(), tests, strict=False):
        report = training_report()
        network = dataclasses.replace(report.network, density=cell.values.get("density", 1.0), test=Score(score=test))
        method = dataclasses.replace(report.method, name=cell.values["method"])
        (out / cell.name).mkdir(parents=True)
        values = dataclasses.replace(report, network=network, method=method).as_json()
        (out / cell.name / "report.json").write_text(json.dumps(values))


def test_seeds_are_averaged_with_an_interval_and_the_caption_says_what_is_missing(tmp_path: Path) -> None:
    study = parse_study("mine", TEXT)
    finish(study, tmp_path, [0.9, 0.95, 0.97, 0.92, 0.95])  # of seed 0: 10%, 20%, dense; of seed 1: 10%, 20%
    results = load_results(study, None, tmp_path)
    found = {(row.series, row.x): row.values["test"] for row in results.rows}
    assert {key: (value.num, round(value.mean, 6)) for key, value in found.items()} == {
        ("set", 0.1): (2, 0.91), ("set", 0.2): (2, 0.95), ("dense", 1.0): (1, 0.97),
    }  # fmt: skip
    low, high = found["set", 0.1].interval or (0, 0)
    assert (round(low, 4), round(high, 4)) == (0.8469, 0.9731)  # 0.91 +- 6.314 * 0.01
    assert found["dense", 1.0].interval is None
    assert results.caption == "mine (user-defined): Which method keeps the accuracy? 5 of 9 cells finished."


@pytest.mark.parametrize("format", ["table", "markdown", "json"])
def test_formats(format: str, tmp_path: Path) -> None:
    study = parse_study("mine", TEXT)
    finish(study, tmp_path, [0.9, 0.95, 0.97, 0.92])
    text = render_results(load_results(study, None, tmp_path), format)
    if format == "json":
        assert json.loads(text)["rows"][0]["test"]["num"] == 2
    else:
        line = next(line for line in text.splitlines() if "10.0%" in line)
        assert [word for word in line.replace("|", " ").split()] == ["set", "10.0%", "91.00%", "±6.31", "2"]


def test_lines_of_cells_give_the_same_results_elsewhere(tmp_path: Path) -> None:
    study = parse_study("mine", TEXT)
    finish(study, tmp_path, [0.9, 0.95, 0.97, 0.92])
    results = load_results(study, None, tmp_path)
    lines = [json.loads(line) for line in render_results(results, "jsonl").splitlines()]
    assert lines == load_lines(study, None, tmp_path)
    assert [line["cell"] for line in lines] == [cell.name for cell in study.cells()[:4]]
    assert [line["points"][0]["test"] for line in lines] == [0.9, 0.95, 0.97, 0.92]
    again = results_of(study, None, lines)
    assert (again.rows, again.caption) == (results.rows, results.caption)


def test_a_figure_shows_what_is_there(tmp_path: Path) -> None:
    study = parse_study("mine", TEXT + '[view]\ny = ["test", "flops"]\nseries = ["method"]')
    finish(study, tmp_path, [0.9, 0.95, 0.97, 0.92])
    assert results_png(load_results(study, None, tmp_path)).startswith(b"\x89PNG")


def test_without_finished_cells_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished cell of study 'mine'"):
        load_results(parse_study("mine", TEXT), None, tmp_path)


def test_every_metric_has_a_name() -> None:
    [point] = points_of(Cell(name="x", command="train", values={}, axes={}), training_report())
    assert set(point) - {"method", "data", "model"} <= set(METRICS)
