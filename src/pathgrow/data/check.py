"""What lies on disk, examined: whether it reads well, and whether it is the official set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pathgrow import atomic, data
from pathgrow.data import decoded, places
from pathgrow.data.dataset import Dataset, Paths, Split
from pathgrow.data.official import OFFICIAL, Official

OFFICIAL_BYTES = "official"
OTHER_BYTES = "reads well, other bytes than the official file"


@dataclass(frozen=True)
class Finding:
    """A data set that reads well; one that does not is a `UserError` instead."""

    folder: Path | None
    """None for embedded data."""
    dataset: Dataset
    files: tuple[tuple[str, str], ...]
    """File, and what was found about it."""
    verdict: str
    """One sentence."""


def check(name: str, root: str | None) -> Finding:
    """Read a data set, in full unless it is streamed, and compare it with what was published."""
    official = OFFICIAL.get(name)
    folder = places.data_root(root)
    if official is not None:
        folder = places.find(name, folder, official.folder, official.marker)
    atomic.discard(folder / decoded.FILE)  # the files themselves are examined, not what was once read from them
    dataset = data.load(name, root)  # refuses unknown names and everything that does not read
    if name == "digits":
        return Finding(None, dataset, (), "embedded in the installation")
    if official is None:
        paths = getattr(dataset.train, "paths", None)  # of streamed data, which may lie one level below the root
        return Finding(paths.folder if isinstance(paths, Paths) else folder, dataset, (), _kind(dataset))
    files = tuple(_compare(folder / file, md5) for file, md5 in official.md5.items())
    return Finding(folder, dataset, files, _verdict(dataset, official, files))


def _compare(path: Path, md5: str) -> tuple[str, str]:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return path.name, OFFICIAL_BYTES if found == md5 else OTHER_BYTES


def _verdict(dataset: Dataset, official: Official, files: tuple[tuple[str, str], ...]) -> str:
    counts = len(dataset.train) + len(dataset.val), len(dataset.test)
    wanted = official.num_train, official.num_test
    if counts != wanted:
        return (
            f"reads well, but is not the official set: {counts[0]:,} training and {counts[1]:,} test images "
            f"instead of {wanted[0]:,} and {wanted[1]:,}"
        )
    if any(state != OFFICIAL_BYTES for _, state in files):
        return (
            "reads well and has the official counts, but other bytes than the official files: perhaps in another order"
        )
    return "the official set" if files else "reads well and has the official counts"


def _kind(dataset: Dataset) -> str:
    height_width = " x ".join(map(str, dataset.shape[1:]))
    if isinstance(dataset.train, Split):
        return f"reads well; images of {height_width} pixels, held in memory"
    return f"the files are there and were not decoded; images are streamed from them at {height_width} pixels"
