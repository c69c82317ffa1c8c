"""FLOPs per sample of a network under masks, for inference, training and mask updates.

The multiply-adds (MACs) of a layer are its active weights times its output positions. Norms, activations and biases are
not counted, as is usual. One MAC is two FLOPs.
"""

from typing import Any, Literal

import torch
from torch import nn

from pathgrow.graph import Graph, trace
from pathgrow.masks import Masks
from pathgrow.masks.masks import check_masks

Cost = Literal[
    "sparse", "batch_at_updates", "dense_gradient_at_updates", "dense_gradient_at_steps", "more_gradients", "dense"
]
"""What a training step of a method costs.

- `sparse`: forward pass, activation gradients and weight gradients use active weights only.
- `batch_at_updates`: the same, plus one more batch at each mask update.
- `dense_gradient_at_updates`: the same as `sparse`, but with dense weight gradients at each mask update.
- `dense_gradient_at_steps`: dense weight gradients at every step.
- `more_gradients`: weight gradients also of weights that are trained without being active.
- `dense`: everything is dense.
"""


def forward_macs(graph: Graph, masks: Masks | None = None) -> int:
    """Return the MACs of one forward pass; attention products and layers without a mask are dense."""
    macs = graph.product_macs
    for layer in graph.layers:
        if masks is None or layer.name is None or layer.name not in masks:
            macs += layer.macs
        else:
            macs += int(torch.count_nonzero(layer.pick(masks[layer.name]))) * layer.positions
    return macs


def inference_flops(graph: Graph, masks: Masks | None = None) -> int:
    """Return the FLOPs of one sample in a forward pass."""
    return 2 * forward_macs(graph, masks)


def sample_flops(cost: Cost, macs: int, dense_macs: int) -> int:
    """Return the FLOPs of one sample in a training step without a mask update.

    The forward pass, the activation gradients and the weight gradients each take the MACs of one forward pass. This is
    the only place where these three are added up.

    Parameters
    ----------
    cost
        Which of the three are dense, see `Cost`.
    macs, dense_macs
        MACs of a forward pass with the masks, and without any; of "more_gradients", with all weights that are trained.

    Examples
    --------
    >>> [sample_flops(cost, 10, 100) for cost in ("sparse", "dense_gradient_at_steps", "dense")]
    [60, 240, 600]
    """
    if cost == "dense":
        return 2 * 3 * dense_macs
    if cost in ("dense_gradient_at_steps", "more_gradients"):
        return 2 * (2 * macs + dense_macs)
    return 2 * 3 * macs


def sample_training_flops(graph: Graph, masks: Masks | None = None) -> int:
    """Return the FLOPs of one sample in a training step that uses active weights only."""
    return sample_flops("sparse", forward_macs(graph, masks), forward_macs(graph))


def training_flops(model: nn.Module, example_input: Any, masks: Masks | None = None) -> int:
    """Return the FLOPs of one sample in a training step of a model, forward and backward.

    >>> import pathgrow.models
    >>> model = pathgrow.models.create("mlp", 10, inputs=64, widths=[128])
    >>> training_flops(model, model.example_input())  # 6 x (64 x 128 + 128 x 10)
    56832
    """
    if masks is not None:
        check_masks(masks, model)
    return sample_training_flops(trace(model, example_input), masks)


def scoring_flops(
    graph: Graph,
    masks: Masks | None = None,
    *,
    num_path_passes: int = 0,
    num_gradient_samples: int = 0,
    num_hessian_samples: int = 0,
) -> int:
    """Return the FLOPs of scoring all weights before `masks` grow; without masks, of the still dense network.

    Path scores take one sample forward and backward through all weights, pruned ones included: one dense training
    sample. Loss gradients take a batch whose forward pass and activation gradients are sparse and whose weight
    gradients are dense. Differentiating a gradient, for a Hessian-vector product, takes two matrix products for each of
    its own: twice as much again.

    >>> scoring_flops(trace(nn.Linear(4, 2), torch.zeros(1, 4)), num_gradient_samples=10)  # 10 x 6 x 8
    480
    """
    gradient = sample_flops("dense_gradient_at_steps", forward_macs(graph, masks), forward_macs(graph))
    return num_path_passes * sample_training_flops(graph) + (num_gradient_samples + 2 * num_hessian_samples) * gradient
