"""Folders of images by class: splits, layouts, images in memory or streamed; ImageNet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from PIL import Image

from pathgrow import data
from pathgrow.data import image_folder
from pathgrow.data.dataset import Split, StreamedSplit
from pathgrow.errors import UserError
from tests.support.image_data import by_pillow, content, load


def test_a_folder_by_class_is_split_in_tenths(layouts: Any) -> None:
    root = layouts.by_class("cat", "dog", "emu")
    found = load("folder", root)
    assert (found.name, found.classes, found.shape) == ("folder", 3, (3, 6, 5))
    assert [len(split) for split in (found.train, found.val, found.test)] == [48, 6, 6]
    expected = [
        by_pillow(path).tobytes() + bytes([label])
        for label, name in enumerate(("cat", "dog", "emu"))
        for path in (root / name).iterdir()
    ]
    assert content(found.train, found.val, found.test) == sorted(expected)
    assert torch.bincount(found.test.labels).tolist() == [2, 2, 2]
    other = load("folder", root, fold=1)
    assert content(other.val) == content(found.test)
    assert content(load("folder", root, seed=1).val) != content(found.val)


class Entries:
    """The result of os.scandir in a given order."""

    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._left)


def test_the_order_of_the_file_system_does_not_matter(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = layouts.by_class("emu", "cat/black", "cat/white", "dog", num=10)
    scandir = os.scandir
    found = []
    for backwards in (False, True):

        def listed(place: Any = ".", backwards: bool = backwards) -> Entries:
            with scandir(place) as entries:
                return Entries(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

        monkeypatch.setattr(os, "scandir", listed)
        found.append(load("folder", root))
    for part in ("train", "val", "test"):
        one, other = (getattr(splits, part) for splits in found)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_statistics_are_those_of_the_training_images(layouts: Any) -> None:
    found = load("folder", layouts.by_class("cat", "dog"))
    images = found.train.images.numpy().astype(np.float64)
    for split in (found.train, found.val, found.test):
        assert split.mean == pytest.approx(tuple(images.mean(axis=(0, 2, 3))))
        assert split.std == pytest.approx(tuple(images.std(axis=(0, 2, 3))))
    assert found.example_input().shape == (1, 3, 6, 5)


def test_constant_images_can_be_normalized(layouts: Any) -> None:
    for number in range(40):
        path = layouts.root / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (7, number, 0)).save(path)
    assert torch.isfinite(load("folder", layouts.root).train.normalized()).all()


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        (("train", "val", "test"), [40, 40, 40]),
        (("train", "val"), [36, 40, 4]),
        (("train", "test"), [36, 4, 40]),
        (("train",), [32, 4, 4]),
    ],
)
def test_missing_splits_are_taken_from_train(parts: tuple[str, ...], sizes: list[int], layouts: Any) -> None:
    root = layouts.by_class(*(f"{part}/{name}" for part in parts for name in ("cat", "dog")))
    found = load("folder", root)
    assert [len(split) for split in (found.train, found.val, found.test)] == sizes
    for part in parts[1:]:
        expected = [
            by_pillow(path).tobytes() + bytes([label])
            for label, name in enumerate(("cat", "dog"))
            for path in (root / part / name).iterdir()
        ]
        assert content(getattr(found, part)) == sorted(expected)


def test_a_class_may_be_called_train_and_val_may_lack_classes(layouts: Any, tmp_path: Path) -> None:
    assert load("folder", layouts.by_class("train", "bus")).classes == 2
    layouts.root = tmp_path / "second"
    layouts.by_class("train/a", "train/b", "train/c", "val/b", "val/c")
    found = load("folder", layouts.root)
    assert found.classes == 3
    assert found.val.labels.unique().tolist() == [1, 2]


def test_images_of_different_sizes_or_too_many_are_streamed(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = layouts.by_class("cat", "dog", size=(40, 50))
    assert isinstance(load("folder", root).train, Split)
    monkeypatch.setattr(image_folder, "_MAX_BYTES_IN_MEMORY", 40 * 3 * 40 * 50 - 1)
    streamed = load("folder", root)
    assert isinstance(streamed.train, StreamedSplit)
    assert streamed.shape == (3, 40, 40)
    monkeypatch.undo()
    layouts.picture(root / "dog" / "999.jpg", (300, 400))
    streamed = load("folder", root)
    assert isinstance(streamed.train, StreamedSplit)
    assert not hasattr(streamed.train, "images")
    names = [path for split in (streamed.train, streamed.val, streamed.test) for path in split.paths]
    assert sorted(names) == sorted(root.glob("*/*.*"))
    for path, label in zip(streamed.train.paths, streamed.train.labels, strict=True):
        assert path.parent.name == ("cat", "dog")[label]
    assert streamed.example_input().shape == (1, 3, *streamed.shape[1:])


def test_gray_palette_and_transparent_images_become_three_channels(layouts: Any) -> None:
    root = layouts.by_class("a", "b", num=10)
    for mode in ("L", "1", "P", "RGBA", "LA", "CMYK"):
        Image.new("RGB", (5, 6), (200, 100, 50)).convert("L" if mode == "LA" else mode).convert(mode).save(
            root / "a" / f"{mode}.{'jpg' if mode == 'CMYK' else 'png'}"
        )
    assert load("folder", root).shape == (3, 6, 5)
    Image.fromarray(np.full((6, 5), 40_000, np.uint16)).save(root / "a" / "deep.png")
    with pytest.raises(UserError, match="more than 8 bits"):
        load("folder", root)


def test_other_files_are_not_images(layouts: Any) -> None:
    root = layouts.by_class("a", "b", num=10)
    (root / "a" / "notes.txt").write_text("x")
    (root / "a" / ".hidden.png").write_text("x")
    (root / ".cache").mkdir()
    (root / "readme.png").write_text("x")
    found = load("folder", root)
    assert found.classes == 2
    assert sum(len(split) for split in (found.train, found.val, found.test)) == 20


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (("cat",), "must contain at least 2 class directories, got 1"),
        (("train/cat", "train/dog", "val/cat", "val/emu"), "emu is not a class of .*train"),
    ],
)
def test_invalid_layouts_give_the_expected_layout(places: tuple[str, ...], words: str, layouts: Any) -> None:
    root = layouts.by_class(*places)
    with pytest.raises(UserError, match=words) as caught:
        load("folder", root)
    assert "DIR/train/<class>" in str(caught.value)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (("Train/cat", "Train/dog", "Val/cat", "Val/dog"), "contains Train and Val but no train"),
        (("test/cat", "test/dog", "val/cat"), "contains test and val but no train"),
        (("train/cat", "train/dog", "validation/cat"), "validation would be ignored"),
        (("train/cat", "train/dog", "TEST/cat"), "TEST would be ignored"),
    ],
)
def test_misnamed_splits_are_neither_classes_nor_ignored(places: tuple[str, ...], words: str, layouts: Any) -> None:
    with pytest.raises(UserError, match=words):
        load("folder", layouts.by_class(*places, num=4))


def test_classes_may_be_called_like_splits_and_have_subfolders(layouts: Any) -> None:
    assert load("folder", layouts.by_class("dev/laptop", "home/sofa", "home/lamp")).classes == 2
    layouts.root = layouts.root / "second"
    layouts.by_class("train/cat", "train/dog", "annotations/cat", ".val/cat")
    (layouts.root / "testing").mkdir()
    assert load("folder", layouts.root).classes == 2


def test_empty_folders_give_the_expected_layout(tmp_path: Path, layouts: Any) -> None:
    with pytest.raises(UserError, match="at least 2 class directories, got 0"):
        load("folder", tmp_path)
    root = layouts.by_class("cat", "dog")
    (root / "emu").mkdir()
    with pytest.raises(UserError, match="emu contains no images"):
        load("folder", root)
    with pytest.raises(UserError, match="requires --data-root"):
        data.load("folder")


# ImageNet.


@pytest.mark.parametrize("inside", ["", "imagenet"])
def test_imagenet_is_streamed_and_its_val_is_test(inside: str, layouts: Any) -> None:
    root = layouts.root
    layouts.root = root / inside
    layouts.by_class("train/n02", "train/n01", num=50, size=(30, 40))
    layouts.by_class("val/n02", "val/n01", num=3)
    found = load("imagenet", root, fold=24)
    assert (found.classes, found.shape, len(found.train), len(found.val)) == (2, (3, 224, 224), 96, 4)
    assert not {*found.train.paths} & {*found.val.paths}
    assert [path.parts[-3:-1] for path in found.test.paths] == [("val", "n01")] * 3 + [("val", "n02")] * 3
    assert found.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for split in (found.train, found.val, found.test):
        assert split.mean == pytest.approx((123.675, 116.28, 103.53))
        assert split.std == pytest.approx((58.395, 57.12, 57.375))
    assert found.example_input().shape == (1, 3, 224, 224)


def test_invalid_layouts_of_imagenet_give_the_expected_layout(layouts: Any) -> None:
    layouts.by_class("train/n01", "train/n02")
    for words in ("cannot read .*val", "different classes"):
        with pytest.raises(UserError, match=words) as caught:
            load("imagenet", layouts.root)
        assert "DIR/val/<class>" in str(caught.value)
        layouts.by_class("val/n01", "val/n03", num=1)
    with pytest.raises(UserError, match="not found"):
        load("imagenet", layouts.root / "train")
