"""Visit frequencies of the walkers against a plain loop that moves one walker through a hand-written net.

The reference does not use the traced graph: every net is spelled out as a list of parts, positions are sets of tuples,
and each step is drawn with `random.choices`. Both have the same transition probabilities, so their visit counts are two
samples of one distribution, layer by layer.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from pathgrow.graph import trace
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker

Place = tuple[int, ...]


@dataclass
class Conv:
    """A convolution or, without positions, a linear layer."""

    name: str
    weight: Tensor
    size_in: Place = ()
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @cached_property
    def taps(self) -> dict[Place, list[tuple[Place, Place]]]:
        """Taps that read anything at all, with the pairs of positions (in, out) that they connect."""
        kernel = self.weight.shape[2:]
        size_out = [(n + 2 * self.padding - k) // self.stride + 1 for n, k in zip(self.size_in, kernel, strict=True)]
        found = {}
        for tap in itertools.product(*map(range, kernel)):
            pairs = []
            for out in itertools.product(*map(range, size_out)):
                at = tuple(p * self.stride + t - self.padding for p, t in zip(out, tap, strict=True))
                if all(0 <= a < n for a, n in zip(at, self.size_in, strict=True)):
                    pairs.append((at, out))
            if pairs:
                found[tap] = pairs
        return found

    @cached_property
    def magnitudes(self) -> list:
        return self.weight.detach().abs().tolist()

    def shares(self, o: int, i: int) -> list[float]:
        kernel = self.magnitudes[o][i % self.weight.shape[1]]
        return [kernel[tap[0]][tap[1]] if tap else kernel for tap in self.taps]

    def partners(self, unit: int, forward: bool) -> range:
        out, per_group = self.weight.shape[:2]
        rows = out // self.groups
        if forward:
            group = unit // per_group
            return range(group * rows, (group + 1) * rows)
        group = unit // rows
        return range(group * per_group, (group + 1) * per_group)

    def step(self, walker: OneWalker, forward: bool) -> None:
        kernels = []
        for other in self.partners(walker.unit, forward):
            o, i = (other, walker.unit) if forward else (walker.unit, other)
            kernels.append((o, i, other, self.shares(o, i)))
        sums = [sum(shares) for *_, shares in kernels]
        while True:  # a step off the map is drawn again
            o, i, other, shares = walker.random.choices(kernels, sums)[0]
            tap = walker.random.choices(list(self.taps), shares)[0]
            moved = [(a, b) if forward else (b, a) for a, b in self.taps[tap]]
            places = {b for a, b in moved if walker.places is None or a in walker.places}
            if places:
                break
        walker.unit, walker.places = other, places
        walker.visits[self.name].append((o, i % self.weight.shape[1], *tap))


@dataclass
class Flatten:
    """Every position of every channel becomes a unit."""

    size: Place

    def step(self, walker: OneWalker, forward: bool) -> None:
        every = list(itertools.product(*map(range, self.size)))
        if forward:
            while True:
                place = walker.random.choice(every)
                if walker.places is None or place in walker.places:
                    break
            walker.unit, walker.places = walker.unit * len(every) + every.index(place), None
        else:
            walker.unit, place = divmod(walker.unit, len(every))
            walker.places = {every[place]}


@dataclass
class Pool:
    """Non-overlapping windows."""

    width: int

    def step(self, walker: OneWalker, forward: bool) -> None:
        if walker.places is None:
            return
        if forward:
            walker.places = {tuple(a // self.width for a in place) for place in walker.places}
        else:
            inside = list(itertools.product(range(self.width), repeat=2))
            walker.places = {
                tuple(a * self.width + d for a, d in zip(place, offset, strict=True))
                for place in walker.places
                for offset in inside
            }


@dataclass
class Forget:
    """Global pooling: positions are mixed."""

    def step(self, walker: OneWalker, forward: bool) -> None:
        walker.places = None


@dataclass
class Block:
    """A residual block; with a projection the two branches are equally likely, an identity shortcut is not walked."""

    main: list
    projection: list | None = None

    def step(self, walker: OneWalker, forward: bool) -> None:
        branch = self.main if self.projection is None else walker.random.choice([self.main, self.projection])
        walker.follow(branch, forward)


class OneWalker:
    """One walker at a time, one step at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.visits: dict[str, list[Place]] = {}

    def follow(self, parts: list, forward: bool) -> None:
        for part in parts if forward else reversed(parts):
            part.step(self, forward)

    def run(self, parts: list, names: list[str], num: int, ends: int, forward: bool) -> dict[str, list[Place]]:
        self.visits = {name: [] for name in names}
        for turn in range(num):
            self.unit, self.places = turn % ends, None
            self.follow(parts, forward)
        return self.visits


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class NetworkView(nn.Module):
    """Weights by name, and the same function twice: as a module and as parts of the reference."""

    def __init__(self, forward: Callable[[NetworkView, Tensor], Tensor], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for number, (name, shape) in enumerate(shapes.items()):
            self.register_parameter(name, nn.Parameter(tensor(*shape, seed=number)))
        self._run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


conv, linear = nn.functional.conv2d, nn.functional.linear


def mlp() -> tuple[NetworkView, Tensor, list]:
    net = NetworkView(lambda n, x: linear(linear(linear(x, n.a).relu(), n.b).relu(), n.c), a=(7, 5), b=(6, 7), c=(3, 6))
    return net, torch.ones(1, 5), [Conv("a", net.a), Conv("b", net.b), Conv("c", net.c)]


def residual() -> tuple[NetworkView, Tensor, list]:
    """A block with a strided projection, then one with an identity shortcut."""

    def run(n: NetworkView, x: Tensor) -> Tensor:
        x = conv(x, n.stem, padding=1).relu()
        x = (conv(conv(x, n.a, stride=2, padding=1).relu(), n.b, padding=1) + conv(x, n.p, stride=2)).relu()
        x = (conv(conv(x, n.c, padding=1).relu(), n.d, padding=1) + x).relu()
        return linear(x.mean((2, 3)), n.head)

    net = NetworkView(
        run,
        stem=(3, 2, 3, 3),
        a=(4, 3, 3, 3),
        b=(4, 4, 3, 3),
        p=(4, 3, 1, 1),
        c=(4, 4, 3, 3),
        d=(4, 4, 3, 3),
        head=(3, 4),
    )
    parts = [
        Conv("stem", net.stem, (8, 8), padding=1),
        Block(
            [Conv("a", net.a, (8, 8), stride=2, padding=1), Conv("b", net.b, (4, 4), padding=1)],
            [Conv("p", net.p, (8, 8), stride=2)],
        ),
        Block([Conv("c", net.c, (4, 4), padding=1), Conv("d", net.d, (4, 4), padding=1)]),
        Forget(),
        Conv("head", net.head),
    ]
    return net, torch.ones(1, 2, 8, 8), parts


def small_map() -> tuple[NetworkView, Tensor, list]:
    """Padded 3x3 convolutions on a 2x2 map, where most steps would leave it."""

    def run(n: NetworkView, x: Tensor) -> Tensor:
        x = conv(conv(x, n.a, stride=2, padding=1).relu(), n.b, padding=1).relu()
        return linear(conv(conv(x, n.c, padding=1).relu(), n.d, padding=1).mean((2, 3)), n.head)

    net = NetworkView(run, a=(3, 2, 3, 3), b=(3, 3, 3, 3), c=(3, 3, 3, 3), d=(3, 3, 3, 3), head=(2, 3))
    parts = [Conv("a", net.a, (4, 4), stride=2, padding=1)]
    parts += [Conv(name, getattr(net, name), (2, 2), padding=1) for name in "bcd"]
    return net, torch.ones(1, 2, 4, 4), [*parts, Forget(), Conv("head", net.head)]


def flattened() -> tuple[NetworkView, Tensor, list]:
    def run(n: NetworkView, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(conv(x, n.a, padding=1).relu(), 2)
        return linear(linear(conv(x, n.b, padding=1).relu().flatten(1), n.c).relu(), n.d)

    net = NetworkView(run, a=(3, 2, 3, 3), b=(2, 3, 3, 3), c=(4, 8), d=(2, 4))
    parts = [Conv("a", net.a, (4, 4), padding=1), Pool(2), Conv("b", net.b, (2, 2), padding=1), Flatten((2, 2))]
    return net, torch.ones(1, 2, 4, 4), [*parts, Conv("c", net.c), Conv("d", net.d)]


def grouped() -> tuple[NetworkView, Tensor, list]:
    def run(n: NetworkView, x: Tensor) -> Tensor:
        x = conv(conv(x, n.a, padding=1).relu(), n.b, padding=1, groups=2).relu()
        return linear(conv(x, n.c, padding=1, groups=6).relu().mean((2, 3)), n.head)

    net = NetworkView(run, a=(4, 3, 3, 3), b=(6, 2, 3, 3), c=(6, 1, 3, 3), head=(3, 6))
    parts = [
        Conv("a", net.a, (5, 5), padding=1),
        Conv("b", net.b, (5, 5), padding=1, groups=2),
        Conv("c", net.c, (5, 5), padding=1, groups=6),
        Forget(),
        Conv("head", net.head),
    ]
    return net, torch.ones(1, 3, 5, 5), parts


def bottleneck() -> tuple[NetworkView, Tensor, list]:
    """1x1 convolutions on the main branch are no shortcuts."""

    def run(n: NetworkView, x: Tensor) -> Tensor:
        y = conv(conv(conv(x, n.a).relu(), n.b, stride=2, padding=1).relu(), n.c)
        x = (y + conv(x, n.p, stride=2)).relu()
        return linear((conv(conv(conv(x, n.d).relu(), n.e, padding=1).relu(), n.f) + x).relu().mean((2, 3)), n.head)

    net = NetworkView(run, a=(2, 3, 1, 1), b=(2, 2, 3, 3), c=(5, 2, 1, 1), p=(5, 3, 1, 1),
              d=(2, 5, 1, 1), e=(2, 2, 3, 3), f=(5, 2, 1, 1), head=(3, 5))  # fmt: skip
    first = [Conv("a", net.a, (6, 6)), Conv("b", net.b, (6, 6), stride=2, padding=1), Conv("c", net.c, (3, 3))]
    second = [Conv("d", net.d, (3, 3)), Conv("e", net.e, (3, 3), padding=1), Conv("f", net.f, (3, 3))]
    parts = [Block(first, [Conv("p", net.p, (6, 6), stride=2)]), Block(second), Forget(), Conv("head", net.head)]
    return net, torch.ones(1, 3, 6, 6), parts


NETS = [mlp, residual, small_map, flattened, grouped, bottleneck]
ALARM = 1e-4
"""Seeds are fixed; over some 60 comparisons correct probabilities stay above this with probability 0.99."""


def counts(walks: list[np.ndarray], num: int) -> Counter:
    found = Counter(map(tuple, walks))
    found["not visited"] = num - len(walks)
    return found


def p_value(ours: Counter, theirs: Counter) -> float:
    """Two samples of one multinomial? Rare categories are put together."""
    keys = sorted(ours.keys() | theirs.keys(), key=str)
    table = np.array([[ours[key] for key in keys], [theirs[key] for key in keys]])
    rare = table.sum(axis=0) < 20
    if rare.any():
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    return 1.0 if table.shape[1] < 2 else float(stats.chi2_contingency(table).pvalue)


@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_visits_follow_the_one_walker_loop(make: Callable[[], tuple[NetworkView, Tensor, list]], forward: bool) -> None:
    net, example, parts = make()
    transitions = Transitions(trace(net, example), net)
    num_ours, num_theirs = 20_000, 3_000
    walks = Walker(transitions).walk(0, num_ours, generator(0, make.__name__))
    assert walks.num == 2 * num_ours  # nothing was dropped
    walks = walks.take(slice(0 if forward else 1, None, 2))
    ends = transitions.inputs[1] if forward else transitions.outputs[1]
    layers = {layer.name: layer for layer in transitions.graph.layers}
    reference = OneWalker(seed=1).run(parts, list(layers), num_theirs, len(ends), forward)
    for name, layer in layers.items():
        used = walks.weights[layer.index]
        visited = np.column_stack(np.unravel_index(used[used >= 0], layer.shape))
        p = p_value(counts(list(visited), num_ours), counts(reference[name], num_theirs))
        assert p > ALARM, f"{make.__name__}.{name}: p = {p:.2g}"


def test_the_comparison_notices_a_wrong_law() -> None:
    net, example, parts = mlp()
    reference = OneWalker(seed=1).run(parts, ["a", "b", "c"], 2_000, 5, True)
    flat = NetworkView(net._run, a=(7, 5), b=(6, 7), c=(3, 6))
    for weight in flat.parameters():
        nn.init.ones_(weight)
    walks = Walker(Transitions(trace(flat, example), flat)).walk(0, 20_000, generator(0)).take(slice(0, None, 2))
    visited = np.column_stack(np.unravel_index(walks.weights[1], (6, 7)))
    assert p_value(counts(list(visited), 20_000), counts(reference["b"], 2_000)) < 1e-9


@pytest.mark.parametrize("make", [mlp, residual, grouped])
def test_visit_rates_are_the_expected_frequencies(make: Callable[[], tuple[NetworkView, Tensor, list]]) -> None:
    net, example, _ = make()
    transitions = Transitions(trace(net, example), net)
    num = 40_000
    walks = Walker(transitions).walk(0, num, generator(3, make.__name__))
    for layer in transitions.graph.layers:
        rates = transitions.visit_rates()[layer.index].reshape(-1).numpy()
        used = walks.weights[layer.index]
        seen = np.bincount(used[used >= 0], minlength=len(rates)) / num
        error = (seen - rates) / np.sqrt(np.maximum(rates, 1.0 / num) / num)
        assert np.abs(error).max() < 5.5, layer.name
