"""DPaI: search for masks with many paths through many units, before training and without data.

Paths are counted on the traced graph: all weights count as one and all positions of a feature map as one unit, so that
a pass costs about as much as summing the masks. `pathgrow.graph.paths` takes positions and weights into account, at ten
to fifty times the cost; the two agree wherever every position has the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import require
from pathgrow.graph import Graph, guess_example_input, trace
from pathgrow.graph.graph import Layer, Link
from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocate_count
from pathgrow.methods.method import Method, NetworkView

_LEAK = 2.0**-20
"""What a missing weight lets through while no path is complete. Almost everything then runs through the paths that lack
the fewest weights."""
_NEARLY = 2.0**-10
"""Then only weights on those paths are updated, by their path count relative to the largest of the layer."""
Scaled = tuple[Tensor, Tensor]
"""A vector whose largest entry is one, and the logarithm of its scale (-inf for zero), so that no depth overflows."""


def dpai(
    *,
    density: float = 0.1,
    alpha: float = 0.99,
    beta: float = 0.5,
    num_search_steps: int = 300,
    search_lr: float = 0.05,
) -> Method:
    """DPaI (Xiang et al., Differentiable Pruning at Initialization with Node-Path Balance Principle, 2025).

    Rule: every weight has a score, initially |normal noise|; the mask is the top scores of each layer, with ERK layer
    densities. Adam updates the scores along the straight-through gradient of log(number of paths): all of it with
    factor 1 - `alpha`, the part in units that are on no path with alpha (1 - `beta`), the part in kernels that are on
    none with alpha beta. Neither data nor weights are used.

    Differences: paths are counted on the traced graph, once for all positions of a feature map; the authors' code
    divides one branch of a residual sum by its maximum and not the other, and counts something else. Their script takes
    3000 steps of 0.005, which reach as far as the 300 of 0.05 here; both are options. Their learning-rate schedule is
    created but never stepped, so there is none here. They draw new weights after the search; here the model's own stay.

    Parameters
    ----------
    density : float
        Fraction of the prunable weights, exact to one weight.
    alpha, beta : float
        Weight of units and kernels relative to paths, and of kernels relative to units.
    num_search_steps, search_lr
        Steps of Adam and its learning rate.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        require(0 <= value <= 1, name, value, "in [0, 1]", 0.5)
    require(0 <= num_search_steps <= 10_000, "num_search_steps", num_search_steps, "in [0, 10000]", 300)
    require(0 < search_lr < float("inf"), "search_lr", search_lr, "> 0", 0.05)
    start = ByNodePathBalance(alpha, beta, num_search_steps, search_lr)
    return Method(name="dpai", start=start, start_density=density, needs=frozenset({"paths"}))


@dataclass(frozen=True)
class ByNodePathBalance:
    """Start pick of DPaI."""

    alpha: float
    beta: float
    num_steps: int
    lr: float

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        numbers = allocate_count(candidates, count, "erk")
        scores = {
            name: torch.randn(chosen.shape, generator=draw, dtype=torch.float64).abs().to(chosen.device)
            for name, chosen in candidates.items()
        }
        example = guess_example_input(net.model) if net.example_input is None else net.example_input
        paths = PathCounter(trace(net.model, example), next(iter(scores.values())).device)
        adam = torch.optim.Adam(scores.values(), lr=self.lr)
        outside = {name: ~inside for name, inside in candidates.scope.items()}
        chosen = {name: _top(score, candidates[name], numbers[name]) for name, score in scores.items()}
        net.charge(path_passes=self.num_steps)
        for _ in range(self.num_steps):
            kept = {name: chosen[name] | outside[name] for name in chosen}
            for name, gradient in self.ascent(paths, kept).items():
                scores[name].grad = -gradient
            adam.step()
            chosen = {name: _top(score, candidates[name], numbers[name]) for name, score in scores.items()}
        return Masks.select(chosen, candidates.scope)

    def ascent(self, paths: PathCounter, kept: dict[str, Tensor]) -> dict[str, Tensor]:
        """The direction of the score update, by parameter."""
        masks = {name: mask.double() for name, mask in kept.items()}
        counted = paths(masks)
        complete = float(counted.log_total) > -float("inf")
        if not complete:
            masks = {name: mask.clamp_min(_LEAK) for name, mask in masks.items()}
            counted = paths(masks)
        found = {name: mask.new_zeros(mask.shape) for name, mask in masks.items()}
        for layer, gradient in zip(paths.graph.layers, counted.gradients, strict=True):
            if layer.name in found:
                fraction = layer.pick(masks[layer.name]) * gradient
                factor = self._factor(fraction > 0) if complete else fraction > _NEARLY * fraction.max()
                layer.lay_(gradient * factor, found[layer.name])
        return found

    def _factor(self, used: Tensor) -> Tensor:
        """Factor of each weight, given which weights are kept and on a path."""
        unit, kernel = (used.flatten(dims).any(-1) for dims in (1, 2)) if used.dim() > 2 else (used.any(1), used)
        without_unit, without_kernel = (
            (~flags).double().view(*flags.shape, *[1] * (used.dim() - flags.dim())) for flags in (unit, kernel)
        )
        return (1 - self.alpha) + self.alpha * ((1 - self.beta) * without_unit + self.beta * without_kernel)


