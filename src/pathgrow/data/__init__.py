"""Datasets by name: one is bundled, the others are read from disk.

>>> from pathgrow import data
>>> data.names()
('digits', 'cifar10', 'cifar100', 'tiny-imagenet', 'imagenet', 'folder', 'text')
>>> data.load("digits").train.shape
(1, 8, 8)
"""

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Literal

from pathgrow import atomic
from pathgrow.data.dataset import Dataset, Paths, Split, StreamedSplit, TextSplit
from pathgrow.data.digits import digits
from pathgrow.data.official import OFFICIAL, ROOT_VARIABLE, resolve_root
from pathgrow.errors import UserError, check_name, checked_int

# Module and function, imported on demand: most runs need neither Pillow nor the file readers.
_ON_DISK: dict[str, tuple[str, str]] = {
    "cifar10": ("cifar", "cifar10"),
    "cifar100": ("cifar", "cifar100"),
    "tiny-imagenet": ("tiny_imagenet", "tiny_imagenet"),
    "imagenet": ("image_folder", "imagenet"),
    "folder": ("image_folder", "image_folder"),
    "text": ("text", "tiny_shakespeare"),
}
_CONTEXT = 256


def names() -> tuple[str, ...]:
    """Return the names of all datasets."""
    return ("digits", *_ON_DISK)


def mode(name: str) -> Literal["max", "min"]:
    """Return whether a higher score is better: images are scored by accuracy, text by its loss."""
    return "min" if name == "text" else "max"


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    fold: int = 0,
    context: int | None = None,
) -> Dataset:
    """Load a dataset, split into train, val and test. The split depends only on `seed` and `fold`.

    Parameters
    ----------
    root
        Data root; by default the environment variable PATHGROW_DATA, or the directory `data`. Not used by `digits`.
    seed
        Seed of the shuffle before splitting.
    fold
        Cross-validation fold: which samples are held out. 0-9 (digits 0-7, imagenet 0-24).
    context
        Length of the windows of a text, by default 256.
    """
    check_name("dataset", name, names())
    seed, fold = checked_int("seed", seed), checked_int("fold", fold)
    if name == "digits":
        return _load_digits(None if root is None else str(atomic.checked_path(root, "data root")), seed, fold)
    if name == "folder" and root is None and ROOT_VARIABLE not in os.environ:
        raise UserError("dataset 'folder' requires --data-root, the directory that contains your images")
    place = resolve_root(root)
    if not os.path.isdir(place):
        what = "is not a directory" if os.path.exists(place) else "does not exist or is not accessible"
        download = f"; download the dataset with `pathgrow data get {name} --data-root {place}`"
        raise UserError(f"data root {place} {what} (set it with --data-root){download if name in OFFICIAL else ''}")
    return _load_from_disk(name, place, seed, fold).with_context(context or _CONTEXT)


# Cached, so runs in one process share the memory of their data.
_load_digits = lru_cache(maxsize=8)(digits)


@lru_cache(maxsize=2)  # TinyImageNet takes 1.3 GB
def _load_from_disk(name: str, root: Path, seed: int, fold: int) -> Dataset:
    module, function = _ON_DISK[name]
    loader: Callable[[Path, int, int], Dataset] = getattr(import_module(f"pathgrow.data.{module}"), function)
    return loader(root, seed, fold)


__all__ = ["Dataset", "Paths", "Split", "StreamedSplit", "TextSplit", "load", "mode", "names"]
