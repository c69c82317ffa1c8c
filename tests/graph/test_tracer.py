"""The tracer leaves the model unchanged and accepts inputs and outputs of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.paths import path_scores


def test_the_model_is_not_changed() -> None:
    model = models.create("resnet20", 10)
    model.train()
    model.conv1.eval() if hasattr(model, "conv1") else None
    flags = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path_scores(model)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_buffers_that_activations_are_added_to_are_as_before() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("last", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            self.mean.mul_(0.9).add_(hidden.mean(0))
            self.last += hidden.mean(0)
            return self.head(hidden)  # type: ignore[no-any-return]

    model, example = Averaging(), torch.ones(2, 3)
    buffers = dict(model.named_buffers())
    first, second = (path_scores(model, example) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert not buffer.any()
        assert not vars(buffer)


@dataclass
class Named:
    logits: Tensor
    hidden: Tensor


@dataclass(slots=True)
class NamedInSlots:
    hidden: Tensor
    logits: Tensor


@pytest.mark.parametrize("kind", [dict, SimpleNamespace, Named, NamedInSlots])
def test_an_answer_with_named_parts_is_its_logits(kind: Callable[..., object]) -> None:
    class Answering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head, self.beside = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> object:
            hidden = self.stem(x)
            return kind(logits=self.head(hidden), hidden=self.beside(hidden))

    model = Answering()
    plain = path_scores(nn.Sequential(model.stem, model.head), torch.ones(1, 3))
    found = path_scores(model, torch.ones(1, 3))
    assert torch.equal(found["stem.weight"], plain["0.weight"])
    assert torch.equal(found["head.weight"], plain["1.weight"])
    assert not found.get("beside.weight", torch.zeros(1)).any()


@pytest.mark.parametrize("example", [None, torch.ones(0, 4), "text"])
def test_bad_example_inputs(example: object) -> None:
    with pytest.raises(UserError):
        trace(nn.Identity() if example is None else nn.Linear(4, 2), example)
