"""What every data set looks like: three splits of images and labels, in memory or read from files when wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.rng import generator

NUM_FOLDS = 10
"""A carved part is a tenth: 5,000 images of CIFAR, 10,000 of TinyImageNet."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples side by side in memory: `images` uint8 (N, C, H, W), `labels` int64 (N,)."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    """Per channel, in units of the stored bytes."""
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _refuse_empty(self.labels)
        assert self.images.dtype == torch.uint8
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width of one sample."""
        return tuple(self.images.shape[1:])

    def normalised(self, device: torch.device | str = "cpu") -> Tensor:
        """All images as float32, centred and scaled per channel."""
        return normalised(self.images.to(device), self.mean, self.std)


class Paths(Sequence[Path]):
    """Many file names below one folder, without an object for each.

    A tuple of the 1.3 million names of ImageNet takes about 370 MB in every process that reads them, this takes 46.

    >>> paths = Paths("/data", ["cat/1.png", "dog/2.png"])
    >>> paths[1].as_posix()
    '/data/dog/2.png'
    """

    def __init__(self, folder: str | os.PathLike[str], names: Iterable[str] | np.ndarray) -> None:
        self.folder = Path(folder)
        # As the system stores them: a name that is no valid UTF-8 comes back unchanged.
        encoded = names if isinstance(names, np.ndarray) else np.array([os.fsencode(name) for name in names], "S")
        assert encoded.dtype.kind == "S"
        self.encoded = encoded
        """Names relative to the folder, as bytes."""

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
        """The paths at these places, in this order."""
        return Paths(self.folder, self.encoded[indices.numpy()])

    def __add__(self, other: Paths) -> Paths:
        assert self.folder == other.folder
        return Paths(self.folder, np.concatenate([self.encoded, other.encoded]))


@dataclass(frozen=True, eq=False)
class StreamedSplit:
    """Samples that stay in their files: too many, or of too many sizes, to lie in memory side by side."""

    paths: Sequence[Path]
    labels: Tensor
    mean: tuple[float, ...]
    """Per channel, in units of bytes."""
    std: tuple[float, ...]
    shape: tuple[int, int, int]
    """Channels, height, width as delivered; the files may have any size."""

    def __post_init__(self) -> None:
        _refuse_empty(self.labels)
        assert len(self.paths) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A task: train steers the weights, val steers every decision, test is looked at once.

    The three splits are of one kind: all in memory, or all streamed.
    """

    name: str
    classes: int
    train: Split | StreamedSplit
    val: Split | StreamedSplit
    test: Split | StreamedSplit

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width of one sample."""
        return self.train.shape

    def example_input(self) -> Tensor:
        """One normalised training image, as a batch."""
        train = self.train
        if isinstance(train, Split):
            images = train.images[:1]
        else:
            from pathgrow.data.decode import read_fitted  # here: Pillow is wanted by data in files alone

            images = torch.from_numpy(read_fitted(train.paths[0], train.shape[1:])).unsqueeze(0)
        return normalised(images, train.mean, train.std)


def split_stratified(labels: Tensor, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Indices of `parts` disjoint parts whose sizes, and whose counts of every class, differ by at most one.

    Shuffled samples are dealt like cards, class after class, so that no part gets the remainder of every class.
    """
    order = torch.randperm(len(labels), generator=generator)
    dealt = order[torch.argsort(labels[order], stable=True)]
    return [torch.sort(dealt[part::parts]).values for part in range(parts)]


def carve(
    name: str, labels: Tensor, seed: int, fold: int, *, num_carved: int = 1, parts: int = NUM_FOLDS
) -> tuple[Tensor, ...]:
    """Indices of what remains for training, then of `num_carved` held-out parts; folds of one seed share the shuffle.

    Fold k takes the k-th part, a second carved set the one after it, so that over all folds every sample is held out.

    >>> rest, val = carve("cifar10", torch.arange(10).repeat(100), seed=0, fold=3)
    >>> len(rest), len(val), torch.bincount(val % 10).tolist()
    (900, 100, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    if not 0 <= fold < parts:
        raise UserError(f"fold {fold} of {name} does not exist: choose one of 0-{parts - 1}")
    dealt = split_stratified(labels, parts, generator(seed, "split", name))
    rotated = dealt[fold:] + dealt[:fold]
    return (torch.sort(torch.cat(rotated[num_carved:])).values, *rotated[:num_carved])


def _refuse_empty(labels: Tensor) -> None:
    if len(labels) == 0:
        raise UserError("a data split holds 0 samples, at least 1 is wanted: check the data folder and the split sizes")
    assert labels.dtype == torch.int64


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes as float32, centred and scaled per channel."""
    shape = (1, -1, 1, 1)
    centre = torch.tensor(mean, device=images.device).view(shape)
    scale = torch.tensor(std, device=images.device).view(shape)
    return (images.float() - centre) / scale
