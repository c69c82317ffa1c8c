"""Calibration: the true density from a density sweep, and answers compared with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pathgrow.studies.calibration import calibrations, true_density
from pathgrow.studies.definition import View, load_study, parse_study
from pathgrow.studies.results import render_results, results_of, results_png

VIEW = View(panel="pair", series=("way",), truth={"discover": "ladder"})


def test_the_true_density_is_where_the_mean_gap_crosses_delta_in_log_density() -> None:
    dense = {"0": 0.90, "1": 0.92}
    sweep = {"0": {0.1: 0.86, 0.2: 0.885, 0.4: 0.90}, "1": {0.1: 0.88, 0.2: 0.905, 0.4: 0.92}}
    found = true_density(dense, sweep, 0.01)  # gaps 4, 1.5 and 0 points
    assert found is not None
    assert found.density == pytest.approx(0.2 * 2 ** (0.5 / 1.5))
    assert found.interval == pytest.approx((found.density, found.density))  # both seeds have the same gaps
    assert (found.num_seeds, found.is_bound) == (2, False)


def test_gaps_that_rise_with_density_are_pooled() -> None:
    sweep = {"0": {0.1: 0.80, 0.2: 0.86, 0.3: 0.84, 0.5: 0.90}}  # gaps 10, 4, 6, 0: smoothed 10, 5, 5, 0
    found = true_density({"0": 0.90}, sweep, 0.02)
    assert found is not None
    assert found.density == pytest.approx(0.3 * (0.5 / 0.3) ** 0.6)
    assert found.interval is None


def test_beyond_its_densest_network_a_sweep_goes_on_to_dense() -> None:
    found = true_density({"0": 0.90}, {"0": {0.25: 0.86, 0.5: 0.88}}, 0.01)
    assert found is not None
    assert found.density == pytest.approx(math.sqrt(0.5))


def test_a_sweep_whose_sparsest_network_is_good_enough_bounds_the_truth_only() -> None:
    found = true_density({"0": 0.90}, {"0": {0.05: 0.895, 0.5: 0.90}}, 0.01)
    assert found is not None
    assert (found.density, found.is_bound) == (pytest.approx(0.05), True)


def test_losses_are_better_if_lower() -> None:
    found = true_density({"0": 1.5}, {"0": {0.1: 1.58, 0.4: 1.50}}, 0.04, -1)
    assert found is not None
    assert found.density == pytest.approx(0.2)


def test_seeds_without_a_dense_network_or_with_missing_densities_do_not_count() -> None:
    full = {0.1: 0.86, 0.4: 0.90}
    found = true_density({"0": 0.9, "1": 0.5}, {"0": full, "1": {0.1: 0.5}, "2": full}, 0.02)
    assert found is not None
    assert (found.density, found.num_seeds) == (pytest.approx(0.2), 1)
    assert true_density({}, {"0": full}, 0.02) is None


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """100 sweeps of four seeds with noise: 90 intervals are expected to cover, with a standard error of 3."""
    draw, densities, covered = np.random.default_rng(1), [0.05, 0.1, 0.2, 0.4], 0
    for _ in range(100):
        dense = {str(seed): 0.9 + 0.003 * draw.standard_normal() for seed in range(4)}
        sweep = {
            seed: {x: 0.9 + 0.02 * math.log2(x) / 2 + 0.002 * draw.standard_normal() for x in densities}
            for seed in dense
        }  # fmt: skip
        found = true_density(dense, sweep, 0.02)  # the gap is a point for each halving: at 25%
        assert found is not None
        assert found.interval is not None
        covered += found.interval[0] <= 0.25 <= found.interval[1]
    assert 84 <= covered <= 99


def points() -> list[dict[str, Any]]:
    """Two seeds of a dense network, a sweep that needs 20% and answers of 25%, 15% and none."""
    place = {"pair": "mine", "data": "digits"}
    rows = [{"way": "dense", "seed": s, "density": 1.0, "val": 0.9, "test": 0.8} for s in "01"]
    rows += [
        {"way": "ladder", "seed": seed, "density": density, "val": 0.9 - gap, "test": 0.8 - gap}
        for seed in "01" for density, gap in ((0.1, 0.02), (0.4, 0.0))
    ]  # fmt: skip
    answers = ((0.25, 0.1, 0.3), (0.15, 0.1, 0.18), (None, None, None))
    rows += [
        {"way": "discover", "seed": str(s), "density": 0.3, "val": 0.9, "answer": a, "low": b, "high": c, "delta": 0.01}
        for s, (a, b, c) in enumerate(answers)
    ]  # fmt: skip
    return [{**place, **row} for row in rows]


def test_answers_are_compared_with_the_sweep_of_their_search() -> None:
    [found] = calibrations(VIEW, points())
    assert found.truth.density == pytest.approx(0.2)
    assert found.errors == pytest.approx([0.25, 0.25])
    assert (found.median_error, found.num_covering, found.num_intervals) == (pytest.approx(0.25), 1, 2)
    assert found.level == pytest.approx(0.84)
    assert list(calibrations(VIEW, [point for point in points() if point["way"] != "dense"])) == []


def test_an_answer_below_a_bound_of_the_truth_is_no_error() -> None:
    rows = [
        {**point, "density": 0.4 * point["density"] + 0.12} if point["way"] == "ladder" else point for point in points()
    ]
    rows = [{**point, "val": 0.9, "test": 0.8} if point["way"] == "ladder" else point for point in rows]
    [found] = calibrations(VIEW, rows)  # densities 16 and 28%, both as good as dense
    assert found.truth.is_bound
    assert found.errors == pytest.approx([0.25 / 0.16 - 1, 0.0])
    assert (found.num_covering, found.num_intervals) == (2, 2)


def test_table_and_figure_show_the_comparison() -> None:
    text = (
        'question = "?"\nset.method = "dense"\n[view]\npanel = "pair"\nseries = ["way"]\ntruth = {discover = "ladder"}'
    )
    lines = [{"points": [point], "is_fraction": True} for point in points()]
    results = results_of(parse_study("mine", text), None, lines)
    for kind in ("table", "markdown"):
        shown = render_results(results, kind)
        assert "25.0%, 15.0%, open" in shown
        assert "1 of 2" in shown
        assert "Median of the median errors: 25%." in shown
    assert '"calibrations"' in render_results(results, "json")
    assert results_png(results).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["calibration", "language"])
def test_built_in_studies_name_series_that_they_have(name: str) -> None:
    study = load_study(name)
    labels = {cell.axes["way"] for cell in study.cells("smoke")}
    assert {*study.view.truth, *study.view.truth.values(), "dense"} <= labels
