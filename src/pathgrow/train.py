"""Our own `fit` and `evaluate`: classification on data that lie in memory.

They have the shape that `discover` asks of anybody's functions, and they know nothing of masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from pathgrow.data.dataset import Split
from pathgrow.errors import RunFailed, UserError, unknown_name
from pathgrow.rng import generator

Fit = Callable[[nn.Module, Optimizer, int], None]
Evaluate = Callable[[nn.Module], tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained. Every phase anneals from `lr` to zero, however long it is."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 64
    warmup: float = 0.05
    """Share of a phase over which the learning rate rises; less than one step means none."""
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UserError(f"lr {self.lr} was got, a number above 0 is wanted: give for example 0.1")
        if self.batch_size < 1:
            raise UserError(f"batch_size {self.batch_size} was got, at least 1 is wanted: give for example 64")
        for name, value in (
            ("momentum", self.momentum),
            ("warmup", self.warmup),
            ("label_smoothing", self.label_smoothing),
        ):
            if not 0 <= value < 1:
                raise UserError(f"{name} {value} was got, a number in [0, 1) is wanted: leave it out for the default")
        if not self.weight_decay >= 0:
            raise UserError(
                f"weight_decay {self.weight_decay} was got, a number from 0 up is wanted: give for example 5e-4"
            )

    def rate(self, step: int, num_steps: int) -> float:
        """Share of the learning rate at one of `num_steps` steps: a short rise, then half a cosine down to zero."""
        num_warmup = int(self.warmup * num_steps)
        if step < num_warmup:
            return (step + 1) / (num_warmup + 1)
        done = (step - num_warmup) / max(1, num_steps - num_warmup)
        return 0.5 * (1 + math.cos(math.pi * done))


RECIPES: dict[str, Recipe] = {
    "digits": Recipe(lr=0.05, weight_decay=1e-3, batch_size=32),
}
"""The default recipe of each data set."""


def recipe_for(data: str) -> Recipe:
    """The recipe that this data set is trained with unless another is asked for."""
    if data not in RECIPES:
        raise unknown_name("recipe", data, RECIPES)
    return RECIPES[data]


def make_optimizer(model: nn.Module, recipe: Recipe) -> SGD:
    """SGD with Nesterov momentum over all parameters."""
    return SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )


def make_fit(split: Split, recipe: Recipe, on_epoch: Callable[[int, int, float], None] | None = None) -> Fit:
    """A `fit(model, optimizer, epochs)` over one split.

    The order of samples depends on the global torch seed at the call and on the epoch: whoever seeds the call decides.
    The optimizer's learning rates at the call are the peak of the phase, and stand there again after it.
    `on_epoch(done, epochs, loss)` is told of every epoch, with the loss of its last batch.
    """
    resident = _Resident(split)

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        images, labels = resident.on(_device(model))
        phase = int(torch.randint(2**62, ()).item())
        peaks = [group["lr"] for group in optimizer.param_groups]
        num_steps = epochs * math.ceil(len(labels) / recipe.batch_size)
        model.train()
        step = 0
        for epoch in range(epochs):
            order = torch.randperm(len(labels), generator=generator(phase, "order", epoch)).to(labels.device)
            for batch in torch.split(order, recipe.batch_size):
                for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                    group["lr"] = peak * recipe.rate(step, num_steps)
                loss = _cross_entropy(model(images[batch]), labels[batch], recipe)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
            # Once an epoch: a check at every step would wait for the device each time.
            if not math.isfinite(last := loss.item()):
                raise RunFailed(
                    f"the training loss became {last} in epoch {epoch + 1} of {epochs}: "
                    f"lower the learning rate ({peaks[0]:g} was used)"
                )
            if on_epoch is not None:
                on_epoch(epoch + 1, epochs, last)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak

    return fit


def make_evaluate(split: Split, batch_size: int = 4096) -> Evaluate:
    """An `evaluate(model)` over one split that gives (accuracy, mean cross-entropy)."""
    resident = _Resident(split)

    def evaluate(model: nn.Module) -> tuple[float, float]:
        images, labels = resident.on(_device(model))
        num_right, loss = 0, 0.0
        with _evaluating(model):
            for some, truth in zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True):
                logits = model(some)
                num_right += int((logits.argmax(dim=1) == truth).sum())
                loss += float(functional.cross_entropy(logits.double(), truth, reduction="sum"))
        return num_right / len(labels), loss / len(labels)

    return evaluate


def make_loss(recipe: Recipe) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """The `loss(model, batch)` of training, for growth rules that read gradients."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        device = _device(model)
        return _cross_entropy(model(images.to(device)), labels.to(device), recipe)

    return loss


def make_batches(split: Split, recipe: Recipe) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    """Training batches in an order that the global torch seed decides, for growth rules that read gradients."""
    images = split.normalised()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in torch.split(torch.randperm(len(split)), recipe.batch_size):
            yield images[batch], split.labels[batch]

    return batches


@contextmanager
def few_threads(num_threads: int) -> Iterator[None]:
    """Run with this many CPU threads: sums are cut into as many parts, so the count is part of a run's identity."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cross_entropy(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    return functional.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)


class _Resident:
    """A split as normalised tensors, moved to a device once."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._cache: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._cache:
            self._cache = {device: (self._split.normalised(device), self._split.labels.to(device))}
        return self._cache[device]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
