"""Data for classification, by name: what ships with the installation.

>>> from pathgrow import data
>>> data.names()
('digits',)
>>> data.load("digits").train.images.shape[1:]
torch.Size([1, 8, 8])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from pathgrow.data.dataset import Dataset, Split
from pathgrow.data.digits import digits
from pathgrow.errors import unknown_name

_LOADERS: dict[str, Callable[[str | None, int, int], Dataset]] = {
    "digits": digits,
}


def names() -> tuple[str, ...]:
    """Every data set that `load` knows."""
    return tuple(sorted(_LOADERS))


@lru_cache(maxsize=8)
def load(name: str, root: str | None = None, seed: int = 0, fold: int = 0) -> Dataset:
    """One data set, split into train, val and test.

    Parameters
    ----------
    root
        Folder of downloaded files; embedded data need none.
    seed
        Shuffles the samples before they are split.
    fold
        Rotates which samples are val and which are test; folds of one seed share the shuffle.
    """
    if name not in _LOADERS:
        raise unknown_name("data set", name, _LOADERS)
    return _LOADERS[name](root, seed, fold)


__all__ = ["Dataset", "Split", "load", "names"]
