"""Counting training samples, and FLOPs of mask updates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pathgrow.graph import trace
from pathgrow.graph.flops import scoring_flops
from pathgrow.graph.sample_counter import counting
from pathgrow.masks import Masks


def test_growth_costs_what_was_read() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    graph = trace(model, torch.ones(1, 4))
    masks = Masks({"0.weight": torch.eye(3, 4, dtype=torch.bool)})
    dense, sparse = 12 + 6, 3 + 6  # multiply-adds of one forward pass
    assert scoring_flops(graph, masks) == 0
    assert scoring_flops(graph, masks, num_path_passes=2) == 2 * 3 * 2 * dense
    assert scoring_flops(graph, masks, num_gradient_samples=10) == 10 * 2 * (2 * sparse + dense)


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


def test_a_scalar_before_the_batch_is_no_sample() -> None:
    model = TwoInputs()
    with counting(model) as counter:
        model(torch.tensor(2.0), {"x": torch.zeros(7, 3)})  # type: ignore[arg-type]
    assert counter.samples == 7


def test_samples_in_evaluation_mode_count_if_there_are_no_others() -> None:
    """A loop that never calls `train()`, after an evaluation that called `eval()`."""
    model = nn.Linear(3, 1).eval()
    with counting(model) as counter:
        model(torch.zeros(7, 3))
        with torch.no_grad():
            model(torch.zeros(100, 3))
    assert counter.samples == 7


def test_a_failed_block_leaves_no_hook() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="boom"), counting(model):
        raise RuntimeError("boom")
    assert not model._forward_pre_hooks
