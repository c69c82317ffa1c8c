"""Path scores against the definition: enumerate every path of a small network and multiply its weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow import models
from pathgrow.graph.paths import path_scores, signals

Edge = tuple[str, int] | None
"""A weight by (parameter name, flat index); None: an edge without a weight, such as a shortcut."""
Graph = dict[tuple, list[tuple[tuple, Edge, float]]]
"""Node -> [(next node, edge, fixed factor)]."""


def enumerate_paths(graph: Graph, node: tuple) -> Iterator[tuple[list[Edge], float]]:
    """Every path from a node to an output node; a pixel that no kernel reads leads nowhere."""
    if node[0] == "y":
        yield [], 1.0
    for after, edge, factor in graph.get(node, []):
        for edges, product in enumerate_paths(graph, after):
            yield [edge, *edges], factor * product


def brute_force(model: nn.Module, graph: Graph, starts: list[tuple], power: int = 1) -> tuple[float, dict[str, Tensor]]:
    """Total over paths, and per position the sum over paths through it of the product of the other weights."""
    weights = {n: p.detach().double().abs().flatten() ** power for n, p in model.named_parameters()}
    scores = {name: torch.zeros_like(value) for name, value in weights.items()}
    total = 0.0
    for start in starts:
        for edges, factor in enumerate_paths(graph, start):
            used = [edge for edge in edges if edge is not None]
            values = [float(weights[name][index]) for name, index in used]
            total += factor**power * float(np.prod(values))
            for position, (name, index) in enumerate(used):
                others = np.prod(values[:position] + values[position + 1 :])
                scores[name][index] += factor**power * float(others)
    return total, {n: s.view(dict(model.named_parameters())[n].shape) for n, s in scores.items()}


def check(model: nn.Module, example: Tensor, graph: Graph, starts: list[tuple]) -> None:
    for power in (1, 2):
        total, expected = brute_force(model, graph, starts, power)
        found = signals(model, example, squared=power == 2)
        assert found.total == pytest.approx(total, rel=1e-9)
        for name, score in found.scores():
            torch.testing.assert_close(score * total, expected[name], rtol=1e-9, atol=0.0)
    check_centralities(model, example, graph, starts)


def check_centralities(model: nn.Module, example: Tensor, graph: Graph, starts: list[tuple]) -> None:
    """The share of all path weight through each unit, position by position and added up."""
    parameters = {n: p.detach().double().abs() for n, p in model.named_parameters()}
    through = {name: torch.zeros(weight.shape[0]).double() for name, weight in parameters.items() if weight.ndim > 1}
    total = 0.0
    for start in starts:
        for edges, factor in enumerate_paths(graph, start):
            used = [edge for edge in edges if edge is not None]
            product = factor * math.prod(float(parameters[name].flatten()[index]) for name, index in used)
            total += product
            for name, index in used:
                through[name][index // parameters[name][0].numel()] += product
    found = signals(model, example)
    for layer in found.graph.layers:
        if layer.where is None and layer.name is not None:
            torch.testing.assert_close(
                torch.from_numpy(found.centralities[layer.index]), through[layer.name] / total, rtol=1e-9, atol=0
            )


def sparsified(model: nn.Module, seed: int, keep: float = 0.6) -> nn.Module:
    """Random weights with some exact zeros: missing positions must be scored too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
                parameter.mul_(torch.rand(parameter.shape, generator=generator) < keep)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def connect(graph: Graph, layer: str, name: str, inputs: list[tuple], outputs: list[tuple]) -> None:
    for (o, out), (i, node) in itertools.product(enumerate(outputs), enumerate(inputs)):
        graph.setdefault(node, []).append((out, (name, o * len(inputs) + i), 1.0))


