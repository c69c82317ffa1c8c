"""Batches of images straight from their files, decoded by worker processes: for data that do not fit in memory.

The stream is a pure function of the seed and the epoch. Workers hold no random state: the order of an epoch is drawn in
the main process, and the crop of a sample by a generator named after the epoch and the sample. So any number of workers
gives the same batches, and an epoch that is taken up at batch k goes on with the very batches it would have given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgrow.data.crops import Box, Decoder, centre_box, decode_part, random_box, read_part, torchvision_decoder
from pathgrow.data.dataset import StreamedSplit
from pathgrow.data.workers import Pixels, filled
from pathgrow.errors import UserError, unknown_name
from pathgrow.rng import generator

Rows = NDArray[np.int64]
Wanted = tuple[int, Rows]
"""A batch to be decoded: its epoch, and which samples of the split."""
Batch = tuple[Tensor, Tensor]
"""Images uint8 (B, C, H, W) and labels int64 (B,)."""


class StreamLoader:
    """Batches of a streamed split, epoch by epoch.

    In training every epoch has its own order, a sample is a random part of its image, and samples that do not fill the
    last batch are left out. In evaluation samples come in the split's order, each as the centre of its image, and the
    last batch may be smaller.

    Parameters
    ----------
    batch_size
        Samples of a global batch, over all ranks.
    workers
        Processes that decode, each whole batches; 0: the calling process decodes.
    shard
        Rank and number of ranks: every rank gets its consecutive share of the rows of every global batch. In evaluation
        the share of a small last batch may be empty.
    decoder
        "pillow", "torchvision" (an extra), or a function from a path to a uint8 tensor (C, H, W).
    """

    def __init__(
        self,
        split: StreamedSplit,
        batch_size: int,
        *,
        train: bool,
        seed: int,
        workers: int = 4,
        shard: tuple[int, int] = (0, 1),
        decoder: str | Decoder = "pillow",
    ) -> None:
        rank, num_ranks = shard
        if batch_size < 1 or workers < 0:
            raise UserError(
                f"a loader got batch_size {batch_size} and workers {workers}: give at least 1 and at least 0"
            )
        if not 0 <= rank < num_ranks:
            raise UserError(f"shard is {shard!r}: give a rank from 0 on and a number of ranks above it")
        if train and batch_size % num_ranks:
            raise UserError(
                f"a batch of {batch_size} does not divide among {num_ranks} ranks: choose a multiple of {num_ranks}"
            )
        if train and len(split) < batch_size:
            raise UserError(
                f"a batch of {batch_size} is more than the {len(split)} training samples: choose a smaller one"
            )
        self.split = split
        self.batch_size = batch_size
        self.train = train
        self.seed = seed
        self.workers = workers
        self.shard = shard
        self._fill = _Fill(split, train, seed, _decoder(decoder))

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        return len(self.split) // self.batch_size if self.train else -(-len(self.split) // self.batch_size)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from `start_batch` on, in pinned memory where there is CUDA.

        Workers live as long as the iterator: they end when it is exhausted, closed or dropped.
        """
        if not 0 <= start_batch <= len(self):
            raise UserError(f"an epoch of {len(self)} batches cannot start at batch {start_batch}")
        return self._batches([(epoch, rows) for rows in self._rows(epoch)[start_batch:]])

    def _rows(self, epoch: int) -> list[Rows]:
        """This rank's rows of every global batch."""
        num = len(self.split)
        order: Rows = np.arange(num)
        if self.train:
            order = torch.randperm(num, generator=generator(self.seed, "stream", "order", epoch)).numpy()
        batches = [order[start : start + self.batch_size] for start in range(0, num, self.batch_size)][: len(self)]
        rank, num_ranks = self.shard
        return [rows[len(rows) * rank // num_ranks : len(rows) * (rank + 1) // num_ranks] for rows in batches]

    def _batches(self, wanted: list[Wanted]) -> Iterator[Batch]:
        shape = (max((len(rows) for _, rows in wanted), default=0), *self.split.shape)
        pinned = torch.cuda.is_available()
        arrays = filled(self._fill, wanted, shape, self.workers)
        for (_, rows), array in zip(wanted, arrays, strict=True):
            images = torch.empty((len(rows), *self.split.shape), dtype=torch.uint8, pin_memory=pinned)
            images.copy_(torch.from_numpy(array[: len(rows)]))
            labels = self.split.labels[torch.from_numpy(rows)]
            yield images, labels.pin_memory() if pinned else labels


@dataclass(frozen=True, eq=False)
class _Fill:
    """What a worker does: decode the samples of a batch into an array."""

    split: StreamedSplit
    train: bool
    seed: int
    decoder: Decoder | None
    """None: Pillow, which need not decode whole images."""

    def __call__(self, array: Pixels, wanted: Wanted) -> None:
        epoch, rows = wanted
        shape = self.split.shape
        for place, row in enumerate(rows.tolist()):
            choose = partial(_part, self.seed, epoch, row) if self.train else partial(centre_box, size=shape[1:])
            path = self.split.paths[row]
            if self.decoder is None:
                array[place] = read_part(path, choose, shape)
            else:
                array[place] = decode_part(path, choose, shape, self.decoder)


def _part(seed: int, epoch: int, row: int, height: int, width: int) -> Box:
    return random_box(height, width, generator(seed, "stream", "crop", epoch, row))


def _decoder(wanted: str | Decoder) -> Decoder | None:
    if not isinstance(wanted, str):
        return wanted
    if wanted not in ("pillow", "torchvision"):
        raise unknown_name("image decoder", wanted, ("pillow", "torchvision"))
    return torchvision_decoder() if wanted == "torchvision" else None
