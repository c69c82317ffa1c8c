"""Answers for other tolerances: those of the rule on the curve of the run, or a sentence why not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pathgrow.density import rules
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import Answer, Curve, Point, Reference, Stop, Verdict
from pathgrow.errors import UserError
from pathgrow.report.schema import AnswerReport, PointReport, ReferenceReport, RunReport, Score
from pathgrow.report.text import check_phrase
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.tolerances import read_off, within
from tests.support.sample_report import discovery_report, shrunk_report, training_report, with_answer, with_curve
from tests.support.searching import saturating, search


def answered(report: RunReport) -> AnswerReport:
    assert report.answer is not None
    return report.answer


@pytest.mark.parametrize("reference", [None, Reference(score=0.975, kind="given", epochs=80)])
@pytest.mark.parametrize("delta", [0.0025, 0.02])
def test_the_dense_score_and_the_distance_to_it_do_not_depend_on_the_tolerance(
    delta: float, reference: Reference | None
) -> None:
    report = shrunk_report(reference=reference)
    own, found = answered(report), answered(within(report, delta))
    assert found.reference == own.reference
    assert all(found.details[name] == own.details[name] for name in ("dense_low", "dense_high"))
    assert found.check is not None
    assert own.check is not None
    assert (found.check.shortfall, found.check.error) == (own.check.shortfall, own.check.error)
    near = "consistent" if reference is None else "verified"
    assert found.check.outcome == (near if delta == 0.02 else "missed")


@pytest.mark.parametrize("reference", [None, Reference(score=0.975, kind="given", epochs=80)])
def test_a_larger_tolerance_needs_no_higher_density(reference: Reference | None) -> None:
    report = shrunk_report(reference=reference)
    found = [answered(within(report, 0.001 * k)) for k in range(2, 25)]
    densities = [answer.operating_density for answer in found if answer.operating_density is not None]
    assert len(densities) > 15
    assert densities == sorted(densities, reverse=True)
    assert answered(within(report, 0.01)).operating_density == answered(report).operating_density
    near = answered(shrunk_report(delta=0.02, reference=reference)).operating_density
    assert answered(within(report, 0.02)).operating_density == pytest.approx(near, rel=0.3), "a search for two points"


def test_error_rates_have_the_answers_of_accuracies() -> None:
    report = shrunk_report(reference=Reference(score=0.975, kind="given", epochs=80))
    own, curve = answered(report), report.curve
    rounds, probes, finished = (
        tuple(replace(point, score=1 - point.score) for point in points)
        for points in (curve.rounds, curve.probes, curve.finished)
    )
    errors = with_curve(report, rounds=rounds, probes=probes, finished=finished)
    network = replace(report.network, val=Score(score=1 - report.network.val.score))
    errors = replace(errors, config={**report.config, "mode": "min"}, network=network)
    errors = with_answer(errors, reference=ReferenceReport(score=0.025, kind="given", epochs=80))
    found, expected = answered(within(errors, 0.02)), answered(within(report, 0.02))
    assert found.operating_density == pytest.approx(expected.operating_density, rel=1e-6)
    assert found.check is not None
    assert own.check is not None
    assert found.check.shortfall == pytest.approx(own.check.shortfall, abs=1e-3)
    assert found.reference == ReferenceReport(score=pytest.approx(0.025), kind="given", epochs=80)
    assert found.details["end_score"] == pytest.approx(1 - 0.976)
    assert "below" not in (check_phrase(errors) or "below")


def test_four_tolerances_are_read_off_one_curve() -> None:
    found = answered(shrunk_report()).tolerances
    assert [delta for delta, _, _ in found] == [0.0025, 0.005, 0.01, 0.02]
    assert found[2] == (0.01, answered(shrunk_report()).operating_density, "found")
    densities = [density for _, density, _ in found if density is not None]
    assert densities == sorted(densities, reverse=True)
    assert len(densities) == 4
    rough = tuple(ladder_point(k) for k in range(6))
    curve = Curve(rough=rough, can_probe=False)
    plain = read_off(rules.create("trajectory", delta=2.0), curve, 2.0, is_accuracy=False)
    assert [answer.delta for answer in plain] == [0.5, 1.0, 2.0, 4.0]
    assert read_off(Fixed(), curve, 0.01, is_accuracy=True) == (), "a rule that takes no delta"


def ladder_point(k: int) -> Point:
    return Point(round=k, density=0.05 * 1.5**k, epochs=k, score=50.0 + 40 * (1 - 0.5**k))


class Fixed:
    """A rule of a user."""

    name = "fixed"

    def decide(self, curve: Curve) -> Verdict:
        return Stop(reason="enough")

    def answer(self, curve: Curve) -> Answer:
        return Answer(rule=self.name, delta=0.01, status="found", density=0.2)


def static_report(**changes: Any) -> RunReport:
    """A discovery whose probes, trained for 16 of 160 epochs, were judged by the rule itself."""
    found = search(ProbeRule(delta=0.01), saturating(10.0))
    curve, answer = found.curve, found.answer
    rounds, probes = (
        tuple(PointReport(**{**vars(point), "loss": None}) for point in points)
        for points in (curve.rough, curve.probes)
    )
    assert answer.reference is not None
    report = with_answer(
        discovery_report(), operating_density=answer.density, interval=answer.interval, details=answer.details,
        reference=ReferenceReport(**vars(answer.reference)), **changes,
    )  # fmt: skip
    report = with_curve(report, rounds=rounds, probes=probes, num_val=curve.num_val)
    return replace(report, config={**report.config, "budget": curve.full_epochs})


def test_a_static_search_is_asked_by_the_name_of_its_rule() -> None:
    report = static_report()
    curve = search(ProbeRule(delta=0.01), saturating(10.0)).curve
    assert answered(within(report, 0.02)).operating_density == ProbeRule(delta=0.02).answer(curve).density


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (training_report(), "a training has no accuracy-density curve"),
        (with_answer(shrunk_report(), status="unlearned"), "training did not improve any network"),
        (
            with_answer(
                static_report(), status="open", operating_density=None, interval=None, details={"too_short": 1}
            ),
            "^the training was too short or too noisy for an answer, whatever the delta: rerun with more epochs$",
        ),
        (static_report(rule="my rule"), "'my rule'"),
        (discovery_report(), "found.within"),  # its answer is not that of the rule
        (with_curve(shrunk_report(), num_val=None), "found.within"),
    ],
)
def test_a_curve_that_cannot_be_read_again_is_one_sentence(report: RunReport, message: str) -> None:
    with pytest.raises(UserError, match=message):
        within(report, 0.02)


@pytest.mark.parametrize("delta", [0.0, -1.0, float("nan"), float("inf")])
def test_a_delta_must_be_positive(delta: float) -> None:
    with pytest.raises(UserError, match="delta must be > 0"):
        within(shrunk_report(), delta)


def test_a_percentage_is_relative_to_the_dense_score() -> None:
    report = shrunk_report(reference=Reference(score=0.975, kind="given", epochs=80))
    assert answered(within(report, "2%")) == answered(within(report, 0.02 * 0.975))
    as_percentage = within(report, "2%")
    as_number = within(replace(report, config=as_percentage.config), 0.01)
    asked = as_number.config, as_percentage.config
    assert [(config["delta"], config["delta_is_relative"]) for config in asked] == [(0.01, False), (0.02, True)]


@pytest.mark.parametrize("delta", ["two", "2", "-1%", "nan%", ""])
def test_other_words_are_not_a_tolerance(delta: str) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"delta must be a positive number or percentage of the score, got {delta!r}")
    ):
        within(shrunk_report(), delta)
    with pytest.raises(UserError, match=re.escape(f"got {delta!r}")):
        DiscoverOptions.checked({"delta": delta})


def test_a_percentage_needs_a_dense_score() -> None:
    with pytest.raises(UserError, match="delta='1%' is relative to a dense score, and there is none: pass a number"):
        within(with_answer(shrunk_report(), reference=None), "1%")
