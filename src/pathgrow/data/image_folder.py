"""Datasets with one directory of images per class: ImageNet, and any dataset in the same layout."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from pathgrow.data.dataset import Dataset, Paths, StreamedSplit, bytes_of, carve, in_memory
from pathgrow.data.images import SUFFIXES, WrongSize, image_size, read_images
from pathgrow.errors import UserError

_MEAN = bytes_of(0.485, 0.456, 0.406)
_STD = bytes_of(0.229, 0.224, 0.225)
"""Statistics of ImageNet, also used for streamed directories: their own would need a pass over all files."""

_STREAMED_SIZE = 224
"""Height and width of streamed images."""
_MAX_BYTES_IN_MEMORY = 2 * 2**30
_IMAGENET_PARTS = 25
"""A 25th of ImageNet's training set has 51,247 images, about as many as the official val set."""
_NUM_PROBED = 64
_SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
"""Common names of the directories of splits, which contain one directory per class."""

_LAYOUTS = {
    "imagenet": "DIR/train/<class>/*.JPEG and DIR/val/<class>/*.JPEG, with one directory for each of the 1,000 classes",
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
        raise UserError(f"imagenet not found: {root} contains no directory train; {advice}")
    classes = class_folders(folder / "train", advice)
    if class_folders(folder / "val", advice) != classes:
        raise UserError(f"{folder / 'val'} and {folder / 'train'} have different classes: {advice}")
    names, labels = labeled_images(folder, "train", classes, advice)
    test_names, test_labels = labeled_images(folder, "val", classes, advice)
    rows = carve("imagenet", labels, seed, fold, "val", parts=_IMAGENET_PARTS)
    rows["test"] = torch.arange(len(names), len(names) + len(test_names))
    paths = Paths(folder, [*names, *test_names])
    return _streamed("imagenet", len(classes), paths, torch.cat([labels, test_labels]), rows, _STREAMED_SIZE)


def image_folder(root: Path, seed: int, fold: int) -> Dataset:
    """Load a directory of images by class, with three channels.

    The root contains `train` and optionally `val` and `test`, or one directory per class. A missing val or test is a
    tenth of train (fold 0-9). Images of the same size that take at most 2 GiB are held in memory; others are streamed
    at 224 pixels, or at the length of their shortest side if that is smaller.
    """
    classes, paths, labels, rows = _list(root)
    missing = [part for part in ("val", "test") if part not in rows]
    carved = carve("folder", labels[rows["train"]], seed, fold, *missing)
    rows |= {part: rows["train"][row] for part, row in carved.items()}
    height, width = image_size(paths[0])
    if len(paths) * 3 * height * width <= _MAX_BYTES_IN_MEMORY:
        with suppress(WrongSize):
            images = read_images(paths, (height, width))
            return in_memory("folder", len(classes), images, labels, rows, *_statistics(images[rows["train"]]))
    step = max(1, len(paths) // _NUM_PROBED)
    side = min(_STREAMED_SIZE, *(min(image_size(path)) for path in paths[::step]))
    return _streamed("folder", len(classes), paths, labels, rows, side)


def _streamed(name: str, classes: int, paths: Paths, labels: Tensor, rows: Mapping[str, Tensor], side: int) -> Dataset:
    splits = {
        part: StreamedSplit(paths.take(row), labels[row], _MEAN, _STD, (3, side, side)) for part, row in rows.items()
    }
    return Dataset(name, classes, **splits)


# Listing files, in an order that does not depend on the file system.


def class_folders(folder: Path, advice: str) -> list[str]:
    """Return the names of the class directories, sorted; the position in this list is the label."""
    try:
        names = _folders(folder)
    except OSError as error:
        raise UserError(f"cannot read {folder} ({error.strerror or error}): {advice}") from error
    if len(names) < 2:
        raise UserError(f"{folder} must contain at least 2 class directories, got {len(names)}: {advice}")
    return names


def image_names(folder: Path) -> list[str]:
    """Return the images below a directory as sorted relative paths with slashes, without hidden files."""
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


def _list(root: Path) -> tuple[list[str], Paths, Tensor, dict[str, Tensor]]:
    """Return the classes, all images and their labels, and the rows of train and, if present, of val and test."""
    advice = layout_advice("folder")
    # A class may be called train (a dataset of vehicles); it has no directories below.
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
    return classes, Paths(root, names), torch.cat(labels), rows


def _folders(place: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))


def _readable_folders(place: Path) -> list[str]:
    """Return the directories in a place, or none if it cannot be read."""
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
