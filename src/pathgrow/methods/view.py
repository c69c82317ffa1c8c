"""What a method's picks see of a network: weights, masks, and readings that are made once, when first asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow.distributed.comm import Communicator
from pathgrow.errors import RunFailed, UserError
from pathgrow.graph import paths
from pathgrow.graph.sample_counter import counting
from pathgrow.masks import Masks

Loss = Callable[[nn.Module, Any], Tensor]
Batches = Iterable[Any] | Callable[[], Iterator[Any]]


@dataclass(frozen=True, kw_only=True)
class ScoringCost:
    """What it took to read a network before deciding on its masks; `ledger.growth_flops` turns it into FLOPs."""

    num_path_passes: int = 0
    """Passes of one sample, forward and backward, for path scores."""
    num_gradient_samples: int = 0
    """Samples that loss gradients were taken over."""
    num_hessian_samples: int = 0
    """Samples whose gradients were themselves differentiated, for a product with the Hessian."""


class NetworkView:
    """A network at one moment. Picks read it and never write.

    Parameters
    ----------
    model : nn.Module
        Weights that are off hold zero.
    masks : Masks
        What is on now.
    scope : Masks
        True where a weight may be switched.
    example_input : optional
        A sample input, for readings of paths.
    gradients : callable, optional
        Called when gradients are first asked for; returns the dense loss gradients by name and the number of samples
        they took.
    seed : int
        The seed of the run, for noise that is drawn where no generator is passed (`Method.remember`).
    memory : dict, optional
        What the method remembers; the one thing here that it may write.
    optimizer : Optimizer, optional
        To read learning rates and momentum from.
    loss, batches : optional
        `loss(model, batch)` and training batches, for picks that need more than gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        masks: Masks,
        scope: Masks,
        example_input: Any = None,
        gradients: Callable[[], tuple[Mapping[str, Tensor], int]] | None = None,
        *,
        seed: int = 0,
        method_state: dict[str, Any] | None = None,
        optimizer: Optimizer | None = None,
        loss: Loss | None = None,
        batches: Batches | None = None,
    ) -> None:
        self.model = model
        self.masks = masks
        self.scope = scope
        self.example_input = example_input
        self.seed = seed
        self.method_state: dict[str, Any] = method_state if method_state is not None else {}
        self.optimizer = optimizer
        self.loss = loss
        self.batches = batches
        self._read_gradients = gradients
        self._num_path_passes = 0
        self._num_gradient_samples = 0
        self._num_hessian_samples = 0

    @property
    def scoring_cost(self) -> ScoringCost:
        """What was read so far."""
        return ScoringCost(
            num_path_passes=self._num_path_passes,
            num_gradient_samples=self._num_gradient_samples,
            num_hessian_samples=self._num_hessian_samples,
        )

    def charge(self, *, path_passes: int = 0, gradient_samples: int = 0, hessian_samples: int = 0) -> None:
        """Charge a pick for what it has read by itself, without the methods below."""
        self._num_path_passes += path_passes
        self._num_gradient_samples += gradient_samples
        self._num_hessian_samples += hessian_samples

    def weights(self) -> dict[str, Tensor]:
        """The switchable weight tensors by name."""
        return {name: tensor.detach() for name, tensor in self.model.named_parameters() if name in self.masks}

    def path_scores(self) -> Mapping[str, Tensor]:
        """For every position, present or missing: the path weight that runs, or would run, through it."""
        return self._path_scores

    def trace_gains(self) -> Mapping[str, Tensor]:
        """The same for squared weights: what a new position adds to the trace of the path kernel."""
        return self._trace_gains

    def gradients(self) -> Mapping[str, Tensor]:
        """Magnitude of the loss gradient at every position, present or missing."""
        return self._gradients

    def signed_gradients(self) -> Mapping[str, Tensor]:
        """The loss gradient itself at every position, present or missing."""
        return self._signed_gradients

    def probe_gradients(self, seed: int) -> Mapping[str, Tensor]:
        """Loss gradients over a batch of `batches`, for picks that watch layers (with hooks) while they are taken.

        The batch is drawn for this alone, not that of the step being made; it is counted in `reading_cost`.
        """
        if self.loss is None or self.batches is None:
            raise UserError(
                "this method looks into layers while a batch runs through them: give attach(loss=..., batches=...), "
                "and name 'data' in the `needs` of a method of your own"
            )
        gradients, num_samples = loss_gradients(self.model, list(self.masks), self.loss, self.batches, seed)
        self._num_gradient_samples += num_samples
        return gradients

    # Each is read once, when a pick first asks, and paid for then.

    @cached_property
    def _path_scores(self) -> Mapping[str, Tensor]:
        self._num_path_passes += 1
        return paths.path_scores(self.model, self.example_input, self.masks)

    @cached_property
    def _trace_gains(self) -> Mapping[str, Tensor]:
        self._num_path_passes += 1
        return paths.trace_gains(self.model, self.example_input, self.masks)

    @cached_property
    def _gradients(self) -> Mapping[str, Tensor]:
        return {name: gradient.abs() for name, gradient in self._signed_gradients.items()}

    @cached_property
    def _signed_gradients(self) -> Mapping[str, Tensor]:
        if self._read_gradients is None:
            raise UserError(
                "this method reads loss gradients and none can be had: give attach(loss=..., batches=...), "
                "and name 'gradients' in the `needs` of a method of your own"
            )
        gradients, num_samples = self._read_gradients()
        self._num_gradient_samples += num_samples
        return gradients


