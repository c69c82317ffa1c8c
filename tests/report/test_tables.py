"""Tables of a report: rounds, probes, the dense network, costs, layers, topology."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pathgrow.report import tables
from pathgrow.report.schema import ReferenceReport, RunReport, Score
from tests.support.sample_report import short_probe_report, training_report, with_answer


def test_each_round_has_its_probe_beside_it(sample_report: RunReport) -> None:
    headings, rows = tables.rounds(sample_report)
    assert headings == ["round", "density", "of model", "epochs", "accuracy", "loss", "probe", "epochs"]
    assert [row[0] for row in rows] == [str(round) for round in range(14)]
    assert rows[7] == ["7", "9.5%", "13.1%", "24", "95.45%", "0.138", "96.79%", "80"]
    assert [row[0] for row in rows if row[6]] == ["1", "4", "7", "9", "13"]
    headings, rows = tables.rounds(training_report())
    assert (headings[-1], rows) == ("loss", [["0", "12.3%", "23.4%", "57", "91.11%", "0.300"]])


def test_the_dense_network_is_the_last_row(sample_report: RunReport) -> None:
    assert tables.rounds(short_probe_report())[1][-1] == ["dense", "100%", "100%", "", "", "", "97.60%", "16"]
    trained = with_answer(
        sample_report, dense=Score(score=0.981), reference=ReferenceReport(score=0.981, kind="dense", epochs=80)
    )
    assert tables.rounds(trained)[1][-1] == ["dense", "100%", "100%", "", "", "", "98.10%", "80"]


def test_costs_are_summed_by_kind_of_phase() -> None:
    report = short_probe_report()
    rows = {row[0]: row[1:] for row in tables.cost_by_kind(report)[1]}
    assert rows["dense probe"] == ["1", "16", "14,400", "3.64 GFLOPs", "20.6%", "-"]
    assert rows["probe"] == ["5", "400", "360,000", "14.8 GFLOPs", "83.9%", "10 s"]
    assert rows["total"][:3] == ["20", "452", "406,800"]
    assert rows["total"][-1] == "38 s"
    headings, phases = tables.cost_by_phase(report)
    assert {len(headings)} == {len(row) for row in phases}
    assert [row[0] for row in phases[:2]] == ["seed", "round 1"]
    assert [row[:2] for row in phases[-2:]] == [["probe at 36.4%", "36.4%"], ["dense probe", "100%"]]
    report = replace(report, ledger=replace(report.ledger, dense_training_flops=None))
    assert tables.cost_by_kind(report)[1][-1][5] == "-"


def test_layers_are_those_of_the_returned_model(sample_report: RunReport) -> None:
    """It has the mask of round 7, at 9.54%; the synthetic layers have 1.7, 0.8 and 0.85 times that."""
    density = 0.02 * 1.25**7
    assert [value for _, value in tables.layer_densities(sample_report)] == pytest.approx(
        [1.7 * density, 0.8 * density, 0.85 * density]
    )
    others = tuple(row for row in sample_report.topology if row.round != 7)
    assert tables.layer_densities(replace(sample_report, topology=others)) == []


def test_topology_series_skip_rounds_without_a_measure(sample_report: RunReport) -> None:
    series = dict(tables.topology_series(sample_report))
    assert series["dead units"][:3] == [9, 7, 5]
    assert len(series["tau-core (units)"]) == 13, "round 0 has none"
    assert tables.topology_series(replace(sample_report, topology=sample_report.topology[:1])) == []
