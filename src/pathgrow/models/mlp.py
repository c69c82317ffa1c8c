"""A plain multilayer perceptron; its default fits the embedded 8x8 digits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.models.init import kaiming_
from pathgrow.models.reference import ReferenceModel


class MLP(ReferenceModel):
    """Linear layers with ReLU between them; the input is flattened, so images may be given as they are.

    Parameters
    ----------
    inputs : int
        Values per sample.
    widths : sequence of int
        Units of the hidden layers, first to last; empty: a linear classifier.
    """

    def __init__(
        self,
        classes: int,
        *,
        inputs: int = 64,
        widths: Sequence[int] = (64, 64),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((inputs,))
        sizes = (inputs, *widths, classes)
        self.layers = nn.ModuleList(nn.Linear(size_in, size_out) for size_in, size_out in pairwise(sizes))
        kaiming_(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        *hidden, last = self.layers
        for layer in hidden:
            x = F.relu(layer(x))
        logits: Tensor = last(x)
        return logits
