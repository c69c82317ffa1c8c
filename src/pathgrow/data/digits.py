"""Handwritten digits from scikit-learn: 1,797 gray images of 8 x 8 pixels with 17 levels."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pathgrow.data.dataset import Dataset, folds, in_memory
from pathgrow.errors import UserError

_NUM_PARTS = 8
"""Eighths: two are val, two are test, four are train.

Half of all samples evaluate, because an accuracy of 97.5% on only 360 images has a standard error of 0.8 pp."""


def digits(root: str | None, seed: int, fold: int) -> Dataset:
    """Load the digits: 897 train, 450 val and 450 test images; `fold` 0-7 rotates the eighths."""
    if root is not None:
        raise UserError(f"dataset 'digits' is bundled and has no data root, got {root!r}")
    images, labels = _load_all()
    parts = folds("digits", labels, seed, fold, _NUM_PARTS)
    rows = {"val": torch.cat(parts[:2]), "test": torch.cat(parts[2:4]), "train": torch.cat(parts[4:])}
    # Statistics of the training images only: nothing about val and test leaks into the inputs.
    train = images[rows["train"]].float()
    return in_memory("digits", 10, images, labels, rows, (float(train.mean()),), (float(train.std()),))


def _load_all() -> tuple[Tensor, Tensor]:
    """Read the file that `sklearn.datasets.load_digits` reads: importing that module takes a second."""
    package = find_spec("sklearn")
    file = Path((package and package.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        rows = np.loadtxt(file, delimiter=",")
        pixels, labels = rows[:, :-1], rows[:, -1]
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels).to(torch.uint8).view(-1, 1, 8, 8)
    return images, torch.as_tensor(labels).to(torch.int64)