@pytest.mark.parametrize("seed", range(5))
def test_chain(seed: int) -> None:
    activations = [nn.ReLU(), nn.GELU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU()]
    model = sparsified(nn.Sequential(nn.Linear(3, 4), activations[seed], nn.LayerNorm(4), nn.Linear(4, 2)), seed)
    inputs, hidden, outputs = ([(layer, i) for i in range(n)] for layer, n in (("x", 3), ("h", 4), ("y", 2)))
    graph: Graph = {}
    connect(graph, "h", "0.weight", inputs, hidden)
    connect(graph, "y", "3.weight", hidden, outputs)
    check(model, torch.randn(2, 3), graph, inputs)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 3)
        self.norm, self.project, self.head = nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.tensor([0.5, -2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        x = x + self.scale * self.b(F.relu(self.a(x)))
        x += self.project(x)  # in place, and a branch that reads what it is added to
        return self.head(x)


@pytest.mark.parametrize("seed", range(3))
def test_residual_with_layer_scale(seed: int) -> None:
    model = sparsified(Residual(), seed)
    nodes = {n: [(n, i) for i in range(k)] for n, k in zip("xsabtuy", (2, 3, 4, 3, 3, 3, 2), strict=True)}
    graph: Graph = {}
    connect(graph, "s", "stem.weight", nodes["x"], nodes["s"])
    connect(graph, "a", "a.weight", nodes["s"], nodes["a"])
    connect(graph, "b", "b.weight", nodes["a"], nodes["b"])
    for i in range(3):
        graph.setdefault(("s", i), []).append((("t", i), None, 1.0))
        graph.setdefault(("b", i), []).append((("t", i), None, abs(float(model.scale[i].detach()))))  # type: ignore[union-attr, index, arg-type]
    connect(graph, "u", "project.weight", nodes["t"], nodes["u"])
    for i in range(3):
        graph[("t", i)].append((("u", i), None, 1.0))
    connect(graph, "y", "head.weight", nodes["u"], nodes["y"])
    check(model, torch.randn(1, 2), graph, nodes["x"])


def connect_conv(
    graph: Graph, name: str, weight: Tensor, shape_in: tuple[int, ...], stride: int, padding: int, groups: int,
    before: str, after: str,
) -> tuple[int, int, int]:  # fmt: skip
    _, height, width = shape_in
    out, per_group, kh, kw = weight.shape
    sizes = [(size + 2 * padding - k) // stride + 1 for size, k in ((height, kh), (width, kw))]
    for o, y, x, i, a, b in itertools.product(range(out), *map(range, sizes), range(per_group), range(kh), range(kw)):
        row, column = y * stride + a - padding, x * stride + b - padding
        if 0 <= row < height and 0 <= column < width:
            channel = (o // (out // groups)) * per_group + i
            index = ((o * per_group + i) * kh + a) * kw + b
            graph.setdefault((before, channel, row, column), []).append(((after, o, y, x), (name, index), 1.0))
    return (out, sizes[0], sizes[1])


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2), (2, 0, 2)])
def test_convolution(stride: int, padding: int, groups: int) -> None:
    first = nn.Conv2d(2, 4, 3, stride=stride, padding=padding)
    second = nn.Conv2d(4, 2, 2, padding=1, groups=groups)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    model = sparsified(nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, *head), stride + padding, keep=0.5)
    graph: Graph = {}
    shape = connect_conv(graph, "0.weight", first.weight, (2, 4, 3), stride, padding, 1, "x", "h")
    shape = connect_conv(graph, "3.weight", second.weight, shape, 1, 1, groups, "h", "p")
    for c, y, x in itertools.product(*map(range, shape)):
        for o in range(2):
            graph.setdefault(("p", c, y, x), []).append((("y", o), ("6.weight", o * 2 + c), 1 / (shape[1] * shape[2])))
    check(
        model, torch.randn(1, 2, 4, 3), graph, [("x", c, y, x) for c, y, x in itertools.product(*map(range, (2, 4, 3)))]
    )


