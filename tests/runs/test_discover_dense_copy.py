"""The loop and the dense copy: a stage of its own, no mark on anything else; growth to the very weight asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from pathgrow.density.types import DENSE, Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.errors import RunFailed
from pathgrow.masks import Masks
from pathgrow.runs.result import Discovery
from tests.support.toy import Script, World, killed_at_every_save, stage_lengths

NUM = 8 * 16 + 16 * 16
"""Switchable weights of the world's network."""
MACS = NUM + 16 * 2
"""With its output layer."""
SAMPLES = 16
"""A step is an epoch there."""


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


@pytest.fixture(scope="module")
def found() -> Discovery:
    return World().discover(rule=Beside(), budget=40)


def test_a_dense_copy_is_a_stage_with_the_price_of_dense_training(found: Discovery) -> None:
    assert stage_lengths(found) == [
        *[("seed", 5), ("round-001", 1), ("round-002", 1), ("round-003", 1)],
        *[("probe-000", 12), ("probe-002", 12), ("probe-dense", 12), ("final", 40)],
    ]
    phase = next(phase for phase in found.ledger.phases if phase.name == "probe-dense")
    assert phase.density == 1.0
    assert phase.samples == 12 * SAMPLES
    assert phase.training_flops == 12 * SAMPLES * 3 * 2 * MACS
    *grown, dense = found.probes
    assert (dense.stage, dense.num_on, dense.density_model, dense.point.epochs) == ("probe-dense", NUM, 1.0, 12)
    assert [record.point.round for record in grown] == [0, 2]
    assert [row["round"] for row in found.report()["curve"]["probes"]] == [0, 2, DENSE], "by density"
    assert dense.point in found.curve.probes


def test_all_of_its_weights_are_there_in_training(found: Discovery) -> None:
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
    assert present[-1] == (40, counts[3]), "and it is not what is handed back"


def test_nothing_else_is_changed_by_it(found: Discovery) -> None:
    without = World().discover(rule=Beside(probe=(0, 2)), budget=40)
    for round in range(4):
        assert found.masks_at(round) == without.masks_at(round)
    assert found.rounds == tuple(
        replace(r, seconds=s.seconds) for r, s in zip(without.rounds, found.rounds, strict=True)
    )
    assert [record.point for record in found.probes[:-1]] == [record.point for record in without.probes]
    for name in ("weights_sha256", "masks_sha256", "network"):
        assert found.report()[name] == without.report()[name]
    assert found.masks_at(DENSE) == Masks.full(found.attached.model, found.site.scope)
    assert found.masks_at(DENSE).num_on == NUM


@pytest.mark.parametrize("saves_the_last", [True, False])
def test_killed_anywhere_and_resumed_ends_with_the_same_bits(saves_the_last: bool) -> None:
    rule = Beside(probe=(1, DENSE), last=1, up_to=(0.13, 0.14))
    # start, four rounds with their weights, two probes, and the final network
    assert killed_at_every_save(saves_the_last, rule=rule, budget=20) == 1 + 2 * 4 + 2 + 1


# Growth that ends where it is asked to.


def test_growth_ends_at_the_weight_asked_for() -> None:
    asked = (0.2, 77 / NUM, 0.1, 0.26, math.inf, 0.3)
    found = World().discover(rule=Beside(probe=(), up_to=asked))
    counts = [record.num_on for record in found.rounds][3:]
    # 76.8 weights are 77; where that many are there, one more; never fewer; a whole step is 25% at most.
    assert counts == [72, 77, 78, 79, 98, 122, 123]
    assert [record.point.density for record in found.rounds][3:] == [count / NUM for count in counts]


def test_growth_beyond_all_weights_ends_at_the_last() -> None:
    found = World().discover(start_density=0.9, rule=Beside(probe=(), last=0, up_to=(7.0,)))
    assert [record.num_on for record in found.rounds] == [346, NUM]
    assert found.curve.at_ceiling


# What the rule is told, and what it may ask for.


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
def test_a_dense_copy_is_allowed_where_it_is_cheap(options: dict, epochs: int, can: bool) -> None:
    found = World().discover(rule=Beside(probe=(2,), last=2), select_by="gain", **options)
    assert found.curve.can_probe_dense is can
    assert found.curve.full_epochs == options["budget"]
    assert found.curve.select_by == "gain"
    assert found.curve.probes[0].epochs == epochs
    if not can:
        with pytest.raises(RunFailed, match="rule 'script' asked for a probe of round -1"):
            World().discover(rule=Beside(), **options)


@pytest.mark.parametrize("rounds", [(DENSE, DENSE), (0, DENSE, 0), (DENSE - 1,)])
def test_a_dense_copy_is_made_once(rounds: tuple[int, ...]) -> None:
    with pytest.raises(RunFailed, match="rule 'script' asked for a probe of round"):
        World().discover(rule=Beside(probe=rounds), budget=40)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 16])
def test_the_default_rule_ends_within_any_budget(budget: int) -> None:
    found = World().discover(rule="probe", budget=budget, start_density=0.05)
    assert len(found.probes) <= 5
    stages = [record.stage for record in found.probes]
    is_full = found.rounds[-1].num_on == NUM
    assert ("probe-dense" in stages) == (budget > 1 and not is_full)
    assert found.network.point.epochs == budget
    if found.operating_density is not None:
        assert found.density >= found.operating_density / 1.1


def test_words_say_what_delta_was_taken_for() -> None:
    brief = World().discover(rule=Beside(allowed=0.3, delta=0.25), budget=100)
    assert brief.words.splitlines()[-2:] == [
        "The networks compared were trained 16 of 100 epochs. Gaps to dense shrink after that, so 0.36 (0.27 to 0.49) "
        "was allowed there for 0.25 in the end.",
        "A reference makes it surer.",
    ]
    assert brief.report()["answer"]["allowed"] == 0.3
    plain = World().discover(rule=Beside(delta=0.25), budget=100)
    assert "was allowed there" not in plain.words, "a rule that reads them as they are"
    assert plain.report()["answer"]["allowed"] == 0.25
