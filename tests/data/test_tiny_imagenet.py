"""TinyImageNet: pixels, labels, splits, and one sentence for every bad file."""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from pathgrow.errors import UserError
from tests.support.image_data import by_pillow, content, load


def test_tiny_imagenet_is_what_pillow_decodes_under_sorted_classes(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    found = load("tiny-imagenet", layouts.root)
    classes = sorted((folder / "wnids.txt").read_text().split())
    expected = [
        by_pillow(path).tobytes() + bytes([classes.index(path.parts[-3])]) for path in folder.glob("train/*/images/*")
    ]
    assert content(found.train, found.val) == sorted(expected)
    assert (found.classes, found.shape, len(found.train), len(found.val)) == (3, (3, 64, 64), 54, 6)
    assert torch.bincount(found.val.labels).tolist() == [2, 2, 2]
    for line, image, label in zip(
        (folder / "val" / "val_annotations.txt").read_text().splitlines(),
        found.test.images,
        found.test.labels,
        strict=True,
    ):
        name, wnid = line.split("\t")[:2]
        np.testing.assert_array_equal(image, by_pillow(folder / "val" / "images" / name))
        assert label == classes.index(wnid)
    for split in (found.train, found.val, found.test):
        assert split.mean == pytest.approx((122.451, 114.2655, 101.3625))
        assert split.std == pytest.approx((70.635, 68.6205, 71.9355))


def test_val_sorted_into_class_folders_gives_the_same_test_set(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    before = load("tiny-imagenet", layouts.root)
    for line in (folder / "val" / "val_annotations.txt").read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        (folder / "val" / wnid).mkdir(exist_ok=True)
        os.rename(folder / "val" / "images" / name, folder / "val" / wnid / name)
    (folder / "val" / "images").rmdir()
    assert content(load("tiny-imagenet", layouts.root).test) == content(before.test)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("val_0.JPEG\tn00000000\t0\n", "line 7 .* is not an image name and a known class"),
        ("../../train/x.JPEG\tn09000000\t0\n", "line 7 .* is not an image name and a known class"),
        ("garbage\n", "line 7 .* is not an image name and a known class"),
        ("val_9.JPEG\tn09000000\t0\n", "lists 7 images"),
    ],
)
def test_an_inconsistent_table_gives_one_sentence(line: str, words: str, layouts: Any) -> None:
    table = layouts.tiny_imagenet() / "val" / "val_annotations.txt"
    table.write_text(table.read_text() + line)
    with pytest.raises(UserError, match=words):
        load("tiny-imagenet", layouts.root)


def test_damaged_missing_and_foreign_images_give_one_sentence(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    victim = folder / "train" / "n08000000" / "images" / "n08000000_3.JPEG"
    good = victim.read_bytes()
    for bad in (b"", b"not an image", good[: len(good) // 2], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n"):
        victim.write_bytes(bad)
        with pytest.raises(UserError, match="cannot decode") as caught:
            load("tiny-imagenet", layouts.root)
        assert str(victim) in str(caught.value)
        assert str(caught.value).isprintable()
        assert "pathgrow data get tiny-imagenet" in str(caught.value)
    layouts.picture(victim, (64, 63))
    with pytest.raises(UserError, match="must have 64 x 64 pixels, got 63 x 64"):
        load("tiny-imagenet", layouts.root)
    shutil.rmtree(victim.parent)
    with pytest.raises(UserError, match="contains no images"):
        load("tiny-imagenet", layouts.root)
    shutil.rmtree(folder / "train")
    with pytest.raises(UserError, match="no train"):
        load("tiny-imagenet", layouts.root)
