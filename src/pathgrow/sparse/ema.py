"""Exponential moving average (EMA) of the weights, for evaluation without the noise of the last steps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.errors import UserError, is_int, is_number, require


@dataclass(frozen=True, kw_only=True)
class EMA:
    """Settings of a weight EMA; the default has a horizon of about 400 steps."""

    decay: float = 0.99
    update_interval: int = 4
    """Optimizer steps between EMA updates."""

    def __post_init__(self) -> None:
        require(is_number(self.decay) and 0 < self.decay < 1, "decay", self.decay, "in (0, 1)", 0.99)
        is_valid = is_int(self.update_interval) and self.update_interval >= 1
        require(is_valid, "update_interval", self.update_interval, "an integer >= 1", 4)


class WeightEMA:
    """EMA of all floating-point parameters and buffers of a model, batch-norm statistics included.

    The first updates form a plain mean until its length reaches the horizon of the decay, so that the weights before
    training, which are far from all later ones, leave no trace.
    """

    def __init__(self, model: nn.Module, settings: EMA) -> None:
        self._settings = settings
        named = [*model.named_parameters(), *model.named_buffers()]
        self._live = {name: tensor for name, tensor in named if tensor.is_floating_point()}
        # Updates of one percent would be lost in half precision: the means are float32 at least.
        self._means = {
            name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
            for name, tensor in self._live.items()
        }
        self._num_updates = 0
        self.swapped = False
        """Whether the model holds the EMA right now, and so must not be trained."""

    @torch.no_grad()
    def step_(self, step: int) -> None:
        """Update the EMA if it is due; call after optimizer step number `step`."""
        if step % self._settings.update_interval:
            return
        decay = min(self._settings.decay, self._num_updates / (self._num_updates + 1))
        for name, mean in self._means.items():
            mean.lerp_(self._live[name].to(mean.dtype), 1 - decay)
        self._num_updates += 1

    def restart_(self) -> None:
        """Discard the weights averaged so far, because training continues from other weights."""
        self._num_updates = 0

    def mask_(self, masks: Mapping[str, Tensor]) -> None:
        """Zero the EMA of pruned weights."""
        for name, mask in masks.items():
            self._means[name].masked_fill_(~mask.to(self._means[name].device), 0)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the EMA into the model inside the block; afterwards the model holds its own weights, bit for bit."""
        if self.swapped:
            raise UserError("ema_weights() cannot be nested")
        if self._num_updates == 0:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self._live.items()}
        self._write_(self._means)
        self.swapped = True
        try:
            yield
        finally:
            self._write_(own)
            self.swapped = False

    def state_dict(self) -> dict[str, Any]:
        return {"num_updates": self._num_updates, "means": {name: mean.clone() for name, mean in self._means.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, mean in self._means.items():
            mean.copy_(state["means"][name])
        self._num_updates = int(state["num_updates"])

    @torch.no_grad()
    def _write_(self, values: Mapping[str, Tensor]) -> None:
        for name, live in self._live.items():
            live.copy_(values[name])
