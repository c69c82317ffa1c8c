"""Published datasets: where to download them, their checksums and counts, and where copies are found on disk."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pathgrow import atomic
from pathgrow.errors import UserError

ROOT_VARIABLE = "PATHGROW_DATA"
"""Environment variable that names the data root."""


@dataclass(frozen=True, kw_only=True)
class Official:
    """A published dataset."""

    folder: str
    """Directory that the archive contains."""
    marker: str
    """A file or directory inside `folder` that every copy has."""
    url: str
    sha256: str
    """Checksum of the archive."""
    num_bytes: int
    """Size of the archive."""
    num_train: int
    num_test: int
    md5: Mapping[str, str] = field(default_factory=dict)
    """Published checksums of single files."""

    @property
    def archive(self) -> str:
        """File name of the archive."""
        return self.url.rpartition("/")[2]


OFFICIAL: dict[str, Official] = {
    "cifar10": Official(
        folder="cifar-10-batches-py",
        marker="data_batch_1",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        num_bytes=170_498_071,
        num_train=50_000,
        num_test=10_000,
        md5={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    "cifar100": Official(
        folder="cifar-100-python",
        marker="train",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        num_bytes=169_001_437,
        num_train=50_000,
        num_test=10_000,
        md5={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    "tiny-imagenet": Official(
        folder="tiny-imagenet-200",
        marker="train",
        url="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        num_bytes=248_100_043,
        num_train=100_000,
        num_test=10_000,
    ),
    # One file, which is its own archive; samples are windows of 256 characters.
    "text": Official(
        folder="tinyshakespeare",
        marker="tinyshakespeare.txt",
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        num_bytes=1_115_394,
        num_train=4_136,
        num_test=216,
        md5={"tinyshakespeare.txt": "6fb458f1232090904fb40fe944165e91"},
    ),
}


def resolve_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the data root as an absolute path: `root`, the variable PATHGROW_DATA, or `./data`, in this order."""
    chosen = (os.environ.get(ROOT_VARIABLE) or "data") if root is None or (isinstance(root, str) and not root) else root
    try:
        return Path(os.path.abspath(atomic.checked_path(chosen, "data root").expanduser()))
    except RuntimeError as error:  # an unknown user after ~
        raise UserError(f"data root must be a directory, got {chosen!r} ({error})") from error


def find_official(name: str, root: Path) -> Path:
    """Return the directory of a published dataset, which may be in the root, one level below, or the root itself."""
    official = OFFICIAL[name]
    for place in (root / official.folder, root):
        if os.path.exists(place / official.marker):  # Path.exists raises if the directory is not accessible
            return place
    below = sorted(place.parent for place in root.glob(f"*/{official.folder}/{official.marker}"))
    if len(below) > 1:
        copies = " and ".join(str(place) for place in below)
        raise UserError(f"found more than one copy of {name} in {root} ({copies}): select one with --data-root")
    if below:
        return below[0]
    place = root / official.folder
    if os.path.exists(place):
        raise UserError(f"{place} is not a copy of {name} (no {official.marker}): {replace_advice(name, place)}")
    raise UserError(
        f"{name} not found: no {place}; download it with `pathgrow data get {name} --data-root {root}`, or pass the "
        "directory that contains it as --data-root"
    )


def replace_advice(name: str, folder: Path) -> str:
    """Return how to replace an unusable copy of a dataset, as the end of an error message.

    The advice to delete a directory is given only if it has the official name; any other was probably passed by
    mistake and may hold something else.
    """
    official = OFFICIAL[name].folder
    if folder.name != official:
        return f"pass the directory that contains {official} as --data-root, or run `pathgrow data get {name}`"
    return f"delete {folder}, then run `pathgrow data get {name} --data-root {folder.parent}`"
