"""Topology of a sparse network: path weight, tau-core, dead units, layer densities.

The tau-core (Batta et al. 2021) is a small set of units such that the paths through them carry a share `tau` of the
total path weight. A small core is a bottleneck. A unit is an output channel of a layer, summed over all positions.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pathgrow.errors import UserError, is_real, require
from pathgrow.graph.flops import forward_macs
from pathgrow.graph.graph import Floats, Graph, Layer
from pathgrow.graph.paths import Signals, signals
from pathgrow.graph.scope import alive_units, dead_units, isolated_units, output_layers
from pathgrow.masks import Masks
from pathgrow.masks.masks import check_masks

GLOBAL_LIMIT = 5e9
"""MACs that `measure` may spend on the global core: one or two seconds on two CPU cores."""
_PASS_OVERHEAD = 5e7
"""Overhead of one pass through the model, in MACs."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class TauCore:
    """Sizes of tau-cores: of the whole network, and of each layer."""

    tau: float
    size: int
    """Number of hidden units, chosen greedily until the paths through them carry `tau` of the total path weight."""
    coverage: float
    """Share that they carry; below `tau` only if some paths avoid every hidden unit."""
    layer_sizes: dict[str, int]
    """Fewest units that carry `tau` of the path weight through the layer, by layer."""
    layer_ratios: dict[str, float]
    """The sizes as shares of the layer widths (units on some path of the dense network)."""

    @property
    def mean_ratio(self) -> float:
        """Mean over layers: low if paths squeeze through few units."""
        return _mean(self.layer_ratios)


