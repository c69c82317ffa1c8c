"""The GCG loop, with rules that follow a script: which stages happen, in what order, for how long, and what is left."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from pathgrow import methods
from pathgrow.checkpoint.store import MemoryStore
from pathgrow.density.types import Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.runs.callback import Callback
from pathgrow.runs.discovery import discover
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record
from pathgrow.runs.result import Discovery
from pathgrow.trainer.interface import Job
from tests.support.toy import (
    INPUTS,
    TARGETS,
    Killed,
    MortalStore,
    Script,
    World,
    killed_at_every_save,
    network,
    stage_lengths,
    without_timing,
)

# Stages and their lengths.


@pytest.mark.parametrize(("time", "expected"), [(1.0, 30), (1e9, 40), (25.0, 40)])
def test_the_seed_is_trained_until_it_rests(time: float, expected: int) -> None:
    """A score that has settled is looked at once more; one that goes on rising is trained twice as long."""
    epochs_had = [0]

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        epochs_had[0] += epochs

    def evaluate(model: nn.Module) -> float:
        return epochs_had[0] / 100 if time == 1e9 else 0.9 * (1 - math.exp(-epochs_had[0] / time))

    world = World()
    found = discover(
        world.model, world.optimizer, fit, evaluate, INPUTS[:1],
        rule=Script(), start_density=0.1, budget=160, delta=0.01,
    )  # fmt: skip
    assert found.rounds[0].point.epochs == expected


def test_stages_happen_in_order_with_lengths_from_the_budget() -> None:
    world = World()
    found = world.discover(budget=160)
    assert stage_lengths(found) == [
        ("seed", 20),
        ("round-001", 1),
        ("round-002", 1),
        ("round-003", 1),
        ("probe-000", 16),
        ("probe-002", 16),
        ("final", 160),
    ]
    # The order in which they really happened: a probe as soon as it is asked for.
    assert [call.epochs for call in world.fits] == [20, 16, 1, 1, 16, 1, 160]
    assert [point.epochs for point in found.curve.rough] == [20, 21, 22, 23]
    assert [point.epochs for point in found.curve.probes] == [16, 16]
    assert found.reason == "the script ends"
    assert found.reference is None


def test_with_a_reference_probes_have_the_whole_budget() -> None:
    world = World()
    found = world.discover(reference=0.9, rule=Script(probe=(0, 3), density=0.11))
    assert [call.epochs for call in world.fits] == [2, 16, 1, 1, 1, 16, 16]
    assert found.network.stage == "final"
    assert found.reference is not None
    assert (found.reference.score, found.reference.kind, found.reference.epochs) == (0.9, "given", 16)


def test_a_network_that_was_probed_in_full_is_not_trained_again() -> None:
    world = World()
    found = world.discover(reference=0.9, rule=Script(probe=(0, 3), density=0.19))
    assert found.network.stage == "probe-003"
    assert [call.epochs for call in world.fits] == [2, 16, 1, 1, 1, 16]
    assert found.network.point in found.curve.probes


def test_a_dense_reference_is_trained_from_the_first_weights() -> None:
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


def test_a_short_probe_of_the_network_handed_back_is_trained_on() -> None:
    """Its epochs count: it is the first part of one training whose learning rate rises twice."""
    script = Script(probe=(0, 3), density=0.19)
    world, anew = World(), World()
    found = world.discover(budget=40, probe_fraction=0.1, rule=script)
    assert [call.epochs for call in world.fits] == [5, 4, 1, 1, 1, 4, 36]
    assert (found.network.stage, found.network.num_epochs, found.network.point.epochs) == ("final", 36, 40)
    assert world.fits[-1].num_slots > 0, "with its momentum"
    assert stage_lengths(found)[-1] == ("final", 36)
    found = anew.discover(budget=40, probe_fraction=0.1, rule=script, warm_start=False)
    assert [call.epochs for call in anew.fits] == [5, 4, 1, 1, 1, 4, 40]
    assert found.network.point.epochs == 40
    assert anew.fits[-1].num_slots == 0
    # A network that was not probed has nothing to go on from, and a probe of another round is no help.
    other = World()
    other.discover(budget=40, probe_fraction=0.1, rule=replace(script, density=0.14))
    assert [call.epochs for call in other.fits] == [5, 4, 1, 1, 1, 4, 40]
    # Grown weights go on from the trunk.
    grown = World()
    grown.discover(budget=40, probe_fraction=0.1, rule=script, final="grown")
    assert [call.epochs for call in grown.fits] == [5, 35, 1, 1, 1, 32]


class Talking(Script):
    def answer(self, curve: Curve) -> Answer:
        return replace(super().answer(curve), words="19% will do.\nSo it is written.")


def test_a_density_that_was_asked_for_is_not_called_an_answer() -> None:
    found = World().discover(target_density=0.3, rule="probe")
    assert found.words.splitlines() == [
        f"30% of the switchable weights, the density asked for, score {found.score:.5g}.",
        "How dense the network needs to be was not asked, so no copies were trained to compare.",
    ]


def test_probes_that_score_below_the_growing_network_are_called_too_short() -> None:
    """A probe of one epoch tells nothing about densities; the answer says so instead of passing for one."""
    world = World()
    grown = iter([0.5, 0.7, 0.9, 0.9])

    def evaluate(model: nn.Module) -> float:
        return next(grown) if model is world.model else 0.33

    world.evaluate = evaluate  # type: ignore[method-assign, assignment]
    found = world.discover(rule=Talking(probe=(3,), density=0.19), probe_fraction=0.1)
    first, why, *rest = found.words.splitlines()
    assert first == "Judged by trainings too short to tell: 19% will do.", "the first line alone is no answer"
    assert "scores below the growing one (0.9)" in why
    assert rest == ["Give a larger budget, or a larger probe_fraction.", "So it is written."]
    assert "too short" not in World().discover(rule=Script(probe=(3,), delta=1.0)).words


# Networks that are trained together.


@dataclass(frozen=True)
class AllAtOnce(Script):
    """Grows first and then probes several rounds with one verdict, in the order given."""

    def decide(self, curve: Curve) -> Verdict:
        if curve.rough[-1].round < self.last:
            return Grow(reason="not yet")
        return Stop(reason="the script ends") if curve.probes else Probe(rounds=self.probe, reason="all at once")


TOGETHER = AllAtOnce(probe=(3, 0, 2))


class Engine:
    """A trainer in the sense of the protocol: notes what it gets together, and trains by the world's `fit`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: list[list[Job]] = []

    def __call__(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        raise AssertionError("a trainer is given jobs")

    def train(self, jobs: Sequence[Job]) -> list[int]:
        self.batches.append(list(jobs))
        for job in jobs:
            with torch.random.fork_rng():
                torch.manual_seed(job.seed)
                self.world.fit(job.attached.model, job.attached.optimizer, job.epochs)
        return [1000 * job.epochs for job in jobs]

    def discover(self, **options: object) -> Discovery:
        settings = {"rule": TOGETHER, "start_density": 0.1, "budget": 16, "seed_epochs": 2, **options}
        world = self.world
        return discover(world.model, world.optimizer, self, world.evaluate, INPUTS[:1], **settings)


def test_several_probes_of_one_verdict_are_all_trained() -> None:
    world = World()
    found = world.discover(budget=160, rule=TOGETHER)
    assert [call.epochs for call in world.fits] == [20, 1, 1, 1, 16, 16, 16, 144]
    assert [point.round for point in found.curve.probes] == [3, 0, 2], "as the rule asked for them"
    assert [record.stage for record in found.probes] == ["probe-000", "probe-002", "probe-003"]
    # Each is what it would have been alone.
    for round in (0, 2, 3):
        alone = World().discover(budget=160, rule=AllAtOnce(probe=(round,)))
        [point] = alone.curve.probes
        assert point in found.curve.probes


def test_a_trainer_is_given_jobs_and_those_of_one_verdict_together() -> None:
    engine = Engine(World())
    found = engine.discover()
    assert [len(jobs) for jobs in engine.batches] == [1, 1, 1, 1, 3, 1]
    probes = engine.batches[4]
    assert [job.attached.masks.num_on for job in probes] == [found.rounds[round].num_on for round in (3, 0, 2)]
    assert len({id(job.attached.model) for job in probes} | {id(engine.world.model)}) == 4
    jobs = [job for batch in engine.batches for job in batch]
    assert len({job.seed for job in jobs}) == len(jobs)
    assert [job.progress.name for job in jobs if job.progress is not None] == [
        "partial-seed-0", "partial-round-001-0", "partial-round-002-0", "partial-round-003-0",
        "partial-probe-003-0", "partial-probe-000-0", "partial-probe-002-0", "partial-final-0",
    ]  # fmt: skip
    assert found.ledger.samples == 1000 * sum(job.epochs for job in jobs)
    assert all(job.attached.optimizer.param_groups[0]["lr"] == 0.1 for job in jobs)


def test_seeds_of_jobs_follow_from_seed_and_stage_alone() -> None:
    def seeds(**options: object) -> dict[str, int]:
        engine = Engine(World())
        engine.discover(**options)
        return {job.progress.name: job.seed for batch in engine.batches for job in batch if job.progress}

    first = seeds()
    fewer = seeds(rule=AllAtOnce(probe=(2,)))
    assert fewer.items() <= first.items()
    assert not set(seeds(seed=1).values()) & set(first.values())


def test_those_of_several_probes_that_are_stored_are_not_trained_again() -> None:
    expected = without_timing(Engine(World()).discover())
    # start, four rounds with their weights, and then the first, or the first two, of the probes
    for num_stored in (1, 2):
        store = MortalStore(9 + num_stored, saves_the_last=True)
        with pytest.raises(Killed):
            Engine(World()).discover(store=store)
        engine = Engine(World())
        assert without_timing(engine.discover(store=store)) == expected
        assert [len(jobs) for jobs in engine.batches] == [3 - num_stored, 1]


def test_grown_copies_reach_one_common_total() -> None:
    world = World()
    found = world.discover(final="grown", rule=Script(probe=(0, 3), density=0.19))
    assert [point.epochs for point in found.curve.probes] == [16, 16]
    assert [call.epochs for call in world.fits] == [2, 14, 1, 1, 1, 11]
    assert found.network.stage == "probe-003"
    assert world.fits[1].num_slots > 0  # a grown copy brings its momentum along


def test_grown_copies_that_had_their_budget_still_come_to_rest() -> None:
    found = World().discover(final="grown", rough=10, rule=Script(probe=(3,), density=0.19))
    assert found.curve.rough[-1].epochs == 32
    assert found.curve.probes[0].epochs == 34


def test_a_round_may_be_given_in_epochs_or_as_a_share() -> None:
    assert [p.epochs for p in World().discover(rough=3).curve.rough] == [2, 5, 8, 11]
    assert [p.epochs for p in World().discover(rough=0.5).curve.rough] == [2, 10, 18, 26]


def test_an_adaptive_round_ends_when_the_loss_rests() -> None:
    losses = iter([9.0, 5.0, 4.0, 4.5, 4.1, 4.0, 0.0])
    world = World()
    found = discover(
        world.model,
        world.optimizer,
        world.fit,
        lambda model: (0.5, next(losses)),
        INPUTS[:1],
        rule=Script(probe=(), last=1, density=None),
        rough="adaptive",
        budget=8,
        start_density=0.1,
    )
    assert [call.epochs for call in world.fits] == [1] + [1] * 5 + [8]
    assert found.curve.rough[1].loss == 4.0
    draws = [call.draw for call in world.fits]
    assert len(set(draws)) == len(draws)  # every epoch is seeded by its own name


def test_an_adaptive_round_is_capped() -> None:
    world = World()
    falling = iter(range(1000, 0, -1))
    discover(
        world.model,
        world.optimizer,
        world.fit,
        lambda model: (0.5, float(next(falling))),
        INPUTS[:1],
        rule=Script(probe=(), last=1),
        rough="adaptive",
        budget=8,
        seed_epochs=1,
        start_density=0.1,
    )
    assert sum(call.epochs for call in world.fits) == 1 + 40 + 8


# Growth.


def test_growth_adds_a_share_rounded_down_and_takes_nothing_away() -> None:
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


def test_growth_ends_at_the_last_weight() -> None:
    found = World().discover(start_density=0.7, gamma=0.4, rule=Script(probe=(), last=2, density=None))
    assert [record.num_on for record in found.rounds] == [269, 376, 384]
    assert found.curve.at_ceiling


@pytest.mark.parametrize(("target", "last"), [(0.25, 96), (0.2525, 97)])
def test_a_target_density_is_hit_exactly_by_a_smaller_last_step(target: float, last: int) -> None:
    """Of 384 weights they are 96, and 96.96."""
    world = World()
    found = world.discover(target_density=target, start_density=0.1)
    counts = [record.num_on for record in found.rounds]
    assert counts == [38, 47, 58, 72, 90, last]
    assert found.curve.probes == ()
    assert found.network.stage == "final"
    assert found.masks.num_on == last
    assert "asked for" in found.reason
    assert world.fits[-1].epochs == 16


@pytest.mark.parametrize("target", [0.04, 0.012, 0.0055])
def test_a_target_below_the_automatic_start_is_the_start(target: float) -> None:
    """Of 384 weights the automatic start takes 19 (5%); a target of fewer is met to one weight, without growth."""
    assert World().discover(start_density=None, target_density=0.05).masks.num_on == 19
    store = MemoryStore()
    found = World().discover(start_density=None, target_density=target, store=store)
    assert [record.num_on for record in found.rounds] == [round(target * 384)]
    assert found.masks.num_on == round(target * 384)
    again = World().discover(start_density=None, target_density=target, store=store)
    assert without_timing(again) == without_timing(found), "the stored start, a fraction of a weight above, is taken"


def test_a_target_of_less_than_a_path_is_refused_before_anything_is_trained() -> None:
    world = World()
    with pytest.raises(UserError, match="keeps 1 of 384 weights, fewer than one path"):
        world.discover(start_density=None, target_density=0.0001)
    assert world.fits == []


def test_a_method_that_starts_above_the_target_is_refused() -> None:
    with pytest.raises(UserError, match=r"start_density 0.2 is above the density to grow to, 0.1, .* start lower"):
        World().discover(start_density=None, target_density=0.1, method=methods.gcg(start_density=0.2))


def test_gradient_growth_uses_the_loss_it_was_given() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    found = World().discover(method="gradient_growth", loss=loss, batches=[(INPUTS, TARGETS)])
    assert found.rounds[1].growth_flops > found.rounds[0].growth_flops == 0
    with pytest.raises(UserError, match="loss"):
        World().discover(method="gradient_growth")


# What is handed back.


def test_the_users_model_holds_the_found_network() -> None:
    world = World()
    found = world.discover()
    assert world.evaluate(world.model)[0] == found.score
    for name, mask in found.masks.items():
        weight = world.model.get_parameter(name)
        assert bool((weight[~mask] == 0).all())
        assert bool((weight[mask] != 0).any())
    assert found.density == found.masks.density == found.network.point.density
    num_parameters = sum(p.numel() for p in world.model.parameters())
    num_present = num_parameters - (found.masks.num - found.masks.num_on)
    assert found.density_model == pytest.approx(num_present / num_parameters)


def test_masks_stay_enforced_while_the_user_trains_on() -> None:
    world = World()
    found = world.discover()
    assert world.optimizer.param_groups[0]["lr"] == 0.1
    world.fit(world.model, world.optimizer, 5)
    assert all(bool((world.model.get_parameter(n)[~m] == 0).all()) for n, m in found.masks.items())
    found.attached.detach()
    world.optimizer.param_groups[0]["lr"] = 0.1
    world.fit(world.model, world.optimizer, 5)
    assert not all(bool((world.model.get_parameter(n)[~m] == 0).all()) for n, m in found.masks.items())


@pytest.mark.parametrize(
    ("script", "options", "round"),
    [
        (Script(density=0.12), {}, 1),
        (Script(density=0.05), {}, 0),
        (Script(density=0.9), {}, 3),
        (Script(density=None, status="flat"), {}, 0),
        (Script(density=None, status="unreached"), {}, 3),
        (Script(density=0.12, gain_density=0.15), {"select_by": "gain"}, 2),
        (Script(density=0.12, gain_density=None), {"select_by": "gain"}, 3),
    ],
)
def test_the_smallest_visited_density_no_smaller_than_the_answer(script: Script, options: dict, round: int) -> None:
    found = World().discover(rule=script, **options)
    assert found.network.point.round == round


def test_another_delta_is_read_from_the_same_curve() -> None:
    @dataclass(frozen=True)
    class Tells(Script):
        def answer(self, curve: Curve) -> Answer:
            return replace(super().answer(curve), density=self.delta * 10)

    found = World().discover(rule=Tells())
    assert found.operating_density == pytest.approx(0.1)
    assert found.within(0.03) == pytest.approx(0.3)


def test_the_report_is_complete() -> None:
    report = World().discover(reference="dense").report()
    assert report["network"]["num"] == 384
    assert [row["round"] for row in report["curve"]["rounds"]] == [0, 1, 2, 3]
    assert [row["round"] for row in report["curve"]["probes"]] == [0, 2]
    assert [row["round"] for row in report["topology"]] == [0, 1, 2, 3]
    assert all(len(row) > 1 for row in report["topology"])
    assert report["ledger"]["samples"] == 16 * (2 + 16 + 3 * 1 + 2 * 16 + 16)
    assert report["ledger"]["training_flops"] > 0


# Calls of the user's functions.


@pytest.mark.parametrize("make", [lambda m: SGD(m.parameters(), lr=0.05), lambda m: Adam(m.parameters(), lr=0.05)])
def test_every_phase_begins_at_the_users_learning_rate(make: Callable[[nn.Module], Optimizer]) -> None:
    world = World(make_optimizer=make)
    world.discover(reference="dense")
    assert {call.lr for call in world.fits} == {0.05}


def test_momentum_carries_over_in_the_trunk_and_not_into_fresh_copies() -> None:
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


def test_calls_are_seeded_by_their_stage_and_the_callers_generators_do_not_move() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = World(), World()
    first.discover()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(77)
    second.discover()
    draws = [call.draw for call in first.fits]
    assert draws == [call.draw for call in second.fits]
    assert len(set(draws)) == len(draws)


def test_repeating_gives_the_same_bits_and_another_seed_others() -> None:
    first = without_timing(World().discover())
    assert first == without_timing(World().discover())
    other = without_timing(World().discover(seed=1))
    assert other["masks_sha256"] != first["masks_sha256"]


def test_averaged_observation_scores_the_average() -> None:
    plain, ema_weights = World().discover(), World().discover(eval_weights="ema")
    assert ema_weights.masks_at(0) == plain.masks_at(0)
    assert ema_weights.network.point.loss != plain.network.point.loss
    world = World()
    found = world.discover(eval_weights="ema")
    assert found.examine(world.evaluate)[0].loss == found.network.point.loss


def test_the_observer_hears_of_every_stage() -> None:
    heard: list[str] = []

    class Listener(Callback):
        def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
            heard.append(f"begin {stage} {epochs}")

        def on_stage_end(self, record: Record, *, resumed: bool) -> None:
            heard.append(f"end {record.stage}{' resumed' if resumed else ''}")

        def on_decision(self, verdict: Verdict, answer: Answer) -> None:
            heard.append(type(verdict).__name__)

    store, rule = MemoryStore(), Script(probe=(0,), last=1)
    World().discover(rule=rule, store=store, callback=Listener())
    assert heard == [
        *["begin seed 2", "end seed", "Probe", "begin probe-000 5", "end probe-000", "Grow"],
        *["begin round-001 1", "end round-001", "Stop", "begin final 16", "end final"],
    ]
    heard.clear()
    World().discover(rule=rule, store=store, callback=Listener())
    assert heard == [
        *["end seed resumed", "Probe", "end probe-000 resumed", "Grow", "end round-001 resumed", "Stop"],
        "end final resumed",
    ]


# Stopping in the middle and going on.


@pytest.mark.parametrize("final", ["fresh", "grown"])
@pytest.mark.parametrize("saves_the_last", [True, False])
def test_killed_anywhere_and_resumed_ends_with_the_same_bits(final: str, saves_the_last: bool) -> None:
    rule = Script(probe=(0, 1), last=2)
    # start, seed with its weights, dense, two rounds with theirs, two probes, and the final network
    assert killed_at_every_save(saves_the_last, final=final, reference="dense", rule=rule) == 11


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_a_store(tmp_path: Path, kind: Callable[[Path], object]) -> None:
    """A kill in the third call of `fit`; everything before it is found again by a new process' model."""
    undisturbed = World().discover()
    dying, place = World(), kind(tmp_path / "runs" / "first")
    fit = dying.fit

    def killed_fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        fit(model, optimizer, epochs)
        if len(dying.fits) == 3:
            raise Killed

    dying.fit = killed_fit  # type: ignore[method-assign]
    with pytest.raises(Killed):
        dying.discover(store=place)
    world = World()
    found = world.discover(store=place)
    assert without_timing(found) == without_timing(undisturbed)
    num_stages = len(found.rounds) + len(found.probes) + 1
    assert len(world.fits) == num_stages - 2, "two stages were stored before the kill"
    assert found.masks_at(0) == undisturbed.masks_at(0), "the folder can be read after the discovery"
    again = World()
    assert without_timing(again.discover(store=place)) == without_timing(undisturbed)
    assert again.fits == []
    with pytest.raises(UserError, match=r"another config: gamma was 0.25, now 0.5"):
        World().discover(store=place, gamma=0.5)


def test_a_discovery_that_is_broken_off_leaves_the_model_as_it_came() -> None:
    world = World()
    weights, lr = copy.deepcopy(world.model.state_dict()), world.optimizer.param_groups[0]["lr"]
    store = MortalStore(5, saves_the_last=True)
    with pytest.raises(Killed):
        world.discover(store=store)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in world.model.state_dict().items())
    assert not world.optimizer.state
    assert world.optimizer.param_groups[0]["lr"] == lr
    assert without_timing(world.discover(store=store)) == without_timing(World().discover())


