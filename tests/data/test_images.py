"""Decoding, the decoded copy of a folder, and crops."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from pathgrow import data
from pathgrow.data import images
from pathgrow.data.dataset import Paths
from pathgrow.data.images import Box, center_box, random_box, read_crop
from pathgrow.errors import UserError
from tests.support.image_data import by_pillow, content, load


def test_flipped_bytes_give_a_sentence_or_an_image(tmp_path: Path, layouts: Any) -> None:
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
                    image = images.read_exact(bad, (12, 10), "replace it")
            except UserError as error:
                refused.append(str(error))
            else:
                assert image.shape == (3, 12, 10)
    assert len(refused) > 40
    assert all(sentence.isprintable() for sentence in refused)


def test_many_images_keep_their_order(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(300)]
    for number, name in enumerate(names):
        Image.new("RGB", (2, 2), (number % 256, number // 256, 9)).save(tmp_path / name)
    decoded = images.decode_all(Paths(tmp_path, names), (2, 2)).int()
    assert (decoded[:, 0, 0, 0] + 256 * decoded[:, 1, 0, 0]).tolist() == list(range(300))


# The decoded copy of a folder.


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """How often images were decoded, also in other processes."""
    monkeypatch.setattr(images, "_MIN_CACHED", 1)
    tally = tmp_path / "tally"
    tally.mkdir()
    real = images.decode_all

    def counted(*arguments: Any) -> Any:
        (tally / f"{os.getpid()}-{len(list(tally.iterdir()))}").touch()
        return real(*arguments)

    monkeypatch.setattr(images, "decode_all", counted)
    return lambda: len(list(tally.iterdir()))


def test_images_are_decoded_once(layouts: Any, decodes: Any) -> None:
    layouts.tiny_imagenet()
    first = load("tiny-imagenet", layouts.root)
    second = load("tiny-imagenet", layouts.root, fold=1)
    assert decodes() == 1
    assert content(first.train, first.val) == content(second.train, second.val)
    assert content(first.test) == content(second.test)


def test_a_changed_folder_and_a_damaged_copy_are_decoded_again(layouts: Any, decodes: Any) -> None:
    folder = layouts.tiny_imagenet()
    before = load("tiny-imagenet", layouts.root)
    copy = folder / images.CACHE_FILE
    good = copy.read_bytes()
    for bad in (good[:-1], good[:100], b"", good[:-5000] + bytes([good[-5000] ^ 1]) + good[-4999:]):
        copy.write_bytes(bad)
        count = decodes()
        assert content(load("tiny-imagenet", layouts.root).train) == content(before.train)
        assert content(load("tiny-imagenet", layouts.root).train) == content(before.train)
        assert decodes() == count + 1  # the second load used the new copy
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

    monkeypatch.setattr(os, "open", read_only)
    for count in (1, 2):
        assert len(load("tiny-imagenet", layouts.root).train) == 54
        assert decodes() == count
    monkeypatch.undo()
    assert not list(folder.glob(".pathgrow*"))


def test_a_full_disk_only_costs_the_copy(layouts: Any, decodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = layouts.tiny_imagenet()

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(images, "save_file", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert len(load("tiny-imagenet", layouts.root).train) == 54
    assert [path.name for path in folder.glob(".pathgrow*")] == [".pathgrow-images.lock"]


@pytest.mark.item(18)
def test_concurrent_processes_write_one_copy(layouts: Any, decodes: Any) -> None:
    folder = layouts.tiny_imagenet()
    (folder / f"{images.CACHE_FILE}.killed.tmp").write_bytes(b"half")
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
    assert sorted(path.name for path in folder.glob(".pathgrow*")) == [".pathgrow-images.lock", images.CACHE_FILE]


def test_small_datasets_leave_no_files(layouts: Any) -> None:
    folder = layouts.tiny_imagenet()
    load("tiny-imagenet", layouts.root)
    assert not list(folder.glob(".pathgrow*"))


# Crops.


def picture(number: int, height: int, width: int) -> np.ndarray:
    """Red and green encode the position, blue the number of the sample."""
    red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([red, green, np.full_like(red, 10 * number)], axis=2).astype(np.uint8)


def boxes(height: int, width: int, count: int) -> np.ndarray:
    drawn = torch.Generator().manual_seed(0)
    return np.array([random_box(height, width, drawn) for _ in range(count)])


def test_random_boxes_have_the_expected_area_aspect_and_position() -> None:
    count = 4000
    left, top, right, bottom = boxes(1000, 1000, count).T
    assert min(left.min(), top.min()) >= 0
    assert max(right.max(), bottom.max()) <= 1000
    area, aspect = (right - left) * (bottom - top) / 1e6, (right - left) / (bottom - top)
    assert 0.0795 < area.min() < 0.09  # round pixels may miss the limit by half a percent
    assert aspect.min() == pytest.approx(3 / 4, rel=0.01)
    assert aspect.max() == pytest.approx(4 / 3, rel=0.01)
    # Log-uniform, so symmetric about 1: five standard errors of a uniform variable of this width.
    assert abs(np.log(aspect).mean()) < 5 * 2 * math.log(4 / 3) / math.sqrt(12 * count)
    # In boxes that leave room, the place within it is uniform.
    room = (right - left) < 800
    place = left[room] / (1000 - (right - left)[room])
    assert abs(place.mean() - 0.5) < 5 / math.sqrt(12 * room.sum())
    # Areas of boxes that always fit (their shape never exceeds the image) are uniform: half of (0.08, 0.6) below 0.34.
    fitting = area[area < 0.6]
    assert abs((fitting < 0.34).mean() - 0.5) < 5 * 0.5 / math.sqrt(len(fitting))


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(10, 1000, Box(493, 0, 506, 10)), (1000, 10, Box(0, 493, 10, 506)), (1, 1, Box(0, 0, 1, 1))],
)
def test_the_center_is_taken_if_no_draw_fits(height: int, width: int, box: Box) -> None:
    drawn = {tuple(found) for found in boxes(height, width, 50).tolist()}
    assert tuple(box) in drawn
    if height != width:
        assert drawn == {tuple(box)}


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (40, 70), (1, 1)])
def test_evaluation_scales_the_shorter_side_and_crops_the_center(tmp_path: Path, height: int, width: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    path = tmp_path / "noise.png"
    Image.fromarray(pixels).save(path)
    found = read_crop(path, lambda h, w: center_box(h, w, (56, 56)), (3, 56, 56))
    shorter = min(height, width)
    scaled = Image.fromarray(pixels).resize(
        (round(64 * width / shorter), round(64 * height / shorter)), Image.Resampling.BILINEAR
    )
    left, top = round((scaled.width - 56) / 2), round((scaled.height - 56) / 2)
    plain = np.asarray(scaled.crop((left, top, left + 56, top + 56))).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - plain.astype(int)).max() <= 1


def test_large_jpegs_decode_at_a_fraction_of_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.jpg"
    Image.fromarray(picture(9, 900, 1200)).save(path, quality=95)
    drafts = []
    real = JpegImageFile.draft
    monkeypatch.setattr(JpegImageFile, "draft", lambda *given: drafts.append(given) or real(*given))
    box = Box(200, 100, 1000, 700)
    found = read_crop(path, lambda h, w: box, (3, 30, 40)).astype(int)
    assert len(drafts) == 1
    left, right = found[0, :, 0].mean(), found[0, :, -1].mean()
    assert left == pytest.approx(255 * 210 / 1200, abs=2)  # middle of the first of 40 columns of 20 pixels
    assert right == pytest.approx(255 * 990 / 1200, abs=2)
    assert found[1, 0].mean() == pytest.approx(255 * 110 / 900, abs=2)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_mode_gives_the_requested_channels(tmp_path: Path, mode: str, channels: int) -> None:
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    Image.fromarray(picture(3, 20, 20)).convert(mode).save(path)
    assert read_crop(path, lambda h, w: Box(0, 0, w, h), (channels, 5, 5)).shape == (channels, 5, 5)
