"""How many paths of kept weights a network has, unit by unit, and what each weight would add to their number.

Counted on the wiring alone: weights count as ones, positions of a feature map as one place, so that a pass costs about
as much as summing the masks. `pathgrow.paths` knows positions and weights, for ten to fifty times the price; the two
agree wherever every position has the same paths. Every vector carries a logarithm beside it, so no depth overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.graph import Graph
from pathgrow.graph.graph import Layer, Link

Scaled = tuple[Tensor, Tensor]
"""A vector whose largest entry is one, and the logarithm of what it was divided by; -inf for nothing at all."""


@dataclass(frozen=True, eq=False)
class Counted:
    """The number of paths, and the gradient of its logarithm by the weights of every layer."""

    log_total: Tensor
    gradients: tuple[Tensor, ...]
    """By layer index, in the layer's own layout `[out, in / groups, *kernel]`: the share of all paths that runs, or
    for a missing weight would run, through it."""


class PathCounts:
    """Counts paths of one wiring under many masks.

    >>> from torch import nn
    >>> from pathgrow.graph import trace
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> counts = PathCounts(trace(net, torch.ones(1, 2)), torch.device("cpu"))
    >>> found = counts({"0.weight": torch.tensor([[1.0, 1.0], [0.0, 1.0]])})
    >>> round(found.log_total.exp().item()), (found.gradients[1] * 3).round().tolist()
    (3, [[2.0, 1.0]])
    """

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self.graph = graph
        self._device = device
        self._live = [_live(layer, device) for layer in graph.layers]
        self._pairs = {
            id(link): tuple(torch.from_numpy(units).to(device) for units in link.pairs)
            for link in graph.links
            if link.pairs is not None
        }
        self._outputs = [(node, torch.from_numpy(units).to(device)) for node, units in graph.outputs]

    def __call__(self, masks: Mapping[str, Tensor]) -> Counted:
        """Count with these masks by parameter name, ones and zeros as floats; layers not named are dense."""
        kernels = [self._kernels(layer, masks) for layer in self.graph.layers]
        complexity = self._forward(kernels)
        ends = [_scaled(complexity[node][0][units], complexity[node][1]) for node, units in self._outputs]
        vector, log = _sum([(ends_vector.sum().view(1), ends_log) for ends_vector, ends_log in ends])
        log_total = log + vector.log().view(())
        generality = self._backward(kernels)
        gradients = []
        for layer in self.graph.layers:
            (into, log_into), (out, log_out) = complexity[layer.source], generality[layer.target]
            groups = layer.groups
            block = torch.einsum("go,gi->goi", out.view(groups, -1), into.view(groups, -1))
            share = block.reshape(layer.shape[:2]) * (log_into + log_out - log_total).exp()
            gradients.append(share.view(*layer.shape[:2], *[1] * (len(layer.shape) - 2)) * self._live[layer.index])
        return Counted(log_total, tuple(gradients))

    def _kernels(self, layer: Layer, masks: Mapping[str, Tensor]) -> Tensor:
        """`[groups, out / groups, in / groups]`: kept weights between two units."""
        mask = None if layer.name is None else masks.get(layer.name)
        live = self._live[layer.index]
        if mask is None:
            taps = live.sum().expand(layer.shape[:2])
        else:
            taps = (layer.pick(mask) * live).flatten(2).sum(2) if live.dim() > 2 else layer.pick(mask) * live
        return taps.reshape(layer.groups, -1, layer.shape[1])

    def _forward(self, kernels: list[Tensor]) -> dict[int, Scaled]:
        """By space: the number of paths from the input to each unit."""
        found: dict[int, Scaled] = {}
        for node in self.graph.channels:
            if node.input:
                found[node.id] = self._constant(node.size, 1.0)
                continue
            parts = [self._link(link, found[link.source], node.size) for link in self.graph.links_into[node.id]]
            if (layer := self.graph.layer_into.get(node.id)) is not None:
                vector, log = found[layer.source]
                parts.append(_scaled((kernels[layer.index] @ vector.view(layer.groups, -1, 1)).view(-1), log))
            found[node.id] = _sum(parts) if parts else self._constant(node.size, 0.0)
        return found

    def _backward(self, kernels: list[Tensor]) -> dict[int, Scaled]:
        """By space: the number of paths from each unit to the output."""
        found: dict[int, Scaled] = {}
        for node in reversed(self.graph.channels):
            parts = [self._link_back(link, found[link.target], node.size) for link in self.graph.links_from[node.id]]
            for output, units in self._outputs:
                if output == node.id:
                    read = torch.zeros(node.size, dtype=torch.float64, device=self._device)
                    parts.append(_scaled(read.index_fill_(0, units, 1.0), read.new_zeros(())))
            if (layer := self.graph.layer_from.get(node.id)) is not None:
                vector, log = found[layer.target]
                back = kernels[layer.index].transpose(1, 2) @ vector.view(layer.groups, -1, 1)
                parts.append(_scaled(back.view(-1), log))
            found[node.id] = _sum(parts) if parts else self._constant(node.size, 0.0)
        return found

    def _link(self, link: Link, value: Scaled, size: int) -> Scaled:
        if link.pairs is None:
            return value
        sources, targets = self._pairs[id(link)]
        return _moved(value, sources, targets, size)

    def _link_back(self, link: Link, value: Scaled, size: int) -> Scaled:
        if link.pairs is None:
            return value
        sources, targets = self._pairs[id(link)]
        return _moved(value, targets, sources, size)

    def _constant(self, size: int, value: float) -> Scaled:
        vector = torch.full((size,), value, dtype=torch.float64, device=self._device)
        return _scaled(vector, vector.new_zeros(()))


def _live(layer: Layer, device: torch.device) -> Tensor:
    """Ones for taps that ever read a position, in a shape that broadcasts to the layer's."""
    return torch.from_numpy(layer.live_taps()).to(device, torch.float64).view(1, 1, *layer.shape[2:])


def _moved(value: Scaled, here: Tensor, there: Tensor, size: int) -> Scaled:
    vector, log = value
    # Not index_add_, whose sums come out in another order each time on a GPU.
    return _scaled(vector.new_zeros(size).index_put_((there,), vector[here], accumulate=True), log)


def _scaled(vector: Tensor, log: Tensor) -> Scaled:
    top = vector.max()
    some = top > 0
    return vector / torch.where(some, top, 1.0), torch.where(some, log + top.log(), -torch.inf)


def _sum(parts: list[Scaled]) -> Scaled:
    if len(parts) == 1:
        return parts[0]
    peak = torch.stack([log for _, log in parts]).max()
    peak = torch.where(peak > -torch.inf, peak, 0.0)
    vectors = [vector * (log - peak).exp() for vector, log in parts]
    return _scaled(torch.stack(vectors).sum(0), peak)
