"""The price of a run, checked against sums done by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from pathgrow.graph import trace
from pathgrow.graph.flops import growth_flops
from pathgrow.graph.sample_counter import counting
from pathgrow.masks import Masks
from pathgrow.runs.ledger import Ledger


def test_phases_add_up() -> None:
    ledger = Ledger(dense_flops=600, budget=20)
    ledger.add("seed", epochs=4, samples=400, density=0.1, sample_flops=60, seconds=1.5)
    ledger.add("round-001", epochs=2, samples=200, density=0.2, sample_flops=120, growth_flops=600, seconds=0.5)
    told = ledger.as_dict()
    assert told == {
        "phases": [
            {"phase": "seed", "epochs": 4, "samples": 400, "density": 0.1, "training_flops": 24_000},
            {"phase": "round-001", "epochs": 2, "samples": 200, "density": 0.2, "training_flops": 24_600},
        ],
        "training_flops": 48_600,
        "dense_training_flops": 20 * 100 * 600,
        "relative": 48_600 / 1_200_000,
        "samples": 600,
    }
    assert json.loads(json.dumps(told)) == told
    assert ledger.timing() == {
        "seconds": 2.0,
        "phases": [{"phase": "seed", "seconds": 1.5}, {"phase": "round-001", "seconds": 0.5}],
    }


@pytest.mark.parametrize("epochs", [0, 3])
def test_without_samples_there_is_nothing_to_compare(epochs: int) -> None:
    ledger = Ledger(dense_flops=600, budget=20)
    ledger.add("seed", epochs=epochs, samples=0, density=0.1, sample_flops=60)
    assert ledger.dense_training_flops is None
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
