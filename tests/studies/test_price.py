"""Prices: epochs by hand, and speeds that are the measured ones."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from pathgrow import models
from pathgrow.graph import trace
from pathgrow.graph.flops import forward_macs
from pathgrow.studies import price
from pathgrow.studies.definition import Cell, Study, load_study
from pathgrow.studies.price import MEASURED_SPEEDS, num_epochs, price_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORDED = Path(__file__).parents[2] / "results" / "studies" / "growth-timing.jsonl"


def one_cell(**values: object) -> Cell:
    [cell] = Study(name="mine", question="?", set=values).cells()
    return cell


@pytest.mark.parametrize(
    ("values", "epochs"),
    [
        ({"method": "dense"}, 160),
        ({"method": "rigl", "density": 0.1}, 160),
        ({"method": "imp_c", "density": 0.64}, 3 * 160),  # 100%, 80%, 64%
        ({"method": "gcg", "density": 0.0312, "method_options": {"start_density": 0.02}}, 160 + 20 + 2),  # 2.5%, 3.1%
    ],
)  # fmt: skip
def test_epochs_of_a_run(values: dict[str, object], epochs: int) -> None:
    cell = one_cell(data="cifar10", model="resnet32", **values)
    assert num_epochs(cell.config()) == epochs


def test_the_time_of_a_measured_model_is_that_of_its_samples() -> None:
    found = price_of(one_cell(data="cifar10", model="resnet32", method="dense", epochs=80))
    assert found.seconds == pytest.approx(5 + 80 * 45_000 / 50_126)
    assert (found.device, found.based_on) == ("GPU", "ResNet-32")


def test_a_larger_model_takes_longer_in_proportion_to_its_arithmetic() -> None:
    small, large = (
        price_of(one_cell(data="cifar10", model=model, method="dense", epochs=80)).seconds - 5
        for model in ("resnet32", "resnet56")
    )
    assert large / small == pytest.approx(126 / 69.1, rel=0.01)


def test_speeds_are_those_of_the_benchmarks() -> None:
    measured = {key: value for path in RESULTS.glob("*.json") for key, value in _pairs(path)}
    for speed in (speed for speeds in MEASURED_SPEEDS.values() for speed in speeds):
        assert speed.samples_per_second == pytest.approx(measured[speed.source], rel=0.3), speed.source


def _pairs(path: Path) -> list[tuple[str, object]]:
    content = json.loads(path.read_text())
    return [item for item in content.items() if "images/s" in item[0]] if isinstance(content, dict) else []


@pytest.mark.parametrize(("name", "size"), [("resnet20", 32), ("resnet32", 32), ("resnet56", 32), ("mlp", 8)])
def test_recorded_sizes_are_those_of_the_models(name: str, size: int) -> None:
    options = {"inputs": size**2} if name == "mlp" else {"image_size": size}
    model = models.create(name, 10, seed=0, **options).eval()
    assert price._MACS[name, size] == pytest.approx(forward_macs(trace(model, model.example_input())), rel=0.01)


def test_adaptive_growth_is_priced_by_the_mean_of_recorded_runs() -> None:
    """On digits, the runs of the study took 9.7 and 10.8 epochs per adaptive round; the limit is 40."""
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    points = [
        point for line in lines for point in line["points"] if line["scale"] == "digits" and point["density"] == 0.3
    ]
    fixed, adaptive = (fmean(p["epochs"] for p in points if p["rough"] == rough) for rough in (10, "adaptive"))
    assert adaptive == pytest.approx(fixed, rel=0.1)
    priced = {cell.axes["rough"]: num_epochs(cell.config()) for cell in load_study("growth-timing").cells("short")}
    assert priced["adaptive"] == priced[10]
