"""Tracing of models into weight graphs, and what is computed on them: scopes, path scores, FLOPs, topology."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pathgrow.graph.graph import Axis, Channels, Graph, Layer, Link, Window
from pathgrow.graph.inputs import guess_example_input
from pathgrow.graph.tracer import Tracer


def trace(model: nn.Module, example_input: Any = None) -> Graph:
    """Return the weight graph of a module, from one forward pass over one sample.

    Parameters
    ----------
    model
        Any module whose forward uses known torch functions; it is not changed.
    example_input
        One batch as the model accepts it: a tensor, a tuple of arguments or a dict of keyword arguments. None: guessed
        for models that declare an input, or from the first layer.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [layer.name for layer in trace(net, torch.ones(1, 4)).layers]
    ['0.weight', '2.weight']
    """
    if example_input is None:
        example_input = guess_example_input(model)
    return Tracer(model, dtype=torch.float32).run(example_input).graph


__all__ = ["Axis", "Channels", "Graph", "Layer", "Link", "Window", "guess_example_input", "trace"]
