"""Tau-core against enumeration of every path on small nets."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor, nn

from pathgrow.graph.topology import measure, tau_core
from pathgrow.masks import Masks

Node = tuple[str, int]


def chain(*weights: list[list[float]] | Tensor) -> tuple[nn.Sequential, Masks, Tensor]:
    layers = []
    for weight in weights:
        values = torch.as_tensor(weight, dtype=torch.float32)
        layer = nn.Linear(values.shape[1], values.shape[0], bias=False)
        layer.weight.data.copy_(values)
        layers.append(layer)
    net = nn.Sequential(*layers)
    masks = Masks({f"{i}.weight": layer.weight.detach() != 0 for i, layer in enumerate(layers)})
    return net, masks, torch.ones(1, layers[0].in_features)


def fixture() -> tuple[nn.Sequential, Masks, Tensor]:
    """Seven paths, total 30, worked out by hand."""
    return chain([[1, -2], [0, 3], [-1, 0]], [[2, 0, -1], [0, 1, 0]], [[1, 0], [-2, 3]])


def paths_of_chain(net: nn.Sequential) -> list[tuple[tuple[Node, ...], tuple[float, ...]]]:
    """Every path as its hidden nodes and its weights."""
    weights = [layer.weight.detach().abs().double() for layer in net]
    widths = [weights[0].shape[1], *(weight.shape[0] for weight in weights)]
    found = []
    for units in itertools.product(*map(range, widths)):
        values = tuple(float(w[b, a]) for w, a, b in zip(weights, units, units[1:], strict=False))
        if math.prod(values) > 0:
            nodes = tuple((f"{layer}.weight", unit) for layer, unit in enumerate(units[1:-1]))
            found.append((nodes, values))
    return found


def greedy_size(paths: list[tuple[tuple[Node, ...], float]], tau: float) -> int:
    total, left, size = sum(weight for _, weight in paths), list(paths), 0
    while sum(weight for _, weight in left) > (1 - tau) * total * (1 + 1e-9):
        through: dict[Node, float] = defaultdict(float)
        for nodes, weight in left:
            for node in set(nodes):
                through[node] += weight
        best = max(through, key=lambda node: through[node])
        left = [(nodes, weight) for nodes, weight in left if best not in nodes]
        size += 1
    return size


def smallest_size(paths: list[tuple[tuple[Node, ...], float]], tau: float) -> int:
    total = sum(weight for _, weight in paths)
    nodes = sorted({node for path, _ in paths for node in path})
    for size in range(len(nodes) + 1):
        for core in itertools.combinations(nodes, size):
            if sum(weight for path, weight in paths if set(core) & set(path)) >= tau * total * (1 - 1e-9):
                return size
    raise AssertionError


class TestFixture:
    def test_tau_core(self) -> None:
        net, masks, example = fixture()
        core = tau_core(net, example, masks, tau=0.9)
        assert core.size == 2
        assert core.layer_sizes == {"0.weight": 2, "1.weight": 2}
        assert core.layer_ratios == {"0.weight": pytest.approx(2 / 3), "1.weight": 1.0}
        assert core.mean_ratio == pytest.approx(0.8333, abs=1e-4)
        assert core.coverage == pytest.approx(1.0)  # 21 and then 9 of 30

    def test_total_and_dead_units(self) -> None:
        net, masks, example = fixture()
        found = measure(net, example, masks)
        assert found.total == pytest.approx(30)
        assert found.log10_total == pytest.approx(math.log10(30))
        assert found.tau_core_size == 2
        assert (found.num_dead, found.num_isolated, found.num_hidden) == (0, 0, 5)
        assert found.layer_densities == {"0.weight": 4 / 6, "1.weight": 3 / 6, "2.weight": 3 / 4}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tau", [0.5, 0.9, 1.0])
def test_cores_of_random_chains(seed: int, tau: float) -> None:
    noise = torch.Generator().manual_seed(seed)
    widths = [2, 4, 3, 4, 2]
    weights = []
    for a, b in itertools.pairwise(widths):
        # Heavy tails: cores that are neither one unit nor all, and no two centralities alike.
        weight = torch.randn(b, a, generator=noise).exp() * (torch.rand(b, a, generator=noise) < 0.7)
        weight[0, 0] = 0.5
        weights.append(weight)
    net, masks, example = chain(*weights)
    paths = paths_of_chain(net)
    weighted = [(nodes, math.prod(values)) for nodes, values in paths]
    total = sum(weight for _, weight in weighted)
    core = tau_core(net, example, masks, tau)
    assert core.size == greedy_size(weighted, tau)
    best = smallest_size(weighted, tau)
    assert best <= core.size <= best * (1 + math.log(total / min(weight for _, weight in weighted)))
    for layer, name in enumerate(core.layer_sizes):
        through: dict[int, float] = defaultdict(float)
        for nodes, weight in weighted:
            through[nodes[layer][1]] += weight
        ranked, size, carried = sorted(through.values(), reverse=True), 0, 0.0
        while carried < tau * total * (1 - 1e-9):
            carried += ranked[size]
            size += 1
        assert core.layer_sizes[name] == size
        assert core.layer_ratios[name] == size / widths[layer + 1]


class Skips(nn.Module):
    """x -> a -> (+ b c) -> (+ d e) -> head: two residual blocks over three units."""

    def __init__(self, noise: torch.Generator) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e, self.head = (nn.Linear(3, 3, bias=False) for _ in range(6))
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(3, 3, generator=noise).exp())

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = x + self.c(self.b(x).relu())
        x = x + self.e(self.d(x).relu())
        return self.head(x)

    def paths(self) -> list[tuple[tuple[Node, ...], float]]:
        w = {name: parameter.detach().abs().double() for name, parameter in self.named_parameters()}
        starts = [((("a", u),), float(w["a.weight"][u].sum()), u) for u in range(3)]
        for first, second in (("b", "c"), ("d", "e")):
            longer = list(starts)  # along the shortcut
            for nodes, weight, u in starts:
                for middle, out in itertools.product(range(3), repeat=2):
                    step = float(w[f"{first}.weight"][middle, u] * w[f"{second}.weight"][out, middle])
                    longer.append(((*nodes, (first, middle), (second, out)), weight * step, out))
            starts = longer
        heads = w["head.weight"].sum(dim=0)
        return [(nodes, weight * float(heads[u])) for nodes, weight, u in starts]


def fewest_of_a_layer(paths: list[tuple[tuple[Node, ...], float]], name: str, tau: float) -> int:
    through: dict[Node, float] = defaultdict(float)
    for nodes, weight in paths:
        for node in nodes:
            if node[0] == name:
                through[node] += weight
    goal, sizes = tau * sum(through.values()) * (1 - 1e-9), sorted(through.values(), reverse=True)
    return next(num for num in range(1, len(sizes) + 1) if sum(sizes[:num]) >= goal)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tau", [0.6, 0.9, 1.0])
def test_global_core_with_shortcuts(seed: int, tau: float) -> None:
    model = Skips(torch.Generator().manual_seed(seed))
    paths = model.paths()
    core = tau_core(model, torch.ones(1, 3), Masks.full(model), tau)
    assert core.size == greedy_size(paths, tau)
    # A layer's own core is a share of what runs through the layer, which shortcuts pass by.
    assert core.layer_sizes == {f"{name}.weight": fewest_of_a_layer(paths, name, tau) for name in "abcde"}
    assert measure(model, torch.ones(1, 3), Masks.full(model)).total == pytest.approx(
        sum(weight for _, weight in paths)
    )
