"""Batches decoded from image files by worker processes, for datasets that do not fit in memory.

The stream is a pure function of seed and epoch: the main process draws the order of an epoch, and the crop of a sample
comes from a generator named after epoch and sample. Any number of workers therefore gives the same batches, and an
epoch can be resumed at any batch.
"""

import signal
import threading
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as MapDataset

from pathgrow.data.dataset import StreamedSplit
from pathgrow.data.images import Box, Decoder, center_box, decode_crop, random_box, read_crop, torchvision_decoder
from pathgrow.distributed.cpus import available_cpus
from pathgrow.errors import RunFailed, UserError, require, unknown_name
from pathgrow.rng import generator

_Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StreamLoader:
    """Batches of a streamed split, epoch by epoch.

    Training shuffles every epoch, takes a random crop of each image, and drops the last batch if it is incomplete.
    Evaluation keeps the order of the split, takes the center of each image, and keeps a smaller last batch.
    """

    split: StreamedSplit
    batch_size: int
    """Size of the global batch, over all ranks."""
    _: KW_ONLY
    train: bool
    seed: int
    workers: int | None = None
    """Number of worker processes, each of which decodes whole batches; 0 decodes in the calling process, None: as many
    as there are CPUs for this process, up to 4."""
    shard: tuple[int, int] = (0, 1)
    """Rank and world size: every rank gets a contiguous share of every global batch. In evaluation the share of a small
    last batch may be empty."""
    decoder: str | Decoder = "pillow"
    """"pillow", "torchvision" (requires the extra), or a function from a path to a uint8 tensor (C, H, W)."""

    def __post_init__(self) -> None:
        (rank, world_size), size, num = self.shard, self.batch_size, len(self.split)
        require(size >= 1, "batch_size", size, ">= 1")
        require(self.workers is None or self.workers >= 0, "workers", self.workers, ">= 0")
        require(0 <= rank < world_size, "shard", self.shard, "(rank, world size) with 0 <= rank < world size")
        if self.train:
            require(size % world_size == 0, "batch_size", size, f"a multiple of the {world_size} ranks")
            require(size <= num, "batch_size", size, f"<= {num}, the number of training samples")
        _decoder(self.decoder)  # a wrong name is refused here

    def __len__(self) -> int:
        """Return the number of batches per epoch, which is the same on every rank."""
        return len(self.split) // self.batch_size if self.train else -(-len(self.split) // self.batch_size)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over images uint8 (B, C, H, W) and labels int64 (B,) of one epoch, in pinned memory if CUDA exists.

        The worker processes start with the first batch, and end when the iterator is exhausted, closed or deleted.
        """
        require(0 <= start_batch <= len(self), "start_batch", start_batch, f"in [0, {len(self)}]")
        return self._batches(epoch, self._rows(epoch)[start_batch:])

    def _rows(self, epoch: int) -> list[_Rows]:
        """Return the samples of this rank in every global batch."""
        num = len(self.split)
        order: _Rows = np.arange(num)
        if self.train:
            order = torch.randperm(num, generator=generator(self.seed, "stream", "order", epoch)).numpy()
        batches = [order[start : start + self.batch_size] for start in range(0, num, self.batch_size)][: len(self)]
        rank, world_size = self.shard
        return [rows[len(rows) * rank // world_size : len(rows) * (rank + 1) // world_size] for rows in batches]

    def _batches(self, epoch: int, batches: list[_Rows]) -> Iterator[tuple[Tensor, Tensor]]:
        pin_memory = torch.cuda.is_available()
        loader: DataLoader[Tensor | str] = DataLoader(
            _Samples(self.split, self.train, self.seed, epoch, _decoder(self.decoder)),
            batch_sampler=[rows.tolist() for rows in batches if len(rows)],
            num_workers=min(4, available_cpus()) if self.workers is None else self.workers,
            collate_fn=_collate,
            pin_memory=pin_memory,
            worker_init_fn=_ignore_interrupt,
            generator=torch.Generator(),  # by default the loader would draw a seed from the global generator
        )
        stream = _decoded(loader)
        for rows in batches:
            images = next(stream) if len(rows) else torch.empty((0, *self.split.shape), dtype=torch.uint8)
            labels = self.split.labels[torch.from_numpy(rows)]
            yield images, labels.pin_memory() if pin_memory else labels


def _decoded(loader: DataLoader[Tensor | str]) -> Iterator[Tensor]:
    """Iterate over a loader; unreadable files and dead workers end it with an error of one sentence."""
    try:
        for images in _start(loader):
            if isinstance(images, str):
                raise UserError(images)
            yield images
    except (RuntimeError, OSError, EOFError) as error:  # torch noticed it, or the connection to the worker broke
        if loader.num_workers == 0:
            raise
        reason = str(error).strip().rpartition("\n")[2]  # the last line, if it is the traceback of a worker
        raise RunFailed(
            f"an image decoding worker failed ({reason or type(error).__name__}): use fewer workers, or provide more "
            "memory and shared memory (/dev/shm)"
        ) from error


def _start(loader: DataLoader[Tensor | str]) -> Iterator[Tensor | str]:
    """Start the workers without the SIGCHLD handler of torch.

    The handler raises an error at an arbitrary point of the main thread when a worker dies. Without it, the death of a
    worker is noticed at the next batch.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return iter(loader)
    handler = signal.getsignal(signal.SIGCHLD)
    stream = iter(loader)
    signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)
    return stream


@dataclass(frozen=True, eq=False)
class _Samples(MapDataset[Tensor | str]):
    """The samples of one epoch."""

    split: StreamedSplit
    train: bool
    seed: int
    epoch: int
    decoder: Decoder | None
    """None: Pillow, which does not need to decode whole images."""

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> Tensor | str:
        """Return an image, or the message of the error that it caused.

        An exception would reach the main process with the traceback of the worker as its message.
        """
        path, shape = self.split.paths[row], self.split.shape
        choose = partial(self._random_box, row) if self.train else partial(center_box, size=shape[1:])
        try:
            if self.decoder is None:
                pixels = read_crop(path, choose, shape)
            else:
                pixels = decode_crop(path, choose, shape, self.decoder)
        except UserError as error:
            return str(error)
        return torch.from_numpy(np.ascontiguousarray(pixels))

    def _random_box(self, row: int, height: int, width: int) -> Box:
        return random_box(height, width, generator(self.seed, "stream", "crop", self.epoch, row))


def _collate(samples: list[Tensor | str]) -> Tensor | str:
    errors = [sample for sample in samples if isinstance(sample, str)]
    if errors:
        return errors[0]
    images: Tensor = default_collate(samples)  # in a worker it stacks directly into shared memory
    return images


def _ignore_interrupt(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one decides what to do


def _decoder(decoder: str | Decoder) -> Decoder | None:
    if not isinstance(decoder, str):
        return decoder
    if decoder not in ("pillow", "torchvision"):
        raise unknown_name("image decoder", decoder, ("pillow", "torchvision"))
    return torchvision_decoder() if decoder == "torchvision" else None
