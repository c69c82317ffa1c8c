"""Where the noise of a run comes from: one seed, and another stream for every round, step and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pathgrow import methods
from pathgrow.masks import Masks
from pathgrow.masks.sampling import uniform
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress
from pathgrow.sparse.attach import attach

NUM = 4


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def seeds_of(method: Method, seed: int) -> list[int]:
    """Those of the global generator when batches are asked for, in the end as many as there were rounds."""
    asked: list[int] = []

    def batches() -> Iterator[Tensor]:
        asked.append(torch.initial_seed())
        yield torch.ones(2, 8)

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    sparse = attach(model, optimizer, method, scope=Masks.full(model), seed=seed, loss=squares, batches=batches)
    for _ in range(NUM):
        if method.clock == "round":
            sparse.grow_(2)
        squares(model, torch.ones(2, 8)).backward()
        optimizer.step()
    return asked


def test_growth_draws_anew_in_every_round_and_batches_are_shuffled_anew() -> None:
    drawn: list[int] = []

    def grow(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        drawn.append(draw.initial_seed())
        net.gradients()
        return uniform(candidates, count, draw)

    start = methods.create("random").start
    method = Method(name="noted", start=start, start_density=0.1, grow=grow, needs=frozenset({"gradients"}))
    asked = [seeds_of(method, seed) for seed in (0, 1, 0)]
    ones, others, again = drawn[:NUM], drawn[NUM : 2 * NUM], drawn[2 * NUM :]
    assert len(set(ones + others)) == 2 * NUM
    assert again == ones
    assert len(set(asked[0] + asked[1])) == 2 * NUM
    assert asked[2] == asked[0]


def test_changes_draw_anew_at_every_step() -> None:
    drawn: list[int] = []

    def update(net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        drawn.append(draw.initial_seed())
        return net.masks

    method = dataclasses.replace(methods.create("set", update_interval=1), update=update)
    for seed in (0, 1, 0):
        seeds_of(method, seed)
    assert len(set(drawn[: 2 * NUM])) == 2 * NUM
    assert drawn[2 * NUM :] == drawn[:NUM]