def test_weights_that_were_lost_are_worked_out_again() -> None:
    options = {"rule": Script(probe=(1,), last=2)}
    undisturbed = without_timing(World().discover(**options))
    store = MortalStore(6, saves_the_last=True)
    with pytest.raises(Killed):
        World().discover(store=store, **options)
    for stage in ("weights-000", "weights-001"):
        store.delete_tensors(stage)
    assert without_timing(World().discover(store=store, **options)) == undisturbed


def test_stages_of_another_model_are_refused() -> None:
    store = MemoryStore()
    World().discover(store=store)
    with pytest.raises(UserError, match="other weights"):
        World(seed=1).discover(store=store)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.05), "its lr was 0.1, now 0.05"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), "its kind was SGD, now AdamW"),
        (lambda p: torch.optim.SGD([{"params": [x]} for x in p], lr=0.1), "it had 1 groups of parameters, now"),
        (lambda p: torch.optim.SGD(p, lr=torch.tensor(0.5)), "its lr was 0.1, now 0.5"),
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


def test_no_store_is_none() -> None:
    assert World().discover(store=None).density > 0


# Errors.


@pytest.mark.parametrize("bad", [math.nan, (0.5, math.inf)])
def test_a_score_that_is_not_finite_ends_the_run_and_loses_nothing(bad: object) -> None:
    world, store = World(), MemoryStore()
    scores = iter([(0.5, 1.0), (0.6, 1.0), bad])
    with pytest.raises(RunFailed, match="in stage round-001"):
        discover(
            world.model,
            world.optimizer,
            world.fit,
            lambda model: next(scores),
            INPUTS[:1],
            rule=Script(),
            store=store,
            budget=8,
            seed_epochs=1,
            start_density=0.1,
        )
    assert store.load("probe-000") is not None
    assert store.load("round-001") is None


