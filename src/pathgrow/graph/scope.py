"""Which weights may be switched on and off, read off the wiring instead of guessed from names.

Presets (Yao & Dovrolis, section 5):

- `default`: every conv and linear weight that path signals reach, except the output layer. They do not reach query and
  key projections (also as rows of a fused QKV weight) or the layers of multiplicative gates. Embeddings do not count as
  layers.
- `resnet`: the default without projection shortcuts.
- `vit`: the default without the layers that embed the raw input.
- `auto`: `vit` where there is attention, else `resnet` (which is the default where nothing is projected).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from pathgrow.errors import UserError, unknown_name
from pathgrow.graph import Graph, Layer, guess_example_input, trace
from pathgrow.masks import Masks

PRESETS = ("auto", "default", "resnet", "vit")
NameFilter = Callable[[str], bool] | str | Iterable[str]


def scope(
    model: nn.Module, preset: str = "auto", example_input: Any = None, *, only: NameFilter | None = None
) -> Masks:
    """The switchable positions of a model: True where a weight may be switched.

    Parameters
    ----------
    preset
        One of `auto`, `default`, `resnet`, `vit`.
    example_input
        One batch as the model takes it; None: guessed for models that say what they take.
    only
        A filter on parameter names within the preset: a function, a glob pattern, or several patterns.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sorted(scope(net)), scope(net).num
    (['0.weight', '2.weight'], 96)
    """
    if preset not in PRESETS:
        raise unknown_name("scope preset", preset, PRESETS)
    if example_input is None:
        example_input = guess_example_input(model)
    graph = trace(model, example_input)
    return scope_of(model, graph, preset, only=only)


def trained_scope(model: nn.Module, example_input: Any = None) -> Masks:
    """The default scope of training: `scope(model)` without frozen weights, which could be lost but never regrown."""
    parameters = dict(model.named_parameters())
    whole = scope(model, "auto", example_input)
    trained = {name: inside for name, inside in whole.items() if parameters[name].requires_grad}
    if not trained:
        raise UserError(
            f"nothing to sparsify in {type(model).__name__}: all weights that could be are frozen (requires_grad is "
            "False); call requires_grad_(True) on what is to be trained, or pass a scope of your own"
        )
    return Masks.select(trained, trained)


def scope_of(model: nn.Module, graph: Graph, preset: str = "auto", *, only: NameFilter | None = None) -> Masks:
    """The scope of a model whose wiring was read already."""
    if preset == "auto":
        preset = "vit" if graph.attention else "resnet"
    dense = set(output_layers(graph))
    if preset == "resnet":
        dense |= set(projection_shortcuts(graph))
    if preset == "vit":
        dense |= set(input_layers(graph))
    accepts = _as_filter(only)
    reached, reaching = graph.reached(), graph.reaching()
    parameters = dict(model.named_parameters())
    kept_dense = {layer.name for layer in graph.layers if layer.index in dense}
    switchable: dict[str, torch.Tensor] = {}
    for layer in graph.layers:
        if layer.name is None or layer.name in kept_dense or not accepts(layer.name):
            continue
        rows = torch.from_numpy(reached[layer.target] & reaching[layer.target])
        if not bool(rows.any()):
            continue
        found = switchable.setdefault(layer.name, torch.zeros(parameters[layer.name].shape, dtype=torch.bool))
        positions = rows.view(-1, *[1] * (len(layer.shape) - 1)).expand(layer.shape)
        if layer.where is None:
            found |= positions
        else:
            found.view(-1)[layer.where[positions]] = True
    if not switchable:
        hint = " that passes the name filter" if only is not None else ""
        raise UserError(
            f"nothing to sparsify in {type(model).__name__}: no conv or linear weight{hint} lies between its input and "
            "its output layer; pass a scope of your own (Masks with True where a weight may be switched)"
        )
    return Masks.select(switchable, switchable)


def output_layers(graph: Graph) -> list[int]:
    """Layers whose result is an output as it is: nothing is added to it and no weight follows."""
    found = []
    for node, _ in graph.outputs:
        while node not in graph.layer_into and len(graph.links_into[node]) == 1:
            node = graph.links_into[node][0].source
        if node in graph.layer_into:
            found.append(graph.layer_into[node].index)
    return found


def input_layers(graph: Graph) -> list[int]:
    """Layers that read the raw input (patch embeddings); none where it is tokens, since embeddings are no layers."""
    if graph.tokens_in:
        return []
    return [layer.index for layer in graph.layers if graph.channels[_feeding(graph, layer)].input]


def projection_shortcuts(graph: Graph) -> list[int]:
    """Layers that are, by themselves, one of two branches from a fork to an addition, beside a deeper one."""
    ancestors = _ancestors(graph)
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
            if deeper and fork in ancestors[deep.source] and short.source not in ancestors[deep.source]:
                found.append(layer.index)
    return found


def _feeding(graph: Graph, layer: Layer) -> int:
    """The space whose units a layer reads."""
    return graph.links_into[layer.source][0].source


def _ancestors(graph: Graph) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for node in graph.channels:
        before = {link.source for link in graph.links_into[node.id]}
        if (layer := graph.layer_into.get(node.id)) is not None:
            before.add(layer.source)
        found[node.id] = before.union(*(found[parent] for parent in before)) if before else set()
    return found


def _as_filter(only: NameFilter | None) -> Callable[[str], bool]:
    if only is None:
        return lambda name: True
    if callable(only):
        return only
    patterns = [only] if isinstance(only, str) else list(only)
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


def whole_model_density(model: nn.Module, masks: Masks) -> float:
    """Kept share of all parameters of a model: switchable weights that are on, and everything that is always dense."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return (total - masks.num + masks.num_on) / total
