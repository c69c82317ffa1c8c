"""Op handlers: gates, norms, sums, attention, layouts and windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.paths import path_scores, signals
from pathgrow.graph.scope import scope


class Gated(nn.Module):
    """A hidden layer multiplied by something computed from it."""

    def __init__(self, combine: object) -> None:
        super().__init__()
        self.stem, self.gate, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.combine(x, self.gate(x)))  # type: ignore[operator]


def plain_scores(model: Gated) -> dict[str, Tensor]:
    """The same network without its gate."""
    chain = nn.Sequential(model.stem, model.head)
    return dict(zip(("stem.weight", "head.weight"), path_scores(chain, torch.ones(1, 3)).values(), strict=True))


@pytest.mark.parametrize(
    "combine",
    [
        lambda x, g: x * torch.sigmoid(g),
        lambda x, g: torch.sigmoid(g) * x,
        lambda x, g: x * F.hardsigmoid(g),
        lambda x, g: x.mul_(g.sigmoid()),
        lambda x, g: F.silu(g) * x,
        lambda x, g: F.glu(torch.cat([x, g], dim=-1)),
        lambda x, g: torch.tanh(x) * torch.sigmoid(g),
        lambda x, g: x * torch.rsqrt(g.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x, g: x / (1 + g.norm(dim=-1, keepdim=True)),
    ],
)
def test_a_gate_that_multiplies_is_open(combine: object) -> None:
    model = Gated(combine)
    found, expected = path_scores(model, torch.ones(1, 3)), plain_scores(model)
    assert bool((found["gate.weight"] == 0).all())
    for name, score in expected.items():
        torch.testing.assert_close(found[name], score)
    assert set(scope(model)) == {"stem.weight"}, "a gate's layer is not prunable: it is on no path"


@pytest.mark.parametrize("activation", [torch.sigmoid, torch.tanh, lambda x: x * torch.sigmoid(x), nn.GELU("tanh")])
def test_the_same_sigmoid_as_an_activation_is_the_identity(activation: object) -> None:
    model = Gated(lambda x, g: activation(g))  # type: ignore[operator]
    chain = nn.Sequential(model.stem, model.gate, model.head)
    for score, expected in zip(
        path_scores(model, torch.ones(1, 3)).values(), path_scores(chain, torch.ones(1, 3)).values(), strict=True
    ):
        torch.testing.assert_close(score, expected)


def test_hand_written_gelu_and_layer_norm_are_the_identity() -> None:
    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.79788 * (x + 0.044715 * torch.pow(x, 3.0))))

    def norm(x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)

    model = Gated(lambda x, g: gelu(norm(g)))
    chain = nn.Sequential(model.stem, model.gate, model.head)
    for score, expected in zip(
        path_scores(model, torch.ones(1, 3)).values(), path_scores(chain, torch.ones(1, 3)).values(), strict=True
    ):
        torch.testing.assert_close(score, expected)


def test_squeeze_and_excitation_stays_dense() -> None:
    class Squeeze(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.reduce, self.expand = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
            self.next, self.head = nn.Conv2d(8, 8, 3), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            x = x * torch.sigmoid(self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True)))))
            return self.head(self.next(x).mean((2, 3)))

    assert set(scope(Squeeze(), example_input=torch.ones(1, 3, 8, 8))) == {"conv.weight", "next.weight"}


@pytest.mark.parametrize("squared", [False, True])
def test_a_sum_with_a_product_counts_its_factors(squared: bool) -> None:
    class Sum(nn.Module):
        def __init__(self, combine: object) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.stem, self.weight, self.combine = nn.Linear(3, 4), nn.Parameter(torch.randn(3, 4)), combine

        def forward(self, x: Tensor) -> Tensor:
            return self.combine(self.stem(x), x, self.weight)

    example = torch.ones(1, 3)
    plainly = signals(Sum(lambda h, x, w: 0.5 * h - 3 * (x @ w)), example, squared=squared)
    at_once = signals(Sum(lambda h, x, w: torch.addmm(h, x, w, beta=0.5, alpha=-3)), example, squared=squared)
    without = signals(
        Sum(lambda h, x, w: torch.addmm(torch.ones(4), x, w, beta=0.5, alpha=-3)), example, squared=squared
    )
    assert at_once.total == pytest.approx(plainly.total)
    assert without.total == pytest.approx(float((3 * Sum(None).weight.detach().abs()).pow(2 if squared else 1).sum()))
    for name, score in plainly.scores():
        torch.testing.assert_close(dict(at_once.scores())[name], score)


def test_multihead_attention_module_matches_its_parts() -> None:
    class Block(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            mixed, _ = self.attention(x, x, x)
            return self.head((x + mixed).mean((0, 1)))  # beside the shortcut, the size of what was mixed tells

    for batch_first in (True, False):
        model = Block(batch_first)
        example = torch.ones(1, 3, 4) if batch_first else torch.ones(3, 1, 4)
        parameters = {name: value.detach().double().abs() for name, value in model.named_parameters()}
        value, out = parameters["attention.in_proj_weight"][8:], parameters["attention.out_proj.weight"]
        both = torch.eye(4, dtype=torch.float64) + out @ value
        total = (parameters["head.weight"] @ both @ torch.ones(4, dtype=torch.float64)).sum()
        scores = path_scores(model, example)
        assert bool((scores["attention.in_proj_weight"][:8] == 0).all())
        expected = torch.outer((parameters["head.weight"] @ out).sum(0), torch.ones(4, dtype=torch.float64))
        torch.testing.assert_close(scores["attention.in_proj_weight"][8:] * total, expected)
        assert scope(model, example, "default")["attention.in_proj_weight"].sum() == 16


def test_transposed_convolution_and_matmul_layouts() -> None:
    class Layouts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2, bias=False)
            self.mix = nn.Parameter(torch.randn(6, 3))
            self.head = nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.up(x)).mean((2, 3))
            return self.head(x @ self.mix)

    model = Layouts()
    leaves = {name: value.detach().double().abs().requires_grad_() for name, value in model.named_parameters()}
    ones = torch.ones(1, 4, 2, 2, dtype=torch.float64)
    up = F.conv_transpose2d(ones, leaves["up.weight"], None, 2, 0, 0, 2).mean((2, 3))
    total = (up @ leaves["mix"] @ leaves["head.weight"].t()).sum()
    total.backward()
    for name, score in path_scores(model, torch.ones(1, 4, 2, 2)).items():
        torch.testing.assert_close(score, leaves[name].grad / total.detach())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(1, 1, 3, stride=2, padding=1),
        nn.Conv1d(1, 1, 3, padding="same", dilation=2),
        nn.Conv1d(1, 1, 4, padding="same"),
        nn.Conv1d(1, 1, 2, padding="valid"),
        nn.ConvTranspose1d(1, 1, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose1d(1, 1, 2, stride=3, dilation=2),
    ],
    ids=repr,
)
def test_windows_connect_the_positions_that_convolutions_do(layer: nn.Conv1d | nn.ConvTranspose1d) -> None:
    """One tap at a time, ones are sent through the layer from one position at a time."""
    size = 7
    window = trace(layer, torch.ones(1, 1, size)).layers[0].window
    (axis,) = window.axes
    for tap in range(axis.taps):
        with torch.no_grad():
            layer.weight.zero_()[0, 0, tap] = 1.0
            layer.bias.zero_()  # type: ignore[union-attr]
            sent = layer(torch.eye(size).view(size, 1, size))[:, 0]
        shift = tap * axis.dilation - axis.padding
        if window.transposed:
            pairs = {(i, i * axis.stride + shift) for i in range(axis.size_in)}
        else:
            pairs = {(o * axis.stride + shift, o) for o in range(axis.size_out)}
        on_the_map = {(i, o) for i, o in pairs if 0 <= i < axis.size_in and 0 <= o < axis.size_out}
        assert (axis.size_in, axis.size_out) == sent.shape
        assert {(i, o) for i, o in sent.nonzero().tolist()} == on_the_map


class Odd(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function, self.head = nn.Linear(4, 4), function, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.first(x)))  # type: ignore[no-any-return]


def written(x: Tensor) -> Tensor:
    zeros = torch.zeros(1, 4)
    zeros[:, :] = x
    return x + zeros


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: torch.cumsum(x, -1), "'torch.cumsum'"),
        (lambda x: torch.fft.fftshift(x), "'torch.fft.fftshift'"),
        (written, "'torch.Tensor.__setitem__'"),
        (lambda x: torch.from_numpy(x.detach().numpy()), "torch.Tensor.numpy"),
        (lambda x: torch.tensor(x.tolist()), "torch.Tensor.tolist"),
        (lambda x: nn.functional.one_hot(x.argmax(-1), 4).float(), "torch.Tensor.argmax"),
    ],
)
def test_functions_without_a_handler_are_named_with_their_line(function: Callable[[Tensor], Tensor], name: str) -> None:
    code = function.__code__
    line = code.co_firstlineno + (2 if function is written else 0)
    with pytest.raises(UserError) as caught:
        trace(Odd(function), torch.ones(1, 4))
    assert f"paths cannot be traced through {name}" in str(caught.value).replace("torch function ", "")
    assert f"({code.co_filename}, line {line})" in str(caught.value)


def test_recurrent_layers_are_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="lstm"):
        trace(nn.LSTM(3, 4, batch_first=True), torch.ones(1, 5, 3))
