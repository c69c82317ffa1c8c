"""The price of a run, checked against sums done by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pathgrow.density.types import Point
from pathgrow.graph import trace
from pathgrow.graph.flops import growth_flops
from pathgrow.graph.sample_counter import counting
from pathgrow.masks import Masks
from pathgrow.runs.records import Record, ledger_report, timing_report


def record(stage: str, *, num_epochs: int, num_samples: int, num_on: int, **costs: float) -> Record:
    point = Point(round=0, density=num_on / 100, epochs=num_epochs, score=0.5)
    return Record(
        stage=stage,
        point=point,
        density_model=0.5,
        num_on=num_on,
        num_epochs=num_epochs,
        num_samples=num_samples,
        **{"sample_flops": 60, "seconds": 0.0, **costs},  # type: ignore[arg-type]
    )


def test_phases_add_up() -> None:
    records = [
        record("seed", num_epochs=4, num_samples=400, num_on=10, seconds=1.5),
        record("round-001", num_epochs=2, num_samples=200, num_on=20, sample_flops=120, growth_flops=600, seconds=0.5),
    ]
    ledger = ledger_report(records, num_prunable=100, num_parameters=130, dense_training_flops=1_200_000)
    assert [phase.training_flops for phase in ledger.phases] == [24_000, 24_600]
    assert ledger.training_flops == 48_600
    assert ledger.relative == 48_600 / 1_200_000
    assert (ledger.samples, ledger.epochs_trained) == (600, 6)
    assert ledger.epochs_times_prunable == 4 * 10 + 2 * 20
    assert ledger.epochs_times_parameters == 4 * 40 + 2 * 50
    timing = timing_report(records)
    assert timing.seconds == 2.0
    assert [(phase.phase, phase.seconds) for phase in timing.phases] == [("seed", 1.5), ("round-001", 0.5)]


def test_epochs_trained_follow_from_the_samples() -> None:
    records = [record("training", num_epochs=4, num_samples=300, num_on=10)]
    ledger = ledger_report(
        records, num_prunable=100, num_parameters=100, dense_training_flops=None, samples_per_epoch=100
    )
    assert (ledger.epochs_trained, ledger.phases[0].epochs_trained, ledger.phases[0].epochs) == (3, 3, 4)
    assert ledger.relative is None


def test_growth_costs_what_was_read() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    graph = trace(model, torch.ones(1, 4))
    masks = Masks({"0.weight": torch.eye(3, 4, dtype=torch.bool)})
    dense, sparse = 12 + 6, 3 + 6  # multiply-adds of one forward pass
    assert growth_flops(graph, masks) == 0
    assert growth_flops(graph, masks, num_path_passes=2) == 2 * 3 * 2 * dense
    assert growth_flops(graph, masks, num_gradient_samples=10) == 10 * 2 * (2 * sparse + dense)


class TwoInputs(nn.Module):
    def forward(self, scale: float, batch: dict[str, Tensor]) -> Tensor:
        return batch["x"].requires_grad_() * scale


def test_training_samples_are_counted_and_nothing_else() -> None:
    model = TwoInputs()
    with counting(model) as counter:
        model(2.0, {"x": torch.zeros(7, 3)})
        model(scale=2.0, batch={"x": torch.zeros(5, 3)})
        model(2.0, {"x": torch.zeros(())})
        with torch.no_grad():
            model(2.0, {"x": torch.zeros(100, 3)})
        model.eval()
        model(2.0, {"x": torch.zeros(100, 3)})
    model.train()
    model(2.0, {"x": torch.zeros(100, 3)})
    assert counter.samples == 13
    assert not model._forward_pre_hooks


def test_a_failed_block_leaves_no_hook() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="boom"), counting(model):
        raise RuntimeError("boom")
    assert not model._forward_pre_hooks
