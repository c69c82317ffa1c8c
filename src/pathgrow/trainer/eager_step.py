"""One training step in eager mode, and the parts of a step that CUDA graphs record as well.

A step is: forward, loss, backward, mask gradients, clip, optimizer step, mask weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pathgrow.distributed.comm import Communicator
from pathgrow.errors import UserError
from pathgrow.sparse.attach import Attached
from pathgrow.trainer.device import ExecutionPlan
from pathgrow.trainer.feed import Feed
from pathgrow.trainer.recipes import Recipe


class EagerStep:
    """A training step in eager mode."""

    def __init__(
        self, attached: Attached, feed: Feed, recipe: Recipe, plan: ExecutionPlan, module: nn.Module | None = None
    ) -> None:
        """Prepare a step; `module` is called in place of the model, e.g. its DistributedDataParallel wrapper."""
        self.attached = attached
        self._feed = feed
        self._recipe = recipe
        self._plan = plan
        self._compiled = plan.compile == "on"
        self._forward = compiled_forward_loss(plan.device.type) if self._compiled else forward_loss
        self._module = module if module is not None else attached.model
        self._base_lrs = base_lrs(attached.optimizer)
        self._index = torch.zeros((), dtype=torch.int64, device=plan.device)
        self.loss: Tensor = torch.zeros((), device=plan.device)

    @property
    def is_current(self) -> bool:
        """Whether the learning rates are still those that this step was created for."""
        return self._base_lrs == base_lrs(self.attached.optimizer)

    def __call__(self, step: int) -> None:
        """Train on one batch of the epoch."""
        attached = self.attached
        with scaled_lrs(attached.optimizer, self._base_lrs, self._feed.lr_factor(step)):
            with attached.hooks_disabled():
                self._backward(step)
                attached.record_gradients_()
                if attached.update_masks_if_due_():
                    attached.mask_weights_()  # the mask update replaces the optimizer step
                else:
                    apply_gradients_(attached, self._recipe)
            attached.finish_step_()

    def _backward(self, step: int) -> None:
        self.attached.optimizer.zero_grad(set_to_none=True)
        # torch.compile recompiles for every Python number, but not for every value of a tensor.
        index = self._index.fill_(step) if self._compiled else step
        self.loss = backward(self._forward, self._module, self._feed, index, self._recipe, self._plan)


def forward_loss(
    model: nn.Module, feed: Feed, step: int | Tensor, part: int, recipe: Recipe, autocast: torch.dtype | None
) -> Tensor:
    """Return the loss of one microbatch, scaled so that the microbatches of a step add up to the mean loss."""
    images, targets = feed.batch(step)
    if recipe.accumulate > 1:
        images, targets = images.chunk(recipe.accumulate)[part], targets.chunk(recipe.accumulate)[part]
    # On a CPU the layout of the weights decides (`ExecutionPlan.place`): the first convolution converts its input.
    if images.is_cuda and images.dim() == 4 and images.shape[1] > 1:
        images = images.contiguous(memory_format=torch.channels_last)
    kind, lower = images.device.type, autocast or torch.bfloat16
    # No cache: a CUDA graph would keep using the cast copy of a weight that has changed since.
    with torch.autocast(kind, lower, enabled=autocast is not None, cache_enabled=False):
        logits = model(images)
    loss = cross_entropy(logits.float(), targets, label_smoothing=recipe.label_smoothing)
    return loss / recipe.accumulate


def cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Return the cross-entropy of logits (samples, classes), or (samples, positions, classes) of sequences."""
    if logits.dim() > 2:
        logits, targets = logits.flatten(0, -2), targets.flatten()
    return functional.cross_entropy(logits, targets, **options)


@cache
def compiled_forward_loss(kind: str) -> Any:
    """Return `forward_loss` compiled for a device type; on first use only, since the compiler imports slowly."""
    # On a CPU the compiler would choose channels-last itself, even where `ExecutionPlan.place` avoids it.
    return torch.compile(forward_loss, dynamic=False, options={"layout_optimization": False} if kind == "cpu" else None)


def backward(
    forward: Any, module: nn.Module, feed: Feed, step: int | Tensor, recipe: Recipe, plan: ExecutionPlan
) -> Tensor:
    """Accumulate the gradients of a step over its microbatches and return its loss."""
    parts = []
    # DistributedDataParallel reduces gradients once, with the last microbatch.
    no_sync = getattr(module, "no_sync", nullcontext)
    for part in range(recipe.accumulate):
        with no_sync() if part + 1 < recipe.accumulate else nullcontext():
            with explain_single_row(feed.num_rows // recipe.accumulate):
                loss = forward(module, feed, step, part, recipe, plan.autocast)
            loss.backward()
        parts.append(loss.detach())
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


@contextmanager
def explain_single_row(num_rows: int) -> Iterator[None]:
    """Explain torch's error about batch norm over a single value: its message names no remedy."""
    try:
        yield
    except ValueError as error:
        if num_rows > 1 or isinstance(error, UserError):
            raise
        raise UserError(
            f"this network cannot be trained on one sample at a time ({error}); use a larger batch size, "
            "a smaller `accumulate`, or fewer processes"
        ) from error


def apply_gradients_(attached: Attached, recipe: Recipe) -> None:
    """Mask and clip the gradients, run the optimizer step, and mask the weights."""
    attached.mask_gradients_()
    if recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(attached.model.parameters(), recipe.clip_norm)
    attached.optimizer.step()
    attached.mask_weights_()


def base_lrs(optimizer: Optimizer) -> list[float]:
    """Return the learning rate of each parameter group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


@contextmanager
def scaled_lrs(optimizer: Optimizer, base: list[float], factor: float) -> Iterator[None]:
    """Multiply the learning rates by the factor of the schedule; restore `base` afterwards, even after an interrupt."""
    for group, lr in zip(optimizer.param_groups, base, strict=True):
        # Rounded as in a CUDA graph: a difference in the last bit is a difference everywhere a few steps later.
        group["lr"] = float(np.float32(lr) * np.float32(factor))
    try:
        yield
    finally:
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr


def wrap_in_ddp(model: nn.Module, comm: Communicator) -> nn.Module:
    """Wrap the model so that its gradients are averaged over all ranks; a single process needs no wrapper."""
    if comm.size == 1:
        return model
    return _ExplainedDDP(model, gradient_as_bucket_view=True)


class _ExplainedDDP(DistributedDataParallel):
    """DistributedDataParallel whose error about unused parameters says how to change the model."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "finished reduction" not in str(error):
                raise
            raise UserError(
                "some parameters of this model do not contribute to its loss, but data-parallel training needs a "
                "gradient for each: remove them, or freeze them with requires_grad_(False)"
            ) from error
