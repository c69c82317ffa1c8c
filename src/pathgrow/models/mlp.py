"""Multilayer perceptron; the default input size is that of the 8x8 digits."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.models.blocks import ReferenceModel, kaiming_


class MLP(ReferenceModel):
    """Linear layers with ReLU between them; inputs of any shape are flattened.

    Parameters
    ----------
    inputs : int
        Values per sample.
    widths : sequence of int
        Hidden layer widths, first to last; an empty sequence gives a linear classifier.
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
