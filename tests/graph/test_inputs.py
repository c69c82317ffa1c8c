"""Guessed inputs of models that do not declare one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.graph.inputs import guess_example_input
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


def test_a_guess_leaves_no_trace() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("num_calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.num_calls += 1
            return self.layer(x + torch.rand(3))  # type: ignore[no-any-return]

    model, generator = Counting(), torch.get_rng_state()
    assert guess_example_input(model).shape == (1, 3)
    assert model.num_calls == 0
    assert torch.equal(torch.get_rng_state(), generator)


def test_an_input_that_the_model_rejects_is_named_and_not_a_traceback() -> None:
    """As timm's vision transformers do, whose declared input is that of another image size."""

    class Particular(nn.Module):
        default_cfg = {"input_size": (3, 32, 32)}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 4, 8), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-1] == 8, "input width does not match the model (8)"
            return self.out(self.conv(x).flatten(1))

    with pytest.raises(UserError, match=r"could not be run on example_input: input width .* pass a batch"):
        scope(Particular())
