"""The published data sets: where their archives lie, and the checksums and counts that make them the official ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Official:
    """One published data set."""

    folder: str
    """What the archive unpacks to."""
    marker: str
    """A file or folder that every copy has."""
    url: str
    sha256: str
    num_bytes: int
    """Of the archive."""
    max_unpacked: int
    """No archive may unpack to more; the official ones stay well below."""
    num_train: int
    num_test: int
    md5: Mapping[str, str] = field(default_factory=dict)
    """Of single files, as published."""

    @property
    def archive(self) -> str:
        """The file name of the archive."""
        return self.url.rpartition("/")[2]


OFFICIAL: dict[str, Official] = {
    "cifar10": Official(
        folder="cifar-10-batches-py",
        marker="data_batch_1",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        num_bytes=170_498_071,
        max_unpacked=300_000_000,
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
        max_unpacked=300_000_000,
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
        max_unpacked=1_000_000_000,
        num_train=100_000,
        num_test=10_000,
    ),
}
