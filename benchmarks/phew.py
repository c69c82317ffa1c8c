"""Time of PHEW, compared with a loop that walks one path at a time.

    python -m benchmarks.phew                 # ResNet-50 at 2%
    python -m benchmarks.phew --model resnet20 --density 0.5

The plain loop is the straightforward implementation: one walker, one `torch.multinomial` per step, on the same graph.
It is timed for a hundred walks per round and extrapolated to the number that the density needs. It neither tracks
positions nor reaches an exact count, and only PHEW's time includes tracing the model, so the ratio favors the loop.
The two alternate, because the speed of a shared machine varies. One thread is used: the loop cannot use more, and
threads waiting for a busy core would dominate the measurement. `timeit` disables Python's garbage collector, since one
collection over all objects of torch takes a fifth of PHEW's time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from functools import partial
from timeit import timeit

import numpy as np
import torch
from torch import Tensor, nn

from pathgrow import models
from pathgrow.graph import Graph, Link, trace
from pathgrow.graph.scope import alive_units, scope_of
from pathgrow.masks import Masks
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker
from pathgrow.walks.phew import phew


class PlainLoop:
    """One forward or backward walk at a time on torch tensors."""

    def __init__(self, graph: Graph, model: nn.Module, scope: Masks, seed: int) -> None:
        self.graph, self.scope, self.random = graph, scope, generator(seed, "plain")
        parameters = dict(model.named_parameters())
        self.weights = {layer.index: layer.pick(parameters[layer.name]).detach().abs() for layer in graph.layers}
        self.kernels = {index: weight.reshape(*weight.shape[:2], -1).sum(-1) for index, weight in self.weights.items()}
        self.alive = alive_units(graph)
        self.marks = Masks.empty(scope)
        self.num_marked = 0

    def walk(self, turn: int) -> None:
        """Walk forward from an input if the turn is even, backward from an output if it is odd."""
        forward, number = turn % 2 == 0, turn // 2
        if forward:
            node = next(node.id for node in self.graph.channels if node.input)
            unit = number % self.graph.channels[node].size
        else:
            node, units = self.graph.outputs[0]
            unit = int(units[number % len(units)])
        layers = self.graph.layer_from if forward else self.graph.layer_into
        links = self.graph.links_from if forward else self.graph.links_into
        while node in layers or links[node]:
            if node in layers:
                layer = layers[node]
                row = self.kernels[layer.index][:, unit] if forward else self.kernels[layer.index][unit]
                other = self._draw(row)
                out, into = (other, unit) if forward else (unit, other)
                kernel = self.weights[layer.index][out, into]
                tap = self._draw(kernel.flatten()) if kernel.ndim else 0
                if layer.name in self.scope:
                    self._mark(self.marks[layer.name].view(-1), (out * layer.shape[1] + into) * kernel.numel() + tap)
                node, unit = (layer.target if forward else layer.source), other
            else:
                ways = [link for link in links[node] if not link.shortcut and self._leads(link, unit, forward)]
                link = ways[int(torch.randint(len(ways), (), generator=self.random))]
                node = link.target if forward else link.source

    def _leads(self, link: Link, unit: int, forward: bool) -> bool:
        assert link.pairs is None, "the plain loop supports only networks whose links keep channel indices"
        return bool(self.alive[link.target if forward else link.source][unit])

    def _draw(self, shares: Tensor) -> int:
        return int(torch.multinomial(shares, 1, generator=self.random))

    def _mark(self, flat: Tensor, position: int) -> None:
        if not flat[position]:
            flat[position] = True
            self.num_marked += 1


def num_walks(graph: Graph, model: nn.Module, scope: Masks, target: int) -> int:
    """Return the number of walks until `target` weights are marked."""
    walker, noise, turn, step = Walker(Transitions(graph, model)), generator(0, "count"), 0, 1024
    sizes = [flags.numel() for flags in scope.values()]
    begins = dict(zip(scope, np.cumsum(sizes) - sizes, strict=True))
    layers = [layer for layer in graph.layers if layer.name in scope]
    visited = np.zeros((0, len(layers)), dtype=np.int64)
    while True:
        weights = walker.walk(turn, step, noise).weights
        turn += step
        found = [np.where(weights[k.index] < 0, -1, begins[k.name] + weights[k.index]) for k in layers]
        visited = np.concatenate([visited, np.stack(found, axis=1)])
        numbers, first_visits = np.unique(visited, return_index=True)
        first_visits = np.sort(first_visits[numbers >= 0])
        if len(first_visits) >= target:
            return int(first_visits[target - 1]) // len(layers) + 1


def spread(values: list[float], digits: int) -> str:
    """Format the median and the range of some values."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--density", type=float, default=0.02)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plain-walks", type=int, default=100, help="walks of the plain loop in each round")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = models.create(given.model, given.classes, seed=0)
    example = model.example_input()

    tracing = timeit(partial(trace, model, example), number=1)
    calling = timeit(partial(phew, model, example, given.density), number=1)
    print(f"first trace of the process (loads parts of torch): {tracing:.2f} s")
    print(f"first call of phew (allocates memory): {calling:.2f} s")
    graph = trace(model, example)
    scope = scope_of(model, graph)
    masks = phew(model, example, given.density)
    walks = num_walks(graph, model, scope, masks.num_on)
    print(f"{masks}: weights visited by {walks:,} walks")

    loop = PlainLoop(graph, model, scope, seed=0)
    turns = itertools.count()
    ours, theirs = [], []
    for seed in range(given.rounds):
        ours.append(timeit(partial(phew, model, example, given.density, seed=seed), number=1))
        theirs.append(timeit(lambda: loop.walk(next(turns)), number=given.plain_walks) / given.plain_walks)
    print(f"median of {given.rounds} rounds (lowest to highest), {given.threads} thread(s)")
    print(f"phew, including the trace: {spread(ours, 2)} s")
    print(f"one walk of the plain loop: {spread([1e3 * each for each in theirs], 2)} ms")
    print(f"the plain loop, extrapolated: {spread([each * walks for each in theirs], 0)} s")
    print(f"ratio: {spread([each * walks / own for own, each in zip(ours, theirs, strict=True)], 0)}")


if __name__ == "__main__":
    main()
