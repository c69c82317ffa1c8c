"""`discover` against a network whose score is a known function of its density and of its training.

The score that the toy can reach is an exponential in its density; each epoch moves it a fixed fraction closer, so it
depends on training time and lags behind after every growth step. Density is counted on the model itself: weights that
are nonzero after real optimizer steps. The answers are known in closed form.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pathgrow.density.probe import CLOSE
from pathgrow.runs.api import discover
from pathgrow.runs.result import Discovery

CHANCE = 0.1
RISE = 0.5
LAG = 5.0
"""Epochs in which the distance to the reachable score shrinks by a factor of e."""
NOISE = 0.002
BUDGET = 60


class Toy(nn.Module):
    """A linear network that carries its score as a buffer, which copies of it inherit."""

    skill: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 96, bias=False)
        self.second = nn.Linear(96, 96, bias=False)
        self.head = nn.Linear(96, 4, bias=False)
        self.register_buffer("skill", torch.tensor(CHANCE, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))

    def density(self) -> float:
        weights = [self.first.weight, self.second.weight]
        return sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)


@dataclass(frozen=True)
class World:
    """A saturation rate and the answers that follow from it."""

    rate: float
    floor: float = 0.4

    def reachable(self, density: float) -> float:
        return self.floor + RISE * (1 - math.exp(-self.rate * density))

    def fit(self, model: Toy, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        model.train()
        for _ in range(epochs):
            optimizer.zero_grad()
            # Every active weight gets a different gradient and is nonzero afterwards.
            loss = model(torch.randn(8, 48)).square().mean()
            loss = loss + sum((p * torch.randn_like(p)).sum() for p in model.parameters()) / 100
            loss.backward()
            optimizer.step()
            model.skill += (self.reachable(model.density()) - model.skill) * (1 - math.exp(-1 / LAG))

    def evaluate(self, model: Toy) -> float:
        return float(model.skill) + NOISE * float(torch.randn(()))

    @property
    def gain_density(self) -> float:
        return math.log(20) / self.rate

    def delta_density(self, delta: float) -> float:
        return -math.log(delta / RISE + math.exp(-self.rate)) / self.rate

    def discover(self, seed: int, **options: object) -> Discovery:
        torch.manual_seed(seed)
        model = Toy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return discover(
            model,
            optimizer,
            self.fit,
            self.evaluate,
            torch.zeros(1, 48),
            seed=seed,
            **{"budget": BUDGET, **options},
        )


FAST, MEDIUM, SLOW = World(rate=60.0), World(rate=15.0), World(rate=5.0)


@pytest.mark.parametrize(
    ("world", "reference", "seed"),
    [
        pytest.param(world, reference, (row + column) % 2, id=f"{name}-{reference}")
        for row, (name, world) in enumerate({"fast": FAST, "medium": MEDIUM, "slow": SLOW}.items())
        for column, reference in enumerate(("given", "dense", None))
    ],
)
def test_finds_both_known_answers(world: World, reference: str | None, seed: int) -> None:
    given = world.reachable(1.0) if reference == "given" else reference
    found = world.discover(seed, reference=given, finish="static", start_density=0.01)
    assert found.answer.status == "found"
    assert found.operating_density == pytest.approx(world.delta_density(0.01), rel=0.25)
    assert found.gain_density == pytest.approx(world.gain_density, rel=0.25)
    # Without a reference a network a little sparser than the answer is accepted.
    assert found.density >= found.operating_density / (1.0 if reference else CLOSE)
    assert found.density <= 1.3 * found.operating_density
    if reference is None:
        dense = found.probes[-1]
        assert (dense.stage, dense.point.density) == ("probe-dense", 1.0)
        assert dense.point.score == pytest.approx(
            world.floor + RISE - (world.floor + RISE - CHANCE) * math.exp(-dense.point.epochs / LAG), abs=0.01
        )


@pytest.mark.parametrize("reference", ["given", "dense", None])
@pytest.mark.parametrize("world", [FAST, MEDIUM, SLOW], ids=["fast", "medium", "slow"])
def test_shrinking_finds_the_known_density(world: World, reference: str | None) -> None:
    given, expected = world.reachable(1.0) if reference == "given" else reference, world.delta_density(0.01)
    every = [world.discover(seed, reference=given, num_val=50_000) for seed in range(3)]
    intervals = [found.interval or (0, 0) for found in every]
    # A 90% interval misses once in ten times.
    assert sum(0.95 * low <= expected <= 1.05 * high for low, high in intervals) >= 2
    assert statistics.median(found.operating_density or 0.0 for found in every) == pytest.approx(expected, rel=0.3)
    for found in every:
        # Whoever has a reference may spend two dense trainings on the search; the reference itself comes on top.
        is_trained = reference is None and found.reference.kind == "dense"
        assert found.ledger.relative <= {None: 3.0 if is_trained else 1.05, "given": 2.0, "dense": 3.0}[reference]
        assert found.check is not None
        if found.check.outcome == "missed":
            assert found.ledger.relative > 0.85, "another network would exceed the cost limit"
        shortfall = world.reachable(1.0) - world.reachable(found.density)
        assert found.check.shortfall == pytest.approx(shortfall, abs=0.012)


class Steep(World):
    """Every weight matters: 90% of them lose more than ten deltas."""

    def reachable(self, density: float) -> float:
        return 0.1 + 0.8 * density**3


@pytest.mark.filterwarnings("ignore:the second half of the training", "ignore:a budget of 8")
@pytest.mark.parametrize("budget", [8, BUDGET])
def test_the_dense_baseline_is_returned_if_all_pruned_networks_are_far_below_it(budget: int) -> None:
    found = Steep(rate=0.0).discover(0, budget=budget)
    assert found.dense is not None
    assert found.network is found.dense
    assert found.density == 1.0
    expected = CHANCE + 0.8 * (1 - math.exp(-budget / LAG))
    assert float(found.attached.model.skill) == pytest.approx(expected, abs=0.001)
    assert min(record.point.density for record in found.finished) < 0.95
    assert (found.check.outcome, found.check.shortfall) == ("verified", pytest.approx(0.0, abs=0.002))
    assert "100%" in str(found)


@pytest.mark.filterwarnings("ignore:training improved no network", "ignore:a budget of 8")
@pytest.mark.parametrize("budget", [8, 60])
def test_nothing_is_pruned_beside_a_reference_if_nothing_was_learned(budget: int) -> None:
    class Constant(World):
        def evaluate(self, model: Toy) -> float:
            return 0.3

    torch.manual_seed(0)
    model, world = Toy(), Constant(rate=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = discover(model, optimizer, world.fit, world.evaluate, torch.zeros(1, 48), budget=budget, reference="dense")
    assert found.answer.status == "unlearned"
    assert (found.density, found.check) == (1.0, None)
    assert all(record.point.density == 1 for record in found.trained)
