"""Handwritten digits that come inside scikit-learn: 1,797 grey images of 8 x 8 pixels with 17 levels."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgrow.data.dataset import Dataset, Split, split_stratified
from pathgrow.errors import UserError
from pathgrow.rng import generator

NUM_FOLDS = 8
"""The data are dealt into eighths: two are val, two are test, four are train.

Half of all samples evaluate, because an accuracy of 97.5% on 360 images alone is uncertain by 0.8 points."""


def digits(root: str | None, seed: int, fold: int) -> Dataset:
    """The digits, about 898 train, 449 val and 449 test; `fold` 0-7 rotates the eighths."""
    if root is not None:
        raise UserError(f"data root {root!r} was given, but digits are embedded and read no files: leave it out")
    if not 0 <= fold < NUM_FOLDS:
        raise UserError(f"fold {fold} of digits does not exist: choose one of 0-{NUM_FOLDS - 1}")
    images, labels = _everything()
    parts = split_stratified(labels, NUM_FOLDS, generator(seed, "split", "digits"))
    rotated = parts[fold:] + parts[:fold]
    val, test, train = (torch.cat(rotated[a:b]) for a, b in ((0, 2), (2, 4), (4, NUM_FOLDS)))
    # Constants of the training images alone: nothing of val and test leaks into the inputs.
    mean, std = float(images[train].float().mean()), float(images[train].float().std())
    cut = {
        name: Split(images[i], labels[i], (mean,), (std,))
        for name, i in (("train", train), ("val", val), ("test", test))
    }
    return Dataset("digits", 10, **cut)


def _everything() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # here: it takes a second to import, and only this data set needs it

    pixels, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels).to(torch.uint8).view(-1, 1, 8, 8)
    return images, torch.as_tensor(labels).to(torch.int64)
