"""What the reader makes of gates, norms, tokens, ties and odd layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow import models
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
    assert set(scope(model)) == {"stem.weight"}, "a gate's layer cannot be switched: no path signal reaches it"


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


@pytest.mark.parametrize("name", ["resnet110", "resnet50"])
def test_nothing_overflows_at_depth(name: str) -> None:
    model = models.create(name, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1e6)  # far beyond what float64 could hold as a product over the layers
    example = torch.ones(1, 3, 32, 32)
    found = signals(model, example)
    assert found.log2_total > 1024
    assert found.total == float("inf")
    for _, score in found.scores():
        assert bool(torch.isfinite(score).all())
        assert bool((score > 0).any())


def test_scaling_does_not_change_scores() -> None:
    """Powers of two inside the pass are exact: a network scaled far out of range scores like the plain one."""
    model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(12)))
    plain = path_scores(model, torch.ones(1, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0**100)
    for name, score in path_scores(model, torch.ones(1, 6)).items():
        torch.testing.assert_close(score * 2.0**100, plain[name], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("meet", ["cat", "add", "where"])
def test_branches_that_were_rescaled_meet_in_proportion(meet: str) -> None:
    class Branches(nn.Module):
        """One branch reaches 2**70 on its way, and both are about 2**30 where they meet."""

        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(2, 3, bias=False), nn.Linear(3, 4, bias=False)
            self.plain = nn.Linear(2, 4, bias=False)
            self.head = nn.Linear(8 if meet == "cat" else 4, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.down(self.up(x)), self.plain(x)
            if meet == "cat":
                return self.head(torch.cat([b, a], 1))
            return self.head(b + a if meet == "add" else torch.where(torch.ones(4).bool(), b, a))

    model = Branches().double()
    with torch.no_grad():
        for layer, power in ((model.up, 70), (model.down, -40), (model.plain, 30)):
            layer.weight.mul_(2.0**power)
    up, down, plain, head = (p.detach().abs().numpy() for p in model.parameters())
    a, b = down @ up @ np.ones(2), plain @ np.ones(2)
    read_off = np.concatenate([b, a]) if meet == "cat" else a + b
    total = (head @ read_off).sum()
    assert signals(model, torch.ones(1, 2).double()).total == pytest.approx(total, rel=1e-12)
    scores = path_scores(model, torch.ones(1, 2).double())
    np.testing.assert_allclose(scores["head.weight"].numpy() * total, np.stack([read_off] * 2), rtol=1e-12)
    further = head.sum(0)[:4]
    np.testing.assert_allclose(scores["plain.weight"].numpy() * total, np.stack([further] * 2, axis=1), rtol=1e-12)


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


def test_batch_norm_by_its_scale() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 1, bias=False))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([-2.0, 1.0]))
        norm.running_var.copy_(torch.tensor([4.0, 0.25]))  # type: ignore[union-attr]
    example = torch.ones(1, 1, 1, 1)
    plain, scaled = path_scores(model, example), path_scores(model, example, batch_norm="scale")
    ratio = scaled["3.weight"] / plain["3.weight"]
    assert float(ratio[0, 1] / ratio[0, 0]) == pytest.approx(2.0, rel=1e-4)


def test_zero_initialised_head_gives_usable_scores() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    scores = path_scores(model, torch.ones(1, 4))
    assert all(bool((score > 0).all()) for score in scores.values())


def test_masks_that_cut_every_path_are_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(UserError, match="no path with non-zero weights"):
        path_scores(model, torch.ones(1, 4), {"0.weight": torch.zeros(5, 4, dtype=torch.bool)})


def test_a_zero_layer_counts_as_ones_only_where_nothing_can_be_switched() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    kept = {name: torch.ones_like(model.get_parameter(name)).bool() for name in ("0.weight", "2.weight")}
    with pytest.raises(UserError, match=r"no non-zero weight: 2\.weight"):
        path_scores(model, torch.ones(1, 4), kept)
    del kept["2.weight"]
    assert bool((path_scores(model, torch.ones(1, 4), kept)["2.weight"] > 0).all())


def test_nan_weights_are_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    nn.init.constant_(model[0].weight, float("nan"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="NaN"):
        path_scores(model, torch.ones(1, 4))


def test_tied_weights_add_up() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.inner(F.relu(self.inner(x)))))

    model = Tied()
    weight, head = model.inner.weight.detach().double().abs(), model.head.weight.detach().double().abs()
    weight.requires_grad_()
    total = (head @ weight @ weight @ torch.ones(3, dtype=torch.float64)).sum()
    total.backward()
    assert weight.grad is not None
    torch.testing.assert_close(path_scores(model, torch.ones(1, 3))["inner.weight"], weight.grad / total.detach())


@dataclass
class Told:
    logits: Tensor
    hidden: Tensor


@dataclass(slots=True)
class ToldInSlots:
    hidden: Tensor
    logits: Tensor


@pytest.mark.parametrize("kind", [dict, SimpleNamespace, Told, ToldInSlots])
def test_an_answer_with_named_parts_is_its_logits(kind: Callable[..., object]) -> None:
    class Telling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head, self.beside = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> object:
            hidden = self.stem(x)
            return kind(logits=self.head(hidden), hidden=self.beside(hidden))

    model = Telling()
    plain = path_scores(nn.Sequential(model.stem, model.head), torch.ones(1, 3))
    told = path_scores(model, torch.ones(1, 3))
    assert torch.equal(told["stem.weight"], plain["0.weight"])
    assert torch.equal(told["head.weight"], plain["1.weight"])
    assert not told.get("beside.weight", torch.zeros(1)).any()


def test_unknown_functions_are_refused_by_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cumsum(x, -1))

    with pytest.raises(UserError, match="'cumsum'"):
        trace(Odd(), torch.ones(1, 4))


def test_recurrent_layers_are_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="'lstm'"):
        trace(nn.LSTM(3, 4, batch_first=True), torch.ones(1, 5, 3))


@pytest.mark.parametrize("example", [None, torch.ones(0, 4), "text"])
def test_bad_example_inputs(example: object) -> None:
    with pytest.raises(UserError):
        trace(nn.Identity() if example is None else nn.Linear(4, 2), example)


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
        assert scope(model, "default", example)["attention.in_proj_weight"].sum() == 16


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


def test_masks_of_another_model_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(UserError, match=r"'0.weight' has shape \(2, 2\)"):
        path_scores(model, torch.ones(1, 4), {"0.weight": torch.ones(2, 2, dtype=torch.bool)})


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
