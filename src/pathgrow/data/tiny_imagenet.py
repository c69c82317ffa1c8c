"""TinyImageNet: 200 classes of 64 x 64 colour images in JPEG files; the official val is test here."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pathgrow.data import decoded, places
from pathgrow.data.dataset import Dataset, Paths, Split, carve
from pathgrow.data.listing import class_folders, image_names, labelled
from pathgrow.data.official import OFFICIAL
from pathgrow.errors import UserError

NAME = "tiny-imagenet"
SIZE = (64, 64)
MEAN = tuple(255 * value for value in (0.4802, 0.4481, 0.3975))
STD = tuple(255 * value for value in (0.2770, 0.2691, 0.2821))


def tiny_imagenet(root: Path, seed: int, fold: int) -> Dataset:
    """90,000 train, 10,000 val (fold 0-9 of the official training set) and the official 10,000 val images as test.

    Classes are numbered in the order of their names (n01443537 is 0), as every reader of class folders does.
    """
    official = OFFICIAL[NAME]
    folder = places.find(NAME, root, official.folder, official.marker)
    advice = places.renew(NAME, folder)
    classes = class_folders(folder / "train", advice)
    train_names, train_labels = labelled(folder, "train", classes, advice)
    test_names, test_labels = _test(folder, classes, advice)
    train, val = carve(NAME, train_labels, seed, fold)
    images = decoded.images(Paths(folder, [*train_names, *test_names]), SIZE, advice)
    num_train = len(train_names)
    return Dataset(
        NAME,
        len(classes),
        Split(images[train], train_labels[train], MEAN, STD),
        Split(images[val], train_labels[val], MEAN, STD),
        Split(images[num_train:].clone(), test_labels, MEAN, STD),
    )


def _test(folder: Path, classes: list[str], advice: str) -> tuple[list[str], Tensor]:
    """Names and labels of the official val: by its table, or by class folders, into which many people sort it."""
    table = folder / "val" / "val_annotations.txt"
    if not (folder / "val" / "images").is_dir():
        return labelled(folder, "val", classes, advice)
    try:
        lines = table.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{table} cannot be read ({error}): {advice}") from error
    numbers = {name: number for number, name in enumerate(classes)}
    names, labels = [], []
    for place, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in numbers or Path(fields[0]).name != fields[0]:
            raise UserError(f"line {place} of {table} names no image and class of the training set: {advice}")
        names.append(f"val/images/{fields[0]}")
        labels.append(numbers[fields[1]])
    there = image_names(folder / "val" / "images")
    if sorted(names) != sorted(f"val/images/{name}" for name in there):
        raise UserError(
            f"{table} lists {len(names):,} images, the folder beside it has {len(there):,} others: {advice}"
        )
    return names, torch.tensor(labels, dtype=torch.int64)
