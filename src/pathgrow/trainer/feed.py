"""Batches for training, augmented and normalized on the device, from resident data or streamed from files.

Everything random about an epoch is drawn on the CPU before it starts, as a pure function of (seed, epoch), into buffers
with fixed addresses. A step then needs nothing but its number, which a CUDA graph counts itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pathgrow import augment as augmentation
from pathgrow.data.dataset import Split, StreamedSplit, TextSplit, normalize
from pathgrow.data.streaming import StreamLoader
from pathgrow.errors import UserError
from pathgrow.rng import generator
from pathgrow.trainer.recipes import UNAUGMENTED, Recipe

_EVALUATION_BATCH = 2500
_EVALUATION_CHARACTERS = 2**15
"""Characters of a batch in evaluation."""
_MAX_NORMALIZED_BYTES = 256 * 2**20
"""Largest split of which a normalized copy is cached."""


class DeviceSplit:
    """A split on a device, shared by everything that trains or evaluates on it."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.images = split.images.to(device)
        self.labels = split.labels.to(device)
        self.mean, self.std, self.shape = split.mean, split.std, split.shape
        self._normalized: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.images.device

    def evaluation_batches(self, start: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalized images and labels of a range, in order."""
        for first in range(start, end, _EVALUATION_BATCH):
            last = min(first + _EVALUATION_BATCH, end)
            yield self.normalized(first, last), self.labels[first:last]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these normalized images and their labels."""
        return normalize(self.images[rows], self.mean, self.std), self.labels[rows]

    def normalized(self, first: int, last: int) -> Tensor:
        """Return the normalized images of a range; those of a small split are cached."""
        if 4 * self.images.numel() > _MAX_NORMALIZED_BYTES:
            return normalize(self.images[first:last], self.mean, self.std)
        if self._normalized is None:
            self._normalized = normalize(self.images, self.mean, self.std)
        return self._normalized[first:last]

    def all_normalized(self) -> Tensor | None:
        """Return all images normalized, or None if the split is too large to cache them."""
        return self.normalized(0, len(self)) if 4 * self.images.numel() <= _MAX_NORMALIZED_BYTES else None


class DeviceText:
    """A text on a device."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __init__(self, split: TextSplit, device: torch.device) -> None:
        self.split = replace(split, codes=split.codes.to(device))
        self.shape, self.device = split.shape, device

    def __len__(self) -> int:
        return len(self.split)

    def evaluation_batches(self, start: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield windows and targets of a range, in order."""
        for rows in torch.arange(start, end).split(max(1, _EVALUATION_CHARACTERS // self.split.context)):
            yield self.batch(rows.to(self.device))

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these windows and their targets."""
        return self.split.windows(rows * self.split.context)


class DeviceSplits:
    """Moves each split to the device once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: WeakKeyDictionary[Split | TextSplit, DeviceSplit | DeviceText] = WeakKeyDictionary()

    def of(self, split: Split | TextSplit) -> DeviceSplit | DeviceText:
        if split not in self._known:
            kept = DeviceText(split, self._device) if isinstance(split, TextSplit) else DeviceSplit(split, self._device)
            self._known[split] = kept
        return self._known[split]


def epoch_batches(num_samples: int, recipe: Recipe, num_ranks: int = 1) -> tuple[int, int]:
    """Return (batch size, batches per epoch); a split smaller than the batch size is one smaller batch.

    >>> epoch_batches(1000, Recipe(batch_size=128))
    (128, 7)
    >>> epoch_batches(31, Recipe(batch_size=128), num_ranks=2)
    (30, 1)
    """
    largest, num_parts = min(recipe.batch_size, num_samples), recipe.accumulate * num_ranks
    if largest < num_parts:
        fewer = " or start fewer processes" if num_ranks > 1 else ""
        raise UserError(
            f"{num_samples} training samples cannot be split into {num_parts} microbatches: lower `accumulate`{fewer}"
        )
    batch_size = largest - largest % num_parts  # microbatches of one size, so that the mean of means is the mean
    return batch_size, num_samples // batch_size


class Feed(ABC):
    """The batches of one training, epoch by epoch.

    Every epoch is a new permutation; the last samples that do not fill a batch are dropped. All batches have one size,
    as CUDA graphs require and batch norm prefers.

    Parameters
    ----------
    seed
        Determines sample order and augmentation, together with the epoch.
    num_epochs
        Length of the whole training, over which the learning-rate schedule is stretched.
    shard
        (rank, world size): this process computes its rows of every batch.
    """

    def __init__(
        self,
        split: DeviceSplit | DeviceText | StreamedSplit,
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
        self.batch_size, self.num_steps = epoch_batches(self._num, recipe, shard[1])
        self.num_epochs = num_epochs
        self._tables: dict[str, Tensor] = {}
        self._lr_factors: list[float] = []

    @property
    def num_samples(self) -> int:
        """Samples per epoch, over all ranks."""
        return self.num_steps * self.batch_size

    @property
    def num_rows(self) -> int:
        """Rows of each batch that this process computes."""
        return self.batch_size // self._shard[1]

    def retarget_(self, *, seed: int, num_epochs: int) -> None:
        """Serve another training of the same network; the buffers, and CUDA graphs that read them, stay valid."""
        self._seed, self.num_epochs = seed, num_epochs

    @abstractmethod
    def load_(self, step: int) -> None:
        """Load the data of a step into the buffers; called before each step, outside of CUDA graphs."""

    @abstractmethod
    def _raw_batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return the uint8 images and the labels of a step."""

    def _order(self, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        """Return the tables that say which samples a step takes."""
        return {}

    def _rows(self) -> slice:
        """Return the rows of a batch that this process computes."""
        rank, num_ranks = self._shard
        return slice(rank, None, num_ranks)

    def fill_(self, epoch: int) -> None:
        """Draw an epoch into the buffers, on the current stream."""
        draw = generator(self._seed, "epoch", epoch)
        order = self._order(epoch, draw)
        drawn = {}
        if self._recipe.augment != UNAUGMENTED:
            drawn = augmentation.draw(self._recipe.augment, self.num_steps, self.batch_size, self._shape, draw)
        total = self.num_epochs * self.num_steps
        factors = [self._recipe.lr_factor(epoch * self.num_steps + step, total) for step in range(self.num_steps)]
        tables = {**order, **{f"draw/{name}": values for name, values in drawn.items()}}
        # Draws per sample go to the rank that computes it; those per batch (mixing) go to all ranks.
        tables = {name: t if name.startswith("draw/mix") else t[:, self._rows()] for name, t in tables.items()}
        self._lr_factors = factors
        self._put_({**tables, "lr_factors": torch.tensor(factors, dtype=torch.float32)})

    def _put_(self, tables: dict[str, Tensor]) -> None:
        for name, table in tables.items():
            table = table.contiguous()
            if self._device.type == "cpu":
                self._tables[name] = table
            elif name not in self._tables:
                self._tables[name] = table.to(self._device)
            else:
                # A copy from pinned memory waits in its stream; any other would block the process.
                self._tables[name].copy_(table.pin_memory(), non_blocking=True)

    def lr_factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step of the epoch."""
        return self._lr_factors[step]

    def lr_factor_on_device(self, step: Tensor) -> Tensor:
        """Return the factor of the learning rate as a tensor that a CUDA graph can read."""
        return _row(self._tables["lr_factors"], step)

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return images and targets of a step, given as a number or as a tensor that holds it."""
        images, labels = self._raw_batch(step)
        drawn = {
            name.removeprefix("draw/"): _row(table, step)
            for name, table in self._tables.items()
            if name.startswith("draw/")
        }
        return augmentation.apply(
            self._recipe.augment, images, labels, drawn, mean=self._mean, std=self._std, classes=self._classes
        )


class ResidentFeed(Feed):
    """Batches gathered from a split that is resident on the device."""

    def __init__(self, resident: DeviceSplit, recipe: Recipe, classes: int, **training: Any) -> None:
        super().__init__(resident, resident.device, recipe, classes, **training)
        self._resident = resident
        # Computed here, once: a step that filled the cache itself would be compiled twice.
        self._normalized = resident.all_normalized() if recipe.augment == UNAUGMENTED else None

    def load_(self, step: int) -> None:
        pass  # the data are on the device already

    def _order(self, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        return {"order": torch.randperm(self._num, generator=draw)[: self.num_samples].view(self.num_steps, -1)}

    def _raw_batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        rows = _row(self._tables["order"], step)
        return self._resident.images.index_select(0, rows), self._resident.labels.index_select(0, rows)

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        if self._normalized is not None:
            rows = _row(self._tables["order"], step)
            return self._normalized.index_select(0, rows), self._resident.labels.index_select(0, rows)
        return super().batch(step)


class TextFeed(Feed):
    """Windows of a text that is resident on the device: an epoch reads it once, from an offset drawn for the epoch."""

    def __init__(self, resident: DeviceText, recipe: Recipe, classes: int, **training: Any) -> None:
        if recipe.augment != UNAUGMENTED:
            raise UserError("text cannot be augmented: use a recipe without augmentation (e.g. gpt)")
        super().__init__(resident, resident.device, recipe, classes, **training)
        self._split = resident.split

    def load_(self, step: int) -> None:
        pass  # the data are on the device already

    def _order(self, epoch: int, draw: torch.Generator) -> dict[str, Tensor]:
        context = self._split.context
        offset = torch.randint(context, (), generator=draw)
        starts = offset + context * torch.randperm(self._num, generator=draw)[: self.num_samples]
        return {"starts": starts.view(self.num_steps, -1)}

    def _raw_batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        return self._split.windows(_row(self._tables["starts"], step))

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        return self._raw_batch(step)


class StreamedFeed(Feed):
    """Batches decoded from files by worker processes and copied to a fixed buffer on the device."""

    def __init__(
        self,
        split: StreamedSplit,
        device: torch.device,
        recipe: Recipe,
        classes: int,
        workers: int | None,
        **training: Any,
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
        self._epoch, self._next = epoch, -1  # the loader draws its own order from the same seed
        return {}

    def _rows(self) -> slice:
        rank, num = self._shard[0], self.num_rows
        return slice(rank * num, (rank + 1) * num)  # contiguous, as the loader shards a batch

    def load_(self, step: int) -> None:
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
            self._stream = iter(())  # ends its workers, which would otherwise wait for a training that may never come

    def _raw_batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        return self._images, self._labels


def _row(table: Tensor, step: int | Tensor) -> Tensor:
    return table[step] if isinstance(step, int) else table.index_select(0, step.view(1)).squeeze(0)
