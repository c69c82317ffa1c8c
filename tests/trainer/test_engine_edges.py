"""The engine at its edges: interrupted, with little data, with little memory, one sample at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathgrow.data.dataset import Dataset, Split
from pathgrow.distributed.comm import SingleProcess
from pathgrow.errors import UserError
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.feed import DeviceSplit, ResidentFeed
from pathgrow.trainer.recipes import Recipe

CPU = EngineOptions(device="cpu")


def numbered(num: int) -> Dataset:
    """Images of one pixel that is the number of the sample."""
    split = Split(torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(num) % 2, (0.0,), (1.0,))
    return Dataset("numbered", 2, split, split, split)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1, 2))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_interrupted_training_leaves_the_learning_rate_it_began_with(optimizer: str) -> None:
    trainer = Trainer(numbered(32), Recipe(lr=1e-4, batch_size=4, optimizer=optimizer, decay_all=False), CPU)
    model, slots = trainer.place(linear())
    calls = 0

    def interrupt(module: nn.Module, given: object, out: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt

    model.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer(model, slots, 1)
    assert [group["lr"] for group in slots.param_groups] == [1e-4] * len(slots.param_groups)


def test_batches_for_growth_are_no_larger_than_what_a_step_computes_at_once() -> None:
    whole, parts = (Trainer(numbered(20), Recipe(batch_size=8, accumulate=n), CPU) for n in (1, 4))
    assert [len(labels) for _, labels in whole.batches()] == [8, 8, 4]
    assert [len(labels) for _, labels in parts.batches()] == [2] * 10


@pytest.mark.parametrize(("size", "num"), [(2, 28), (3, 30)])
def test_processes_share_data_that_do_not_fill_a_batch(size: int, num: int) -> None:
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


@pytest.mark.parametrize("num", [31, 32, 33])
def test_processes_get_equally_many_rows_of_every_batch_for_growth(num: int) -> None:
    class One(SingleProcess):
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

    found = []
    for rank in range(2):
        torch.manual_seed(0)
        trainer = Trainer(numbered(num), Recipe(batch_size=8), CPU, comm=One(rank))
        found.append([images.flatten().tolist() for images, _ in trainer.batches()])
    assert [len(rows) for rows in found[0]] == [len(rows) for rows in found[1]] == [4] * (num // 8)
    seen = [number for batches in found for rows in batches for number in rows]
    assert len(set(seen)) == len(seen)


def test_fewer_samples_than_parts_are_one_sentence() -> None:
    resident = DeviceSplit(numbered(3).train, torch.device("cpu"))
    with pytest.raises(UserError, match=r"3 training samples cannot be split into 4 microbatches: .* fewer processes"):
        ResidentFeed(resident, Recipe(batch_size=8, accumulate=2), 2, seed=0, num_epochs=1, shard=(0, 2))


@pytest.mark.parametrize(("batch_size", "accumulate"), [(1, 1), (4, 4)])
def test_batch_norm_over_one_value_is_one_sentence(batch_size: int, accumulate: int) -> None:
    trainer = Trainer(numbered(8), Recipe(batch_size=batch_size, accumulate=accumulate), CPU)
    model, slots = trainer.place(normed())
    ways: list[Callable[[], object]] = [
        lambda: trainer(model, slots, 1),
        lambda: trainer.loss(model.train(), next(trainer.batches())),
    ]
    for way in ways:
        with pytest.raises(UserError, match=r"one sample at a time .*; use a larger batch size"):
            way()
