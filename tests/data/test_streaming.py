"""The stream of batches from files: pure in seed and epoch, whatever the workers, and honest about faults."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

import pathgrow
from pathgrow.data import crops
from pathgrow.data.crops import Box, centre_box, random_box, read_part
from pathgrow.data.dataset import Paths, StreamedSplit
from pathgrow.data.streaming import StreamLoader
from pathgrow.errors import RunFailed, UserError

NUM = 22
SIZE = 8


def picture(number: int, height: int, width: int) -> np.ndarray:
    """Smooth in red and green, so that a place can be told from its colour; blue is the number of the sample."""
    red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([red, green, np.full_like(red, 10 * number)], axis=2).astype(np.uint8)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> StreamedSplit:
    folder = tmp_path_factory.mktemp("stream")
    names = [f"{number}.png" for number in range(NUM)]
    for number, name in enumerate(names):
        Image.fromarray(picture(number, 20 + number, 30 - number)).save(folder / name)
    labels = torch.arange(NUM) % 5
    return StreamedSplit(Paths(folder, names), labels, (127.5,) * 3, (60.0,) * 3, (3, SIZE, SIZE))


def collected(loader: StreamLoader, epoch: int = 0, start_batch: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels.clone()) for images, labels in loader.epoch(epoch, start_batch)]


def equal(a: list, b: list) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def samples(batches: list) -> list[int]:
    """Which samples came, told by their blue."""
    return [round(float(image[2].float().mean()) / 10) for images, _ in batches for image in images]


@pytest.mark.parametrize("train", [True, False])
def test_any_number_of_workers_and_any_start_give_the_same_batches(split: StreamedSplit, train: bool) -> None:
    whole = collected(StreamLoader(split, 4, train=train, seed=3, workers=0), epoch=2)
    assert len(whole) == (5 if train else 6)
    for workers in (0, 1, 2):
        loader = StreamLoader(split, 4, train=train, seed=3, workers=workers)
        for start in (0, 3) if workers else (0, 1, 3, len(whole)):
            assert equal(collected(loader, 2, start), whole[start:])


def test_training_epochs_are_orders_of_their_own(split: StreamedSplit) -> None:
    loader = StreamLoader(split, 4, train=True, seed=0, workers=0)
    first, second = collected(loader, 0), collected(loader, 1)
    other = collected(StreamLoader(split, 4, train=True, seed=1, workers=0), 0)
    assert len({tuple(samples(batches)) for batches in (first, second, other)}) == 3
    for batches in (first, second, other):
        found = samples(batches)
        assert len(found) == len(set(found)) == 20  # two of 22 do not fill a batch
        assert [int(label) for _, labels in batches for label in labels] == [number % 5 for number in found]
    assert set(samples(first)) != set(samples(second)), "the two that are left out change"
    # The same sample in another epoch shows another part.
    common = next(iter(set(samples(first)) & set(samples(second))))
    parts = [torch.cat([images for images, _ in run])[samples(run).index(common)] for run in (first, second)]
    assert not torch.equal(*parts)


def test_evaluation_shows_every_sample_once_in_order(split: StreamedSplit) -> None:
    batches = collected(StreamLoader(split, 4, train=False, seed=0, workers=0), epoch=7)
    assert samples(batches) == list(range(NUM))
    assert [len(labels) for _, labels in batches] == [4, 4, 4, 4, 4, 2]
    assert all(images.dtype == torch.uint8 and labels.dtype == torch.int64 for images, labels in batches)


@pytest.mark.parametrize(
    ("train", "batch_size", "num_ranks"), [(True, 6, 2), (True, 6, 3), (False, 5, 2), (False, 4, 3)]
)
def test_ranks_share_every_global_batch(split: StreamedSplit, train: bool, batch_size: int, num_ranks: int) -> None:
    whole = collected(StreamLoader(split, batch_size, train=train, seed=1, workers=0))
    ranks = [
        collected(StreamLoader(split, batch_size, train=train, seed=1, workers=0, shard=(rank, num_ranks)))
        for rank in range(num_ranks)
    ]
    joined = [tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True)) for parts in zip(*ranks, strict=True)]
    assert equal(joined, whole)
    sizes = [len(labels) for parts in ranks for _, labels in parts]
    assert not train or set(sizes) == {batch_size // num_ranks}


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generator_is_left_alone(split: StreamedSplit, workers: int) -> None:
    before = torch.get_rng_state()
    collected(StreamLoader(split, 4, train=True, seed=0, workers=workers))
    assert torch.equal(before, torch.get_rng_state())


# -- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_one_sentence_when_its_batch_is_due(
    split: StreamedSplit, tmp_path: Path, workers: int
) -> None:
    good = [split.paths[number].read_bytes() for number in range(6)]
    for number, content in enumerate(good):
        (tmp_path / f"{number}.png").write_bytes(content[:60] if number == 4 else content)
    broken = StreamedSplit(
        Paths(tmp_path, [f"{n}.png" for n in range(6)]), split.labels[:6], split.mean, split.std, split.shape
    )
    batches = StreamLoader(broken, 2, train=False, seed=0, workers=workers).epoch(0)
    assert samples([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"4\.png cannot be read as an image") as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    del batches, caught
    assert not multiprocessing.active_children()


def test_workers_end_with_their_iterator(split: StreamedSplit) -> None:
    batches = StreamLoader(split, 2, train=True, seed=0, workers=2).epoch(0)
    assert not multiprocessing.active_children(), "nothing starts before the first batch is asked for"
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


ORPHANS = """
import multiprocessing, sys, time, torch
from pathgrow.data.dataset import Paths, StreamedSplit
from pathgrow.data.streaming import StreamLoader
folder, *names = sys.argv[1:]
split = StreamedSplit(Paths(folder, names), torch.arange(len(names)), (0.0,) * 3, (1.0,) * 3, (3, 8, 8))
batches = StreamLoader(split, 2, train=False, seed=0, workers=3).epoch(0)
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells processes by /proc")
def test_workers_end_when_the_main_process_is_killed(split: StreamedSplit) -> None:
    folder, names = split.paths[0].parent, [split.paths[number].name for number in range(NUM)]
    command = [sys.executable, "-c", ORPHANS, str(folder), *names]
    here = {**os.environ, "PYTHONPATH": str(Path(pathgrow.__file__).parents[1])}
    main = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=here)
    assert main.stdout is not None
    workers = [int(pid) for pid in main.stdout.readline().split()]
    assert len(workers) == 3
    assert all(map(is_running, workers))
    main.kill()
    main.wait()
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def deadly(path: Path) -> torch.Tensor:
    """A decoder that kills its own process at one file, as a machine without memory would."""
    if path.name == "5.png":
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(3, 9, 9, dtype=torch.uint8)


