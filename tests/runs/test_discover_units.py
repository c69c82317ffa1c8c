"""Percent beside shares of one: what is refused, what is only doubted, and that no other scores raise an alarm."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pathgrow.checkpoint.store import MemoryStore
from pathgrow.density.types import Curve, Point, Reference
from pathgrow.errors import RunFailed
from pathgrow.runs.discovery import discover
from pathgrow.runs.result import Discovery
from pathgrow.runs.scale import check_reference, doubt_about_reference
from tests.support.toy import INPUTS, Script, World


def curve(reference: float, rough: list[float], probes: list[float], kind: str = "given") -> Curve:
    def points(scores: list[float]) -> tuple[Point, ...]:
        return tuple(
            Point(round=k, density=0.01 * 1.25**k, epochs=8, score=score, loss=None) for k, score in enumerate(scores)
        )

    told = Reference(score=reference, kind=kind, epochs=8)  # type: ignore[arg-type]
    return Curve(rough=points(rough), probes=points(probes), reference=told)


@pytest.mark.parametrize(
    ("reference", "rough", "probes"),
    [
        (93, [0.1, 0.5, 0.6, 0.7, 0.8], []),
        (93, [0.1], [0.11]),
        (76, [0.0, 0.0], [0.4, 0.6]),
        (0.93, [87.5], []),
        (0.93, [10.0, 12.0, 15.0, 60.0], []),
    ],
)
def test_a_reference_in_another_unit_is_refused(reference: float, rough: list[float], probes: list[float]) -> None:
    with pytest.raises(RunFailed, match=r"the reference is .* both in one unit are wanted"):
        check_reference(curve(reference, rough, probes))


@pytest.mark.parametrize(
    ("reference", "rough", "probes"),
    [
        (93, [0.1, 0.5, 0.6, 0.8], []),  # percent of a network that has hardly begun to learn: wait
        (27, [0.0, 0.0, 0.0, 0.01, 0.02, 0.05], []),  # BLEU of very sparse networks
        (27, [0.1, 0.3, 0.8, 2.0, 4.0], [9.0]),
        (30, [0.2, 0.4, 0.6, 0.8, 0.9], []),  # a reward
        (-1.2, [-6.0, -4.0, -3.0, -2.5, -2.0], [-1.4]),  # losses with a minus sign
        (-0.05, [-2.3, -1.0, -0.4, -0.2, -0.1], [-0.06]),
        (18.0, [-21.0, -20.0, 0.5, 2.0, 5.0], [17.0]),
        (0.5, [-3.0, -1.0, 0.1, 0.2, 0.3], [0.45]),  # R2
        (2.0, [0.3, 0.5, 0.7, 0.9, 0.95], [0.99]),
        (0.93, [10.0], []),
        (0.0, [0.1, 0.2, 0.3, 0.4, 50.0], []),
    ],
)
def test_scores_of_any_kind_are_not_refused(reference: float, rough: list[float], probes: list[float]) -> None:
    check_reference(curve(reference, rough, probes))


def test_a_reference_that_was_trained_is_never_refused() -> None:
    check_reference(curve(93, [0.1] * 5, [0.5], kind="dense"))


@given(st.floats(1e-6, 1e6), st.lists(st.floats(0.05, 2.0), min_size=1, max_size=8), st.booleans())
def test_scores_within_a_factor_of_20_of_the_reference_are_never_refused(
    reference: float, shares: list[float], negative: bool
) -> None:
    sign = -1 if negative else 1
    scores = [sign * reference * share for share in [*shares, 0.06]]
    check_reference(curve(sign * reference, scores, scores))


@pytest.mark.parametrize(
    ("reference", "rough", "probes", "doubt"),
    [
        (7.3, [0.3, 0.6], [0.9, 0.92], r"7\.3 and the best score so far 0\.92: if scores are accuracies"),  # an error
        (2.1, [0.0, 0.01], [0.3], r"2\.1 and the best score so far 0\.3: if scores are accuracies"),  # a loss
        (1.2, [-6.0, -3.0], [-1.4], r"1\.2 and the best score so far -1\.4: if scores are losses with a minus sign"),
        (0.25, [-2.0, -0.9], [-0.3], "if scores are losses with a minus sign"),
    ],
)
def test_a_reference_that_looks_like_an_error_or_a_loss_is_doubted(
    reference: float, rough: list[float], probes: list[float], doubt: str
) -> None:
    check_reference(curve(reference, rough, probes))
    assert re.search(doubt, doubt_about_reference(curve(reference, rough, probes)) or "")
    assert doubt_about_reference(curve(reference, rough, [])) is None, "scores of networks trained out are waited for"
    assert doubt_about_reference(curve(reference, rough, probes, kind="dense")) is None


@pytest.mark.parametrize(
    ("reference", "probes"),
    [
        (0.93, [0.1]),
        (0.93, [0.95]),
        (1.0, [0.2]),
        (93, [45.0, 91.0]),
        (15.0, [0.9, 1.2]),  # a reward
        (-1.2, [-6.0, -1.4]),
        (0.8, [-0.3]),  # R2
        (18.0, [-3.0]),
        (0.0, [0.5]),
    ],
)
def test_references_that_may_well_be_scores_are_not_doubted(reference: float, probes: list[float]) -> None:
    assert doubt_about_reference(curve(reference, probes[:1], probes)) is None


def test_a_discovery_doubts_its_reference_once_and_goes_on() -> None:
    with pytest.warns(UserWarning, match=r"the reference is 7\.3 and .*, not its error or loss") as told:
        found = World().discover(reference=7.3, rule=Script(probe=(0, 1, 2)))
    assert len(found.probes) == 3
    assert len(told) == 1


def in_percent(world: World, factor: float = 100, **options: object) -> Discovery:
    def evaluate(model: nn.Module) -> tuple[float, float]:
        score, loss = world.evaluate(model)
        return factor * score, loss

    settings = {"start_density": 0.1, "budget": 16, "seed_epochs": 2, **options}
    return discover(world.model, world.optimizer, world.fit, evaluate, INPUTS[:1], **settings)  # type: ignore[arg-type]


def test_a_discovery_ends_before_its_answer_and_what_it_trained_is_used_again() -> None:
    store, world = MemoryStore(), World()
    script = Script(probe=(0,), last=9)
    with pytest.raises(RunFailed, match="the reference is 93 and the best score so far 0"):
        in_percent(world, 1, reference=93, rule=script, store=store)
    assert [call.epochs for call in world.fits] == [2, 16]
    again = World()
    found = in_percent(again, 1, reference=0.93, rule=script, store=store)
    assert len(found.rounds) == 10
    assert [call.epochs for call in again.fits] == [*[1] * 9, 16]


def test_a_target_needs_no_reference_and_asks_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_percent(World(), reference=0.93, rule="probe", target_density=0.2)


def test_percent_with_the_default_delta_are_doubted_once() -> None:
    with pytest.warns(UserWarning, match=r"delta is 0\.01, .* give delta=1 for one point") as told:
        in_percent(World(), rule="exponential")
    assert len(told) == 1
    assert told[0].filename == __file__, "it points at whoever called"


@pytest.mark.parametrize(
    ("factor", "options"),
    [(100, {"delta": 1.0, "rule": "exponential"}), (1, {"rule": "exponential"}), (100, {"rule": Script()})],
)
def test_other_deltas_and_scores_are_not_doubted(factor: float, options: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_percent(World(), factor, **options)


def test_losses_with_a_minus_sign_are_not_doubted() -> None:
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discover(
            world.model, world.optimizer, world.fit, lambda model: -3 - world.evaluate(model)[1], INPUTS[:1],
            start_density=0.1, budget=16, seed_epochs=2, rule="exponential",
        )  # fmt: skip
