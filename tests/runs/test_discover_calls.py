"""How every call of the user's functions begins: with which weights, generators and settings, and for how long."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from pathgrow import methods
from pathgrow.checkpoint.store import MemoryStore
from pathgrow.density.probe import ProbeRule
from pathgrow.runs.options import DiscoverOptions
from pathgrow.sparse.training_state import OptimizerSettings, TrainingCheckpoint
from tests.support.toy import INPUTS, TARGETS, Script, World

# Weights.

LAYERS = ("0.weight", "3.weight")


class Watched(World):
    """Notes the weights that every call of `fit` is given, by the length of the training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.given: list[tuple[int, dict[str, Tensor]]] = []

    def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        self.given.append((epochs, {name: model.get_parameter(name).detach().clone() for name in LAYERS}))
        super().fit(model, optimizer, epochs)

    def lasting(self, epochs: int) -> list[dict[str, Tensor]]:
        return [weights for length, weights in self.given if length == epochs]


def begun(seed: int = 0) -> tuple[Watched, list[dict[str, Tensor]]]:
    """Two probes, of rounds 0 and 3, and the network of round 3 trained anew."""
    world = Watched()
    initial = {name: world.model.get_parameter(name).detach().clone() for name in LAYERS}
    world.discover(rule=Script(probe=(0, 3), density=0.19), warm_start=False, seed=seed)
    (final,) = world.lasting(16)
    return world, [initial, *world.lasting(5), final]


def test_copies_begin_from_a_draw_of_their_own() -> None:
    _, (initial, sparse, denser, final) = begun()
    for name in LAYERS:
        on, also_on = sparse[name] != 0, denser[name] != 0
        assert bool((on <= also_on).all()), "growth takes nothing away"
        assert 0 < int(on.sum()) < int(also_on.sum()) < on.numel()
        # Of a layer's own values, in another order and larger where inputs are missing; not those it came with.
        scale = (denser[name] / initial[name])[also_on]
        assert float(scale.std()) > 0.1
        assert not bool((sparse[name] == denser[name])[on].any()), "each round draws its own"
        # What is trained in the end began as its probe did.
        assert torch.equal(final[name], denser[name])


def test_another_seed_draws_other_weights_also_for_the_same_mask() -> None:
    """All weights are on: nothing else could tell the seeds apart."""
    firsts = []
    for seed in (0, 1):
        world = Watched()
        world.discover(rule=Script(probe=(0,), last=0), start_density=1.0, seed=seed)
        firsts.append(world.lasting(5)[0])
    for name in LAYERS:
        assert not torch.equal(firsts[0][name], firsts[1][name])
        assert torch.equal(firsts[0][name].flatten().sort().values, firsts[1][name].flatten().sort().values)


# Generators.