@dataclass(frozen=True)
class Topology:
    """Topology measures of a sparse network; `as_dict` returns JSON values."""

    density: float
    num_on: int
    total: float | None
    """Total over all paths of the product of magnitudes (PWMP); None if it does not fit a float."""
    log10_total: float
    tau: float
    tau_core_size: int | None
    """Size of the global tau-core; None if it would cost more than the limit."""
    tau_core_sizes: dict[str, int]
    tau_core_ratios: dict[str, float]
    mean_tau_core_ratio: float
    num_dead: int
    """Number of hidden units on a path of the dense network but on none of kept weights."""
    dead: dict[str, int]
    num_isolated: int
    """Number of hidden units of prunable layers without a kept weight into or out of them."""
    num_hidden: int
    """Number of hidden units of prunable layers on a path of the dense network."""
    layer_densities: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and dicts."""
        return asdict(self)


def tau_core(model: nn.Module, example_input: Any, masks: Masks | None, tau: float = 0.9) -> TauCore:
    """Return the tau-core of a masked network, global and per layer.

    The global core is greedy: the unit with the most path weight joins, all its paths are removed, and so on. Each
    layer with prunable weights also has its own core. The units of the output layer are in no core.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> rows = [[[1, -2], [0, 3], [-1, 0]], [[2, 0, -1], [0, 1, 0]], [[1, 0], [-2, 3]]]
    >>> for layer, weight in zip(net, rows):
    ...     layer.weight.data = torch.tensor(weight, dtype=torch.float32)
    >>> masks = Masks({f"{i}.weight": layer.weight != 0 for i, layer in enumerate(net)})
    >>> core = tau_core(net, torch.ones(1, 2), masks)
    >>> core.size, core.layer_sizes, round(core.mean_ratio, 4)
    (2, {'0.weight': 2, '1.weight': 2}, 0.8333)
    """
    _check(model, masks, tau)
    found = signals(model, example_input, masks)
    sizes, ratios = _layer_cores(found, masks, tau)
    size, coverage = _global_core(model, example_input, masks, tau, found)
    return TauCore(tau, size, coverage, sizes, ratios)


def measure(
    model: nn.Module, example_input: Any, masks: Masks, *, tau: float = 0.9, global_limit: float = GLOBAL_LIMIT
) -> Topology:
    """Return all topology measures that are recorded in a round.

    Parameters
    ----------
    global_limit
        MACs that the global tau-core may cost; it is skipped (None) if the estimate is higher.
    """
    _check(model, masks, tau)
    found = signals(model, example_input, masks)
    graph = found.graph
    sizes, ratios = _layer_cores(found, masks, tau)
    affordable = _estimated_cost(found, tau) <= global_limit
    cut = dead_units(graph, masks)
    dead = {key: int(cut[layer.index].sum()) for key, layer in _keyed(_hidden(graph))}
    num_isolated, num_hidden = count_isolated(graph, masks)
    total = found.total
    return Topology(
        density=masks.density,
        num_on=masks.num_on,
        total=total if math.isfinite(total) else None,
        log10_total=found.log2_total * math.log10(2),
        tau=tau,
        tau_core_size=_global_core(model, example_input, masks, tau, found)[0] if affordable else None,
        tau_core_sizes=sizes,
        tau_core_ratios=ratios,
        mean_tau_core_ratio=_mean(ratios),
        num_dead=sum(dead.values()),
        dead=dead,
        num_isolated=num_isolated,
        num_hidden=num_hidden,
        layer_densities={
            name: int((masks[name] & inside).sum()) / max(1, int(inside.sum())) for name, inside in masks.scope.items()
        },
    )


# -- per layer ----------------------------------------------------------------------------------------------------


def _layer_cores(found: Signals, masks: Masks | None, tau: float) -> tuple[dict[str, int], dict[str, float]]:
    """Return core sizes and ratios by layer; no path visits two units of a layer, so sorting is exact."""
    graph = found.graph
    layers = [layer for layer in _hidden(graph) if layer.name is not None and (masks is None or layer.name in masks)]
    if not layers:
        raise UserError("the tau-core needs a hidden layer with prunable weights, but these masks do not cover any")
    alive = alive_units(graph)
    sizes, ratios = {}, {}
    for key, layer in _keyed(layers):
        centrality = found.centralities[layer.index]
        sizes[key] = _fewest(centrality, tau * centrality.sum())
        ratios[key] = sizes[key] / max(1, int(alive[layer.target].sum()))
    return sizes, ratios


def _fewest(shares: Floats, goal: float) -> int:
    """Return how many of the largest shares reach a goal; 0 if the goal is zero."""
    if goal <= 0:
        return 0
    sums = np.cumsum(np.sort(shares)[::-1])
    return min(int(np.searchsorted(sums, goal * (1 - _ROUNDING))) + 1, len(shares))


# -- whole network -----------------------------------------------------------------------------------------


def _global_core(
    model: nn.Module, example_input: Any, masks: Masks | None, tau: float, found: Signals
) -> tuple[int, float]:
    """Return the size of the greedy core and its coverage.

    A pass computes the centrality of every unit exactly, and centralities only fall as units join. So the unit with the
    largest known centrality is the next to join if that value cannot have fallen since the last pass, that is, if no
    unit that joined since then shares a path with it. Units of one layer never share a path, and most of the core of a
    network is in few layers.
    """
    graph = found.graph
    blocked = {layer.index: torch.zeros(layer.shape[0], dtype=torch.bool) for layer in _hidden(graph)}
    shares = {index: found.centralities[index].copy() for index in blocked}
    joined: set[int] = set()
    """Layers of the units that joined since the last pass."""
    size, coverage = 0, 0.0

    def shares_path(*indices: int) -> bool:
        first, last = (graph.layers[index] for index in sorted(indices))
        return graph.descends(last.source, first.target)

    while coverage < tau * (1 - _ROUNDING):
        index = max(shares, key=lambda i: float(shares[i].max()))
        unit = int(shares[index].argmax())
        if shares[index][unit] <= 0:
            break
        if any(shares_path(index, other) for other in joined):
            now = signals(model, example_input, masks, blocked=blocked, opened=found.opened)
            left = float(now.trace.total.detach())
            scale = 2.0 ** (now.log2_total - found.log2_total) if left > 0 else 0.0
            coverage = 1.0 - scale
            shares = {i: now.centralities[i] * scale if left > 0 else 0 * shares[i] for i in shares}
            joined.clear()
            continue
        size += 1
        coverage += float(shares[index][unit])
        shares[index][unit] = 0.0
        blocked[index][unit] = True
        joined.add(index)
    return size, min(coverage, 1.0)


def _estimated_cost(found: Signals, tau: float) -> float:
    """Estimate the MACs of the global core from above: one pass per unit of the smallest core of a layer."""
    shares = [found.centralities[layer.index] for layer in _hidden(found.graph)]
    cuts = [_fewest(share, tau) for share in shares if share.sum() >= tau]
    passes = min(cuts) if cuts else sum(len(share) for share in shares)
    # Forward, and backward to activations only: twice the forward pass, whatever the masks, as tensors are dense.
    return passes * (2 * forward_macs(found.graph) + _PASS_OVERHEAD)


# -- helpers --------------------------------------------------------------------------------------------------


def _hidden(graph: Graph) -> list[Layer]:
    outputs = set(output_layers(graph))
    return [layer for layer in graph.layers if layer.index not in outputs]


def _keyed(layers: list[Layer]) -> list[tuple[str, Layer]]:
    """Return layers with distinct names; a weight that is used again gets the number of the use in its name."""
    uses: dict[str, int] = {}
    found = []
    for layer in layers:
        name = layer.name or f"layer {layer.index}"
        uses[name] = uses.get(name, 0) + 1
        found.append((name if uses[name] == 1 else f"{name} (use {uses[name]})", layer))
    return found


def _mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values)


def _check(model: nn.Module, masks: Masks | None, tau: float) -> None:
    require(is_real(tau) and 0 < tau <= 1, "tau", tau, "in (0, 1]", 0.9)
    if masks is not None:
        check_masks(masks, model)


def count_isolated(graph: Graph, masks: Masks) -> tuple[int, int]:
    """Return how many hidden units of prunable layers are isolated, and how many are on a path of the dense network."""
    isolated, dense = isolated_units(graph, masks), alive_units(graph)
    hidden = [layer for layer in _hidden(graph) if layer.name in masks]
    num_isolated = sum(int(isolated[layer.index].sum()) for layer in hidden)
    return num_isolated, sum(int(dense[layer.target].sum()) for layer in hidden)
