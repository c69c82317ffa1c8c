"""Datasets with one folder of images per class: ImageNet, and any dataset in the same layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pathgrow.data.dataset import Dataset, Paths, Split, StreamedSplit, carve
from pathgrow.data.images import SUFFIXES, WrongSize, image_size, read_images
from pathgrow.errors import UserError

_MEAN = tuple(255 * value for value in (0.485, 0.456, 0.406))
_STD = tuple(255 * value for value in (0.229, 0.224, 0.225))
"""Statistics of ImageNet, also used for streamed folders: their own would need a pass over all files."""

_STREAMED_SIZE = 224
"""Height and width of streamed images."""
_MAX_BYTES_IN_MEMORY = 2 * 2**30
_IMAGENET_PARTS = 25
"""A 25th of ImageNet's training set has 51,247 images, about as many as the official val set."""
_NUM_PROBED = 64
_SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
"""Common names of split folders, which contain one folder per class."""

_LAYOUTS = {
    "imagenet": "DIR/train/<class>/*.JPEG and DIR/val/<class>/*.JPEG, with one folder for each of the 1,000 classes",
    "folder": "DIR/train/<class>/*.png (optionally with DIR/val and DIR/test), or DIR/<class>/*.png",
}


def layout_advice(name: str) -> str:
    """Return the expected layout of a dataset that cannot be downloaded, as the end of an error message."""
    return f"arrange it as {_LAYOUTS[name]}, and pass DIR as --data-root"


def imagenet(root: Path, seed: int, fold: int) -> Dataset:
    """Load ImageNet, streamed at 224 pixels: val is a 25th of the training set (fold 0-24), test the official val."""
    advice = layout_advice("imagenet")
    folder = next((place for place in (root / "imagenet", root) if os.path.isdir(place / "train")), None)
    if folder is None:
        raise UserError(f"imagenet not found: {root} contains no folder train; {advice}")
    classes = class_folders(folder / "train", advice)
    if class_folders(folder / "val", advice) != classes:
        raise UserError(f"{folder / 'val'} and {folder / 'train'} have different classes: {advice}")
    names, labels = labeled_images(folder, "train", classes, advice)
    test_names, test_labels = labeled_images(folder, "val", classes, advice)
    train, val = carve("imagenet", labels, seed, fold, parts=_IMAGENET_PARTS)
    paths = Paths(folder, names)
    shape = (3, _STREAMED_SIZE, _STREAMED_SIZE)
    return Dataset(
        "imagenet",
        len(classes),
        StreamedSplit(paths.take(train), labels[train], _MEAN, _STD, shape),
        StreamedSplit(paths.take(val), labels[val], _MEAN, _STD, shape),
        StreamedSplit(Paths(folder, test_names), test_labels, _MEAN, _STD, shape),
    )


def image_folder(root: Path, seed: int, fold: int) -> Dataset:
    """Load a folder of images by class, with three channels.

    The root contains `train` and optionally `val` and `test`, or one folder per class. A missing val or test is a tenth
    of train (fold 0-9). Images of the same size that take at most 2 GiB are held in memory; others are streamed at 224
    pixels, or at the length of their shortest side if that is smaller.
    """
    listing = _list(root)
    rows = _fill_missing(listing, seed, fold)
    splits = _in_memory(listing, rows) or _streamed(listing, rows)
    return Dataset("folder", len(listing.classes), **splits)


# Listing files, in an order that does not depend on the file system.


def class_folders(folder: Path, advice: str) -> list[str]:
    """Return the names of the class folders, sorted; the position in this list is the label."""
    try:
        names = _folders(folder)
    except OSError as error:
        raise UserError(f"cannot read {folder} ({error.strerror or error}): {advice}") from error
    if len(names) < 2:
        raise UserError(f"{folder} must contain at least 2 class folders, got {len(names)}: {advice}")
    return names


def image_names(folder: Path) -> list[str]:
    """Return the images below a folder as sorted relative paths with slashes, without hidden files."""
    found = []
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        prefix = os.path.relpath(place, folder).replace(os.sep, "/") + "/"
        found += [
            prefix.removeprefix("./") + name
            for name in files
            if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")
        ]
    return sorted(found)


