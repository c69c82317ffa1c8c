"""CIFAR-10 and CIFAR-100 (fine labels): 32 x 32 colour images in pickled batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathgrow.data import pickles, places
from pathgrow.data.dataset import Dataset, Split, carve
from pathgrow.data.official import OFFICIAL
from pathgrow.errors import UserError

_SHAPE = (3, 32, 32)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    name: str
    classes: int
    label_key: str
    train_files: tuple[str, ...]
    test_file: str
    mean: tuple[float, ...]
    """Of the whole training set, in units of bytes."""
    std: tuple[float, ...]


def _bytes(*fractions: float) -> tuple[float, ...]:
    return tuple(255 * fraction for fraction in fractions)


_CIFAR10 = _Kind(
    name="cifar10",
    classes=10,
    label_key="labels",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    mean=_bytes(0.4914, 0.4822, 0.4465),
    std=_bytes(0.2470, 0.2435, 0.2616),
)
_CIFAR100 = _Kind(
    name="cifar100",
    classes=100,
    label_key="fine_labels",
    train_files=("train",),
    test_file="test",
    mean=_bytes(0.5071, 0.4865, 0.4409),
    std=_bytes(0.2673, 0.2564, 0.2762),
)


def cifar10(root: Path, seed: int, fold: int) -> Dataset:
    """45,000 train, 5,000 val (fold 0-9 of the official training set) and the official 10,000 test images."""
    return _load(_CIFAR10, root, seed, fold)


def cifar100(root: Path, seed: int, fold: int) -> Dataset:
    """As `cifar10`, with 100 classes."""
    return _load(_CIFAR100, root, seed, fold)


def _load(kind: _Kind, root: Path, seed: int, fold: int) -> Dataset:
    official = OFFICIAL[kind.name]
    folder = places.find(kind.name, root, official.folder, official.marker)
    images, labels = _read(kind, folder, kind.train_files)
    train, val = carve(kind.name, labels, seed, fold)
    test_images, test_labels = _read(kind, folder, (kind.test_file,))
    return Dataset(
        kind.name,
        kind.classes,
        Split(images[train], labels[train], kind.mean, kind.std),
        Split(images[val], labels[val], kind.mean, kind.std),
        Split(test_images, test_labels, kind.mean, kind.std),
    )


def _read(kind: _Kind, folder: Path, files: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    batches = [_batch(kind, folder, name) for name in files]
    images = np.concatenate([images for images, _ in batches]).reshape(-1, *_SHAPE)
    return torch.from_numpy(images), torch.from_numpy(np.concatenate([labels for _, labels in batches]))


def _batch(kind: _Kind, folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    path = folder / name
    advice = places.renew(kind.name, folder)
    content = pickles.read(path, advice)
    wrong = _fault(kind, content)
    if wrong:
        raise UserError(f"{path} is no batch of {kind.name} ({wrong}): {advice}")
    return content["data"], np.array(content[kind.label_key], dtype=np.int64)


def _fault(kind: _Kind, content: Mapping[str, Any]) -> str | None:
    """What keeps this from being a batch, or None."""
    images, labels = content.get("data"), content.get(kind.label_key)
    width = int(np.prod(_SHAPE))
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != width or len(images) == 0:
        return f"its `data` are no array of rows of {width:,} bytes"
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        return f"its `{kind.label_key}` are no list of whole numbers"
    if len(labels) != len(images):
        return f"it has {len(images):,} images and {len(labels):,} labels"
    if not all(0 <= label < kind.classes for label in labels):
        return f"a label is {min(labels)} or {max(labels)}, 0 to {kind.classes - 1} are wanted"
    return None
