"""Folders of images by class: which classes there are, and which files, in an order that every machine agrees on."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from pathgrow.data.decode import SUFFIXES
from pathgrow.errors import UserError


def class_folders(folder: Path, advice: str) -> list[str]:
    """Names of the sub-folders, sorted; their places in this list are the labels."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror or error}): {advice}") from error
    if len(names) < 2:
        raise UserError(f"{folder} has {len(names)} folders of classes, at least 2 are wanted: {advice}")
    return names


def image_names(folder: Path) -> list[str]:
    """Images in a folder and below it, as paths relative to it with slashes, sorted; hidden files are no images."""
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


def labelled(folder: Path, part: str, classes: list[str], advice: str) -> tuple[list[str], Tensor]:
    """Names relative to `folder`, and labels, of all images in `folder/part/<class>`; every class must have some."""
    names: list[str] = []
    counts = []
    for name in classes:
        of_class = image_names(folder / part / name)
        if not of_class:
            raise UserError(f"{folder / part / name} holds no images ({', '.join(sorted(SUFFIXES))}): {advice}")
        prefix = f"{part}/{name}/" if part else f"{name}/"
        names += [prefix + image for image in of_class]
        counts.append(len(of_class))
    return names, torch.repeat_interleave(torch.arange(len(classes)), torch.tensor(counts))