def test_numpy_and_python_are_seeded_and_given_back_too() -> None:
    """As torch is: the draws of a call follow from the seed and its stage, and the caller's own draws go on."""

    def drawn(state: int, seed: int = 0) -> tuple[list[tuple[float, float]], tuple[float, float]]:
        random.seed(state)
        np.random.seed(state)
        draws: list[tuple[float, float]] = []
        world = World()
        fit = world.fit

        def drawing(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            draws.append((random.random(), float(np.random.rand())))
            fit(model, optimizer, epochs)

        world.fit = drawing  # type: ignore[method-assign]
        world.discover(seed=seed)
        return draws, (random.random(), float(np.random.rand()))

    first, second, other = drawn(1), drawn(2), drawn(1, seed=7)
    assert first[0] == second[0]
    assert len(set(first[0])) == len(first[0])
    assert not set(first[0]) & set(other[0])
    random.seed(1)
    np.random.seed(1)
    assert first[1] == other[1] == (random.random(), float(np.random.rand()))


def test_an_evaluation_that_draws_is_seeded_by_seed_stage_and_part() -> None:
    def drawn(seed: int) -> list[float]:
        draws: list[float] = []
        world = World()

        def evaluate(model: nn.Module) -> float:
            draws.append(float(torch.rand(())))
            return 0.5

        world.evaluate = evaluate  # type: ignore[method-assign, assignment]
        world.discover(rule=Script(probe=(), last=1), rough="adaptive", seed=seed)
        return draws

    assert drawn(0) == drawn(0)
    assert len(set(drawn(0))) == len(drawn(0)) > 4
    assert not set(drawn(0)) & set(drawn(1))


# Settings of the optimizer.


def test_every_phase_begins_with_the_settings_that_came_and_no_others() -> None:
    """A schedule writes `initial_lr` into the groups: left there, it would be the peak of every later phase."""
    seen: list[dict[str, Any]] = []
    world = World()
    world.optimizer = SGD(world.model.parameters(), lr=0.1, momentum=0.9)
    came = {name: value for name, value in world.optimizer.param_groups[0].items() if name != "params"}

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        seen.append({name: value for name, value in optimizer.param_groups[0].items() if name != "params"})
        schedule = CosineAnnealingLR(optimizer, epochs)
        for _ in range(epochs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(INPUTS), TARGETS).backward()
            optimizer.step()
            schedule.step()
        optimizer.param_groups[0]["momentum"] = 0.5

    world.fit = fit  # type: ignore[method-assign]
    world.discover(reference="dense")
    assert len(seen) > 5
    assert all(settings == came for settings in seen)
    assert {name: value for name, value in world.optimizer.param_groups[0].items() if name != "params"} == came


def test_an_evaluation_that_changes_settings_changes_no_later_phase() -> None:
    """As a schedule does that is told the score there."""
    world = World()
    evaluate = world.evaluate

    def meddling(model: nn.Module) -> tuple[float, float]:
        world.optimizer.param_groups[0]["lr"] *= 0.1
        return evaluate(model)

    world.evaluate = meddling  # type: ignore[method-assign]
    world.discover(final="grown")
    assert {call.lr for call in world.fits} == {0.1}
    assert world.optimizer.param_groups[0]["lr"] == 0.1


def test_settings_that_are_tensors_keep_their_place() -> None:
    """A captured step reads the tensor it was captured with, so values are written into it; what is kept is a copy."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = Adam([weight], lr=torch.tensor(0.1), capturable=True)
    settings, place = OptimizerSettings(optimizer), optimizer.param_groups[0]["lr"]
    for _ in range(2):
        place.fill_(0.007)
        settings.restore_(optimizer)
        assert optimizer.param_groups[0]["lr"] is place
        assert float(place) == pytest.approx(0.1)


# Lengths.


@pytest.mark.parametrize(
    ("budget", "seed", "rough", "probe"),
    [(1, 1, 1, 1), (4, 1, 1, 1), (10, 1, 1, 3), (40, 5, 1, 12), (100, 12, 1, 16), (160, 20, 1, 16), (440, 55, 3, 44)],
)
def test_lengths_follow_from_the_budget(budget: int, seed: int, rough: int, probe: int) -> None:
    """An eighth; a 160th, to the nearest; a tenth, but at least 16 epochs, or 0.3 of the budget if that is less."""
    options = DiscoverOptions(budget=budget)
    assert (options.num_seed_epochs, options.num_rough_epochs, options.num_probe_epochs) == (seed, rough, probe)
    assert options.num_final_epochs([]) == budget
    for whole in (
        DiscoverOptions(budget=budget, reference=0.9),
        DiscoverOptions(budget=budget, final="grown", probe_fraction=0.1),
    ):
        assert whole.num_probe_epochs == budget
    assert DiscoverOptions(budget=budget, probe_fraction=0.47).num_probe_epochs == max(1, round(0.47 * budget))


@pytest.mark.parametrize(("rule", "goes_on"), [("probe", False), ("exponential", True), ("trajectory", True)])
def test_the_seed_goes_on_to_its_plateau_only_for_rules_that_read_its_score(rule: str, goes_on: bool) -> None:
    """An eighth of 32 epochs; half of it more at a time, where the score rises."""
    world, scores = World(), iter(range(1000))
    world.evaluate = lambda model: 0.001 * next(scores)  # type: ignore[method-assign, assignment, return-value]
    found = world.discover(rule=rule, seed_epochs=None, budget=32, start_density=0.8, gamma=0.1, delta=0.001)
    assert found.rounds[0].num_epochs == (8 if goes_on else 4)


def test_an_adaptive_round_reads_the_score_where_there_is_no_loss() -> None:
    """It rests when the score has not risen for three epochs: an equal one is no rise."""
    scores = iter([0.5, 0.6, 0.7, 0.7, 0.65, 0.7, 0.9, 0.9])
    world = World()
    world.evaluate = lambda model: next(scores)  # type: ignore[method-assign, assignment, return-value]
    found = world.discover(rule=Script(probe=(), last=1), rough="adaptive")
    assert found.rounds[1].num_epochs == 5
    assert found.rounds[1].point.score == 0.7


# What was asked for.


def test_options_reach_the_rule_and_the_method() -> None:
    options = DiscoverOptions(delta=0.03, start_density=0.07, target_density=0.4)
    assert options.density_rule() == ProbeRule(delta=0.03)
    method = options.growth_method()
    assert (method.start_density, method.target_density) == (0.07, 0.4)
    assert DiscoverOptions(method=methods.gcg(start_density=0.2)).growth_method().start_density == 0.2
    assert DiscoverOptions(rule=ProbeRule(delta=0.5), delta=0.03).density_rule() == ProbeRule(delta=0.5)


def test_a_training_half_done_is_kept_when_its_seconds_have_passed() -> None:
    partial = TrainingCheckpoint(MemoryStore(), "partial-seed-0", seconds=60.0)
    assert [partial.is_due(step, seconds) for step, seconds in ((1, 59.9), (1, 60.1), (63, 61.0), (64, 5.0))] == [
        False, True, True, False,
    ]  # fmt: skip
