"""A running average of a network, which scores as the network would without the noise of its last steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """How weights are averaged; the default looks back over about 400 steps."""

    decay: float = 0.99
    """Share of the old average that an update keeps."""
    every: int = 4
    """Optimizer steps between two updates."""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise UserError(f"decay {self.decay} was given, a number in (0, 1) is wanted: give for example 0.99")
        if self.every < 1:
            raise UserError(f"every {self.every} was given, at least 1 step is wanted: give for example 4")


class WeightAverage:
    """Averages of all floating parameters and buffers of one model, batch-norm statistics among them.

    The first updates form a plain mean, until it is as long as the decay remembers, so that the weights before
    training, which are far from all later ones, leave no trace.
    """

    def __init__(self, model: nn.Module, averaging: Averaging) -> None:
        self._averaging = averaging
        self._live = floating(model)
        # Updates of a hundredth would be lost in half precision: the mean is kept in float32 at least.
        self._means = {
            name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
            for name, tensor in self._live.items()
        }
        self._num_updates = 0
        self.swapped = False
        """Whether the model holds the average right now, and so must not be trained."""

    @torch.no_grad()
    def step_(self, step: int) -> None:
        """Update the average if it is due; to be called after optimizer step number `step`."""
        if step % self._averaging.every:
            return
        decay = min(self._averaging.decay, self._num_updates / (self._num_updates + 1))
        for name, mean in self._means.items():
            mean.lerp_(self._live[name].to(mean.dtype), 1 - decay)
        self._num_updates += 1

    def restart_(self) -> None:
        """Forget the weights seen so far, because the model starts over from other weights."""
        self._num_updates = 0

    def mask_(self, masks: Mapping[str, Tensor]) -> None:
        """Zero the average at weights that are off."""
        for name, mask in masks.items():
            self._means[name].masked_fill_(~mask.to(self._means[name].device), 0)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside the block the model holds its average, and after it, bit for bit, its own weights."""
        if self.swapped:
            raise UserError("averaged() was entered inside averaged(): leave the first block before the second")
        if self._num_updates == 0:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self._live.items()}
        self._show_(self._means)
        self.swapped = True
        try:
            yield
        finally:
            self._show_(own)
            self.swapped = False

    def state_dict(self) -> dict[str, Any]:
        return {"num_updates": self._num_updates, "means": {name: mean.clone() for name, mean in self._means.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, mean in self._means.items():
            mean.copy_(state["means"][name])
        self._num_updates = int(state["num_updates"])

    @torch.no_grad()
    def _show_(self, values: Mapping[str, Tensor]) -> None:
        for name, live in self._live.items():
            live.copy_(values[name])


def floating(model: nn.Module) -> dict[str, Tensor]:
    """The floating parameters and buffers of a model by name, as they live in it."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}
