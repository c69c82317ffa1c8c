"""Data for classification, by name: one set that ships with the installation, and those that lie on disk.

>>> from pathgrow import data
>>> data.names()
('digits', 'cifar10', 'cifar100', 'tiny-imagenet', 'imagenet', 'folder')
>>> data.load("digits").train.shape
(1, 8, 8)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from operator import index
from pathlib import Path
from typing import SupportsIndex

from pathgrow.data.dataset import Dataset, Paths, Split, StreamedSplit
from pathgrow.data.digits import digits
from pathgrow.data.places import VARIABLE, data_root
from pathgrow.errors import UserError, unknown_name

# Module and function: Pillow and the readers of files are imported when they are wanted.
_ON_DISK: dict[str, tuple[str, str]] = {
    "cifar10": ("cifar", "cifar10"),
    "cifar100": ("cifar", "cifar100"),
    "tiny-imagenet": ("tiny_imagenet", "tiny_imagenet"),
    "imagenet": ("image_folder", "imagenet"),
    "folder": ("image_folder", "image_folder"),
}


def names() -> tuple[str, ...]:
    """Every data set that `load` knows; the embedded one first."""
    return ("digits", *_ON_DISK)


def load(name: str, root: str | os.PathLike[str] | None = None, seed: int = 0, fold: int = 0) -> Dataset:
    """One data set, split into train, val and test. The splits depend on `seed` and `fold` alone.

    Parameters
    ----------
    root
        Folder of downloaded files; None is the environment variable PATHGROW_DATA, else the folder `data` right here.
        Embedded data need none.
    seed
        Shuffles the samples before they are split.
    fold
        Rotates which samples are held out; folds of one seed share the shuffle. 0-9 (digits 0-7, imagenet 0-24).
    """
    if name not in names():
        raise unknown_name("data set", str(name), names())
    seed, fold = _whole("seed", seed), _whole("fold", fold)
    if name == "digits":
        return _embedded(None if root is None else os.fspath(root), seed, fold)
    if name == "folder" and root is None and VARIABLE not in os.environ:
        raise UserError("the data set `folder` was asked for, but not which folder: name it with --data-root")
    place = data_root(root)
    if not os.path.isdir(place):
        what = "is no folder" if os.path.exists(place) else "does not exist or may not be entered"
        held = "your images" if name == "folder" else name
        raise UserError(f"data root {place} {what}, the folder that holds {held} is wanted: {_how(name, place)}")
    return _from_disk(name, place, seed, fold)


def _whole(what: str, number: object) -> int:
    if not isinstance(number, SupportsIndex) or isinstance(number, bool):
        raise UserError(f"{what} {number!r} was given, a whole number is wanted: give for example 0")
    return index(number)  # of NumPy's numbers too


def _how(name: str, place: Path) -> str:
    if name in ("imagenet", "folder"):
        return "name it with --data-root"
    return f"name it with --data-root, or get the data with `pathgrow data get {name} --data-root {place}`"


# Runs of one process share the memory of their data.
@lru_cache(maxsize=8)
def _embedded(root: str | None, seed: int, fold: int) -> Dataset:
    return digits(root, seed, fold)


@lru_cache(maxsize=2)  # TinyImageNet takes 1.3 GB
def _from_disk(name: str, root: Path, seed: int, fold: int) -> Dataset:
    module, function = _ON_DISK[name]
    loader: Callable[[Path, int, int], Dataset] = getattr(import_module(f"pathgrow.data.{module}"), function)
    return loader(root, seed, fold)


__all__ = ["Dataset", "Paths", "Split", "StreamedSplit", "load", "names"]
