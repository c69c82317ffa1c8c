"""The cost of one sample, from real layer shapes and masks.

Multiply-adds (MACs) of a layer are its present weights times its output positions; norms, activations and biases are
not counted, as is usual. FLOPs are twice the MACs: a multiply and an add are two.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import torch
from torch import nn

from pathgrow.errors import UserError
from pathgrow.graph import Graph, trace
from pathgrow.masks import Masks

Cost = Literal["sparse", "batch_at_changes", "dense_gradient_at_changes", "dense_gradient_at_steps", "dense"]
"""Of a training sample: three sparse passes; the same, and one more batch at changes of the masks; dense weight
gradients at changes; dense weight gradients at each step; all dense."""


def forward_macs(graph: Graph, masks: Masks | None = None) -> int:
    """Multiply-adds of one forward pass; attention and layers without a mask count in full."""
    macs = graph.product_macs
    for layer in graph.layers:
        if masks is None or layer.name is None or layer.name not in masks:
            macs += layer.macs
        else:
            macs += int(torch.count_nonzero(layer.pick(masks[layer.name]))) * layer.positions
    return macs


def inference_flops(graph: Graph, masks: Masks | None = None) -> int:
    """FLOPs of one sample in a forward pass."""
    return 2 * forward_macs(graph, masks)


def step_flops(graph: Graph, masks: Masks | None = None) -> int:
    """FLOPs of one sample in a training step: forward, and twice that for the gradients of inputs and of weights."""
    return 2 * 3 * forward_macs(graph, masks)


def dense_gradient_flops(graph: Graph, masks: Masks) -> int:
    """FLOPs of one sample where the loss gradient at missing weights is needed too (gradient growth).

    Activations and their gradients pass through present weights only; the weight gradient is that of a dense network.
    """
    return 2 * (2 * forward_macs(graph, masks) + forward_macs(graph))


def training_flops_per_sample(cost: Cost, graph: Graph, masks: Masks, *, every: int | None = None) -> int:
    """FLOPs of one sample, on average, in the training of a method at these masks.

    With f the FLOPs of a forward pass, sparse or dense, a step takes 3 f_sparse; 2 f_sparse + f_dense if it needs the
    gradient at missing weights too; 3 f_dense if all weights are trained. For a method that needs that gradient, or
    looks at a second batch, only when masks change, one such step after `every` plain ones is averaged in, rounded to a
    whole number.
    """
    sparse, dense_gradient = step_flops(graph, masks), dense_gradient_flops(graph, masks)
    if cost == "dense":
        return step_flops(graph)
    if cost == "dense_gradient_at_steps":
        return dense_gradient
    if cost == "sparse":
        return sparse
    if every is None or every < 1:
        raise UserError(
            f"every={every!r} was given for a method whose steps cost more at changes, the number of steps between "
            "changes is wanted: give for example every=100"
        )
    at_change = 2 * sparse if cost == "batch_at_changes" else dense_gradient
    return round(Fraction(sparse * every + at_change, every + 1))


def training_flops(model: nn.Module, example_input: Any, masks: Masks | None = None) -> int:
    """FLOPs of one sample in a training step, forward and backward.

    >>> import pathgrow.models
    >>> model = pathgrow.models.create("mlp", 10, inputs=64, widths=[128])
    >>> training_flops(model, model.example_input())  # 6 x (64 x 128 + 128 x 10)
    56832
    """
    if masks is not None:
        masks.check(model)
    return step_flops(trace(model, example_input), masks)


def growth_flops(graph: Graph, masks: Masks, *, num_path_passes: int = 0, num_gradient_samples: int = 0) -> int:
    """What it costs a method to read the network before it grows `masks`.

    A pass over the paths takes one sample forward and backward through all weights, missing ones too, and so costs one
    dense training sample. Loss gradients of missing weights take a batch whose forward pass and activation gradients
    are sparse and whose weight gradients are dense.
    """
    return num_path_passes * step_flops(graph) + num_gradient_samples * dense_gradient_flops(graph, masks)


def start_flops(
    graph: Graph, *, num_path_passes: int = 0, num_gradient_samples: int = 0, num_hessian_samples: int = 0
) -> int:
    """What choosing the first masks costs, in a network that still has all its weights.

    A pass over the paths and the gradient of a sample each cost as much as a dense training sample. Differentiating
    that gradient, for a product with the Hessian, takes two matrix products for each of its own: twice as much again.

    >>> from pathgrow.graph import trace
    >>> start_flops(trace(nn.Linear(4, 2), torch.zeros(1, 4)), num_gradient_samples=10)  # 10 x 6 x 8
    480
    """
    return step_flops(graph) * (num_path_passes + num_gradient_samples + 2 * num_hessian_samples)