def faulty(path: Path) -> torch.Tensor:
    raise AssertionError("not a fault of the file")


def test_an_error_of_the_decoder_itself_fails_the_run(split: StreamedSplit, capfd: pytest.CaptureFixture) -> None:
    loader = StreamLoader(split, 2, train=False, seed=0, workers=1, decoder=faulty)
    with pytest.raises(RunFailed, match=r"has died \(exit code 1\): its own error is printed above"):
        next(loader.epoch(0))
    assert "not a fault of the file" in capfd.readouterr().err


def test_a_killed_worker_fails_the_run_in_one_sentence(split: StreamedSplit) -> None:
    loader = StreamLoader(split, 2, train=False, seed=0, workers=1, decoder=deadly)
    with pytest.raises(
        RunFailed, match=r"a process that decodes images has died \(killed by SIGKILL\): use fewer"
    ) as caught:
        list(loader.epoch(0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size 0 and workers 0"),
        ({"workers": -1}, "batch_size 4 and workers -1"),
        ({"shard": (2, 2)}, r"shard is \(2, 2\)"),
        ({"shard": (0, 3)}, "a batch of 4 does not divide among 3 ranks"),
        ({"batch_size": 23}, "a batch of 23 is more than the 22 training samples"),
        ({"decoder": "opencv"}, "unknown image decoder 'opencv'"),
    ],
)
def test_what_cannot_be_is_refused(split: StreamedSplit, options: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        StreamLoader(split, **{"batch_size": 4, "train": True, "seed": 0, "workers": 0, **options})


def test_a_start_beyond_the_epoch_is_refused(split: StreamedSplit) -> None:
    with pytest.raises(UserError, match="an epoch of 5 batches cannot start at batch 6"):
        StreamLoader(split, 4, train=True, seed=0, workers=0).epoch(0, 6)


# -- decoders -------------------------------------------------------------------------------------------------------


def whole_image(path: Path) -> torch.Tensor:
    if path.name == "3.png":
        raise RuntimeError("not a PNG\nfile")
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)


