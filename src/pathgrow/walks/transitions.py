"""Transition probabilities of random walks.

- Through a layer, the next unit is drawn in proportion to the summed magnitude of the kernel, then one tap of that
  kernel in proportion to its magnitude. A layer of zeros counts as a layer of ones: it has no preference yet.
- At a fork, each branch that leads on is equally likely. An identity shortcut counts as a branch only if there is no
  other one.
- Walks visit only units on some path from input to output.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.graph.graph import Flags, Floats, Graph, Layer, Units
from pathgrow.graph.scope import alive_units, kept_kernels

_TINY = torch.finfo(torch.float64).tiny
END = -1
"""Stands for the index of a link if the walk ends."""
_CACHED = 2**26
"""Table entries cached between sweeps (half a GiB); tables that do not fit are rebuilt at each sweep."""


@dataclass(frozen=True, eq=False)
class Fork:
    """Outgoing links of the units of one node: entry `k` leads by link `link[k]` to unit `unit[k]`.

    The entries of unit `u` partition the interval from `u` to `u + 1`; that of entry `k` ends at `edges[k]`.
    """

    edges: Floats
    link: npt.NDArray[np.int32]
    unit: npt.NDArray[np.int32]

    @cached_property
    def links(self) -> list[int]:
        """Indices of the outgoing links, including `END`."""
        return [int(number) for number in np.unique(self.link)]

    @cached_property
    def _sole(self) -> Units | None:
        """The only entry of each unit; None if some unit has several."""
        units = np.ceil(self.edges).astype(np.int64) - 1
        if (units[1:] == units[:-1]).any():
            return None
        sole = np.zeros(units.max(initial=-1) + 1, dtype=np.int64)
        sole[units] = np.arange(len(units))
        return sole

    def draw(self, units: Units, uniform: Floats) -> Units:
        """Draw one entry for each of `units`."""
        return _draw(self.edges, units, units + 1, uniform) if self._sole is None else self._sole[units]


class Transitions:
    """Transition probabilities of walks on one graph, in both directions.

    Parameters
    ----------
    graph, model
        The traced graph, and the model with the weights.
    identity_shortcuts
        Whether an identity shortcut is a branch like any other.
    """

    def __init__(self, graph: Graph, model: nn.Module, *, identity_shortcuts: bool = False) -> None:
        self.graph = graph
        self._identity_shortcuts = identity_shortcuts
        self._link_number = {link: number for number, link in enumerate(graph.links)}
        self._live = {layer.index: layer.live_taps().reshape(-1) for layer in graph.layers}
        self._weights, self.weighs_zeros = _weights(graph, model)
        """Weights, whose magnitudes count, and whether some layer holds only zeros."""
        self._sums: dict[int, Tensor] = {}
        self._tables: dict[tuple[int, bool], tuple[Floats, Floats]] = {}
        self._forks: dict[tuple[int, bool], Fork] = {}
        self._num_cached = 0
        self.alive = self._find_alive()
        """Units on some path from input to output, by node; walks visit no others."""
        self.inputs = self._ends((node.id, np.arange(node.size)) for node in graph.channels if node.input)
        self.outputs = self._ends(graph.outputs)
        """Starts of forward and of backward walks: node and unit of every input or output unit on a path."""

    # -- through a layer -----------------------------------------------------------------------------------------

    def next_units(self, layer: Layer, units: Units, uniform: Floats, *, forward: bool) -> Units:
        """Draw the unit on the other side of a layer for each of `units`."""
        rows, columns = layer.shape[0] // layer.groups, layer.shape[1]
        mine, other = (columns, rows) if forward else (rows, columns)
        sums, starts = self._table(layer, forward)
        drawn = _draw(sums, starts[units], starts[units + 1], uniform) - units * other
        return drawn if layer.groups == 1 else units // mine * other + drawn

    def taps(self, layer: Layer, out: Units, into: Units, uniform: Floats) -> Units:
        """Draw one tap of each kernel `[out, into]`, flat within the kernel."""
        live = self._live[layer.index]
        if len(live) == 1:
            return np.zeros(len(out), dtype=np.int64)
        kernels = self._weights[layer.index].view(-1, len(live)).numpy()
        # Taps by rows, `[taps, walkers]`: few long rows are summed and counted twice as fast as many short ones.
        shares = np.abs(kernels[self.weight_number(layer, out, into)].T.astype(np.float64, order="C"))
        if not live.all():
            shares[~live] = 0.0
        sums = np.cumsum(shares, axis=0)
        empty = sums[-1] == 0.0
        sums[:, empty] = np.cumsum(live)[:, None]  # a kernel of zeros has no preference
        point = np.minimum(uniform * sums[-1], np.nextafter(sums[-1], 0.0))
        chosen: Units = (sums <= point).sum(axis=0, dtype=np.int64)
        return chosen

    def weight_number(self, layer: Layer, out: Units, into: Units, taps: Units | None = None) -> Units:
        """Return the flat position of weights in their layer; without `taps`, that of kernels among the kernels."""
        kernel = out * layer.shape[1] + (into if layer.groups == 1 else into % layer.shape[1])
        return kernel if taps is None else kernel * len(self._live[layer.index]) + taps

    def _kernel_sums(self, layer: Layer) -> Tensor:
        """Return the summed magnitudes of the live taps of each kernel, `[out, in / groups]`."""
        if (kept := self._sums.get(layer.index)) is not None:
            return kept
        live = self._live[layer.index]
        kernels = self._weights[layer.index].view(-1, len(live)).abs()
        if len(live) == 1:  # as large as the weights themselves: not cached
            return kernels.view(layer.shape[:2])
        sums = (kernels @ torch.from_numpy(live).to(kernels)).view(layer.shape[:2])
        self._sums[layer.index] = sums
        return sums

    def _steps(self, layer: Layer, forward: bool) -> Tensor:
        """Return kernel sums with one row per unit on this side, zero for units off every path on the other side."""
        blocks = self._kernel_sums(layer).view(layer.groups, -1, layer.shape[1])
        if forward:
            # Transposed before the cast to float64: three times as fast. Torch has a fast path for matrices only.
            blocks = blocks[0].t().contiguous()[None] if layer.groups == 1 else blocks.transpose(1, 2).contiguous()
        there = self.alive[layer.target if forward else layer.source]
        if not there.all():
            blocks = blocks * torch.from_numpy(there).view(layer.groups, 1, -1)
        steps = torch.from_numpy(np.empty(blocks.shape))  # NumPy requests huge pages, torch does not
        return steps.copy_(blocks).flatten(0, 1)

    def _table(self, layer: Layer, forward: bool) -> tuple[Floats, Floats]:
        """Return cumulative probabilities over all entries, row by row, and where rows start: one more than rows."""
        key = layer.index, forward
        if key in self._tables:
            return self._tables[key]
        shares = self._steps(layer, forward)
        # Rows are normalized: a cumulative sum would swallow a row far smaller than those before it.
        shares /= shares.sum(dim=1, keepdim=True).clamp_min_(_TINY)
        sums: Floats = torch.cumsum(shares.view(-1), dim=0, out=shares.view(-1)).numpy()
        table = sums, np.append(0.0, sums[shares.shape[1] - 1 :: shares.shape[1]])
        if self._num_cached + len(sums) <= _CACHED:
            self._num_cached += len(sums)
            self._tables[key] = table
        return table

    # -- at a fork -----------------------------------------------------------------------------------------------

    def fork(self, node: int, *, forward: bool) -> Fork:
        """Return the outgoing links of a node without a layer on this side."""
        if (node, forward) in self._forks:
            return self._forks[node, forward]
        size = self.graph.channels[node].size
        nodes, ends = self.outputs if forward else self.inputs
        ending = ends[nodes == node]
        froms, tos, links = [ending], [ending], [np.full(len(ending), END)]
        shares, branches = [np.ones(len(ending))], [np.ones(len(ending), dtype=bool)]
        for link in self.graph.links_from[node] if forward else self.graph.links_into[node]:
            source, target = (np.arange(size), np.arange(size)) if link.pairs is None else link.pairs
            leads = self.alive[link.source][source] & self.alive[link.target][target]
            here, there = (source[leads], target[leads]) if forward else (target[leads], source[leads])
            froms.append(here)
            tos.append(there)
            links.append(np.full(len(here), self._link_number[link]))
            # Branches are equally likely, not their targets: a link that fans out splits one branch among them.
            shares.append(1.0 / np.bincount(here, minlength=size)[here])
            branches.append(np.full(len(here), self._identity_shortcuts or not link.shortcut))
        unit, following, number, share, branch = map(np.concatenate, (froms, tos, links, shares, branches))
        has_branch = np.bincount(unit[branch], minlength=size) > 0
        kept = np.flatnonzero(branch | ~has_branch[unit])
        kept = kept[np.argsort(unit[kept], kind="stable")]
        unit, share = unit[kept], share[kept]
        total = np.bincount(unit, weights=share, minlength=size)
        inside = (np.cumsum(share) - (np.cumsum(total) - total)[unit]) / total[unit]
        last = np.ones(len(unit), dtype=bool)
        last[:-1] = unit[1:] != unit[:-1]
        inside[last] = 1.0  # rounding must not leave a gap after the last entry of a unit
        fork = Fork(unit + inside, number[kept].astype(np.int32), following[kept].astype(np.int32))
        self._forks[node, forward] = fork
        return fork

    # -- over all walks ------------------------------------------------------------------------------------------

    def visit_rates(self) -> dict[int, Tensor]:
        """Return the expected visits of every weight by one forward and one backward walk, ignoring positions."""
        rates = {layer.index: torch.zeros(layer.shape, dtype=torch.float64) for layer in self.graph.layers}
        for forward in (True, False):
            flow = {node.id: np.zeros(node.size) for node in self.graph.channels}
            nodes, units = self.inputs if forward else self.outputs
            for node, unit in zip(nodes, units, strict=True):
                flow[node][unit] += 1.0 / len(units)
            layers = self.graph.layer_from if forward else self.graph.layer_into
            for node in self.graph.channels if forward else reversed(self.graph.channels):
                layer = layers.get(node.id)
                if layer is not None:
                    rates[layer.index] += self._flow_through(layer, flow, forward)
                    continue
                fork = self.fork(node.id, forward=forward)
                unit = np.ceil(fork.edges).astype(np.int64) - 1
                # If the previous entry belongs to another unit, the interval begins at the unit's own edge.
                share = fork.edges - np.maximum(unit, np.append(0.0, fork.edges)[:-1])
                for number in np.unique(fork.link[fork.link != END]):
                    link, way = self.graph.links[number], fork.link == number
                    end = link.target if forward else link.source
                    np.add.at(flow[end], fork.unit[way], (flow[node.id][unit] * share)[way])
        return rates

    def _flow_through(self, layer: Layer, flow: dict[int, Floats], forward: bool) -> Tensor:
        here, there = (layer.source, layer.target) if forward else (layer.target, layer.source)
        steps = self._steps(layer, forward)
        steps *= (torch.from_numpy(flow[here]) / steps.sum(dim=1).clamp_min(_TINY))[:, None]
        blocks = steps.view(layer.groups, -1, steps.shape[1])
        flow[there] += blocks.sum(dim=1).view(-1).numpy()
        kernels = (blocks.transpose(1, 2) if forward else blocks).reshape(*layer.shape[:2])
        live = torch.from_numpy(self._live[layer.index])
        taps = self._weights[layer.index].double().abs().view(*layer.shape[:2], -1) * live
        share = taps / taps.sum(dim=2, keepdim=True).clamp_min(_TINY)
        return (share * kernels[:, :, None]).view(layer.shape)

    def joinable(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Flag, by parameter, positions between units on paths of kept weights, whatever the values of the weights."""
        kernels = kept_kernels(self.graph, masks)
        reached, reaching = (self.graph.connected(kernels, forward=forward) for forward in (True, False))
        found = {name: torch.zeros(kept.shape, dtype=torch.bool) for name, kept in masks.items()}
        for layer in self.graph.layers:
            if layer.name in found:
                into = torch.from_numpy(reached[layer.source]).view(layer.groups, 1, -1)
                out = torch.from_numpy(reaching[layer.target]).view(layer.groups, -1, 1)
                live = torch.from_numpy(self._live[layer.index])
                joins = ((into & out).flatten()[:, None] & live).view(layer.shape)
                layer.lay_(joins, found[layer.name])
        return found

    # -- which units are on a path -------------------------------------------------------------------------------

    def _find_alive(self) -> dict[int, Flags]:
        kernels = None  # the common case: sums are not needed yet
        if any(torch.count_nonzero(weight) < weight.numel() for weight in self._weights.values()):
            kernels = {layer.index: (self._kernel_sums(layer) > 0).numpy() for layer in self.graph.layers}
        found = alive_units(self.graph, kernels)
        if not any(found[node][units].any() for node, units in self.graph.outputs):
            # Zeros cut every path: walk on the bare graph, as if all weights were equal.
            self._weights = {layer.index: torch.ones(layer.shape) for layer in self.graph.layers}
            self._sums.clear()
            self.weighs_zeros = True
            found = alive_units(self.graph)
        if not any(found[node][units].any() for node, units in self.graph.outputs):
            raise UserError("no path leads from the model's input to its output: check that example_input is complete")
        return found

    def _ends(self, ends: Iterable[tuple[int, Units]]) -> tuple[Units, Units]:
        living = [(node, units[self.alive[node][units]]) for node, units in ends]
        nodes = np.concatenate([np.full(len(units), node) for node, units in living])
        return nodes, np.concatenate([units for _, units in living])


