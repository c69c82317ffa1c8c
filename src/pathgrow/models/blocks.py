"""What the models share: their base classes and weight initialization."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MakeBlock = Callable[[int, int, int], nn.Module]
"""Maps input channels, output channels and stride to a residual block."""


class ReferenceModel(nn.Module):
    """A module that knows the shape of one sample."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.input_shape = input_shape

    def example_input(self) -> Tensor:
        """Return a batch of one sample, filled with ones, on the model's device and in its dtype."""
        return next(self.parameters()).new_ones(1, *self.input_shape)


def kaiming_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Initialize every convolution and linear layer with He-normal weights (fan-in) and zero biases, in place.

    Fan-in preserves the scale of activations for any stride; fan-out shrinks them wherever a layer halves the
    resolution and doubles the channels. The pruning literature also starts from fan-in, so weight magnitudes and path
    products begin on the scale of its results.
    """
    for layer in _layers(model):
        nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu", generator=generator)


def xavier_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Initialize every convolution and linear layer with Xavier-normal weights and zero biases, in place."""
    for layer in _layers(model):
        nn.init.xavier_normal_(layer.weight, generator=generator)


def _layers(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layers


class ResidualNetwork(ReferenceModel, ABC):
    """A stem, residual stages `layer1`, `layer2`, ..., average pooling and the linear classifier `fc`."""

    fc: nn.Linear

    def add_stages(self, block: MakeBlock, channels: int, widths: Sequence[int], depths: Sequence[int]) -> None:
        """Add stages of `depths` blocks with these output channels; all but the first halve the resolution."""
        self.num_stages = len(depths)
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            first = block(channels, width, 1 if number == 1 else 2)
            self.add_module(f"layer{number}", nn.Sequential(first, *(block(width, width, 1) for _ in range(depth - 1))))
            channels = width

    @abstractmethod
    def stem(self, x: Tensor) -> Tensor:
        """Return the input of the first stage."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in range(1, self.num_stages + 1):
            x = getattr(self, f"layer{number}")(x)
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(self.activate(x), 1).flatten(1))
        return logits

    def activate(self, x: Tensor) -> Tensor:
        """Return the input of the pooling, given the output of the last stage."""
        return x