def labeled_images(folder: Path, part: str, classes: list[str], advice: str) -> tuple[list[str], Tensor]:
    """Return the images in `folder/part/<class>` relative to `folder`, and their labels; no class may be empty."""
    names: list[str] = []
    counts = []
    for name in classes:
        of_class = image_names(folder / part / name)
        if not of_class:
            raise UserError(f"{folder / part / name} contains no images ({', '.join(sorted(SUFFIXES))}): {advice}")
        prefix = f"{part}/{name}/" if part else f"{name}/"
        names += [prefix + image for image in of_class]
        counts.append(len(of_class))
    return names, torch.repeat_interleave(torch.arange(len(classes)), torch.tensor(counts))


@dataclass(frozen=True)
class _Listing:
    classes: list[str]
    paths: Paths
    labels: Tensor
    rows: dict[str, Tensor]
    """Rows of train and, if present, of val and test."""


def _list(root: Path) -> _Listing:
    advice = layout_advice("folder")
    # A class may be called train (a dataset of vehicles); it has no folders below.
    has_splits = bool(_readable_folders(root / "train"))
    parts = [part for part in ("train", "val", "test") if os.path.isdir(root / part)] if has_splits else [""]
    _check_split_names(root, parts)
    classes = class_folders(root / parts[0], advice)
    names: list[str] = []
    labels: list[Tensor] = []
    rows = {}
    for part in parts:
        own = class_folders(root / part, advice)
        unknown = sorted(set(own) - set(classes))
        if unknown:
            raise UserError(f"{root / part / unknown[0]} is not a class of {root / 'train'}: {advice}")
        part_names, part_labels = labeled_images(root, part, own, advice)
        rows[part or "train"] = torch.arange(len(names), len(names) + len(part_names))
        names += part_names
        labels.append(torch.tensor([classes.index(name) for name in own])[part_labels])
    return _Listing(classes, Paths(root, names), torch.cat(labels), rows)


def _folders(place: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))


def _readable_folders(place: Path) -> list[str]:
    """Return the folders in a place, or none if it cannot be read."""
    try:
        return _folders(place)
    except OSError:
        return []


def _check_split_names(root: Path, parts: list[str]) -> None:
    """Refuse splits with other names, which would be ignored or treated as a class."""
    folders = _readable_folders(root)
    misnamed = [
        name
        for name in folders
        if name not in parts and name.casefold() in _SPLIT_NAMES and _readable_folders(root / name)
    ]
    if misnamed and parts != [""]:
        raise UserError(
            f"{root / misnamed[0]} would be ignored: splits must be called train, val and test; rename or move it"
        )
    if misnamed and misnamed == folders:  # next to other folders it may be a class
        raise UserError(
            f"{root} contains {' and '.join(misnamed)} but no train: splits must be called train, val and test"
        )


def _fill_missing(listing: _Listing, seed: int, fold: int) -> dict[str, Tensor]:
    """Return the rows of all three splits; missing ones are taken from train."""
    missing = [part for part in ("val", "test") if part not in listing.rows]
    train = listing.rows["train"]
    rest, *held_out = carve("folder", listing.labels[train], seed, fold, num_held_out=len(missing))
    return listing.rows | {"train": train[rest]} | {part: train[i] for part, i in zip(missing, held_out, strict=True)}


def _in_memory(listing: _Listing, rows: Mapping[str, Tensor]) -> dict[str, Split] | None:
    """Return splits in memory, or None if the images are too large or have different sizes."""
    height, width = image_size(listing.paths[0])
    if len(listing.paths) * 3 * height * width > _MAX_BYTES_IN_MEMORY:
        return None
    try:
        images = read_images(listing.paths, (height, width))
    except WrongSize:
        return None
    mean, std = _statistics(images[rows["train"]])
    return {part: Split(images[row], listing.labels[row], mean, std) for part, row in rows.items()}


def _streamed(listing: _Listing, rows: Mapping[str, Tensor]) -> dict[str, StreamedSplit]:
    step = max(1, len(listing.paths) // _NUM_PROBED)
    side = min(_STREAMED_SIZE, *(min(image_size(path)) for path in listing.paths[::step]))
    return {
        part: StreamedSplit(listing.paths.take(row), listing.labels[row], _MEAN, _STD, (3, side, side))
        for part, row in rows.items()
    }


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and standard deviation of each channel, computed from a histogram."""
    level = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in range(images.shape[1]):
        share = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        share /= share.sum()
        mean = float(share @ level)
        variance = float(share @ (level - mean) ** 2)
        means.append(mean)
        stds.append(variance**0.5 if variance > 0 else 1.0)  # a constant channel cannot be scaled
    return tuple(means), tuple(stds)