def test_weights_that_are_not_finite_end_the_run_even_if_the_score_is() -> None:
    world = World()

    def fit(model: nn.Module, optimizer: Optimizer, epochs: int) -> None:
        with torch.no_grad():
            model[0].weight.fill_(math.nan)

    with pytest.raises(RunFailed, match="stage seed"):
        discover(world.model, world.optimizer, fit, lambda model: 0.5, INPUTS[:1], budget=8, start_density=0.1)


@pytest.mark.parametrize("bad", ["high", None, (1, 2, 3)])
def test_a_score_of_the_wrong_kind_is_refused(bad: object) -> None:
    world = World()
    with pytest.raises(UserError, match="a score or a pair"):
        discover(world.model, world.optimizer, world.fit, lambda model: bad, INPUTS[:1], budget=8, start_density=0.1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gama": 0.5}, "did you mean gamma"),
        ({"start_density": 0.0}, r"start_density must be .*in \(0, 1\], got 0.0"),
        ({"start_density": 1.5}, "start_density"),
        ({"target_density": -1}, "target_density"),
        ({"start_density": 0.5, "target_density": 0.2}, "start lower"),
        ({"delta": 0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"budget": 0}, "budget"),
        ({"budget": 2.5}, "budget"),
        ({"reference": "sparse"}, "reference"),
        ({"reference": math.inf}, "reference"),
        ({"gamma": -0.1}, "gamma"),
        ({"rough": 0}, "rough"),
        ({"rough": 1.5}, "rough"),
        ({"rough": "quick"}, "rough"),
        ({"rough": True}, "rough"),
        ({"seed_epochs": 0}, "seed_epochs"),
        ({"probe_fraction": 0.0}, "probe_fraction"),
        ({"final": "new"}, "fresh"),
        ({"select_by": "both"}, "delta"),
        ({"eval_weights": "raw"}, "ema"),
        ({"method": "gcgg"}, "did you mean gcg"),
        ({"rule": "prob"}, "did you mean probe"),
        ({"num_val": 0}, "num_val"),
        ({"num_val": 0.5}, "num_val"),
        ({"store": 3}, "a directory or a Store"),
        ({"store": MemoryStore}, "a directory or a Store"),
        ({"callback": print}, "callback must be an instance of pathgrow.Callback"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(options: dict, sentence: str) -> None:
    world = World()
    weights = copy.deepcopy(world.model.state_dict())
    with pytest.raises(UserError, match=sentence):
        world.discover(**options)
    assert world.fits == []
    assert all(torch.equal(tensor, weights[name]) for name, tensor in world.model.state_dict().items())


@pytest.mark.parametrize(
    ("fit", "evaluate", "sentence"),
    [
        (lambda model, optimizer: None, None, r"fit takes \(model, optimizer\).*fit\(model, optimizer, epochs\)"),
        (lambda model, optimizer, epochs, data: None, None, r"missing a required argument: 'data'"),
        (None, lambda model, data: 0.5, r"evaluate takes \(model, data\).*evaluate\(model\)"),
        (None, lambda: 0.5, r"evaluate takes \(\)"),
        (3, None, "fit is a int, a function is wanted"),
    ],
)
def test_functions_that_cannot_be_called_are_refused_before_anything_is_trained(
    fit: object, evaluate: object, sentence: str
) -> None:
    world = World()
    with pytest.raises(UserError, match=sentence):
        discover(world.model, world.optimizer, fit or world.fit, evaluate or world.evaluate, INPUTS[:1], budget=8)
    assert world.fits == []


def test_functions_are_called_by_position_however_they_name_things() -> None:
    from pathgrow.runs.phases import check_calls

    check_calls(lambda m, o, n, extra=1: None, lambda *anything: None)
    check_calls(max, min)  # written in C; one of them may not say what it takes


@pytest.mark.parametrize("example_input", [torch.ones(1, 7), (INPUTS[:1], INPUTS[:1]), torch.ones(1, 2, 2, 2)])
def test_an_example_input_that_the_model_cannot_take(example_input: object) -> None:
    world = World()
    with pytest.raises(UserError, match="the model could not be run on example_input: ") as caught:
        discover(world.model, world.optimizer, world.fit, world.evaluate, example_input, budget=8)
    assert isinstance(caught.value.__cause__, RuntimeError | TypeError | ValueError)
    assert world.fits == []


def test_the_number_of_validation_examples_reaches_the_rule() -> None:
    seen: set[int | None] = set()

    @dataclass(frozen=True)
    class Watching(Script):
        def decide(self, curve: Curve) -> Verdict:
            seen.add(curve.num_val)
            return super().decide(curve)

    found = World().discover(rule=Watching(), num_val=1234)
    assert seen == {1234}
    assert found.curve.num_val == 1234
    assert World().discover().curve.num_val is None


def test_a_discovery_shows_itself_in_two_lines() -> None:
    found = World().discover()
    assert repr(found) == (
        "Discovery(Operating density: 20.0% of the prunable weights;\n"
        f"  returned model: density {100 * found.density:.1f}%, score {found.score:.4g}; 4 rounds, 2 probes)"
    )
    answer = replace(found.answer, interval=(0.1, 0.253))
    assert "20.0% of the prunable weights (90% interval 10.0-25.3%);" in repr(replace(found, answer=answer))
    answer = replace(found.answer, density=None, status="unreached")
    assert repr(replace(found, answer=answer)).startswith("Discovery(No operating density: no network up to ")


@pytest.mark.parametrize(
    ("rounds", "told"),
    [((0,), "round 0"), ((7,), "round 7"), ((1, 1), "round 1"), ((-1,), "round -1"), ((), "no round")],
)
def test_a_rule_that_probes_nonsense_is_named(rounds: tuple[int, ...], told: str) -> None:
    @dataclass(frozen=True)
    class Stubborn(Script):
        def decide(self, curve: Curve) -> Verdict:
            if len(curve.rough) < 2:
                return Grow(reason="two rounds")
            if not curve.probes:
                return Probe(rounds=(0,), reason="first")
            return Probe(rounds=rounds, reason="again")

    with pytest.raises(RunFailed, match=f"rule 'script' asked for (a probe|probes) of {told}"):
        World().discover(rule=Stubborn())


def test_a_rule_that_grows_a_full_network_is_named() -> None:
    with pytest.raises(RunFailed, match="has all its weights"):
        World().discover(start_density=0.9, rule=Script(probe=(), last=9))


def test_a_method_that_cannot_grow_is_refused() -> None:
    from pathgrow.methods import fixed

    with pytest.raises(UserError, match="does not grow"):
        World().discover(method=fixed(Masks.full(network())))


def test_options_document_themselves() -> None:
    assert DiscoverOptions().num_seed_epochs == 20
    assert DiscoverOptions(budget=4).num_seed_epochs == 1
    assert DiscoverOptions(budget=4).num_rough_epochs == 1
    # A tenth, but at least 16 epochs or 0.3 of the budget; a share that was asked for is taken as it is.
    assert [DiscoverOptions(budget=budget).num_probe_epochs for budget in (400, 160, 100, 40, 2)] == [40, 16, 16, 12, 1]
    assert DiscoverOptions(budget=100, probe_fraction=0.05).num_probe_epochs == 5
    assert DiscoverOptions(budget=100, final="grown").num_probe_epochs == 100