def test_max_pool_counts_as_average_and_flatten_keeps_positions() -> None:
    conv = nn.Conv2d(1, 2, 2)
    model = sparsified(nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2)), 0)
    graph: Graph = {}
    shape = connect_conv(graph, "0.weight", conv.weight, (1, 3, 3), 1, 0, 1, "x", "h")
    for c, y, x in itertools.product(*map(range, shape)):
        for o in range(2):
            graph.setdefault(("h", c, y, x), []).append((("y", o), ("4.weight", o * 2 + c), 0.25))
    check(model, torch.randn(1, 1, 3, 3), graph, [("x", 0, y, x) for y in range(3) for x in range(3)])


MAP = (2, 5, 4)
"""Channels, rows and columns."""


class Between(nn.Module):
    """A fixed linear map between two layers; the model may run another function than the one it is taken for."""

    def __init__(self, taken_for: Callable[[Tensor], Tensor], runs: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 1, bias=False)
        self.last = nn.Linear(taken_for(torch.zeros(1, *MAP)).numel(), 2, bias=False)
        self.taken_for, self.runs = taken_for, runs

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.runs(self.first(x)).flatten(1))

    def graph(self) -> Graph:
        """Its coefficients, read off by sending ones through it, one after another."""
        num, places = math.prod(MAP), MAP[1] * MAP[2]
        ones = torch.cat([torch.zeros(1, num), torch.eye(num)]).double().view(num + 1, *MAP)
        outputs = self.taken_for(ones).reshape(num + 1, -1)
        coefficients = (outputs[1:] - outputs[0]).abs()  # less what constants give
        found: Graph = {}
        for k in range(num):
            found.setdefault(("x", k % places), []).append((("h", k), ("first.weight", k // places), 1.0))
        for k, g in coefficients.nonzero().tolist():
            found.setdefault(("h", k), []).append((("g", g), None, float(coefficients[k, g])))
        connect(found, "last", "last.weight", [("g", g) for g in range(outputs.shape[1])], [("y", 0), ("y", 1)])
        return found


AVERAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "whole windows": lambda x: F.avg_pool2d(x, 2),
    "a border that counts": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "a border that does not": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "windows beyond the border": lambda x: F.avg_pool2d(x, (2, 3), 2, (0, 1), ceil_mode=True),
    "another divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "uneven windows": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "one axis": lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 1, count_include_pad=False),
    "a scaled summand": lambda x: torch.add(x, x.flip(-1), alpha=0.5),
    "one less": lambda x: torch.sub(1.0, x, alpha=3),
    "scaled beside a constant": lambda x: torch.add(torch.ones(1, *MAP), x, alpha=-2),
    "a multiple": lambda x: -0.5 * x / -3,
    "channels and places scaled": lambda x: x * torch.linspace(-1, 1, 40).view(1, *MAP),
    "less a multiple": lambda x: torch.rsub(x, x.roll(1, -1), alpha=0.25),
}
MAXIMA: dict[str, Callable[[Tensor], Tensor]] = {
    "a border that does not": lambda x: F.max_pool2d(x, 3, 2, 1),
    "uneven windows": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "one axis": lambda x: F.max_pool1d(x.flatten(2), 3, 2, 1),
}


@pytest.mark.parametrize(("name", "runs"), [*AVERAGES.items(), *MAXIMA.items()])
def test_fixed_coefficients_are_those_of_the_function(name: str, runs: Callable[[Tensor], Tensor]) -> None:
    """Squared too, where weights are: near a border a window has fewer places, and each of them counts more."""
    model = Between(AVERAGES[name], runs).double()
    sparsified(model, 1, keep=0.8)
    starts = [("x", place) for place in range(MAP[1] * MAP[2])]
    check(model, torch.randn(1, 1, *MAP[1:], dtype=torch.float64), model.graph(), starts)


class Attention(nn.Module):
    """One head over three tokens, written by hand or with the fused kernel."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(2, 6, bias=False), nn.Linear(2, 2), nn.Linear(2, 2)
        self.attend = attend
        self.positions = nn.Parameter(torch.randn(1, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out(self.attend(query, key, value))
        return self.head(x.mean(1))


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * 2**-0.5
    scores = scores.masked_fill(torch.zeros(3, 3, dtype=torch.bool), float("-inf"))
    return F.dropout(scores.softmax(-1), 0.1, training=False) @ v


@pytest.mark.parametrize(
    "attend",
    [by_hand, F.scaled_dot_product_attention, lambda q, k, v: torch.einsum("bqk,bkd->bqd", (q @ k.mT).softmax(-1), v)],
    ids=["by hand", "fused", "einsum"],
)
def test_attention_mixes_uniformly(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    model = sparsified(Attention(attend), 3)
    graph: Graph = {}
    for t, o, i in itertools.product(range(3), range(2), range(2)):
        graph.setdefault(("x", t, i), []).append((("v", t, o), ("qkv.weight", (4 + o) * 2 + i), 1.0))
    for t, s, c in itertools.product(range(3), range(3), range(2)):
        graph.setdefault(("v", s, c), []).append((("m", t, c), None, 1 / 3))
    for t, o, i in itertools.product(range(3), range(2), range(2)):
        graph.setdefault(("m", t, i), []).append((("r", t, o), ("out.weight", o * 2 + i), 1.0))
    for t, c in itertools.product(range(3), range(2)):
        graph[("x", t, c)].append((("r", t, c), None, 1.0))
        for o in range(2):
            graph.setdefault(("r", t, c), []).append((("y", o), ("head.weight", o * 2 + c), 1 / 3))
    starts = [("x", t, c) for t in range(3) for c in range(2)]
    check(model, torch.randn(1, 3, 2), graph, starts)
    assert bool((path_scores(model, torch.randn(1, 3, 2))["qkv.weight"][:4] == 0).all())


def connect_tokens(
    graph: Graph, name: str, tokens: int, before: str, after: str, into: int = 2, out: int = 2, offset: int = 0
) -> None:
    """Rows of a linear layer, from `offset` on, over a sequence."""
    for t, o, i in itertools.product(range(tokens), range(out), range(into)):
        graph.setdefault((before, t, i), []).append(((after, t, o), (name, (offset + o) * into + i), 1.0))


def connect_block(graph: Graph, name: str, tokens: int, before: str) -> str:
    """A transformer block of dimension 2 with one head and one hidden unit; gives the name of its output."""
    v, m, a, h, after = (f"{name}.{part}" for part in ("v", "m", "a", "h", "out"))
    connect_tokens(graph, f"{name}.attn.qkv.weight", tokens, before, v, offset=4)
    for t, s, c in itertools.product(range(tokens), range(tokens), range(2)):
        graph.setdefault((v, s, c), []).append(((m, t, c), None, 1 / tokens))
    connect_tokens(graph, f"{name}.attn.proj.weight", tokens, m, a)
    connect_tokens(graph, f"{name}.fc1.weight", tokens, a, h, out=1)
    connect_tokens(graph, f"{name}.fc2.weight", tokens, h, after, into=1)
    for t, c in itertools.product(range(tokens), range(2)):
        graph.setdefault((before, t, c), []).append(((a, t, c), None, 1.0))
        graph.setdefault((a, t, c), []).append(((after, t, c), None, 1.0))
    return after


@pytest.mark.parametrize("lsa", [False, True])
def test_vit_with_shifted_patches(lsa: bool) -> None:
    """Attention counts as uniform mixing, whatever is masked and however sharp the softmax is."""
    options = {"image_size": 4, "patch": 2, "dim": 2, "depth": 1, "heads": 1, "mlp_ratio": 0.5, "in_channels": 1}
    model = sparsified(models.create("vit", 2, **options, spt=True, lsa=lsa), 1, keep=0.8)
    graph: Graph = {}
    shifts = [(0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]  # by half a patch, down and to the right
    for row, column, (image, (down, right)) in itertools.product(range(4), range(4), enumerate(shifts)):
        y, x = row + down, column + right
        if 0 <= y < 4 and 0 <= x < 4:
            token = 1 + (y // 2) * 2 + x // 2  # the class token comes first
            feature = image * 4 + (y % 2) * 2 + x % 2
            for o in range(2):
                edge = ("patch_embed.proj.weight", o * 20 + feature)
                graph.setdefault(("x", row, column), []).append((("t", token, o), edge, 1.0))
    last = connect_block(graph, "blocks.0", 5, "t")
    for o, c in itertools.product(range(2), range(2)):
        graph.setdefault((last, 0, c), []).append((("y", o), ("head.weight", o * 2 + c), 1.0))
    check(model, torch.ones(1, 1, 4, 4), graph, [("x", row, column) for row in range(4) for column in range(4)])


def test_pit_pools_patches_and_the_class_token_apart() -> None:
    options = {"image_size": 2, "patch": 1, "dims": [2, 2], "depths": [1, 1], "heads": [1, 1], "mlp_ratio": 0.5}
    model = sparsified(models.create("pit", 2, **options, in_channels=1), 2, keep=0.7)
    graph: Graph = {}
    for p, o in itertools.product(range(4), range(2)):
        graph.setdefault(("x", p), []).append((("t", 1 + p, o), ("patch_embed.weight", o), 1.0))
    first = connect_block(graph, "stages.0", 5, "t")
    connect_tokens(graph, "stages.1.fc.weight", 1, first, "p")
    for c, row, column in itertools.product(range(2), range(2), range(2)):  # depthwise, one border pixel, one output
        edge = ("stages.1.conv.weight", c * 9 + (row + 1) * 3 + column + 1)
        graph.setdefault((first, 1 + row * 2 + column, c), []).append((("p", 1, c), edge, 1.0))
    last = connect_block(graph, "stages.2", 2, "p")
    for o, c in itertools.product(range(2), range(2)):
        graph.setdefault((last, 0, c), []).append((("y", o), ("head.weight", o * 2 + c), 1.0))
    check(model, torch.ones(1, 1, 2, 2), graph, [("x", p) for p in range(4)])


def test_paper_fixture() -> None:
    model = nn.Sequential(*(nn.Linear(i, o, bias=False) for i, o in ((2, 3), (3, 2), (2, 2))))
    values = [[[1, -2], [0, 3], [-1, 0]], [[2, 0, -1], [0, 1, 0]], [[1, 0], [-2, 3]]]
    with torch.no_grad():
        for layer, value in zip(model, values, strict=True):
            layer.weight.copy_(torch.tensor(value, dtype=torch.float32))  # type: ignore[operator, union-attr]
    found = signals(model, torch.ones(1, 2))
    assert found.total == 30.0
    carried = [(found.centralities[i] * 30).round(9).tolist() for i in range(3)]
    assert carried == [[18, 9, 3], [21, 9], [7, 23]]
    scores = {name: (score * 30).round(decimals=9) for name, score in found.scores()}
    missing = [("0", 1, 0), ("0", 2, 1), ("1", 0, 1), ("1", 1, 0), ("1", 1, 2), ("2", 0, 1)]
    assert [float(scores[f"{n}.weight"][o, i]) for n, o, i in missing] == [3, 3, 9, 9, 3, 3]
    squared = signals(model, torch.ones(1, 2), squared=True)
    gains = {name: (score * squared.total).round(decimals=9) for name, score in squared.scores()}
    assert [float(gains[f"{n}.weight"][o, i]) for n, o, i in missing] == [9, 5, 45, 45, 9, 9]
    trace = sum(float(gains[f"{n}.weight"][layer.weight != 0].sum()) for n, layer in enumerate(model))  # type: ignore[union-attr]
    assert trace == 216
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0**70)  # activations are rescaled on the way, which shares do not show
    large = signals(model, torch.ones(1, 2))
    assert large.total == 30.0 * 2.0**210
    assert all((large.centralities[i] == found.centralities[i]).all() for i in range(3))
