"""In which order a captured step does things, seen without a GPU: graphs are stood in for by their names."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pathgrow.trainer.cuda_graph_step import CudaGraphStep


class Told:
    """A graph and an attachment that say what is asked of them."""

    def __init__(self, parameter: nn.Parameter, due: bool, takes_place: bool) -> None:
        self.heard: list[str] = []
        self.update_is_due = due
        self._parameter, self._takes_place = parameter, takes_place
        self.optimizer = SGD([parameter], lr=0.5)

    def graph(self, name: str) -> Any:
        return SimpleNamespace(replay=lambda: self.heard.append(name))

    def hooks_disabled(self) -> Any:
        return nullcontext()

    def update_masks_if_due_(self) -> bool:
        self.heard.append(f"change by {self._gradient} at {self.optimizer.param_groups[0]['lr']}")
        return self._takes_place

    @property
    def _gradient(self) -> float:
        assert self._parameter.grad is not None
        return float(self._parameter.grad)

    def record_gradients_(self) -> None:
        self.heard.append(f"watch {self._gradient}")

    def average_(self) -> None:
        self.heard.append("average")

    def mask_weights_(self) -> None:
        self.heard.append("mask")

    def finish_step_(self) -> None:
        self.heard.append("stepped")


@pytest.mark.parametrize(
    ("due", "takes_place", "in_a_team", "heard", "counted"),
    [
        (False, False, False, ["to", "from", "stepped"], 0),
        (True, False, False, ["to", "change by 3.0 at 0.125", "from", "stepped"], 0),
        (True, True, False, ["to", "change by 3.0 at 0.125", "mask", "stepped"], 1),
        (False, False, True, ["to", "average", "watch 3.0", "from", "stepped"], 0),
        (True, True, True, ["to", "average", "watch 3.0", "change by 3.0 at 0.125", "mask", "stepped"], 1),
    ],
)
def test_masks_change_after_the_gradients_and_may_take_the_place_of_the_rest(
    due: bool, takes_place: bool, in_a_team: bool, heard: list[str], counted: int
) -> None:
    parameter = nn.Parameter(torch.zeros(()))
    told = Told(parameter, due, takes_place)
    step: Any = object.__new__(CudaGraphStep)
    step.attached, step._index = told, torch.zeros((), dtype=torch.int64)
    step._backward_graph, step._update_graph = told.graph("to"), told.graph("from")
    step._optimizer, step._base_lrs, step._own_rng = told.optimizer, [0.5], nullcontext
    step._feed = SimpleNamespace(lr_factor=lambda number: 0.25)
    step._buckets = told if in_a_team else None
    step._gradients = [(parameter, torch.tensor(3.0))]
    parameter.grad = torch.tensor(5.0)  # somebody's, put there since the capture
    step(1)
    assert told.heard == heard
    assert int(step._index) == counted  # else the second graph counts
    assert told.optimizer.param_groups[0]["lr"] == 0.5
