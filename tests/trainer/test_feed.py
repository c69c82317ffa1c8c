"""Batches: how an epoch is split over ranks, and images streamed from files."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pathgrow.augment import Augment
from pathgrow.checkpoint import MemoryStore
from pathgrow.data.dataset import Dataset, Split, StreamedSplit
from pathgrow.data.streaming import StreamLoader
from pathgrow.distributed.comm import SingleProcess
from pathgrow.errors import UserError
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.feed import DeviceSplit, ResidentFeed, StreamedFeed
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe

PLAN = Recipe(batch_size=8, lr=0.05, warmup=0.0)
MEAN, STD = (100.0,) * 3, (50.0,) * 3


# Resident data


def numbered(num: int) -> Dataset:
    """Images of one pixel, which holds the index of the sample."""
    split = Split(torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(num) % 2, (0.0,), (1.0,))
    return Dataset("numbered", 2, split, split, split)


@pytest.mark.parametrize(("size", "num"), [(2, 28), (3, 30)])
def test_ranks_split_data_that_do_not_fill_a_batch(size: int, num: int) -> None:
    data, recipe = numbered(31), Recipe(batch_size=36, accumulate=2)
    rows = []
    for rank in range(size):
        resident = DeviceSplit(data.train, torch.device("cpu"))
        feed = ResidentFeed(resident, recipe, 2, seed=0, num_epochs=1, shard=(rank, size))
        feed.fill_(0)
        assert (feed.batch_size, feed.num_steps) == (num, 1)
        rows.append(feed.batch(0)[0].flatten().tolist())
    assert {len(own) for own in rows} == {num // size}
    assert len({number for own in rows for number in own}) == num


def test_fewer_samples_than_microbatches_are_refused() -> None:
    resident = DeviceSplit(numbered(3).train, torch.device("cpu"))
    with pytest.raises(UserError, match=r"3 training samples cannot be split into 4 microbatches: .* fewer processes"):
        ResidentFeed(resident, Recipe(batch_size=8, accumulate=2), 2, seed=0, num_epochs=1, shard=(0, 2))


# Streamed data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    paths: list[Path] = []
    for index in range(40):
        pixels = draw.integers(0, 100, (20, 24, 3)) + 100 * (index % 2)
        paths.append(folder / f"{index}.png")
        Image.fromarray(pixels.astype(np.uint8)).save(paths[-1])
    labels = torch.arange(40) % 2
    train = StreamedSplit(tuple(paths[:28]), labels[:28], MEAN, STD, (3, 16, 16))
    val = StreamedSplit(tuple(paths[28:]), labels[28:], MEAN, STD, (3, 16, 16))
    return Dataset("files", 2, train, val, val)


def network(trainer: Trainer) -> Attached:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 2))
    model, optimizer = trainer.place(net)
    return attach(model, optimizer, "random_growth", torch.zeros(1, 3, 16, 16))


def trainer(data: Dataset, workers: int = 0) -> Trainer:
    return Trainer(data, PLAN, EngineOptions(device="cpu"), workers=workers)


def weights(attached: Attached) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in attached.model.state_dict().items()}


def test_batches_are_those_of_the_loader(data: Dataset) -> None:
    fed: list[torch.Tensor] = []
    ours = trainer(data)
    attached = network(ours)
    attached.model.register_forward_pre_hook(lambda module, args: fed.append(args[0].clone()))
    assert ours.train([Job(attached=attached, epochs=2, seed=5)]) == [2 * 24]
    expected = []
    for epoch in range(2):
        loader = StreamLoader(data.train, 8, train=True, seed=5, workers=0)  # type: ignore[arg-type]
        expected += [(images.float() - 100) / 50 for images, _ in loader.epoch(epoch)]
    assert len(fed) == 6
    assert all(torch.allclose(a, b) for a, b in zip(fed, expected, strict=True))
    assert not torch.equal(fed[0], fed[3])


def test_an_unfinished_epoch_does_not_continue_in_the_next(data: Dataset) -> None:
    feed = StreamedFeed(data.train, torch.device("cpu"), PLAN, 2, 0, seed=5, num_epochs=2)  # type: ignore[arg-type]
    feed.fill_(0)
    feed.load_(0)
    feed.fill_(1)
    feed.load_(1)
    loader = StreamLoader(data.train, 8, train=True, seed=5, workers=0)  # type: ignore[arg-type]
    (images, labels), *_ = loader.epoch(1, start_batch=1)
    found = feed.batch(1)
    assert torch.equal(found[0], (images.float() - 100) / 50)
    assert torch.equal(found[1], labels)


def test_ranks_split_a_batch_and_the_draws_of_its_samples(data: Dataset) -> None:
    flipping = dataclasses.replace(PLAN, augment=Augment(flip=True))

    def first_batch(shard: tuple[int, int]) -> torch.Tensor:
        feed = StreamedFeed(
            data.train,
            torch.device("cpu"),
            flipping,
            2,
            0,
            seed=5,
            num_epochs=1,
            shard=shard,  # type: ignore[arg-type]
        )
        feed.fill_(0)
        feed.load_(0)
        return feed.batch(0)[0]

    joined = torch.cat([first_batch((rank, 2)) for rank in range(2)])
    assert torch.equal(joined, first_batch((0, 1)))


def test_training_learns_and_evaluation_equals_a_plain_loop(data: Dataset) -> None:
    ours = trainer(data, workers=2)
    attached = network(ours)
    ours.train([Job(attached=attached, epochs=4, seed=1)])
    accuracy, loss = ours.evaluate(data.val)(attached.model)
    attached.model.eval()
    logits = []
    with torch.no_grad():
        for images, _ in StreamLoader(data.val, 5, train=False, seed=0, workers=0).epoch(0):  # type: ignore[arg-type]
            logits.append(attached.model((images.float() - 100) / 50))
    scores = torch.cat(logits).double()
    assert accuracy == float((scores.argmax(1) == data.val.labels).double().mean()) > 0.9
    assert loss == pytest.approx(float(nn.functional.cross_entropy(scores, data.val.labels)), rel=1e-5)


class OneOfTwo(SingleProcess):
    """A rank whose all-reduce does nothing, and whose rank 0 has this model."""

    size = 2

    def __init__(self, rank: int, first: nn.Module) -> None:
        self.rank, self._first = rank, first

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        for mine, theirs in zip(tensors, self._first.buffers(), strict=True):
            mine.copy_(theirs)


@pytest.mark.parametrize("in_memory", [False, True])
def test_two_ranks_evaluate_a_part_each_with_the_buffers_of_rank_0(in_memory: bool, data: Dataset) -> None:
    split = data.val
    if in_memory:
        (images, _), *_ = StreamLoader(split, 12, train=False, seed=0, workers=0).epoch(0)  # type: ignore[arg-type]
        split = Split(images, split.labels, MEAN, STD)
    split = dataclasses.replace(split, labels=torch.arange(12) % 3 % 2)  # half right, half wrong in every part
    models = [network(trainer(data)).model for _ in range(2)]
    for scale, model in enumerate(models, start=1):
        model[1].running_var.fill_(float(scale))
    accuracy, loss = trainer(data).evaluate(split)(models[0])
    options = EngineOptions(device="cpu")
    scores = [
        Trainer(data, PLAN, options, workers=0, comm=OneOfTwo(rank, models[0])).evaluate(split)(models[rank])
        for rank in range(2)
    ]
    assert 0 < scores[0][0] < accuracy < 1
    assert accuracy == pytest.approx(scores[0][0] + scores[1][0])
    assert loss == pytest.approx(scores[0][1] + scores[1][1], rel=1e-6)


def test_workers_end_with_the_training(data: Dataset) -> None:
    before = set(multiprocessing.active_children())
    ours = trainer(data, workers=2)
    attached = network(ours)
    ours.train([Job(attached=attached, epochs=2, seed=1)])
    assert set(multiprocessing.active_children()) <= before
    assert attached.engine_cache, "what was prepared for the network is kept"


class Killed(Exception):
    """Stands for SIGKILL."""


class KilledAfter(TrainingCheckpoint):
    """Saves after every step and is killed after the fourth, in the middle of the second epoch."""

    def is_due(self, step: int, elapsed: float) -> bool:
        return True

    def save(self, attached: Attached, step: int, noise: torch.Tensor) -> None:
        super().save(attached, step, noise)
        if step == 4:
            raise Killed


def test_a_training_killed_within_an_epoch_resumes_with_the_same_bits(data: Dataset) -> None:
    ours = trainer(data)
    undisturbed = network(ours)
    ours.train([Job(attached=undisturbed, epochs=3, seed=2)])
    store = MemoryStore()
    with pytest.raises(Killed):
        ours.train([Job(attached=network(ours), epochs=3, seed=2, progress=KilledAfter(store, "partial"))])
    again = network(ours)
    ours.train([Job(attached=again, epochs=3, seed=2, progress=TrainingCheckpoint(store, "partial"))])
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(undisturbed).items())
