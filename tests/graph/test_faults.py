"""Why a model is not traced: batches that it refuses, in the words of torch, and lines that cannot be followed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.calls import called_layers, calls_instead
from pathgrow.graph.faults import Untraceable, check_accepted
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import scope


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2),
    )  # fmt: skip


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (images(), (2, 4, 8)),
        (images(), (2, 3, 8, 8)),
        (images(), (2, 64)),
        (small(), (2, 1, 16, 16)),
        (small(), (2, 1, 4, 4)),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), (2, 1)),
        (nn.Sequential(nn.ConvTranspose2d(2, 4, 2), nn.Conv2d(4, 1, 2)), (2, 1, 4, 4)),
    ],
)
def test_a_batch_that_the_model_refuses_is_an_error_in_the_words_of_torch(model: nn.Module, shape: tuple[int]) -> None:
    with pytest.raises(RuntimeError) as own:
        model(torch.zeros(shape))
    for called in (trace, scope, path_scores):
        with pytest.raises(UserError, match=r"^the model could not be run on example_input: ") as caught:
            called(model, torch.zeros(shape))
        assert str(own.value).partition("\n")[0] in str(caught.value)


def test_a_batch_of_another_precision_or_without_a_leading_axis_is_traced() -> None:
    assert len(trace(images(), torch.zeros(2, 1, 8, 8, dtype=torch.float64)).layers) == 4
    unbatched = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3))
    assert len(trace(unbatched, torch.zeros(1, 8, 8)).layers) == 2
    assert len(trace(unbatched.half(), torch.zeros(1, 8, 8)).layers) == 2
    assert len(trace(unbatched.to("meta"), torch.zeros(1, 8, 8)).layers) == 2


def test_a_batch_that_raises_no_doubt_runs_the_model_only_once() -> None:
    model, num_calls = images(), list[int]()
    model.register_forward_hook(lambda *_: num_calls.append(1))
    trace(model, torch.zeros(2, 1, 8, 8))
    assert len(num_calls) == 1


class Restless(nn.Module):
    """A model that draws numbers and writes to its buffers, also when it evaluates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.written += 1
        self.replaced = self.replaced + torch.rand(2)
        return self.head(self.norm(x)) if self.training else self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("call", [check_accepted, called_layers, trace, path_scores])
def test_a_forward_pass_leaves_no_trace(call: Callable[[nn.Module, Tensor], object]) -> None:
    model = Restless()
    model.norm.eval()
    before, generator = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    call(model, torch.ones(2, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training
    assert not model.norm.training


class Odd(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function, self.head = nn.Linear(4, 4), function, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cumsum(x, -1),
        lambda x: torch.from_numpy(x.detach().numpy()),
        lambda x: torch.einsum("bi,bi,bi->bi", x, x, x),
        lambda x: nn.functional.max_pool1d(x, 3, 1, 1, return_indices=True)[0],
        lambda x: x if float(x.sum()) != 0 else x[:, :2],  # which the tracer finds to be zero
    ],
)
def test_the_warning_about_calls_names_the_function_and_the_line(function: Callable[[Tensor], Tensor]) -> None:
    code = function.__code__
    model, example = Odd(function), torch.ones(2, 4)
    with pytest.raises(Untraceable) as reason:
        trace(model, example)
    _, warning = calls_instead(model, example, reason.value)
    assert warning.startswith(f"Odd cannot be traced ({reason.value.place}). All conv, linear and recurrent weights ")
    assert f"{code.co_filename}, line " in warning
    assert f", line {code.co_firstlineno})" in str(reason.value)


def test_the_warning_about_calls_has_the_reason_if_there_is_no_line() -> None:
    model, example = Odd(nn.Identity()), torch.ones(2, 4)
    for reason in (UserError("a weight is NaN"), Untraceable("the output does not depend on its input", None)):
        assert calls_instead(model, example, reason)[1] == (
            f"Odd cannot be traced ({reason}). All conv, linear and recurrent weights that example_input reaches, "
            "except those of the last layer, are prunable, and FLOPs count these layers only."
        )


class Labeled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.head(self.first(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("example", "refusal"),
    [
        ({"x": torch.ones(2, 4), "extra": torch.ones(2)}, "got an unexpected keyword argument 'extra'"),
        ([torch.ones(2, 4), torch.ones(2), torch.ones(2)], "too many positional arguments"),
    ],
)
def test_a_batch_whose_parts_do_not_fit_is_blamed_for_that_too(example: object, refusal: str) -> None:
    for called in (trace, scope, path_scores):
        with pytest.raises(UserError, match=rf" \(and its parts as arguments: {refusal}\); pass a batch that Labeled "):
            called(Labeled(), example)
    with pytest.raises(UserError) as caught:
        trace(Labeled(), (torch.ones(2, 5), None))
    assert "its parts" not in str(caught.value)


def test_a_batch_that_an_untraceable_model_refuses_is_blamed_too() -> None:
    model = nn.LSTM(3, 4, batch_first=True)
    with pytest.raises(UserError, match=r"could not be run on example_input: .*(3|input_size)"):
        scope(model, torch.zeros(2, 5, 7))
