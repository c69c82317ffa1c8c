"""Batches: how an epoch is split over ranks, images streamed from files, and windows of a text."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pathgrow import data as datasets
from pathgrow import models
from pathgrow.augment import Augment
from pathgrow.checkpoint import MemoryStore
from pathgrow.data.dataset import Dataset, Split, StreamedSplit, TextSplit
from pathgrow.data.streaming import StreamLoader
from pathgrow.distributed.comm import SingleProcess
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods import create, fixed
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer import EngineOptions, Trainer, feed, recipes
from pathgrow.trainer.eager_step import forward_loss
from pathgrow.trainer.feed import DeviceSplit, DeviceText, ResidentFeed, StreamedFeed, TextFeed
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe
from tests.support.graphs_on_a_cpu import graphs_on_a_cpu
from tests.support.text_data import SMALL_GPT, write_text

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


# Text

RECIPE = recipes.recipe("gpt").override({"batch_size": 16})


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("text")
    write_text(root)
    return datasets.load("text", root, context=8)


def text_feed(dataset: Dataset, seed: int = 0, **options: Any) -> TextFeed:
    assert isinstance(dataset.train, TextSplit)
    return TextFeed(
        DeviceText(dataset.train, torch.device("cpu")), RECIPE, dataset.classes, seed=seed, num_epochs=3, **options
    )


def numpy_loss(logits: Tensor, targets: Tensor) -> float:
    """Mean negative log-likelihood in nats per character."""
    scores, right = logits.detach().double().numpy(), targets.numpy()
    chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    rows, columns = np.indices(right.shape)
    return float(-np.log(chances[rows, columns, right]).mean())


def test_an_epoch_reads_the_text_once_from_an_offset_of_its_own(text: Dataset) -> None:
    made, offsets = text_feed(text), set()
    codes = text.train.codes.tolist()  # type: ignore[union-attr]
    for epoch in range(3):
        made.fill_(epoch)
        starts = made._tables["starts"]
        assert starts.shape == (made.num_steps, 16)
        found = starts.flatten().tolist()
        assert len(set(found)) == len(found)
        assert {start % 8 for start in found} == {found[0] % 8}, "windows do not overlap"
        assert found != sorted(found)
        offsets.add(found[0] % 8)
        for step in (0, made.num_steps - 1):
            inputs, targets = made.batch(step)
            assert inputs.tolist() == [codes[start : start + 8] for start in starts[step].tolist()]
            assert targets.tolist() == [codes[start + 1 : start + 9] for start in starts[step].tolist()]
            on_device = made.batch(torch.tensor(step))
            assert torch.equal(inputs, on_device[0])
    assert len(offsets) > 1


def test_windows_depend_on_seed_and_epoch_only_and_ranks_share_them(text: Dataset) -> None:
    first, again, other = text_feed(text), text_feed(text), text_feed(text, seed=1)
    for each in (first, again, other):
        each.fill_(1)
    assert torch.equal(first._tables["starts"], again._tables["starts"])
    assert not torch.equal(first._tables["starts"], other._tables["starts"])
    halves = [text_feed(text, shard=(rank, 2)) for rank in range(2)]
    for half in halves:
        half.fill_(1)
    both = torch.cat([half._tables["starts"] for half in halves], dim=1)
    assert torch.equal(both.sort(dim=1).values, first._tables["starts"].sort(dim=1).values)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_training_loss_is_that_of_numpy(accumulate: int, text: Dataset) -> None:
    model = models.create("gpt", text.classes, seed=0, dropout=0.0, **SMALL_GPT)
    made, plan = text_feed(text), RECIPE.override({"accumulate": accumulate})
    made.fill_(0)
    inputs, targets = made.batch(0)
    found = sum(forward_loss(model, made, 0, part, plan, None).item() for part in range(accumulate))
    assert found == pytest.approx(numpy_loss(model(inputs), targets), rel=1e-5)


def test_evaluation_is_the_loss_of_consecutive_windows(text: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_EVALUATION_CHARACTERS", 40)  # batches of 5 windows, and a smaller one
    trainer = Trainer(text, RECIPE, EngineOptions(device="cpu"))
    model = models.create("gpt", text.classes, seed=0, **SMALL_GPT)
    score, loss = trainer.evaluate(text.val)(model)
    codes, num = text.val.codes.long(), len(text.val)  # type: ignore[union-attr]
    inputs, targets = (codes[shift : shift + 8 * num].view(num, 8) for shift in (0, 1))
    assert score == loss == pytest.approx(numpy_loss(model.eval()(inputs), targets), rel=1e-6)


def test_losses_of_mask_updates_are_of_training_windows(text: Dataset) -> None:
    trainer = Trainer(text, RECIPE, EngineOptions(device="cpu"))
    model = models.create("gpt", text.classes, seed=0, dropout=0.0, **SMALL_GPT)
    batches = list(trainer.batches())
    inputs, targets = batches[0]
    assert trainer.loss(model, batches[0]).item() == pytest.approx(numpy_loss(model(inputs), targets), rel=1e-5)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert sum(len(inputs) for inputs, _ in batches) == len(text.train)


@pytest.mark.parametrize("method", ["rigl", "gts"])
def test_cuda_graph_steps_train_like_eager_steps(method: str, text: Dataset) -> None:
    found = []
    for step in ("cuda_graph", "eager"):
        with graphs_on_a_cpu() if step == "cuda_graph" else nullcontext():
            trainer = Trainer(text, RECIPE, EngineOptions(device="cpu", step=step))  # type: ignore[arg-type]
            model, optimizer = trainer.place(models.create("gpt", text.classes, seed=0, dropout=0.0, **SMALL_GPT))
            num_steps = 2 * (len(text.train) // 16)
            attached = attach(
                model, optimizer, create(method, density=0.3, num_steps=num_steps, update_interval=5),
                text.example_input(), seed=1,
            )  # fmt: skip
            trainer.train([Job(attached=attached, epochs=2, seed=7)])
            found.append((attached.masks, model.state_dict(), trainer.evaluate(text.val)(model)[0]))
    (masks, weights, loss), (other_masks, other_weights, other_loss) = found
    assert masks == other_masks
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, other_weights[name], rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(other_loss, rel=1e-5)


def test_training_lowers_the_loss(text: Dataset) -> None:
    trainer = Trainer(text, RECIPE.override({"lr": 0.01}), EngineOptions(device="cpu"))
    model, optimizer = trainer.place(models.create("gpt", text.classes, seed=0, **SMALL_GPT))
    before = trainer.evaluate(text.val)(model)[0]
    assert before == pytest.approx(np.log(text.classes), rel=0.02), "small initial weights predict all characters alike"
    masks = Masks.full(model)
    trainer.train([Job(attached=attach(model, optimizer, fixed(masks), scope=masks), epochs=6, seed=0)])
    assert trainer.evaluate(text.val)(model)[0] < 0.8 * before


def test_a_recipe_for_images_is_refused(text: Dataset) -> None:
    assert isinstance(text.train, TextSplit)
    with pytest.raises(UserError, match="text cannot be augmented"):
        TextFeed(
            DeviceText(text.train, torch.device("cpu")), recipes.recipe("cifar"), text.classes, seed=0, num_epochs=1
        )
