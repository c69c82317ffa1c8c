"""Loss gradients outside the training loop, without a trace in the model or the global random state."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pathgrow.distributed.comm import Communicator
from pathgrow.errors import RunFailed, UserError
from pathgrow.graph.running import preserved_modes
from pathgrow.graph.sample_counter import counting

Loss = Callable[[nn.Module, Any], Tensor]
Batches = Iterable[Any] | Callable[[], Iterator[Any]]


def loss_gradients(
    model: nn.Module, names: Iterable[str], loss: Loss, batches: Batches, seed: int
) -> tuple[dict[str, Tensor], int]:
    """Loss gradients of the named parameters over one batch, and the number of its samples.

    The model runs in training mode; its running statistics, modes and `.grad` are restored. Shuffling loaders and
    dropout draw from `seed`; the global generators are restored.
    """
    parameters = dict(model.named_parameters())
    trainable = {name: parameters[name] for name in names if parameters[name].requires_grad}
    with probing(model, seed), counting(model) as counter:
        (batch,) = first_batches(batches, 1)
        value = checked_loss(loss(model, batch))
        found = torch.autograd.grad(value, list(trainable.values()), allow_unused=True)
    gradients = {name: torch.zeros_like(parameters[name]) for name in names}
    for name, gradient in zip(trainable, found, strict=True):
        if gradient is not None:
            gradients[name] = gradient
    return gradients, counter.samples


def mean_gradients(
    comm: Communicator, compute: Callable[[], tuple[Mapping[str, Tensor], int]]
) -> tuple[Mapping[str, Tensor], int]:
    """Gradients averaged over all ranks, each of which uses its own batch, and the total number of samples."""
    gradients, num_samples = compute()
    if comm.size == 1:
        return gradients, num_samples
    comm.all_reduce_(gradients.values())
    return {name: total / comm.size for name, total in gradients.items()}, sum(comm.gather(num_samples))


def first_batches(batches: Batches, num: int) -> list[Any]:
    """The first `num` batches of a new pass over the data.

    Always a new pass: a resumed run must not depend on how far an iterator had advanced.
    """
    source: Any = batches() if callable(batches) else batches
    found = list(itertools.islice(source, num)) if isinstance(source, Iterable) else []
    if len(found) < num:
        raise UserError(
            f"`batches` must yield at least {num} batches, got {len(found)}; "
            "pass a loader, a list or a function that returns an iterator"
        )
    return found


@contextmanager
def probing(model: nn.Module, seed: int) -> Iterator[None]:
    """Run the model in training mode with gradients, seeded by `seed`; restore everything afterwards.

    Running statistics, modes and the global generators are as before after the block.
    """
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=sorted(devices, key=str)), preserved_modes(model):
        torch.manual_seed(seed)
        model.train()
        try:
            with torch.enable_grad():
                yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def checked_loss(value: object) -> Tensor:
    """The value of the user's loss function, checked to be one finite number with gradients."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise UserError(
            f"loss(model, batch) must return a scalar tensor that requires grad, got {type(value).__name__}"
        )
    if not torch.isfinite(value):
        raise RunFailed(f"the loss before a mask update is {value.item()}; training diverged, lower the learning rate")
    return value.reshape(())
