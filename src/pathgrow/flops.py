"""The cost of one sample, from real layer shapes and masks.

Multiply-adds (MACs) of a layer are its present weights times its output positions; norms, activations and biases are
not counted, as is usual. FLOPs are twice the MACs: a multiply and an add are two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pathgrow.masks import Masks
from pathgrow.wiring import Wiring, read


def forward_macs(wiring: Wiring, masks: Masks | None = None) -> int:
    """Multiply-adds of one forward pass; a layer without a mask counts in full, so does attention."""
    macs = wiring.product_macs
    for layer in wiring.layers:
        if masks is None or layer.name is None or layer.name not in masks:
            macs += layer.macs
        else:
            macs += int(torch.count_nonzero(layer.pick(masks[layer.name]))) * layer.positions
    return macs


def step_flops(wiring: Wiring, masks: Masks | None = None) -> int:
    """FLOPs of one sample in a training step: forward, and twice that for the gradients of inputs and of weights."""
    return 2 * 3 * forward_macs(wiring, masks)


def dense_gradient_flops(wiring: Wiring, masks: Masks) -> int:
    """FLOPs of one sample where the loss gradient is also wanted at missing weights (gradient growth).

    Activations and their gradients pass through present weights only; the weight gradient is that of a dense network.
    """
    return 2 * (2 * forward_macs(wiring, masks) + forward_macs(wiring))


def training_flops(model: nn.Module, example_input: Any, masks: Masks | None = None) -> int:
    """FLOPs of one sample in a training step, forward and backward.

    >>> import pathgrow.models
    >>> model = pathgrow.models.create("mlp", 10, inputs=64, widths=[128])
    >>> training_flops(model, model.example_input())  # 6 x (64 x 128 + 128 x 10)
    56832
    """
    if masks is not None:
        masks.check(model)
    return step_flops(read(model, example_input), masks)
