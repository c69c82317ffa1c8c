"""The static search in the loop: order of stages, decisions of the rule, signs of scores, too little training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch import nn
from torch.optim import Optimizer

from pathgrow.density.types import Answer, Curve, Grow, Probe, Verdict
from pathgrow.errors import RunFailed
from pathgrow.runs.records import Callback
from pathgrow.runs.tolerances import within
from tests.support.toy import (
    Loss,
    NegativeLoss,
    Script,
    World,
    stage_lengths,
)


def test_stages_and_their_lengths_follow_from_the_budget() -> None:
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


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [((0,), "round 0"), ((7,), "round 7"), ((1, 1), "round 1"), ((-1,), "round -1"), ((), "no round")],
)
def test_a_rule_that_asks_for_invalid_probes_is_refused(rounds: tuple[int, ...], expected: str) -> None:
    @dataclass(frozen=True)
    class Stubborn(Script):
        def decide(self, curve: Curve) -> Verdict:
            if len(curve.rough) < 2:
                return Grow(reason="two rounds")
            if not curve.probes:
                return Probe(rounds=(0,), reason="first")
            return Probe(rounds=rounds, reason="again")

    with pytest.raises(RunFailed, match=f"rule 'script' asked for (a probe|probes) of {expected}"):
        World().discover(rule=Stubborn())


def test_a_rule_that_grows_a_dense_network_is_refused() -> None:
    with pytest.raises(RunFailed, match="asked to grow a network that cannot grow further"):
        World().discover(start_density=0.9, rule=Script(probe=(), last=9))


# Scores of which the lower is better, and relative tolerances

STATIC = {"rule": "probe", "start_density": 0.2, "gamma": 0.6, "budget": 10, "delta": 0.1}


@pytest.mark.parametrize(
    "options",
    [{}, {"rule": "trajectory", "seed_epochs": None}, {"rule": "exponential"}, {"rough": "adaptive"}, {"delta": "20%"}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_a_loss_is_minimized_with_static_masks_too(options: dict[str, Any]) -> None:
    """Equal to the search with negated scores, but for the sign of everything that is shown."""
    said: list[list[Answer]] = [[], []]

    class Noting(Callback):
        def __init__(self, answers: list[Answer]) -> None:
            self.answers = answers

        def on_decision(self, verdict: Verdict, answer: Answer) -> None:
            self.answers.append(answer)

    settings = {**STATIC, **options}
    found = Loss().discover(mode="min", callback=Noting(said[0]), **settings)
    other = NegativeLoss().discover(callback=Noting(said[1]), **settings)
    assert found.masks == other.masks
    assert (found.answer.status, found.answer.density, found.answer.interval, found.answer.delta) == (
        other.answer.status, other.answer.density, other.answer.interval, other.answer.delta,
    )  # fmt: skip
    assert found.score == -other.score > 0
    assert [record.point.score for record in found.trained] == [-record.point.score for record in other.trained]
    for here, there in zip(said[0], said[1], strict=True):
        assert (here.density, here.reference is None) == (there.density, there.reference is None)
        if here.reference is not None and there.reference is not None:
            assert here.reference.score == -there.reference.score > 0
    report = found.report()
    assert report.config["delta"] == (0.2 if "delta" in options else 0.1)
    if report.reference is not None:
        assert report.target_score == pytest.approx(report.reference.score + (report.answer.allowed or 0))
    if not found.answer.details.get("too_short"):
        assert within(report, found.answer.delta).answer.operating_density == found.operating_density


@pytest.mark.parametrize(("reference", "of"), [(None, "densest probe"), (0.4, "given"), ("dense", "dense")])
@pytest.mark.filterwarnings("ignore")
def test_a_relative_delta_with_static_masks(reference: float | str | None, of: str) -> None:
    found = Loss().discover(mode="min", **{**STATIC, "delta": "20%", "reference": reference})
    densest = max(found.probes, key=lambda record: record.point.density)
    score = {"densest probe": densest.point.score, "given": 0.4, "dense": found.dense and found.dense.point.score}[of]
    assert found.answer.delta == pytest.approx(0.2 * score)
    assert found.within(found.answer.delta) == found.operating_density


@pytest.mark.parametrize(("world", "mode", "asked"), [(Loss, "max", "lower .* mode='min'"), (World, "min", "higher")])
def test_scores_that_get_worse_with_static_masks_raise_the_question(world: type[World], mode: str, asked: str) -> None:
    with pytest.warns(UserWarning, match=rf"scores went from 0\.\d+ to 0?\.?\d+ in training: {asked}"):
        found = world().discover(mode=mode, **{**STATIC, "budget": 60})
    assert found.answer.status == "unlearned"
    assert all(point.score > 0 for point in found.untrained)


def test_of_equal_static_networks_the_densest_is_returned() -> None:
    world = World()
    world.evaluate = lambda model: (0.5, 0.7)  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="training improved no network"):
        found = world.discover(**STATIC)
    assert found.answer.status == "unlearned"
    assert found.network.point.density == max(record.point.density for record in found.rounds)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_training_that_is_too_short_gives_no_density_and_keeps_the_network_in_hand(mode: str) -> None:
    """The growing network is trained in every round, a probe and the final network for one epoch."""
    world, epochs = World(), dict[int, int]()

    def fit(model: nn.Module, optimizer: Optimizer, num: int) -> None:
        World.fit(world, model, optimizer, num)
        epochs[id(model)] = epochs.get(id(model), 0) + num

    def evaluate(model: nn.Module) -> float:
        score = 1 - 0.9 ** epochs.get(id(model), 0)
        return score if mode == "max" else 1 - score

    world.fit, world.evaluate = fit, evaluate  # type: ignore[method-assign, assignment]
    found = world.discover(**{**STATIC, "budget": 1, "delta": 0.01, "mode": mode})
    assert (found.answer.status, found.operating_density, found.interval) == ("open", None, None)
    assert "too short" in repr(found)
    assert found.report().answer.tolerances == ()
    assert found.within(0.1) is None
    assert found.network == found.rounds[-1]
    assert found.score == evaluate(world.model)
    assert found.masks.num_on == found.network.num_on
    world.fit(world.model, world.optimizer, 1)
    assert all(bool((world.model.get_parameter(name)[~mask] == 0).all()) for name, mask in found.masks.items())
