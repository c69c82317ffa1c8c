"""What choosing the first masks costs, against figures by hand and against products that torch counts itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pathgrow import attach, methods
from pathgrow.graph import trace
from pathgrow.graph.flops import start_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import ScoringCost

MACS = 4 * 3 + 3 * 2
NO_DATA = ScoringCost()


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batches(num: int, size: int, width: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(size, width, generator=draw), torch.arange(size) % 2) for _ in range(num)]


def charge(model: nn.Module, width: int, method: str, size: int, **options: Any) -> ScoringCost:
    made = methods.create(method, **({"density": 0.5} | options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = attach(
        model,
        optimizer,
        made,
        torch.zeros(1, width),
        scope=Masks.full(model),
        loss=loss,
        batches=batches(3, size, width),
    )
    found = sparse.last_scoring_cost
    sparse.detach()
    return found


@pytest.mark.parametrize(
    ("method", "options", "passes"),
    [
        ("random", {}, 0),
        ("magnitude", {}, 0),
        ("erk", {}, 0),
        ("phew", {}, 0),
        ("snip", {}, 5),  # one gradient of each of five samples
        ("grasp", {}, 5 + 5 + 2 * 5),  # g; then g once more, and back through it
        ("grasp", {"num_batches": 2}, 4 * 10),
        ("synflow", {"num_iterations": 4}, 4),  # 9 of 18 weights in four steps, each of which takes some
        ("dpai", {"num_search_steps": 7}, 7),
    ],
)
def test_the_price_of_a_start_by_hand(method: str, options: dict[str, int], passes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    found = charge(model, 4, method, 5, **options)
    assert start_flops(trace(model, torch.zeros(1, 4)), **dataclasses.asdict(found)) == passes * 3 * 2 * MACS


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_the_price_of_gradients_is_that_of_the_products_that_torch_makes(method: str) -> None:
    depth, width, size = 24, 16, 64
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())])
    with FlopCounterMode(display=False) as counter:
        found = charge(model, width, method, size)
    price = start_flops(trace(model, torch.zeros(1, width)), **dataclasses.asdict(found))
    # The first layer's input wants no gradient, so the network does a little less than the formula says.
    assert counter.get_total_flops() == pytest.approx(price, rel=1.5 / depth)
    assert counter.get_total_flops() < price


def test_a_change_of_the_masks_tells_its_own_reading() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = dataclasses.replace(methods.create("imp_c"), start=methods.create("snip").start, start_density=0.9)
    sparse = attach(model, optimizer, made, scope=Masks.full(model), loss=loss, batches=batches(1, 5, 4))
    assert sparse.last_scoring_cost == ScoringCost(num_gradient_samples=5)
    assert sparse.advance_()
    assert sparse.last_scoring_cost == NO_DATA
