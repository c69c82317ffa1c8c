"""Batches for training, augmented and normalised on the device, from data that lie there or stream in from files.

Everything random about an epoch is drawn on the CPU before it begins, as a pure function of (seed, epoch), into buffers
that stay where they are. A step then needs to know nothing but its number, which a captured graph counts itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pathgrow import augment as augmentation
from pathgrow.data.dataset import Split, StreamedSplit
from pathgrow.data.streaming import StreamLoader
from pathgrow.errors import UserError
from pathgrow.rng import generator
from pathgrow.trainer.recipes import Recipe

_READY_BYTES = 256 * 2**20
"""Normalised copies are kept up to this size."""


class Resident:
    """A split on a device, shared by all that train or score on it."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.images = split.images.to(device)
        self.labels = split.labels.to(device)
        self.mean = torch.tensor(split.mean, dtype=torch.float32, device=device)
        self.std = torch.tensor(split.std, dtype=torch.float32, device=device)
        self.shape = tuple(split.images.shape[1:])
        self._ready: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.images.device

    def normalised(self, first: int, last: int) -> Tensor:
        """Images of a range, centred and scaled; small sets are kept so."""
        if 4 * self.images.numel() > _READY_BYTES:
            return self._normalise(self.images[first:last])
        if self._ready is None:
            self._ready = self._normalise(self.images)
        return self._ready[first:last]

    def all_ready(self) -> Tensor | None:
        """All images normalised, if they are few enough to be kept so."""
        return self.normalised(0, len(self)) if 4 * self.images.numel() <= _READY_BYTES else None

    def _normalise(self, images: Tensor) -> Tensor:
        return (images.float() - self.mean.view(1, -1, 1, 1)) / self.std.view(1, -1, 1, 1)


