"""Streamed batches: a pure function of seed and epoch for any number of workers, and clear errors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from pathgrow.data import streaming
from pathgrow.data.dataset import Paths, StreamedSplit
from pathgrow.data.images import torchvision_decoder
from pathgrow.data.streaming import StreamLoader
from pathgrow.errors import RunFailed, UserError

NUM = 22
SIZE = 8


def picture(number: int, height: int, width: int) -> np.ndarray:
    """Red and green encode the position, blue the number of the sample."""
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
    """Numbers of the samples, decoded from blue."""
    return [round(float(image[2].float().mean()) / 10) for images, _ in batches for image in images]


@pytest.mark.parametrize("train", [True, False])
def test_any_number_of_workers_and_any_start_give_the_same_batches(split: StreamedSplit, train: bool) -> None:
    whole = collected(StreamLoader(split, 4, train=train, seed=3, workers=0), epoch=2)
    assert len(whole) == (5 if train else 6)
    for workers in (0, 1, 2):
        loader = StreamLoader(split, 4, train=train, seed=3, workers=workers)
        for start in (0, 3) if workers else (0, 1, 3, len(whole)):
            assert equal(collected(loader, 2, start), whole[start:])


@pytest.mark.parametrize("limit", [1, 2, 4, 64])
def test_by_default_there_are_as_many_workers_as_cpus(
    split: StreamedSplit, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object, num_workers: int, **__: object) -> None:
        raise InterruptedError(num_workers)

    monkeypatch.setattr(streaming, "available_cpus", lambda: limit)
    monkeypatch.setattr(streaming, "DataLoader", build)
    with pytest.raises(InterruptedError, match=f"^{min(4, limit)}$"):
        next(StreamLoader(split, 4, train=True, seed=0).epoch(0))


def test_every_training_epoch_has_its_own_order(split: StreamedSplit) -> None:
    loader = StreamLoader(split, 4, train=True, seed=0, workers=0)
    first, second = collected(loader, 0), collected(loader, 1)
    other = collected(StreamLoader(split, 4, train=True, seed=1, workers=0), 0)
    assert len({tuple(samples(batches)) for batches in (first, second, other)}) == 3
    for batches in (first, second, other):
        found = samples(batches)
        assert len(found) == len(set(found)) == 20  # the last two of 22 do not fill a batch
        assert [int(label) for _, labels in batches for label in labels] == [number % 5 for number in found]
    assert set(samples(first)) != set(samples(second)), "the dropped samples change"
    # Another epoch takes another crop of a sample.
    common = next(iter(set(samples(first)) & set(samples(second))))
    parts = [torch.cat([images for images, _ in run])[samples(run).index(common)] for run in (first, second)]
    assert not torch.equal(*parts)


def test_evaluation_keeps_the_order_and_every_sample(split: StreamedSplit) -> None:
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
def test_the_global_generator_is_unchanged(split: StreamedSplit, workers: int) -> None:
    before = torch.get_rng_state()
    collected(StreamLoader(split, 4, train=True, seed=0, workers=workers))
    assert torch.equal(before, torch.get_rng_state())


# Errors.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_gives_one_sentence_at_its_batch(split: StreamedSplit, tmp_path: Path, workers: int) -> None:
    good = [split.paths[number].read_bytes() for number in range(6)]
    for number, content in enumerate(good):
        (tmp_path / f"{number}.png").write_bytes(content[:60] if number == 4 else content)
    broken = StreamedSplit(
        Paths(tmp_path, [f"{n}.png" for n in range(6)]), split.labels[:6], split.mean, split.std, split.shape
    )
    batches = StreamLoader(broken, 2, train=False, seed=0, workers=workers).epoch(0)
    assert samples([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"cannot decode .*4\.png") as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    del batches, caught
    assert not multiprocessing.active_children()


def test_workers_end_with_their_iterator(split: StreamedSplit) -> None:
    batches = StreamLoader(split, 2, train=True, seed=0, workers=2).epoch(0)
    assert not multiprocessing.active_children(), "workers start with the first batch"
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def deadly(path: Path) -> torch.Tensor:
    """A decoder that kills its process at one file, like the out-of-memory killer."""
    if path.name == "5.png":
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(3, 9, 9, dtype=torch.uint8)


def broken(path: Path) -> torch.Tensor:
    raise AssertionError("a bug of the decoder")


def test_a_bug_of_the_decoder_is_raised_as_it_is(split: StreamedSplit) -> None:
    loader = StreamLoader(split, 2, train=False, seed=0, workers=1, decoder=broken)
    with pytest.raises(AssertionError, match="a bug of the decoder"):
        next(loader.epoch(0))


def test_a_dead_worker_fails_the_run_in_one_sentence(split: StreamedSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # seconds, usually 5
    before = signal.getsignal(signal.SIGCHLD)
    batches = StreamLoader(split, 2, train=False, seed=0, workers=1, decoder=deadly).epoch(0)
    with pytest.raises(RunFailed, match=r"an image decoding worker failed \(.+\): use fewer workers") as caught:
        list(batches)
    assert "\n" not in str(caught.value)
    assert signal.getsignal(signal.SIGCHLD) == before  # no errors at other points of the main thread


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"workers": -1}, "workers must be >= 0, got -1"),
        ({"shard": (2, 2)}, r"shard must be .*, got \(2, 2\)"),
        ({"shard": (0, 3)}, "batch_size must be a multiple of the 3 ranks, got 4"),
        ({"batch_size": 23}, "batch_size must be <= 22, the number of training samples, got 23"),
        ({"decoder": "opencv"}, "unknown image decoder 'opencv'"),
    ],
)
def test_invalid_arguments(split: StreamedSplit, options: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        StreamLoader(split, **{"batch_size": 4, "train": True, "seed": 0, "workers": 0, **options})


def test_a_start_beyond_the_epoch_is_refused(split: StreamedSplit) -> None:
    with pytest.raises(UserError, match=r"start_batch must be in \[0, 5\], got 6"):
        StreamLoader(split, 4, train=True, seed=0, workers=0).epoch(0, 6)


# Decoders.


def whole_image(path: Path) -> torch.Tensor:
    if path.name == "3.png":
        raise RuntimeError("not a PNG\nfile")
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)


def test_other_decoders_give_the_same_images(split: StreamedSplit) -> None:
    for train in (True, False):
        pillow = collected(StreamLoader(split, 3, train=train, seed=0, workers=0), 0)
        batches = StreamLoader(split, 3, train=train, seed=0, workers=0, decoder=whole_image).epoch(0)
        (theirs, labels), (ours, same) = next(batches), pillow[0]
        assert torch.equal(labels, same)
        # Boxes are rounded to whole pixels here: with 255 levels over 20 pixels, an edge may move by one of them.
        assert (theirs.float() - ours.float()).abs().mean() < 4
    with pytest.raises(UserError, match=r"cannot decode .*3\.png \(not a PNG file\)"):
        list(StreamLoader(split, 4, train=False, seed=0, workers=0, decoder=whole_image).epoch(0))


def test_decoders_must_return_bytes(split: StreamedSplit) -> None:
    loader = StreamLoader(split, 4, train=False, seed=0, workers=0, decoder=lambda path: torch.zeros(3, 9, 9))
    with pytest.raises(UserError, match=r"got torch.float32 of shape \(3, 9, 9\) for .*0\.png"):
        list(loader.epoch(0))


def test_torchvision_is_selected_by_name(split: StreamedSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.SimpleNamespace(
        read_file=lambda name: name,
        decode_image=lambda name, mode: torch.from_numpy(np.array(Image.open(name).convert(mode))).permute(2, 0, 1),
        ImageReadMode=types.SimpleNamespace(RGB="RGB"),
    )
    monkeypatch.setitem(sys.modules, "torchvision.io", stand_in)
    loader = StreamLoader(split, 11, train=False, seed=0, workers=0, decoder="torchvision")
    assert samples(collected(loader)) == list(range(NUM))
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(UserError, match=r"pip install 'pathgrow\[torchvision\]', or use 'pillow'"):
        StreamLoader(split, 4, train=True, seed=0, decoder="torchvision")


def test_a_torchvision_for_another_torch_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch, "__version__", "2.9.0a0+gitabc")
    expected = r"torch 2.9.0a0\+gitabc \(operator .* missing\): install the torchvision that was built with it$"
    with pytest.raises(UserError, match=expected):
        torchvision_decoder()