def loss_gradients(
    model: nn.Module, names: Iterable[str], loss: Loss, batches: Batches, seed: int
) -> tuple[dict[str, Tensor], int]:
    """Loss gradients of the named parameters over one batch, and the number of samples it took.

    The network runs in training mode; afterwards its running statistics, modes and `.grad` are as they were. Shuffling
    loaders and dropout draw from `seed`, and the global generators do not move.
    """
    parameters = dict(model.named_parameters())
    wanted = {name: parameters[name] for name in names if parameters[name].requires_grad}
    with probing(model, seed), counting(model) as counter:
        (batch,) = first_batches(batches, 1)
        value = checked_loss(loss(model, batch))
        found = torch.autograd.grad(value, list(wanted.values()), allow_unused=True)
    gradients = {name: torch.zeros_like(parameters[name]) for name in names}
    for name, gradient in zip(wanted, found, strict=True):
        if gradient is not None:
            gradients[name] = gradient
    return gradients, counter.samples


def mean_gradients(
    comm: Communicator, read: Callable[[], tuple[Mapping[str, Tensor], int]]
) -> tuple[Mapping[str, Tensor], int]:
    """Gradients averaged over the team, in which each process reads a batch of its own, and the samples of them all."""
    gradients, num_samples = read()
    if comm.size == 1:
        return gradients, num_samples
    comm.all_reduce_(gradients.values())
    return {name: total / comm.size for name, total in gradients.items()}, sum(comm.gather(num_samples))


def first_batches(batches: Batches, num: int) -> list[Any]:
    """The first `num` batches of a new pass over the data.

    Never those of a pass begun earlier: a resumed run must not depend on how far an iterator had gone.
    """
    found = list(itertools.islice(batches() if callable(batches) else iter(batches), num))
    if len(found) < num:
        raise UserError(
            f"`batches` gave {len(found) or 'no'} batches, at least {num} are wanted: pass a loader, a list or a "
            "function giving an iterator"
        )
    return found


@contextmanager
def probing(model: nn.Module, seed: int) -> Iterator[None]:
    """Inside the block the network runs in training mode, with gradients, and draws from `seed`.

    Nothing of it stays: running statistics, modes and the global generators are afterwards as they were.
    """
    with _seeded(seed, model.parameters()), _undisturbed(model), torch.enable_grad():
        model.train()
        yield


def checked_loss(value: object) -> Tensor:
    """What a user's loss function returned, checked to be one finite number with gradients."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise UserError(
            f"loss(model, batch) gave {type(value).__name__}, a tensor of one number with gradients is wanted: "
            "return the loss that training would call backward() on"
        )
    if not torch.isfinite(value):
        raise RunFailed(f"the loss before growth is {value.item()}: training has diverged, lower the learning rate")
    return value.reshape(())


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@contextmanager
def _seeded(seed: int, tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block the global generators are seeded; after it they have their old states."""
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        torch.manual_seed(seed)
        yield
