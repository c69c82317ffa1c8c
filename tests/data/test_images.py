"""Folders of images: TinyImageNet and its decoded copy, ImageNet, one's own; decoded as Pillow decodes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from PIL import Image

from pathgrow import data
from pathgrow.data import decode, decoded, image_folder, waiting
from pathgrow.data.dataset import Paths, Split, StreamedSplit
from pathgrow.errors import UserError


def by_pillow(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)


def content(*splits: Any) -> list[bytes]:
    return sorted(
        image.numpy().tobytes() + bytes([int(label)])
        for split in splits
        for image, label in zip(split.images, split.labels, strict=True)
    )


def load(name: str, root: Path, **options: int) -> Any:
    data._from_disk.cache_clear()
    return data.load(name, root, **options)


# TinyImageNet.


def test_tiny_imagenet_is_what_pillow_decodes_under_sorted_classes(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    found = load("tiny-imagenet", layouts.root)
    classes = sorted((folder / "wnids.txt").read_text().split())
    wanted = [
        by_pillow(path).tobytes() + bytes([classes.index(path.parts[-3])]) for path in folder.glob("train/*/images/*")
    ]
    assert content(found.train, found.val) == sorted(wanted)
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
        ("val_0.JPEG\tn00000000\t0\n", "line 7 .* names no image and class"),
        ("../../train/x.JPEG\tn09000000\t0\n", "line 7 .* names no image and class"),
        ("garbage\n", "line 7 .* names no image and class"),
        ("val_9.JPEG\tn09000000\t0\n", "lists 7 images"),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(line: str, words: str, layouts: Any) -> None:
    table = layouts.tiny_imagenet() / "val" / "val_annotations.txt"
    table.write_text(table.read_text() + line)
    with pytest.raises(UserError, match=words):
        load("tiny-imagenet", layouts.root)


def test_damaged_missing_and_foreign_images_are_one_sentence(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    victim = folder / "train" / "n08000000" / "images" / "n08000000_3.JPEG"
    good = victim.read_bytes()
    for bad in (b"", b"not an image", good[: len(good) // 2], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n"):
        victim.write_bytes(bad)
        with pytest.raises(UserError, match="cannot be read as an image") as caught:
            load("tiny-imagenet", layouts.root)
        assert str(victim) in str(caught.value)
        assert str(caught.value).isprintable()
        assert "pathgrow data get tiny-imagenet" in str(caught.value)
    layouts.picture(victim, (64, 63))
    with pytest.raises(UserError, match="63 x 64 pixels, 64 x 64 are wanted"):
        load("tiny-imagenet", layouts.root)
    shutil.rmtree(victim.parent)
    with pytest.raises(UserError, match="holds no images"):
        load("tiny-imagenet", layouts.root)
    shutil.rmtree(folder / "train")
    with pytest.raises(UserError, match="has no train"):
        load("tiny-imagenet", layouts.root)


def test_flipped_bytes_of_an_image_are_a_sentence_or_an_image(tmp_path: Path, layouts: Any) -> None:
    random = np.random.default_rng(3)
    refused = []
    for suffix in ("jpg", "png", "gif", "bmp", "tif", "webp", "ppm"):
        good = tmp_path / f"good.{suffix}"
        layouts.picture(good, (12, 10))
        for _ in range(40):
            damaged = bytearray(good.read_bytes())
            for place in random.integers(0, len(damaged), 3):
                damaged[place] = int(random.integers(256))
            bad = tmp_path / f"bad.{suffix}"
            bad.write_bytes(damaged)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    image = decode.read_exact(bad, (12, 10), "replace it")
            except UserError as error:
                refused.append(str(error))
            else:
                assert image.shape == (3, 12, 10)
    assert len(refused) > 40
    assert all(sentence.isprintable() for sentence in refused)


# The decoded copy.


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """How often images were really decoded, also in other processes."""
    monkeypatch.setattr(decoded, "MIN_IMAGES", 1)
    tally = tmp_path / "tally"
    tally.mkdir()
    real = decode.read_many

    def counted(*arguments: Any) -> Any:
        (tally / f"{os.getpid()}-{len(list(tally.iterdir()))}").touch()
        return real(*arguments)

    monkeypatch.setattr(decoded, "read_many", counted)
    return lambda: len(list(tally.iterdir()))


def test_images_are_decoded_once(layouts: Any, decodes: Any) -> None:
    layouts.tiny_imagenet()
    first = load("tiny-imagenet", layouts.root)
    second = load("tiny-imagenet", layouts.root, fold=1)
    assert decodes() == 1
    assert content(first.train, first.val) == content(second.train, second.val)
    assert content(first.test) == content(second.test)


def test_a_changed_folder_and_a_damaged_copy_are_decoded_anew(layouts: Any, decodes: Any) -> None:
    folder = layouts.tiny_imagenet()
    before = load("tiny-imagenet", layouts.root)
    copy = folder / decoded.FILE
    good = copy.read_bytes()
    for bad in (good[:-1], good[:100], b"", good[:-5000] + bytes([good[-5000] ^ 1]) + good[-4999:]):
        copy.write_bytes(bad)
        count = decodes()
        assert content(load("tiny-imagenet", layouts.root).train) == content(before.train)
        assert content(load("tiny-imagenet", layouts.root).train) == content(before.train)
        assert decodes() == count + 1  # the second time it was there again
    picture = folder / "val" / "images" / "val_0.JPEG"
    Image.new("RGB", (64, 64), "red").save(picture)
    np.testing.assert_array_equal(load("tiny-imagenet", layouts.root).test.images[0], by_pillow(picture))


def test_a_copied_folder_keeps_its_decoded_images(layouts: Any, decodes: Any, tmp_path: Path) -> None:
    load("tiny-imagenet", layouts.tiny_imagenet())
    shutil.copytree(layouts.root, tmp_path / "copy", copy_function=shutil.copyfile)
    load("tiny-imagenet", tmp_path / "copy")
    assert decodes() == 1


def test_a_folder_that_cannot_be_written_is_decoded_without_a_copy(
    layouts: Any, decodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = layouts.tiny_imagenet()
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and Path(path).is_relative_to(folder):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(waiting.os, "open", read_only)
    for count in (1, 2):
        assert len(load("tiny-imagenet", layouts.root).train) == 54
        assert decodes() == count
    monkeypatch.undo()
    assert not list(folder.glob(".pathgrow*"))


def test_a_full_disk_costs_the_copy_and_no_more(layouts: Any, decodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = layouts.tiny_imagenet()

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(decoded, "save_file", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert len(load("tiny-imagenet", layouts.root).train) == 54
    assert [path.name for path in folder.glob(".pathgrow*")] == [".pathgrow-images.lock"]


def test_eight_processes_prepare_one_copy(layouts: Any, decodes: Any) -> None:
    folder = layouts.tiny_imagenet()
    (folder / f"{decoded.FILE}.killed.tmp").write_bytes(b"half")
    context = multiprocessing.get_context("fork")
    begin, answers = context.Barrier(8), context.Queue()

    def prepare() -> None:
        begin.wait()
        found = data.load("tiny-imagenet", layouts.root)
        answers.put((len(found.train), int(found.train.images.sum())))

    workers = [context.Process(target=prepare) for _ in range(8)]
    for worker in workers:
        worker.start()
    got = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert len(set(got)) == 1
    assert decodes() == 1
    assert sorted(path.name for path in folder.glob(".pathgrow*")) == [".pathgrow-images.lock", decoded.FILE]


def test_sets_that_decode_in_a_moment_leave_no_files(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    load("tiny-imagenet", layouts.root)
    assert not list(folder.glob(".pathgrow*"))


# Folders of one's own.


def test_a_folder_by_class_is_split_in_tenths(layouts: Any) -> None:
    root = layouts.by_class("cat", "dog", "emu")
    found = load("folder", root)
    assert (found.name, found.classes, found.shape) == ("folder", 3, (3, 6, 5))
    assert [len(split) for split in (found.train, found.val, found.test)] == [48, 6, 6]
    wanted = [
        by_pillow(path).tobytes() + bytes([label])
        for label, name in enumerate(("cat", "dog", "emu"))
        for path in (root / name).iterdir()
    ]
    assert content(found.train, found.val, found.test) == sorted(wanted)
    assert torch.bincount(found.test.labels).tolist() == [2, 2, 2]
    other = load("folder", root, fold=1)
    assert content(other.val) == content(found.test)
    assert content(load("folder", root, seed=1).val) != content(found.val)


class Entries:
    """What os.scandir gives, in an order of our own."""

    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._left)


def test_the_order_in_which_a_file_system_lists_is_no_matter(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_constants_are_those_of_the_training_images(layouts: Any) -> None:
    found = load("folder", layouts.by_class("cat", "dog"))
    images = found.train.images.numpy().astype(np.float64)
    for split in (found.train, found.val, found.test):
        assert split.mean == pytest.approx(tuple(images.mean(axis=(0, 2, 3))))
        assert split.std == pytest.approx(tuple(images.std(axis=(0, 2, 3))))
    assert found.example_input().shape == (1, 3, 6, 5)


def test_constant_images_can_be_normalised(layouts: Any) -> None:
    for number in range(40):
        path = layouts.root / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (7, number, 0)).save(path)
    assert torch.isfinite(load("folder", layouts.root).train.normalised()).all()


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        (("train", "val", "test"), [40, 40, 40]),
        (("train", "val"), [36, 40, 4]),
        (("train", "test"), [36, 4, 40]),
        (("train",), [32, 4, 4]),
    ],
)
def test_missing_parts_are_carved_from_train(parts: tuple[str, ...], sizes: list[int], layouts: Any) -> None:
    root = layouts.by_class(*(f"{part}/{name}" for part in parts for name in ("cat", "dog")))
    found = load("folder", root)
    assert [len(split) for split in (found.train, found.val, found.test)] == sizes
    for part in parts[1:]:
        wanted = [
            by_pillow(path).tobytes() + bytes([label])
            for label, name in enumerate(("cat", "dog"))
            for path in (root / part / name).iterdir()
        ]
        assert content(getattr(found, part)) == sorted(wanted)


def test_a_class_may_be_called_train_and_val_may_lack_classes(layouts: Any, tmp_path: Path) -> None:
    assert load("folder", layouts.by_class("train", "bus")).classes == 2
    layouts.root = tmp_path / "second"
    layouts.by_class("train/a", "train/b", "train/c", "val/b", "val/c")
    found = load("folder", layouts.root)
    assert found.classes == 3
    assert found.val.labels.unique().tolist() == [1, 2]


def test_images_of_several_sizes_or_too_many_are_streamed(layouts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = layouts.by_class("cat", "dog", size=(40, 50))
    assert isinstance(load("folder", root).train, Split)
    monkeypatch.setattr(image_folder, "MAX_RESIDENT_BYTES", 40 * 3 * 40 * 50 - 1)
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


def test_grey_palette_and_transparent_images_become_three_channels(layouts: Any) -> None:
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
        (("cat",), "has 1 folders of classes, at least 2 are wanted"),
        (("train/cat", "train/dog", "val/cat", "val/emu"), "emu is a class that .*train does not have"),
    ],
)
def test_layouts_that_are_none_are_told_the_layout(places: tuple[str, ...], words: str, layouts: Any) -> None:
    root = layouts.by_class(*places)
    with pytest.raises(UserError, match=words) as caught:
        load("folder", root)
    assert "DIR/train/<class>" in str(caught.value)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (("Train/cat", "Train/dog", "Val/cat", "Val/dog"), "holds Train and Val, parts of a data set and no classes"),
        (("test/cat", "test/dog", "val/cat"), "holds test and val, parts of a data set and no classes, and no train"),
        (("train/cat", "train/dog", "validation/cat"), "validation would not be read"),
        (("train/cat", "train/dog", "TEST/cat"), "TEST would not be read"),
    ],
)
def test_parts_by_other_names_are_not_taken_for_classes_nor_left_out(
    places: tuple[str, ...], words: str, layouts: Any
) -> None:
    with pytest.raises(UserError, match=words):
        load("folder", layouts.by_class(*places, num=4))


def test_classes_may_have_names_of_parts_and_folders_below(layouts: Any) -> None:
    assert load("folder", layouts.by_class("dev/laptop", "home/sofa", "home/lamp")).classes == 2
    layouts.root = layouts.root / "second"
    layouts.by_class("train/cat", "train/dog", "annotations/cat", ".val/cat")
    (layouts.root / "testing").mkdir()
    assert load("folder", layouts.root).classes == 2


def test_empty_places_are_told_the_layout(tmp_path: Path, layouts: Any) -> None:
    with pytest.raises(UserError, match="0 folders of classes"):
        load("folder", tmp_path)
    root = layouts.by_class("cat", "dog")
    (root / "emu").mkdir()
    with pytest.raises(UserError, match="emu holds no images"):
        load("folder", root)
    with pytest.raises(UserError, match="name it with --data-root"):
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


def test_other_layouts_of_imagenet_are_told_the_layout(layouts: Any) -> None:
    layouts.by_class("train/n01", "train/n02")
    for words in ("val cannot be read", "val has other classes"):
        with pytest.raises(UserError, match=words) as caught:
            load("imagenet", layouts.root)
        assert "DIR/val/<class>" in str(caught.value)
        layouts.by_class("val/n01", "val/n03", num=1)
    with pytest.raises(UserError, match="was not found"):
        load("imagenet", layouts.root / "train")


def test_fitting_keeps_the_middle(tmp_path: Path) -> None:
    stripes = np.zeros((10, 30, 3), np.uint8)
    stripes[:, 10:20] = 200
    Image.fromarray(stripes).save(tmp_path / "wide.png")
    assert (decode.read_fitted(tmp_path / "wide.png", (10, 10)) == 200).all()
    assert decode.read_fitted(tmp_path / "wide.png", (37, 11)).shape == (3, 37, 11)


def test_many_images_keep_their_places(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(300)]
    for number, name in enumerate(names):
        Image.new("RGB", (2, 2), (number % 256, number // 256, 9)).save(tmp_path / name)
    images = decode.read_many(Paths(tmp_path, names), (2, 2), "x")
    assert (images[:, 0, 0, 0] + 256 * images[:, 1, 0, 0].astype(int)).tolist() == list(range(300))