def test_another_decoder_shows_the_same_pictures(split: StreamedSplit) -> None:
    for train in (True, False):
        pillow = collected(StreamLoader(split, 3, train=train, seed=0, workers=0), 0)
        batches = StreamLoader(split, 3, train=train, seed=0, workers=0, decoder=whole_image).epoch(0)
        (theirs, labels), (ours, same) = next(batches), pillow[0]
        assert torch.equal(labels, same)
        # Boxes are rounded to whole pixels here: with 255 levels over 20 pixels, an edge may move by one of them.
        assert (theirs.float() - ours.float()).abs().mean() < 4
    with pytest.raises(UserError, match=r"3\.png cannot be read as an image \(not a PNG file\)"):
        list(StreamLoader(split, 4, train=False, seed=0, workers=0, decoder=whole_image).epoch(0))


def test_a_decoder_must_give_bytes(split: StreamedSplit) -> None:
    loader = StreamLoader(split, 4, train=False, seed=0, workers=0, decoder=lambda path: torch.zeros(3, 9, 9))
    with pytest.raises(UserError, match=r"gave torch.float32 of shape \(3, 9, 9\) for .*0\.png"):
        list(loader.epoch(0))


def test_torchvision_is_asked_for_by_name(split: StreamedSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.SimpleNamespace(
        read_file=lambda name: name,
        decode_image=lambda name, mode: torch.from_numpy(np.array(Image.open(name).convert(mode))).permute(2, 0, 1),
        ImageReadMode=types.SimpleNamespace(RGB="RGB"),
    )
    monkeypatch.setitem(sys.modules, "torchvision.io", stand_in)
    loader = StreamLoader(split, 11, train=False, seed=0, workers=0, decoder="torchvision")
    assert samples(collected(loader)) == list(range(NUM))
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(UserError, match=r"pip install 'pathgrow\[torchvision\]', or use the decoder pillow"):
        StreamLoader(split, 4, train=True, seed=0, decoder="torchvision")


# -- boxes ----------------------------------------------------------------------------------------------------------


def boxes(height: int, width: int, count: int) -> np.ndarray:
    drawn = torch.Generator().manual_seed(0)
    return np.array([random_box(height, width, drawn) for _ in range(count)])


def test_random_boxes_have_the_area_the_shape_and_the_places_they_should() -> None:
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
def test_where_no_draw_fits_the_centre_is_taken(height: int, width: int, box: Box) -> None:
    drawn = {tuple(found) for found in boxes(height, width, 50).tolist()}
    assert tuple(box) in drawn
    if height != width:
        assert drawn == {tuple(box)}


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (40, 70), (1, 1)])
def test_evaluation_is_scaling_by_the_shorter_side_then_the_centre(tmp_path: Path, height: int, width: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    path = tmp_path / "noise.png"
    Image.fromarray(pixels).save(path)
    found = read_part(path, lambda h, w: centre_box(h, w, (56, 56)), (3, 56, 56))
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
    found = read_part(path, lambda h, w: box, (3, 30, 40)).astype(int)
    assert len(drafts) == 1
    left, right = found[0, :, 0].mean(), found[0, :, -1].mean()
    assert left == pytest.approx(255 * 210 / 1200, abs=2)  # middle of the first of 40 columns of 20 pixels
    assert right == pytest.approx(255 * 990 / 1200, abs=2)
    assert found[1, 0].mean() == pytest.approx(255 * 110 / 900, abs=2)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_picture_has_the_channels_that_are_wanted(tmp_path: Path, mode: str, channels: int) -> None:
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    Image.fromarray(picture(3, 20, 20)).convert(mode).save(path)
    assert read_part(path, lambda h, w: Box(0, 0, w, h), (channels, 5, 5)).shape == (channels, 5, 5)


def test_crops_names_what_results_are_obtained_with() -> None:
    assert (crops.AREA, crops.ASPECT) == ((0.08, 1.0), (3 / 4, 4 / 3))
