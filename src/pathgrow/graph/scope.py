"""Scopes: which weights are prunable, derived from the graph of a model and not from names.

Presets (Yao & Dovrolis, section 5):

- `default`: every conv and linear weight on a path, except the output layer. Query and key projections (also as rows of
  a fused QKV weight) and the layers of multiplicative gates are on no path. Embeddings do not count as layers.
- `resnet`: the default without projection shortcuts.
- `vit`: the default without the layers that embed the raw input.
- `auto`: `vit` for models with attention, otherwise `resnet` (the same as `default` without projection shortcuts).
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathgrow.errors import UserError, check_name, frames_to_the_caller, require
from pathgrow.graph import trace
from pathgrow.graph.graph import Flags, Graph, Layer
from pathgrow.masks import Masks

PRESETS = ("auto", "default", "resnet", "vit")
NameFilter = Callable[[str], bool] | str | Iterable[str]


def scope(
    model: nn.Module, example_input: Any = None, preset: str = "auto", *, only: NameFilter | None = None
) -> Masks:
    """Return the prunable weights of a model as masks.

    Of a model that cannot be traced, such as a recurrent one, these are all conv, linear and recurrent weights that
    example_input reaches before the last layer. Layers that it does not reach are named in a warning.

    Parameters
    ----------
    example_input
        One batch as the model accepts it; None: guessed.
    preset
        One of `auto`, `default`, `resnet`, `vit`.
    only
        A filter on parameter names within the preset: a function, a glob pattern, or several patterns.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sorted(scope(net)), scope(net).num
    (['0.weight', '2.weight'], 96)
    """
    from pathgrow.graph.calls import uncalled_layers, warn_of_unreached  # which reads scopes

    found, graph = _scope_and_graph(model, example_input, preset, only=only)
    accepts = _as_filter(only)
    warn_of_unreached(model, [name for name in uncalled_layers(model, example_input, graph) if accepts(name)])
    return found


def _scope_and_graph(
    model: nn.Module, example_input: Any, preset: str = "auto", *, only: NameFilter | None = None
) -> tuple[Masks, Graph]:
    if isinstance(example_input, str):
        raise UserError(f"example_input must be a batch, got {example_input!r} (a preset is a keyword: preset='vit')")
    check_name("scope preset", preset, PRESETS)
    try:
        graph = trace(model, example_input)
    except UserError as reason:
        from pathgrow.graph.calls import called_scope, calls_instead

        if preset != "auto":
            raise
        graph, warning = calls_instead(model, example_input, reason)
        warnings.warn(warning, stacklevel=frames_to_the_caller())
        return called_scope(model, graph, _as_filter(only)), graph
    return scope_of(model, graph, preset, only=only), graph


def trained_scope(model: nn.Module, example_input: Any = None, *, needs_paths: bool = True) -> Masks:
    """Return `scope(model)` without frozen weights, which could be pruned but would never be regrown.

    Of layers that example_input does not reach, the caller warns.
    """
    parameters = dict(model.named_parameters())
    whole = scope_of(model, trace(model, example_input)) if needs_paths else _scope_and_graph(model, example_input)[0]
    trained = {name: inside for name, inside in whole.items() if parameters[name].requires_grad}
    if not trained:
        raise UserError(
            f"nothing to sparsify in {type(model).__name__}: all prunable weights are frozen (requires_grad is False); "
            "call requires_grad_(True) on the weights to train, or pass a scope"
        )
    return Masks.select(trained, trained)


def is_traceable(model: nn.Module, example_input: Any = None) -> bool:
    """Whether paths can be traced through a model."""
    try:
        trace(model, example_input)
    except UserError:
        return False
    return True


def scope_of(model: nn.Module, graph: Graph, preset: str = "auto", *, only: NameFilter | None = None) -> Masks:
    """Return the scope of a model whose graph is known."""
    if preset == "auto":
        preset = "vit" if graph.attention else "resnet"
    dense = set(output_layers(graph))
    if preset == "resnet":
        dense |= set(projection_shortcuts(graph))
    if preset == "vit":
        dense |= set(input_layers(graph))
    accepts = _as_filter(only)
    alive = alive_units(graph)
    parameters = dict(model.named_parameters())
    kept_dense = {layer.name for layer in graph.layers if layer.index in dense}
    prunable: dict[str, torch.Tensor] = {}
    for layer in graph.layers:
        if layer.name is None or layer.name in kept_dense or not accepts(layer.name):
            continue
        rows = torch.from_numpy(alive[layer.target])
        if not bool(rows.any()):
            continue
        found = prunable.setdefault(layer.name, torch.zeros(parameters[layer.name].shape, dtype=torch.bool))
        positions = rows.view(-1, *[1] * (len(layer.shape) - 1)).expand(layer.shape)
        layer.lay_(positions, found)
    if not prunable:
        hint = " that passes the name filter" if only is not None else ""
        raise UserError(
            f"nothing to sparsify in {type(model).__name__}: it has no conv or linear weight{hint} between its input "
            "and its output layer; pass a scope (Masks with True for each weight that may be pruned)"
        )
    return Masks.select(prunable, prunable)


def output_layers(graph: Graph) -> list[int]:
    """Return the layers whose result is an output of the model: nothing is added to it and no layer follows."""
    found = []
    for node, _ in graph.outputs:
        while node not in graph.layer_into and len(graph.links_into[node]) == 1:
            node = graph.links_into[node][0].source
        if node in graph.layer_into:
            found.append(graph.layer_into[node].index)
    return found


def input_layers(graph: Graph) -> list[int]:
    """Return the layers that read the raw input (patch embeddings); none for tokens: embeddings do not count."""
    if graph.tokens_in:
        return []
    return [layer.index for layer in graph.layers if graph.channels[_feeding(graph, layer)].input]


def projection_shortcuts(graph: Graph) -> list[int]:
    """Return the layers that form, alone, one of two branches from a fork to an addition, next to a deeper one."""
    found = []
    for node in graph.channels:
        incoming = graph.links_into[node.id]
        if len(incoming) != 2:
            continue
        for short, deep in (incoming, incoming[::-1]):
            layer, other = graph.layer_into.get(short.source), graph.layer_into.get(deep.source)
            if layer is None:
                continue
            fork = _feeding(graph, layer)
            deeper = other is None or _feeding(graph, other) != fork
            deeper = deeper and fork != deep.source and graph.descends(deep.source, fork)
            if deeper and not graph.descends(deep.source, short.source):
                found.append(layer.index)
    return found


def _feeding(graph: Graph, layer: Layer) -> int:
    """Return the node whose units a layer reads."""
    return graph.links_into[layer.source][0].source


def _as_filter(only: Any) -> Callable[[str], bool]:
    if only is None:
        return lambda name: True
    if callable(only):
        return lambda name: bool(only(name))
    try:
        patterns: list[Any] = [only] if isinstance(only, str) else list(only)
    except TypeError:  # a tensor without dimensions is an `Iterable` too
        patterns = [None]
    are_texts = all(isinstance(pattern, str) for pattern in patterns)
    require(are_texts, "only", only, "a function of a parameter name, a pattern, or several patterns", "'layer1.*'")
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


def model_density(model: nn.Module, masks: Masks) -> float:
    """Return the fraction of all parameters that is kept: active prunable weights and everything always dense."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return (total - masks.num + masks.num_on) / total


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
