"""Guessed inputs of models that do not declare one."""

from __future__ import annotations

import pytest
from torch import nn

from pathgrow.graph.scope import scope


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 10)),
        nn.Sequential(nn.Conv1d(2, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
    ],
    ids=["convolutions", "28 pixels", "a signal", "tokens"],
)
def test_inputs_are_guessed_from_the_first_layer(model: nn.Module) -> None:
    assert scope(model).num > 0
