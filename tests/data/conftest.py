"""Tiny copies of the published layouts, made of random images."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image


class Truth(NamedTuple):
    """The images (N, C, H, W) and labels that were written, in the order of the files."""

    images: np.ndarray
    labels: np.ndarray


class Layouts:
    """Writes small datasets into a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.random = np.random.default_rng(0)

    def cifar_batch(self, path: Path, num: int, classes: int, key: str) -> Truth:
        rows = self.random.integers(0, 256, (num, 3072), dtype=np.uint8)
        labels = self.random.permutation(np.arange(num) % classes)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(python2_pickle(rows, labels.tolist(), key))
        return Truth(rows.reshape(-1, 3, 32, 32), labels)

    def cifar10(self, num: int = 20, where: str = "cifar-10-batches-py") -> tuple[Truth, Truth]:
        folder = self.root / where
        train = [self.cifar_batch(folder / f"data_batch_{i}", num, 10, "labels") for i in range(1, 6)]
        return joined(train), self.cifar_batch(folder / "test_batch", num, 10, "labels")

    def cifar100(self, num: int = 200) -> tuple[Truth, Truth]:
        folder = self.root / "cifar-100-python"
        train = self.cifar_batch(folder / "train", num, 100, "fine_labels")
        return train, self.cifar_batch(folder / "test", 100, 100, "fine_labels")

    def picture(self, path: Path, size: tuple[int, int], mode: str = "RGB") -> None:
        shape = size if mode == "L" else (*size, 3)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(self.random.integers(0, 256, shape, dtype=np.uint8)).save(path)

    def tiny_imagenet(self, classes: int = 3, num: int = 20, num_test: int = 6) -> Path:
        folder = self.root / "tiny-imagenet-200"
        names = [f"n0{9 - number}000000" for number in range(classes)]  # unsorted, as in the official wnids.txt
        for name in names:
            for number in range(num):
                mode = "L" if number == 1 else "RGB"
                self.picture(folder / "train" / name / "images" / f"{name}_{number}.JPEG", (64, 64), mode)
        lines = []
        for number in range(num_test):
            self.picture(folder / "val" / "images" / f"val_{number}.JPEG", (64, 64))
            lines.append(f"val_{number}.JPEG\t{names[number % classes]}\t0\t0\t63\t63\n")
        (folder / "val" / "val_annotations.txt").write_text("".join(lines))
        (folder / "wnids.txt").write_text("\n".join(names))
        return folder

    def by_class(self, *places: str, num: int = 20, size: tuple[int, int] = (6, 5)) -> Path:
        """Write folders of PNG images, such as `train/cat`."""
        for place in places:
            for number in range(num):
                self.picture(self.root / place / f"{number:03d}.png", size)
        return self.root


def joined(parts: list[Truth]) -> Truth:
    return Truth(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def python2_pickle(rows: np.ndarray, labels: list[int], key: str) -> bytes:
    """Return a batch in the form of the official files: protocol 2, byte strings, module names of NumPy 1."""

    def text(content: bytes) -> bytes:
        return b"U" + struct.pack("<B", len(content)) + content

    whole = b"".join(b"K" + bytes([label]) for label in labels)
    names = b"".join(text(b"image_%d.png" % number) + b"r" + struct.pack("<I", 500 + number) for number in range(5))
    return (
        b"\x80\x02}q\x01("
        + text(b"batch_label")
        + text(b"training batch 1 of 5")
        + text(key.encode())
        + b"]q\x02("
        + whole
        + b"e"
        + text(b"data")
        + b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05U\x01bq\x06\x87q\x07Rq\x08"
        + (b"(K\x01J" + struct.pack("<i", len(rows)) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86q\x09")
        + b"cnumpy\ndtype\nq\x0aU\x02u1q\x0bK\x00K\x01\x87q\x0cRq\x0d"
        + b"(K\x03U\x01|q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb\x89"
        + (b"T" + struct.pack("<i", rows.size) + rows.tobytes() + b"q\x10tq\x11b")
        + text(b"filenames")
        + b"]q\x12("
        + names
        + b"eu."
    )


@pytest.fixture
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Layouts:
    return Layouts(tmp_path_factory.mktemp("layouts") / "root")


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATHGROW_DATA", raising=False)
