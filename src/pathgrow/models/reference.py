"""What the models of this folder have in common."""

from __future__ import annotations

from torch import Tensor, nn


class ReferenceModel(nn.Module):
    """A module that knows the shape of one sample."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.input_shape = input_shape

    def example_input(self) -> Tensor:
        """One sample of ones, on the model's device and in its precision."""
        return next(self.parameters()).new_ones(1, *self.input_shape)