def _draw(sums: Floats, low: Floats | Units, high: Floats | Units, uniform: Floats) -> Units:
    """Draw one entry for each row of a table of cumulative sums; a row covers `(low, high]` of it.

    An entry of probability zero is never drawn, whatever the rounding.
    """
    points = np.minimum(low + uniform * (high - low), np.nextafter(high, 0.0))
    order = np.argsort(points)  # searching a large table in sorted order is twice as fast
    entries: Units = np.empty(len(points), dtype=np.int64)
    entries[order] = np.searchsorted(sums, points[order], side="right")
    return entries


def _weights(graph: Graph, model: nn.Module) -> tuple[dict[int, Tensor], bool]:
    """Return weights by layer index, with ones for layers of zeros, and whether there are such layers."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found, has_zeros = {}, False
    for layer in graph.layers:
        if layer.name is None:  # a computed weight: its values are not known here
            found[layer.index] = torch.ones(layer.shape)
            continue
        weight = layer.pick(parameters[layer.name].detach()).cpu().contiguous()
        weight = weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
        low, high = map(float, weight.aminmax())
        if not math.isfinite(high - low):
            raise UserError(f"{layer.name} must be finite for random walks, got NaN or infinite values")
        empty = low == 0 == high
        found[layer.index] = torch.ones(layer.shape) if empty else weight
        has_zeros |= empty
    return found, has_zeros
