"""The structure of a dataset: three splits of images and labels, in memory or streamed from files, or of a text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from pathgrow.errors import UserError, require
from pathgrow.rng import generator


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in memory: `images` uint8 (N, C, H, W), `labels` int64 (N,)."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    """Mean per channel, in units of bytes."""
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_labels(self.labels)
        assert self.images.dtype == torch.uint8
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of one sample."""
        return tuple(self.images.shape[1:])

    def normalized(self, device: torch.device | str = "cpu") -> Tensor:
        """Return all images as float32, normalized per channel."""
        return normalize(self.images.to(device), self.mean, self.std)


class Paths(Sequence[Path]):
    """File names below one directory, stored in one array.

    The 1.3 million names of ImageNet take 46 MB in every process, instead of 370 MB as a tuple of paths.

    >>> paths = Paths("/data", ["cat/1.png", "dog/2.png"])
    >>> paths[1].as_posix()
    '/data/dog/2.png'
    """

    def __init__(self, folder: str | os.PathLike[str], names: Iterable[str] | np.ndarray) -> None:
        self.folder = Path(folder)
        # Bytes as stored by the system, so names that are not valid UTF-8 survive.
        encoded = names if isinstance(names, np.ndarray) else np.array([os.fsencode(name) for name in names], "S")
        assert encoded.dtype.kind == "S"
        self.encoded = encoded
        """Names relative to the directory, as bytes."""

    def __len__(self) -> int:
        return len(self.encoded)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> Path | Paths:
        if isinstance(index, slice):
            return Paths(self.folder, self.encoded[index])
        return self.folder / os.fsdecode(bytes(self.encoded[index]))

    def take(self, indices: Tensor) -> Paths:
        """Return the paths at these positions."""
        return Paths(self.folder, self.encoded[indices.numpy()])


@dataclass(frozen=True, eq=False)
class StreamedSplit:
    """Samples that are read from files for every batch: too many, or of different sizes."""

    paths: Sequence[Path]
    labels: Tensor
    mean: tuple[float, ...]
    """Mean per channel, in units of bytes."""
    std: tuple[float, ...]
    shape: tuple[int, int, int]
    """Channels, height and width of a sample; the files may have any size."""

    def __post_init__(self) -> None:
        _check_labels(self.labels)
        assert len(self.paths) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class TextSplit:
    """A text whose samples are windows of `context` characters; the target of a character is the next one.

    >>> split = TextSplit(torch.tensor([3, 1, 4, 1, 5, 9], dtype=torch.uint8), 2)
    >>> len(split), split.windows(torch.tensor([0, 3]))
    (2, (tensor([[3, 1],
            [1, 5]]), tensor([[1, 4],
            [5, 9]])))
    """

    codes: Tensor
    """Number of each character, uint8 (N,)."""
    context: int

    def __post_init__(self) -> None:
        assert self.codes.dtype == torch.uint8
        if len(self) < 1:
            raise UserError(
                f"context must be at most half of a text of {len(self.codes):,} characters, got {self.context}"
            )

    def __len__(self) -> int:
        return len(self.codes) // self.context - 1  # so many fit at any offset below `context`

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of one sample."""
        return (self.context,)

    def windows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the windows that start at these positions, and their targets, both int64 (B, context)."""
        positions = starts.unsqueeze(1) + torch.arange(self.context + 1, device=starts.device)
        codes = self.codes[positions].long()
        return codes[:, :-1], codes[:, 1:]


AnySplit = Split | StreamedSplit | TextSplit


@dataclass(frozen=True, eq=False)
class Dataset:
    """A task: train fits the weights, val drives every decision, test is evaluated once.

    All splits are of the same kind.
    """

    name: str
    classes: int
    """Number of classes, or of different characters."""
    train: AnySplit
    val: AnySplit
    test: AnySplit

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of one sample; of a text, its length."""
        return self.train.shape

    def with_context(self, context: int) -> Dataset:
        """Return a text with windows of another length; images are returned as they are."""
        parts = {part: getattr(self, part) for part in ("train", "val", "test")}
        texts: dict[str, Any] = {
            part: replace(split, context=context) for part, split in parts.items() if isinstance(split, TextSplit)
        }
        return replace(self, **texts) if texts else self

    def example_input(self) -> Tensor:
        """Return a batch of one training sample; images are normalized."""
        train = self.train
        if isinstance(train, TextSplit):
            return train.windows(torch.zeros(1, dtype=torch.int64))[0]
        if isinstance(train, Split):
            images = train.images[:1]
        else:
            from pathgrow.data.images import center_box, read_crop  # a local import: only files need Pillow

            pixels = read_crop(train.paths[0], partial(center_box, size=train.shape[1:]), train.shape)
            images = torch.from_numpy(np.ascontiguousarray(pixels)).unsqueeze(0)
        return normalize(images, train.mean, train.std)


def in_memory(
    name: str,
    classes: int,
    images: Tensor,
    labels: Tensor,
    rows: Mapping[str, Tensor],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    """Return the dataset whose splits are these rows of `images`."""
    return Dataset(name, classes, **{part: Split(images[row], labels[row], mean, std) for part, row in rows.items()})


def folds(name: str, labels: Tensor, seed: int, fold: int, parts: int) -> list[Tensor]:
    """Return the indices of disjoint parts whose sizes and class counts differ by at most one, part `fold` first.

    Shuffled samples are dealt like cards, class by class, so no part gets the remainder of every class. Folds of the
    same seed share the shuffle.
    """
    require(0 <= fold < parts, f"fold of {name}", fold, f"in [0, {parts - 1}]")
    order = torch.randperm(len(labels), generator=generator(seed, "split", name))
    dealt = order[torch.argsort(labels[order], stable=True)]
    return [torch.sort(dealt[part % parts :: parts]).values for part in range(fold, fold + parts)]


def carve(name: str, labels: Tensor, seed: int, fold: int, *held_out: str, parts: int = 10) -> dict[str, Tensor]:
    """Return the indices of the training samples, and those of each held-out split, which is one of the `parts`.

    Fold k holds out part k (and the one after it, for a second held-out split), so over all folds every sample is held
    out once.

    >>> rows = carve("cifar10", torch.arange(10).repeat(100), 0, 3, "val")
    >>> len(rows["train"]), len(rows["val"]), torch.bincount(rows["val"] % 10).tolist()
    (900, 100, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    dealt = folds(name, labels, seed, fold, parts)
    train = torch.sort(torch.cat(dealt[len(held_out) :])).values
    return {"train": train, **dict(zip(held_out, dealt, strict=False))}


def bytes_of(*fractions: float) -> tuple[float, ...]:
    """Return a published mean or standard deviation in units of bytes."""
    return tuple(255 * fraction for fraction in fractions)


def _check_labels(labels: Tensor) -> None:
    if len(labels) == 0:
        raise UserError("a split must have at least 1 sample, got 0")
    assert labels.dtype == torch.int64


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Convert bytes to float32, normalized per channel."""
    shape = (1, -1, 1, 1)
    center = torch.tensor(mean, device=images.device).view(shape)
    scale = torch.tensor(std, device=images.device).view(shape)
    return (images.float() - center) / scale