def _top(scores: Tensor, candidates: Tensor, count: int) -> Tensor:
    places = torch.topk(scores.masked_fill(~candidates, -torch.inf).flatten(), count).indices
    flags = torch.zeros(candidates.numel(), dtype=torch.bool, device=candidates.device)
    return flags.index_fill_(0, places, True).view(candidates.shape)


@dataclass(frozen=True, eq=False)
class PathCount:
    """The number of paths, and the gradient of its logarithm with respect to the weights of every layer."""

    log_total: Tensor
    gradients: tuple[Tensor, ...]
    """By layer index, in the layer's own layout `[out, in / groups, *kernel]`: the fraction of all paths that run, or
    for a missing weight would run, through it."""


class PathCounter:
    """Counts the paths of one graph under many masks.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> counter = PathCounter(trace(net, torch.ones(1, 2)), torch.device("cpu"))
    >>> found = counter({"0.weight": torch.tensor([[1.0, 1.0], [0.0, 1.0]])})
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

    def __call__(self, masks: Mapping[str, Tensor]) -> PathCount:
        """Count paths under float masks of ones and zeros, by parameter name; layers without a mask are dense."""
        kernels = [self._kernels(layer, masks) for layer in self.graph.layers]
        from_input = self._forward(kernels)
        ends = [_scaled(from_input[node][0][units], from_input[node][1]) for node, units in self._outputs]
        vector, log = _sum([(ends_vector.sum().view(1), ends_log) for ends_vector, ends_log in ends])
        log_total = log + vector.log().view(())
        to_output = self._backward(kernels)
        gradients = []
        for layer in self.graph.layers:
            (into, log_into), (out, log_out) = from_input[layer.source], to_output[layer.target]
            groups = layer.groups
            block = torch.einsum("go,gi->goi", out.view(groups, -1), into.view(groups, -1))
            fraction = block.reshape(layer.shape[:2]) * (log_into + log_out - log_total).exp()
            gradients.append(fraction.view(*layer.shape[:2], *[1] * (len(layer.shape) - 2)) * self._live[layer.index])
        return PathCount(log_total, tuple(gradients))

    def _kernels(self, layer: Layer, masks: Mapping[str, Tensor]) -> Tensor:
        """`[groups, out / groups, in / groups]`: number of kept weights between two units."""
        mask = None if layer.name is None else masks.get(layer.name)
        live = self._live[layer.index]
        if mask is None:
            taps = live.sum().expand(layer.shape[:2])
        else:
            taps = (layer.pick(mask) * live).flatten(2).sum(2) if live.dim() > 2 else layer.pick(mask) * live
        return taps.reshape(layer.groups, -1, layer.shape[1])

    def _forward(self, kernels: list[Tensor]) -> dict[int, Scaled]:
        """By node: the number of paths from the input to each unit."""
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
        """By node: the number of paths from each unit to the output."""
        found: dict[int, Scaled] = {}
        for node in reversed(self.graph.channels):
            parts = [
                self._link(link, found[link.target], node.size, back=True) for link in self.graph.links_from[node.id]
            ]
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

    def _link(self, link: Link, value: Scaled, size: int, *, back: bool = False) -> Scaled:
        if link.pairs is None:
            return value
        sources, targets = self._pairs[id(link)]
        here, there = (targets, sources) if back else (sources, targets)
        vector, log = value
        # Not index_add_, whose summation order is nondeterministic on a GPU.
        return _scaled(vector.new_zeros(size).index_put_((there,), vector[here], accumulate=True), log)

    def _constant(self, size: int, value: float) -> Scaled:
        vector = torch.full((size,), value, dtype=torch.float64, device=self._device)
        return _scaled(vector, vector.new_zeros(()))


def _live(layer: Layer, device: torch.device) -> Tensor:
    """Ones for kernel positions that ever read a value, in a shape that broadcasts to the layer's."""
    return torch.from_numpy(layer.live_taps()).to(device, torch.float64).view(1, 1, *layer.shape[2:])


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