class Residents:
    """Each split is moved to the device once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: WeakKeyDictionary[Split, Resident] = WeakKeyDictionary()

    def of(self, split: Split) -> Resident:
        if split not in self._known:
            self._known[split] = Resident(split, self._device)
        return self._known[split]


def batches_of(num_samples: int, recipe: Recipe, num_ranks: int = 1) -> tuple[int, int]:
    """(size, number) of the batches of an epoch; data that do not fill a batch of the recipe are a smaller one.

    >>> batches_of(1000, Recipe(batch_size=128))
    (128, 7)
    >>> batches_of(31, Recipe(batch_size=128), num_ranks=2)
    (30, 1)
    """
    whole, num_parts = min(recipe.batch_size, num_samples), recipe.accumulate * num_ranks
    if whole < num_parts:
        shared = f" of {num_ranks} processes: start fewer, or" if num_ranks > 1 else ":"
        raise UserError(
            f"{num_samples} training samples cannot be computed in {num_parts} parts{shared} lower `accumulate`"
        )
    batch_size = whole - whole % num_parts  # of parts of one size, whose mean is the batch's
    return batch_size, num_samples // batch_size


class Feed(ABC):
    """The batches of one training, epoch by epoch.

    The last samples of an epoch that fill no batch are left out; the order is another one each time. Batches then have
    one size, which a captured step needs and the statistics of batch norm like.

    Parameters
    ----------
    seed
        Decides the order and the augmentation, with the epoch.
    num_epochs
        Of the whole training: the learning rate is stretched over it.
    shard
        (rank, number of ranks): this process computes its rows of every batch.
    """

    def __init__(
        self,
        split: Resident | StreamedSplit,
        device: torch.device,
        recipe: Recipe,
        classes: int,
        *,
        seed: int,
        num_epochs: int,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._num = len(split)
        self._shape = split.shape
        self._device = device
        self._mean, self._std = (
            torch.as_tensor(v, dtype=torch.float32, device=device) for v in (split.mean, split.std)
        )
        self._recipe = recipe
        self._classes = classes
        self._seed = seed
        self._shard = shard
        self.batch_size, self.num_steps = batches_of(self._num, recipe, shard[1])
        self.num_epochs = num_epochs
        self._tables: dict[str, Tensor] = {}
        self._rates: list[float] = []

    @property
    def num_samples(self) -> int:
        """Of an epoch, over all ranks."""
        return self.num_steps * self.batch_size

    @property
    def num_rows(self) -> int:
        """Of a batch, those that this process computes."""
        return self.batch_size // self._shard[1]

    def retarget_(self, *, seed: int, num_epochs: int) -> None:
        """Serve another training of the same network: the buffers, and a graph that reads them, stay."""
        self._seed, self.num_epochs = seed, num_epochs

    @abstractmethod
    def ready_(self, step: int) -> None:
        """To be called before each step, outside of a graph."""

    @abstractmethod
    def _chosen(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Bytes and labels of a step, as they are stored."""

    def _order(self, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        """Tables that say which samples a step takes."""
        return {}

    def _rows(self) -> slice:
        """Which rows of a batch this process computes."""
        rank, num_ranks = self._shard
        return slice(rank, None, num_ranks)

    def fill_(self, epoch: int) -> None:
        """Draw an epoch into the buffers, in the order of the current stream."""
        draw = generator(self._seed, "epoch", epoch)
        order = self._order(epoch, draw)
        drawn = augmentation.draw(
            self._recipe.augment, self.num_steps, self.batch_size, self._shape, self._classes, draw
        )
        total = self.num_epochs * self.num_steps
        rates = [self._recipe.rate(epoch * self.num_steps + step, total) for step in range(self.num_steps)]
        tables = {**order, **{f"draw/{name}": values for name, values in drawn.items()}}
        # Rows of a sample go to the rank that computes it; what is drawn once for a batch (mixing) goes to all.
        tables = {name: t if name.startswith("draw/mix") else t[:, self._rows()] for name, t in tables.items()}
        self._rates = rates
        self._put_({**tables, "rates": torch.tensor(rates, dtype=torch.float32)})

    def _put_(self, tables: dict[str, Tensor]) -> None:
        for name, table in tables.items():
            table = table.contiguous()
            if self._device.type == "cpu":
                self._tables[name] = table
            elif name not in self._tables:
                self._tables[name] = table.to(self._device)
            else:
                # From pinned memory a copy waits in its stream; from any other the whole process would.
                self._tables[name].copy_(table.pin_memory(), non_blocking=True)

    def rate(self, step: int) -> float:
        """The share of the learning rate at a step of the epoch,"""
        return self._rates[step]

    def rate_on_device(self, step: Tensor) -> Tensor:
        """and the same where a graph can read it."""
        return _row(self._tables["rates"], step)

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets of a step, given as a number or as a tensor that holds it."""
        images, labels = self._chosen(step)
        drawn = {
            name.removeprefix("draw/"): _row(table, step)
            for name, table in self._tables.items()
            if name.startswith("draw/")
        }
        return augmentation.apply(
            self._recipe.augment, images, labels, drawn, mean=self._mean, std=self._std, classes=self._classes
        )


class ResidentFeed(Feed):
    """Batches gathered from a split that lies on the device."""

    def __init__(self, resident: Resident, recipe: Recipe, classes: int, **training: Any) -> None:
        super().__init__(resident, resident.device, recipe, classes, **training)
        self._resident = resident
        plain = recipe.augment == type(recipe.augment)()
        # Made here, once: what a compiled or captured step makes for later, it would be compiled for twice.
        self._ready = resident.all_ready() if plain else None

    def ready_(self, step: int) -> None:
        pass  # the data are where a graph finds them

    def _order(self, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        return {"order": torch.randperm(self._num, generator=draw)[: self.num_samples].view(self.num_steps, -1)}

    def _chosen(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        rows = _row(self._tables["order"], step)
        return self._resident.images.index_select(0, rows), self._resident.labels.index_select(0, rows)

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        if self._ready is not None:
            rows = _row(self._tables["order"], step)
            return self._ready.index_select(0, rows), self._resident.labels.index_select(0, rows)
        return super().batch(step)


class StreamedFeed(Feed):
    """Batches decoded from files by worker processes, copied to where a graph looks for them."""

    def __init__(
        self, split: StreamedSplit, device: torch.device, recipe: Recipe, classes: int, workers: int, **training: Any
    ) -> None:
        super().__init__(split, device, recipe, classes, **training)
        self._split = split
        self._workers = workers
        self._epoch = 0
        self._next = -1
        self._stream: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._images = torch.zeros((self.num_rows, *split.shape), dtype=torch.uint8, device=device)
        self._labels = torch.zeros(self.num_rows, dtype=torch.int64, device=device)

    def _order(self, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        self._epoch, self._next = epoch, -1  # the loader draws its own order, of the same seed
        return {}

    def _rows(self) -> slice:
        rank, num = self._shard[0], self.num_rows
        return slice(rank * num, (rank + 1) * num)  # as the loader has them

    def ready_(self, step: int) -> None:
        if step != self._next:
            loader = StreamLoader(
                self._split,
                self.batch_size,
                train=True,
                seed=self._seed,
                workers=self._workers,
                shard=self._shard,
            )
            self._stream = loader.epoch(self._epoch, start_batch=step)
        images, labels = next(self._stream)
        self._images.copy_(images, non_blocking=True)
        self._labels.copy_(labels, non_blocking=True)
        self._next = step + 1
        if self._next == self.num_steps:
            self._stream = iter(())  # its workers end with it, and do not wait for a training that may never come

    def _chosen(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        return self._images, self._labels


def _row(table: Tensor, step: int | Tensor) -> Tensor:
    return table[step] if isinstance(step, int) else table.index_select(0, step.view(1)).squeeze(0)
