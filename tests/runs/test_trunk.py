"""The trunk: growth counts, seed training, resuming from stored weights, and stages of another run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathgrow import methods
from pathgrow.checkpoint import MemoryStore
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.runs.api import discover
from pathgrow.runs.records import Record
from pathgrow.runs.result import Discovery
from tests.support.toy import (
    INPUTS,
    TARGETS,
    Killed,
    MortalStore,
    Script,
    World,
    killed_at_every_save,
    stage_lengths,
    without_timing,
)


@pytest.mark.parametrize(("time", "expected"), [(1.0, 30), (1e9, 40), (25.0, 40)])
def test_the_seed_is_trained_to_its_plateau(time: float, expected: int) -> None:
    """A settled score is checked once more; a rising one is trained twice as long."""
    epochs_had = [0]

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        epochs_had[0] += epochs
        model(INPUTS).sum().backward()
        optimizer.step()  # a fit that changes no weight is an error

    def evaluate(model: nn.Module) -> float:
        return epochs_had[0] / 100 if time == 1e9 else 0.9 * (1 - math.exp(-epochs_had[0] / time))

    world = World()
    found = discover(
        world.model, world.optimizer, fit, evaluate, INPUTS[:1],
        rule=Script(), start_density=0.1, budget=160, delta=0.01, finish="static",
    )  # fmt: skip
    assert found.rounds[0].point.epochs == expected


@pytest.mark.parametrize(("rule", "goes_on"), [("probe", False), ("exponential", True), ("trajectory", True)])
def test_only_rules_that_use_the_score_of_the_seed_train_it_to_its_plateau(rule: str, goes_on: bool) -> None:
    """An eighth of 32 epochs; half of it more at a time, where the score rises."""
    world, scores = World(), iter(range(1000))
    world.evaluate = lambda model: 0.001 * next(scores)  # type: ignore[method-assign, assignment, return-value]
    found = world.discover(rule=rule, seed_epochs=None, budget=32, start_density=0.8, gamma=0.1, delta=0.001)
    assert found.rounds[0].num_epochs == (8 if goes_on else 4)


def test_rough_training_in_epochs_or_as_a_fraction() -> None:
    assert [p.epochs for p in World().discover(rough=3).curve.rough] == [2, 5, 8, 11]
    assert [p.epochs for p in World().discover(rough=0.5).curve.rough] == [2, 10, 18, 26]


def test_growth_adds_a_fraction_rounded_down_and_removes_nothing() -> None:
    found = World().discover(rule=Script(last=5), gamma=0.5)
    counts = [record.num_on for record in found.rounds]
    assert all(after == before + int(0.5 * before) for before, after in pairwise(counts))
    for round in range(5):
        before, after = found.masks_at(round), found.masks_at(round + 1)
        assert (before - after).num_on == 0


def test_growth_counts_are_those_of_the_method_schedule() -> None:
    """0.29 * 100 is 28.999999999999996 in floating point and 29 in both loops."""
    found = World().discover(start_density=100 / 384, gamma=0.29, rule=Script(probe=(), last=1, density=None))
    assert [record.num_on for record in found.rounds] == [100, 129]


def test_growth_ends_at_full_density() -> None:
    found = World().discover(start_density=0.7, gamma=0.4, rule=Script(probe=(), last=2, density=None))
    assert [record.num_on for record in found.rounds] == [269, 376, 384]
    assert found.curve.at_ceiling


NUM, OUTPUT = 8 * 16 + 16 * 16, 16 * 2
"""Prunable and output weights of the toy network."""


def test_the_method_owns_the_growth_rate() -> None:
    doubling = methods.create("gcg", gamma=1.0)
    for options in ({"method": doubling}, {"method": doubling, "gamma": 1.0}, {"gamma": 1.0}):
        found = World().discover(rule=Script(probe=(), last=2), **options)
        assert [record.num_on for record in found.rounds] == [38, 76, 152]
        assert found.report().method.options["gamma"] == 1.0


@dataclass(frozen=True)
class Beside(Script):
    """Three rounds, then all probes at once, then growth up to each of the given densities."""

    probe: tuple[int, ...] = (0, 2, DENSE)
    last: int = 3
    up_to: tuple[float, ...] = ()
    allowed: float | None = None

    def decide(self, curve: Curve) -> Verdict:
        here = curve.rough[-1].round
        if here < self.last:
            return Grow(reason="not yet")
        if not curve.probes and self.probe:
            return Probe(rounds=self.probe, reason="all at once")
        if here - self.last < len(self.up_to):
            return Grow(reason="up to the answer", up_to=self.up_to[here - self.last])
        return Stop(reason="the script ends")

    def answer(self, curve: Curve) -> Answer:
        return replace(super().answer(curve), allowed=self.allowed)


def test_growth_stops_at_the_requested_weight() -> None:
    asked = (0.2, 77 / NUM, 0.1, 0.26, math.inf, 0.3)
    found = World().discover(rule=Beside(probe=(), up_to=asked))
    counts = [record.num_on for record in found.rounds][3:]
    # 76.8 weights are 77; where that many are there, one more; never fewer; a whole step is 25% at most.
    assert counts == [72, 77, 78, 79, 98, 122, 123]
    assert [record.point.density for record in found.rounds][3:] == [count / NUM for count in counts]


def test_growth_beyond_full_density_stops_there() -> None:
    found = World().discover(start_density=0.9, rule=Beside(probe=(), last=0, up_to=(7.0,)))
    assert [record.num_on for record in found.rounds] == [346, NUM]
    assert found.curve.at_ceiling


def test_gradient_growth_is_charged_at_the_masks_before_it() -> None:
    inputs, targets = torch.randn(8, 8), torch.zeros(8, dtype=torch.long)
    found = World().discover(
        method="gradient_growth",
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        batches=[(inputs, targets)],
    )
    for before, record in zip(found.rounds, found.rounds[1:], strict=False):
        sparse = before.num_on + OUTPUT  # forward and to the inputs; to the weights all of them
        assert record.update_flops == 8 * 2 * (2 * sparse + NUM + OUTPUT)


def test_gradient_growth_uses_the_given_loss() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    found = World().discover(method="gradient_growth", loss=loss, batches=[(INPUTS, TARGETS)])
    assert found.rounds[1].update_flops > found.rounds[0].update_flops == 0
    with pytest.raises(UserError, match="loss"):
        World().discover(method="gradient_growth")


def test_momentum_carries_over_in_the_trunk_but_not_into_probes() -> None:
    world = World()
    world.discover()
    slots = [(call.model is world.model, call.num_slots > 0) for call in world.fits]
    #          seed           probe-000       round-001      round-002     probe-002       round-003     final
    assert slots == [
        (True, False),
        (False, False),
        (True, True),
        (True, True),
        (False, False),
        (True, True),
        (False, False),
    ]


def test_lost_weights_are_trained_again() -> None:
    options = {"rule": Script(probe=(1,), last=2)}
    uninterrupted = without_timing(World().discover(**options))
    store = MortalStore(6, saves_the_last=True)
    with pytest.raises(Killed):
        World().discover(store=store, **options)
    for stage in ("weights-000", "weights-001"):
        store.delete_tensors(stage)
    assert without_timing(World().discover(store=store, **options)) == uninterrupted


def test_stages_of_another_model_are_refused() -> None:
    store = MemoryStore()
    World().discover(store=store)
    with pytest.raises(UserError, match="started from other initial weights"):
        World(seed=1).discover(store=store)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.05), "lr was 0.1, now 0.05"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), "optimizer was SGD, now AdamW"),
        (lambda p: torch.optim.SGD([{"params": [x]} for x in p], lr=0.1), "1 parameter groups before, now"),
        (lambda p: torch.optim.SGD(p, lr=torch.tensor(0.5)), "lr was 0.1, now 0.5"),
    ],
)
def test_stages_of_another_optimizer_are_refused(make: Any, change: str) -> None:
    def world(optimizer: Any) -> World:
        made = World()
        made.optimizer = optimizer(made.model.parameters())
        return made

    store = MemoryStore()
    world(lambda p: torch.optim.SGD(p, lr=0.1)).discover(store=store)
    world(lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)).discover(store=store)  # how, not what
    with pytest.raises(UserError, match=change):
        world(make).discover(store=store)


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
    """Two probes, of rounds 0 and 3, and the network of round 3 trained from scratch."""
    world = Watched()
    initial = {name: world.model.get_parameter(name).detach().clone() for name in LAYERS}
    world.discover(rule=Script(probe=(0, 3), density=0.19), warm_start=False, seed=seed)
    (final,) = world.lasting(16)
    return world, [initial, *world.lasting(5), final]


def test_probes_start_from_their_own_initialization() -> None:
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


def test_another_seed_initializes_the_same_mask_differently() -> None:
    """All weights are on: nothing else could tell the seeds apart."""
    firsts = []
    for seed in (0, 1):
        world = Watched()
        world.discover(rule=Script(probe=(0,), last=0), start_density=1.0, seed=seed)
        firsts.append(world.lasting(5)[0])
    for name in LAYERS:
        assert not torch.equal(firsts[0][name], firsts[1][name])
        assert torch.equal(firsts[0][name].flatten().sort().values, firsts[1][name].flatten().sort().values)


def test_with_a_reference_probes_have_the_whole_budget() -> None:
    world = World()
    found = world.discover(reference=0.9, rule=Script(probe=(0, 3), density=0.11))
    assert [call.epochs for call in world.fits] == [2, 16, 1, 1, 1, 16, 16]
    assert found.network.stage == "final"
    assert found.reference is not None
    assert (found.reference.score, found.reference.kind, found.reference.epochs) == (0.9, "given", 16)


def test_a_fully_trained_probe_is_not_trained_again() -> None:
    world = World()
    found = world.discover(reference=0.9, rule=Script(probe=(0, 3), density=0.19))
    assert found.network.stage == "probe-003"
    assert [call.epochs for call in world.fits] == [2, 16, 1, 1, 1, 16]
    assert found.network.point in found.curve.probes


def test_the_dense_baseline_starts_from_the_initial_weights() -> None:
    world = World()
    found = world.discover(reference="dense")
    assert found.dense is not None
    assert found.reference is not None
    assert (found.reference.kind, found.reference.epochs) == ("dense", 16)
    assert found.reference.score == found.dense.point.score
    assert found.dense.point.density == 1
    assert found.dense.density_model == 1
    assert stage_lengths(found)[:2] == [("seed", 2), ("dense", 16)]
    network_score, dense_score = found.examine(world.evaluate)
    assert network_score.score == found.score
    assert dense_score is not None
    assert (dense_score.score, dense_score.loss) == (found.dense.point.score, found.dense.point.loss)


def test_the_final_network_continues_from_its_short_probe() -> None:
    """Its epochs count: it is the first part of one training whose learning rate rises twice."""
    script = Script(probe=(0, 3), density=0.19)
    world, scratch = World(), World()
    found = world.discover(budget=40, probe_fraction=0.1, rule=script)
    assert [call.epochs for call in world.fits] == [5, 4, 1, 1, 1, 4, 36]
    assert (found.network.stage, found.network.num_epochs, found.network.point.epochs) == ("final", 36, 40)
    assert world.fits[-1].num_slots > 0, "with its momentum"
    assert stage_lengths(found)[-1] == ("final", 36)
    found = scratch.discover(budget=40, probe_fraction=0.1, rule=script, warm_start=False)
    assert [call.epochs for call in scratch.fits] == [5, 4, 1, 1, 1, 4, 40]
    assert found.network.point.epochs == 40
    assert scratch.fits[-1].num_slots == 0
    # A network that was not probed has no probe to continue from, and a probe of another round does not help.
    other = World()
    other.discover(budget=40, probe_fraction=0.1, rule=replace(script, density=0.14))
    assert [call.epochs for call in other.fits] == [5, 4, 1, 1, 1, 4, 40]
    # Grown weights continue from the trunk.
    grown = World()
    grown.discover(budget=40, probe_fraction=0.1, rule=script, final="grown")
    assert [call.epochs for call in grown.fits] == [5, 35, 1, 1, 1, 32]


@dataclass(frozen=True)
class AllAtOnce(Script):
    """Grows first and then probes several rounds with one verdict, in the order given."""

    def decide(self, curve: Curve) -> Verdict:
        if curve.rough[-1].round < self.last:
            return Grow(reason="not yet")
        return Stop(reason="the script ends") if curve.probes else Probe(rounds=self.probe, reason="all at once")


def test_all_probes_of_a_verdict_are_trained() -> None:
    world = World()
    found = world.discover(budget=160, rule=AllAtOnce(probe=(3, 0, 2)))
    assert [call.epochs for call in world.fits] == [20, 1, 1, 1, 16, 16, 16, 144]
    assert [point.round for point in found.curve.probes] == [3, 0, 2], "as the rule asked for them"
    assert [record.stage for record in found.probes] == ["probe-000", "probe-002", "probe-003"]
    # Each is what it would have been alone.
    for round in (0, 2, 3):
        alone = World().discover(budget=160, rule=AllAtOnce(probe=(round,)))
        [point] = alone.curve.probes
        assert point in found.curve.probes


def test_grown_probes_have_the_same_total_epochs() -> None:
    world = World()
    found = world.discover(final="grown", rule=Script(probe=(0, 3), density=0.19))
    assert [point.epochs for point in found.curve.probes] == [16, 16]
    assert [call.epochs for call in world.fits] == [2, 14, 1, 1, 1, 11]
    assert found.network.stage == "probe-003"
    assert world.fits[1].num_slots > 0  # a grown copy brings its momentum along


def test_grown_probes_beyond_their_budget_are_still_annealed() -> None:
    found = World().discover(final="grown", rough=10, rule=Script(probe=(3,), density=0.19))
    assert found.curve.rough[-1].epochs == 32
    assert found.curve.probes[0].epochs == 34


NUM = 8 * 16 + 16 * 16
"""Prunable weights of the toy network."""


MACS = NUM + 16 * 2
"""With the output layer."""


SAMPLES = 16
"""An epoch is one step."""


@pytest.fixture(scope="module")
def found() -> Discovery:
    return World().discover(rule=Beside(), budget=40)


def test_a_dense_probe_is_a_stage_at_the_cost_of_dense_training(found: Discovery) -> None:
    assert stage_lengths(found) == [
        *[("seed", 5), ("round-001", 1), ("round-002", 1), ("round-003", 1)],
        *[("probe-000", 12), ("probe-002", 12), ("probe-dense", 12), ("final", 40)],
    ]
    phase = next(phase for phase in found.ledger.phases if phase.phase == "probe-dense")
    assert phase.density == 1.0
    assert phase.samples == 12 * SAMPLES
    assert phase.training_flops == 12 * SAMPLES * 3 * 2 * MACS
    *grown, dense = found.probes
    assert (dense.stage, dense.num_on, dense.density_model, dense.point.epochs) == ("probe-dense", NUM, 1.0, 12)
    assert [record.point.round for record in grown] == [0, 2]
    assert [point.round for point in found.report().curve.probes] == [0, 2, DENSE], "by density"
    assert dense.point in found.curve.probes


def test_a_dense_probe_trains_all_weights(found: Discovery) -> None:
    world = World()
    present: list[tuple[int, int]] = []
    fit = world.fit

    def watched(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        fit(model, optimizer, epochs)
        present.append((epochs, sum(int(model.get_parameter(name).count_nonzero()) for name in found.masks)))

    world.fit = watched  # type: ignore[method-assign]
    world.discover(rule=Beside(), budget=40)
    counts = [record.num_on for record in found.rounds]
    assert [num for epochs, num in present if epochs == 12] == [counts[0], counts[2], NUM]
    assert present[-1] == (40, counts[3]), "and it is not returned"


def test_a_dense_probe_changes_nothing_else(found: Discovery) -> None:
    without = World().discover(rule=Beside(probe=(0, 2)), budget=40)
    for round in range(4):
        assert found.masks_at(round) == without.masks_at(round)
    assert found.rounds == tuple(
        replace(r, seconds=s.seconds) for r, s in zip(without.rounds, found.rounds, strict=True)
    )
    assert [record.point for record in found.probes[:-1]] == [record.point for record in without.probes]
    ours, theirs = found.report(), without.report()
    assert (ours.weights_sha256, ours.masks_sha256) == (theirs.weights_sha256, theirs.masks_sha256)
    assert ours.network == theirs.network
    assert found.masks_at(DENSE) == Masks.full(found.attached.model, found.trunk.session.scope)
    assert found.masks_at(DENSE).num_on == NUM


@pytest.mark.parametrize("saves_the_last", [True, False])
def test_killed_at_any_save_and_resumed_ends_with_the_same_bits(saves_the_last: bool) -> None:
    rule = Beside(probe=(1, DENSE), last=1, up_to=(0.13, 0.14))
    # functions, start, four rounds with their weights, two probes, the final network, and these seven as trained
    assert killed_at_every_save(saves_the_last, rule=rule, budget=20) == 2 + 2 * 4 + 2 + 1 + 7


@pytest.mark.parametrize(
    ("options", "epochs", "can"),
    [
        ({"budget": 40}, 12, True),
        ({"budget": 40, "probe_fraction": 0.5}, 20, True),
        ({"budget": 40, "probe_fraction": 1.0}, 40, False),
        ({"budget": 1}, 1, False),
        ({"budget": 2}, 1, True),
        ({"budget": 40, "final": "grown"}, 40, False),
        ({"budget": 40, "reference": 0.9}, 40, False),
        ({"budget": 40, "reference": "dense"}, 40, False),
    ],
)
def test_a_dense_probe_is_allowed_if_it_is_cheap(options: dict, epochs: int, can: bool) -> None:
    found = World().discover(rule=Beside(probe=(2,), last=2), select_by="gain", **options)
    assert found.curve.can_probe_dense is can
    assert found.curve.full_epochs == options["budget"]
    assert found.curve.select_by == "gain"
    assert found.curve.probes[0].epochs == epochs
    if not can:
        with pytest.raises(RunFailed, match="rule 'script' asked for a probe of round -1"):
            World().discover(rule=Beside(), **options)


@pytest.mark.parametrize("rounds", [(DENSE, DENSE), (0, DENSE, 0), (DENSE - 1,)])
def test_a_dense_probe_is_trained_once(rounds: tuple[int, ...]) -> None:
    with pytest.raises(RunFailed, match="rule 'script' asked for a probe of round"):
        World().discover(rule=Beside(probe=rounds), budget=40)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 16])
def test_the_default_rule_stops_with_any_budget(budget: int) -> None:
    found = World().discover(rule="probe", budget=budget, start_density=0.05)
    assert len(found.probes) <= 5
    stages = [record.stage for record in found.probes]
    is_full = found.rounds[-1].num_on == NUM
    assert ("probe-dense" in stages) == (budget > 1 and not is_full)
    assert found.network.point.epochs == budget
    if found.operating_density is not None:
        assert found.density >= found.operating_density / 1.1


PROBED = Script(probe=(0, 3), density=0.19)
"""Returns the network of the third round, which was probed."""


def total_epochs(records: Sequence[Record]) -> int:
    return sum(record.num_epochs for record in records)


def lengths(world: World) -> list[int]:
    return [call.epochs for call in world.fits]


def test_final_epochs_affect_the_last_training_only() -> None:
    usual, world = World(), World()
    usual.discover(rule=Script(probe=()))
    found = world.discover(rule=Script(probe=()), final_epochs=30)
    assert lengths(usual) == [2, 1, 1, 1, 16]
    assert lengths(world) == [2, 1, 1, 1, 30]
    assert (found.network.num_epochs, found.network.point.epochs) == (30, 30)
    assert stage_lengths(found)[-1] == ("final", 30)
    assert found.ledger.dense_training_flops == 16 * SAMPLES * 3 * 2 * MACS, "of the budget, still"


def test_a_final_epochs_function_receives_all_records() -> None:
    seen: list[Record] = []

    def note(records: Sequence[Record]) -> int:
        seen.extend(records)
        return total_epochs(records)

    world = World()
    found = world.discover(rule=Script(probe=(1,), last=2, density=0.1), reference="dense", final_epochs=note)
    assert [record.stage for record in seen] == ["seed", "dense", "round-001", "round-002", "probe-001"]
    assert [(record.stage, record.num_epochs) for record in seen] == stage_lengths(found)[:-1]
    assert (found.network.stage, found.network.point.epochs) == ("final", 2 + 16 + 1 + 1 + 16)


@pytest.mark.parametrize("epochs", [16, 10, lambda records: 16])
def test_a_probe_with_enough_epochs_is_returned_as_it_is(epochs: Any) -> None:
    usual, world = World(), World()
    expected = usual.discover(reference=0.9, rule=PROBED)
    found = world.discover(reference=0.9, rule=PROBED, final_epochs=epochs)
    assert found.network.stage == expected.network.stage == "probe-003"
    assert lengths(world) == lengths(usual) == [2, 16, 1, 1, 1, 16]
    assert all(torch.equal(a, b) for a, b in zip(world.model.parameters(), usual.model.parameters(), strict=True))


def test_a_probe_with_fewer_epochs_is_continued_or_trained_from_scratch() -> None:
    world, scratch = World(), World()
    found = world.discover(reference=0.9, rule=PROBED, final_epochs=21)
    assert lengths(world)[-2:] == [16, 5]
    assert (found.network.stage, found.network.point.epochs) == ("final", 21)
    assert world.fits[-1].num_slots > 0, "with its momentum"
    found = scratch.discover(reference=0.9, rule=PROBED, final_epochs=21, warm_start=False)
    assert lengths(scratch)[-2:] == [16, 21]
    assert (found.network.stage, found.network.point.epochs) == ("final", 21)
    assert scratch.fits[-1].num_slots == 0


def test_grown_weights_count_their_epochs() -> None:
    world = World()
    found = world.discover(rule=Script(probe=()), final="grown", final_epochs=30)
    assert lengths(world) == [2, 1, 1, 1, 30 - found.rounds[found.network.point.round].point.epochs]
    assert found.network.point.epochs == 30


@pytest.mark.parametrize("wrong", [0, 2.5, None, True])
def test_an_invalid_result_of_final_epochs_loses_no_stage(wrong: Any) -> None:
    store, world = MemoryStore(), World()
    before = [weight.detach().clone() for weight in world.model.parameters()]
    with pytest.raises(
        UserError, match=rf"final_epochs must return an integer in .1, 100000., got {wrong!r} for 6 records"
    ):
        world.discover(store=store, final_epochs=lambda records: wrong)
    assert all(torch.equal(a, b) for a, b in zip(world.model.parameters(), before, strict=True))
    mended = World()
    found = mended.discover(store=store, final_epochs=total_epochs)
    assert lengths(mended) == [found.network.num_epochs]
    assert without_timing(found) == without_timing(World().discover(final_epochs=total_epochs))


def test_a_run_directory_keeps_its_final_epochs(tmp_path: Path) -> None:
    by_function = World().discover(store=tmp_path, final_epochs=total_epochs)
    again = World()
    found = again.discover(store=tmp_path, final_epochs=total_epochs)
    assert again.fits == []
    assert without_timing(found) == without_timing(by_function)
    with pytest.raises(UserError, match="another config: final_epochs was absent, now 30"):
        World().discover(store=tmp_path, final_epochs=30)
    with pytest.raises(UserError, match="another config: final_epochs was absent, now null"):
        World().discover(store=tmp_path)


@pytest.mark.parametrize("saves_the_last", [True, False])
def test_a_resumed_final_training_has_the_same_length(saves_the_last: bool) -> None:
    rule = Script(probe=(1,), last=2, density=0.15)
    assert killed_at_every_save(saves_the_last, rule=rule, final_epochs=total_epochs) > 5


# Candidates of other methods


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


FINISHED = {"budget": 160, "loss": loss_of, "batches": [(INPUTS[:16], TARGETS[:16])]}


@pytest.mark.parametrize("name", ["set", "gmp", "rigl", "granet", "snip", "acdc", "topkast", "edge_popup"])
def test_a_method_trains_the_candidates_and_the_final_network(name: str) -> None:
    world = World()
    found = world.discover(finish=name, **FINISHED)
    assert [(record.point.round, record.num_on) for record in found.probes] == [
        (round, found.rounds[round].num_on) for round in (0, 2)
    ]
    assert (found.network.stage, found.network.num_on) == ("final", found.rounds[3].num_on)
    assert found.masks.num_on == found.network.num_on
    for weight, mask in found.masks.items():
        assert bool((world.model.get_parameter(weight)[~mask] == 0).all())
    assert world.evaluate(world.model)[0] == found.score
    world.fit(world.model, world.optimizer, 2)  # the masks stay
    assert bool((world.model[0].weight[~found.masks["0.weight"]] == 0).all())
    report = found.report()
    assert (report.method.name, report.network.round, report.ledger.epochs_times_parameters) == (name, None, None)


def test_the_cost_of_a_method_that_prunes_while_it_trains() -> None:
    found = World().discover(finish="gmp:update_interval=10", **FINISHED)
    num, num_on, last = found.masks.num, found.masks.num_on, 120  # 0.75 of 160 steps
    active, total = num, 0
    for step in range(160):
        total += active + 32  # the output layer is dense; one multiply-add per weight
        done = (step - 32) / (last - 32)
        if (step - 32 >= 0 and (step - 32) % 10 == 0) or step >= last:
            density = num_on / num + (1 - num_on / num) * max(0.0, 1 - done) ** 3
            active = min(active, round(density * num))
    assert found.network.training_flops == 6 * 16 * total
    assert found.ledger.phases[-1].training_flops == 6 * 16 * total


def test_masks_that_a_method_keeps_are_trained_on_and_others_start_over() -> None:
    rule = Script(density=0.15)  # that of round 2, which is probed
    lengths = {
        name: dict(stage_lengths(World().discover(finish=name, rule=rule, **FINISHED))) for name in ("snip", "set")
    }
    assert {name: epochs["final"] for name, epochs in lengths.items()} == {"snip": 144, "set": 160}
    kept = World().discover(finish="erk", rule=rule, probe_fraction=1.0, **FINISHED)
    assert kept.network in kept.probes


def test_steps_per_epoch_are_measured() -> None:
    class Thorough(World):
        def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            super().fit(model, optimizer, 3 * epochs)

    class Hasty(World):
        def fit(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
            super().fit(model, optimizer, max(1, epochs // 2) if self.fits else 3 * epochs)

    found = Thorough().discover(finish="gmp", **FINISHED)
    assert found.attached.step == 3 * 160
    with pytest.raises(RunFailed, match=r"'gmp' ended stage probe-000 at density 1 instead of 0\.09896, after 8 opt"):
        Hasty().discover(finish="gmp", **FINISHED)


@pytest.mark.parametrize(("name", "density"), [("gmp", 0.2), ("snip", 0.15), ("topkast", 0.2)])
def test_a_search_by_a_method_resumes(name: str, density: float) -> None:
    assert killed_at_every_save(True, finish=name, rule=Script(density=density), **{**FINISHED, "budget": 16}) > 8


def test_a_method_without_its_loss_is_refused_before_any_training() -> None:
    world = World()
    with pytest.raises(UserError, match="'snip' uses loss gradients; pass loss="):
        world.discover(finish="snip")
    assert not world.fits
