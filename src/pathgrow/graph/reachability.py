"""Connectivity of units under masks: alive (on a path), dead, isolated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from pathgrow.graph.graph import Flags, Graph


def kept_kernels(graph: Graph, masks: Mapping[str, Tensor]) -> dict[int, Flags]:
    """Flag, by layer index, the kernels `[out, in / groups]` with at least one kept weight."""
    found = {}
    for layer in graph.layers:
        if layer.name is None or layer.name not in masks:
            found[layer.index] = np.ones(layer.shape[:2], dtype=bool)
        else:
            kept = layer.pick(masks[layer.name]).cpu()
            found[layer.index] = kept.reshape(*layer.shape[:2], -1).any(dim=-1).numpy()
    return found


def alive_units(graph: Graph, kernels: dict[int, Flags] | None = None) -> dict[int, Flags]:
    """Flag, by node, the units on some path from input to output through the given kernels (None: all)."""
    reached, reaching = (graph.connected(kernels, forward=forward) for forward in (True, False))
    return {node: flags & reaching[node] for node, flags in reached.items()}


def dead_units(graph: Graph, masks: Mapping[str, Tensor]) -> dict[int, Flags]:
    """Flag, by layer index, the output units on a path of the dense network but on none of kept weights."""
    dense, kept = alive_units(graph), alive_units(graph, kept_kernels(graph, masks))
    return {layer.index: dense[layer.target] & ~kept[layer.target] for layer in graph.layers}


def isolated_units(graph: Graph, masks: Mapping[str, Tensor]) -> dict[int, Flags]:
    """Flag, by layer index, the output units alive in the dense network without a kept weight into or out of them.

    A weight out of a unit is one of any layer that reads the unit, directly or through additions; an output unit of
    the network needs none.
    """
    kernels, dense = kept_kernels(graph, masks), alive_units(graph)
    leads = graph.connected(kernels, forward=False, past_layers=False)
    return {
        layer.index: dense[layer.target] & ~(kernels[layer.index].any(axis=1) & leads[layer.target])
        for layer in graph.layers
    }
