"""Batches of a data set that lies on the device: gathered, augmented and normalised there.

Everything random about an epoch is drawn on the CPU before it begins, as a pure function of (seed, epoch), into buffers
that stay where they are. A step then needs to know nothing but its number, which a captured graph counts itself.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pathgrow import augment as augmentation
from pathgrow.data.dataset import Split
from pathgrow.errors import UserError
from pathgrow.recipes import Recipe
from pathgrow.rng import generator

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


class Feed:
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
        resident: Resident,
        recipe: Recipe,
        classes: int,
        *,
        seed: int,
        num_epochs: int,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._resident = resident
        self._recipe = recipe
        self._classes = classes
        self._seed = seed
        self._shard = shard
        whole = min(recipe.batch_size, len(resident))
        if whole < recipe.accumulate:
            raise UserError(
                f"{len(resident)} training samples cannot be computed in {recipe.accumulate} parts: lower `accumulate`"
            )
        self.batch_size = whole - whole % recipe.accumulate  # of parts of one size, whose mean is the batch's
        self.num_steps = len(resident) // self.batch_size
        self.num_epochs = num_epochs
        self._is_plain = recipe.augment == type(recipe.augment)()
        self._tables: dict[str, Tensor] = {}
        self._rates: list[float] = []

    @property
    def num_samples(self) -> int:
        """Of an epoch, over all ranks."""
        return self.num_steps * self.batch_size

    def retarget_(self, *, seed: int, num_epochs: int) -> None:
        """Serve another training of the same network: the buffers, and a graph that reads them, stay."""
        self._seed, self.num_epochs = seed, num_epochs

    def fill_(self, epoch: int) -> None:
        """Draw an epoch into the buffers, in the order of the current stream."""
        draw = generator(self._seed, "epoch", epoch)
        rank, world = self._shard
        order = torch.randperm(len(self._resident), generator=draw)[: self.num_samples].view(self.num_steps, -1)
        drawn = augmentation.draw(
            self._recipe.augment, self.num_steps, self.batch_size, self._resident.shape, self._classes, draw
        )
        total = self.num_epochs * self.num_steps
        rates = [self._recipe.rate(epoch * self.num_steps + step, total) for step in range(self.num_steps)]
        tables = {"order": order, **{f"draw/{name}": values for name, values in drawn.items()}}
        # Rows of a sample go to the rank that computes it; what is drawn once for a batch (mixing) goes to all.
        tables = {name: t if name.startswith("draw/mix") else t[:, rank::world] for name, t in tables.items()}
        self._rates = rates
        self._put_({**tables, "rates": torch.tensor(rates, dtype=torch.float32)})

    def _put_(self, tables: dict[str, Tensor]) -> None:
        device = self._resident.device
        for name, table in tables.items():
            table = table.contiguous()
            if device.type == "cpu":
                self._tables[name] = table
            elif name not in self._tables:
                self._tables[name] = table.to(device)
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
        resident = self._resident
        rows = _row(self._tables["order"], step)
        labels = resident.labels.index_select(0, rows)
        if self._is_plain and (ready := resident.all_ready()) is not None:
            return ready.index_select(0, rows), labels
        drawn = {
            name.removeprefix("draw/"): _row(table, step) for name, table in self._tables.items() if name != "order"
        }
        drawn.pop("rates")
        return augmentation.apply(
            self._recipe.augment,
            resident.images.index_select(0, rows),
            labels,
            drawn,
            mean=resident.mean,
            std=resident.std,
            classes=self._classes,
        )


def _row(table: Tensor, step: int | Tensor) -> Tensor:
    return table[step] if isinstance(step, int) else table.index_select(0, step.view(1)).squeeze(0)
