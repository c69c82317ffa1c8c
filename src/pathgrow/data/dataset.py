"""What every data set looks like: three splits of images and labels, resident in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import UserError


@dataclass(frozen=True, eq=False)
class Split:
    """Samples side by side: `images` uint8 (N, C, H, W), `labels` int64 (N,)."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    """Per channel, in units of the stored bytes."""
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.labels) == 0:
            raise UserError(
                "a data split holds 0 samples, at least 1 is wanted: check the data folder and the split sizes"
            )
        assert self.images.dtype == torch.uint8
        assert self.labels.dtype == torch.int64
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def normalised(self, device: torch.device | str = "cpu") -> Tensor:
        """All images as float32, centred and scaled per channel."""
        shape = (1, -1, 1, 1)
        mean = torch.tensor(self.mean, device=device).view(shape)
        std = torch.tensor(self.std, device=device).view(shape)
        return (self.images.to(device).float() - mean) / std


@dataclass(frozen=True, eq=False)
class Dataset:
    """A task: train steers the weights, val steers every decision, test is looked at once."""

    name: str
    classes: int
    train: Split
    val: Split
    test: Split

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width of one sample."""
        return tuple(self.train.images.shape[1:])

    def example_input(self) -> Tensor:
        """One normalised training image, as a batch."""
        first = Split(self.train.images[:1], self.train.labels[:1], self.train.mean, self.train.std)
        return first.normalised()


def split_stratified(labels: Tensor, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Indices of `parts` disjoint parts whose sizes, and whose counts of every class, differ by at most one.

    Shuffled samples are dealt like cards, class after class, so that no part gets the remainder of every class.
    """
    order = torch.randperm(len(labels), generator=generator)
    dealt = order[torch.argsort(labels[order], stable=True)]
    return [torch.sort(dealt[part::parts]).values for part in range(parts)]
