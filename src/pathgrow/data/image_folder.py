"""Images in folders by class: ImageNet, and any folder of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pathgrow.data import decoded
from pathgrow.data.dataset import Dataset, Paths, Split, StreamedSplit, carve
from pathgrow.data.decode import WrongSize, size_of
from pathgrow.data.listing import class_folders, labelled
from pathgrow.errors import UserError

MEAN = tuple(255 * value for value in (0.485, 0.456, 0.406))
STD = tuple(255 * value for value in (0.229, 0.224, 0.225))
"""Of ImageNet; also of streamed folders, whose own would cost a pass over all files."""

IMAGE_SIZE = 224
"""Height and width at which streamed images are delivered."""
MAX_RESIDENT_BYTES = 2 * 2**30
IMAGENET_PARTS = 25
"""A 25th of ImageNet's training set is 51,247 images, about as many as its official val has."""
_NUM_LOOKED_AT = 64
_PARTS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
"""What people call the parts of a data set, whose folders hold one for each class."""

LAYOUTS = {
    "imagenet": "DIR/train/<class>/*.JPEG and DIR/val/<class>/*.JPEG, with a folder for each of the 1,000 classes",
    "folder": "DIR/train/<class>/*.png (with DIR/val and DIR/test where they exist), or DIR/<class>/*.png",
}
"""What cannot be downloaded must be laid out like this."""


def layout_advice(name: str) -> str:
    """How to lay a data set out, for the end of a sentence."""
    return f"lay it out as {LAYOUTS[name]}, and name DIR with --data-root"


def imagenet(root: Path, seed: int, fold: int) -> Dataset:
    """ImageNet, streamed at 224 pixels: val is a 25th of the training set (fold 0-24), test the official val."""
    advice = layout_advice("imagenet")
    folder = next((place for place in (root / "imagenet", root) if os.path.isdir(place / "train")), None)
    if folder is None:
        raise UserError(f"imagenet was not found in {root}, which has no folder train: {advice}")
    classes = class_folders(folder / "train", advice)
    if class_folders(folder / "val", advice) != classes:
        raise UserError(f"{folder / 'val'} has other classes than {folder / 'train'}: {advice}")
    names, labels = labelled(folder, "train", classes, advice)
    test_names, test_labels = labelled(folder, "val", classes, advice)
    train, val = carve("imagenet", labels, seed, fold, parts=IMAGENET_PARTS)
    paths = Paths(folder, names)
    shape = (3, IMAGE_SIZE, IMAGE_SIZE)
    return Dataset(
        "imagenet",
        len(classes),
        StreamedSplit(paths.take(train), labels[train], MEAN, STD, shape),
        StreamedSplit(paths.take(val), labels[val], MEAN, STD, shape),
        StreamedSplit(Paths(folder, test_names), test_labels, MEAN, STD, shape),
    )


def image_folder(root: Path, seed: int, fold: int) -> Dataset:
    """Any folder of images by class; three channels, whatever the files hold.

    With sub-folders `train` and optionally `val` and `test`, else with a folder for each class. A missing val or test
    is carved from train, a tenth each (fold 0-9). Images of one common size that take at most 2 GiB lie in memory;
    others are streamed at 224 pixels, or at their shortest side where that is smaller.
    """
    listing = _list(root)
    rows = _fill_missing(listing, seed, fold)
    cut = _resident(listing, rows) or _streamed(listing, rows)
    return Dataset("folder", len(listing.classes), **cut)


@dataclass(frozen=True)
class _Listing:
    classes: list[str]
    paths: Paths
    labels: Tensor
    rows: dict[str, Tensor]
    """Which rows belong to train, val, test, as far as these are there."""


def _list(root: Path) -> _Listing:
    advice = layout_advice("folder")
    parts = [part for part in ("train", "val", "test") if os.path.isdir(root / part)]
    if not _is_split(root):
        parts = [""]
    _refuse_other_parts(root, parts)
    classes = class_folders(root / parts[0], advice)
    names: list[str] = []
    labels: list[Tensor] = []
    rows = {}
    for part in parts:
        own = class_folders(root / part, advice)
        strange = sorted(set(own) - set(classes))
        if strange:
            raise UserError(f"{root / part / strange[0]} is a class that {root / 'train'} does not have: {advice}")
        part_names, part_labels = labelled(root, part, own, advice)
        rows[part or "train"] = torch.arange(len(names), len(names) + len(part_names))
        names += part_names
        labels.append(torch.tensor([classes.index(name) for name in own])[part_labels])
    return _Listing(classes, Paths(root, names), torch.cat(labels), rows)


def _is_split(root: Path) -> bool:
    """Whether `train` is the training set; in a folder of vehicles it may be a class, which has no folders below."""
    return bool(_folders(root / "train"))


def _folders(place: Path) -> list[str]:
    """Folders in a place, sorted; none in one that cannot be read, which those say who read it."""
    try:
        return sorted(entry.name for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def _refuse_other_parts(root: Path, parts: list[str]) -> None:
    """A part by another name would be left out, or trained on as a class."""
    folders = _folders(root)
    strange = [name for name in folders if name not in parts and name.casefold() in _PARTS and _folders(root / name)]
    if strange and parts != [""]:
        raise UserError(
            f"{root / strange[0]} would not be read, the parts of a data set are called train, val and test: "
            "rename it, or move it away"
        )
    if strange and strange == folders:  # beside real classes it may be one of them
        raise UserError(
            f"{root} holds {' and '.join(strange)}, parts of a data set and no classes, and no train: "
            "call the training set train, the others val and test"
        )


def _fill_missing(listing: _Listing, seed: int, fold: int) -> dict[str, Tensor]:
    """Rows of all three splits; those that are missing are carved from train."""
    missing = [part for part in ("val", "test") if part not in listing.rows]
    train = listing.rows["train"]
    rest, *carved = carve("folder", listing.labels[train], seed, fold, num_carved=len(missing))
    return listing.rows | {"train": train[rest]} | {part: train[i] for part, i in zip(missing, carved, strict=True)}


def _resident(listing: _Listing, rows: Mapping[str, Tensor]) -> dict[str, Split] | None:
    """The splits in memory, or None where they are too large or of several sizes."""
    advice = "replace it, or delete it to leave it out"
    height, width = size_of(listing.paths[0], advice)
    if len(listing.paths) * 3 * height * width > MAX_RESIDENT_BYTES:
        return None
    try:
        images = decoded.images(listing.paths, (height, width), advice)
    except WrongSize:
        return None
    mean, std = _constants(images[rows["train"]])
    return {part: Split(images[row], listing.labels[row], mean, std) for part, row in rows.items()}


def _streamed(listing: _Listing, rows: Mapping[str, Tensor]) -> dict[str, StreamedSplit]:
    step = max(1, len(listing.paths) // _NUM_LOOKED_AT)
    sides = [min(size_of(path, "replace it, or delete it to leave it out")) for path in listing.paths[::step]]
    side = min(IMAGE_SIZE, *sides)
    return {
        part: StreamedSplit(listing.paths.take(row), listing.labels[row], MEAN, STD, (3, side, side))
        for part, row in rows.items()
    }


def _constants(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, exactly, from how often each byte occurs."""
    level = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in range(images.shape[1]):
        share = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        share /= share.sum()
        mean = float(share @ level)
        variance = float(share @ (level - mean) ** 2)
        means.append(mean)
        stds.append(variance**0.5 if variance > 0 else 1.0)  # a channel that never varies has no scale of its own
    return tuple(means), tuple(stds)
