"""TinyImageNet: 200 classes of 64 x 64 color JPEG images; the official val set is the test set."""

from pathlib import Path

import torch
from torch import Tensor

from pathgrow.data.dataset import Dataset, Paths, bytes_of, carve, in_memory
from pathgrow.data.image_folder import class_folders, image_names, labeled_images
from pathgrow.data.images import read_images
from pathgrow.data.official import find_official, replace_advice
from pathgrow.errors import UserError

_NAME = "tiny-imagenet"
_SIZE = (64, 64)
_MEAN = bytes_of(0.4802, 0.4481, 0.3975)
_STD = bytes_of(0.2770, 0.2691, 0.2821)


def tiny_imagenet(root: Path, seed: int, fold: int) -> Dataset:
    """Load 90,000 train, 10,000 val (fold 0-9 of the official training set) and the official 10,000 val images as test.

    Classes are numbered in the order of their names (n01443537 is 0), as in torchvision's ImageFolder.
    """
    folder = find_official(_NAME, root)
    advice = replace_advice(_NAME, folder)
    classes = class_folders(folder / "train", advice)
    train_names, train_labels = labeled_images(folder, "train", classes, advice)
    test_names, test_labels = _test_images(folder, classes, advice)
    rows = carve(_NAME, train_labels, seed, fold, "val")
    labels = torch.cat([train_labels, test_labels])
    rows["test"] = torch.arange(len(train_labels), len(labels))
    images = read_images(Paths(folder, [*train_names, *test_names]), _SIZE, advice)
    return in_memory(_NAME, len(classes), images, labels, rows, _MEAN, _STD)


def _test_images(folder: Path, classes: list[str], advice: str) -> tuple[list[str], Tensor]:
    """Return names and labels of the official val images, from its table or from class directories (also common)."""
    table = folder / "val" / "val_annotations.txt"
    if not (folder / "val" / "images").is_dir():
        return labeled_images(folder, "val", classes, advice)
    try:
        lines = table.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {table} ({error}): {advice}") from error
    numbers = {name: number for number, name in enumerate(classes)}
    names, labels = [], []
    for line_number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in numbers or Path(fields[0]).name != fields[0]:
            raise UserError(f"line {line_number} of {table} is not an image name and a known class: {advice}")
        names.append(f"val/images/{fields[0]}")
        labels.append(numbers[fields[1]])
    present = image_names(folder / "val" / "images")
    if sorted(names) != sorted(f"val/images/{name}" for name in present):
        raise UserError(f"{table} lists {len(names):,} images, which are not the {len(present):,} in images/: {advice}")
    return names, torch.tensor(labels, dtype=torch.int64)
