"""Every reason code has a sentence, every verdict and answer of a rule can be explained."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pathgrow.density import rules
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import Answer, Curve, Reason, Reference
from pathgrow.report.formats import ScoreFormat, percent
from pathgrow.report.reasons import explain, notes
from pathgrow.report.schema import AnswerReport
from tests.support.searching import ladder, points, saturating, search

ACCURACY = ScoreFormat(is_fraction=True)
DETAILS = {
    "at_density": 0.2,
    "second_density": 0.35,
    "needed_density": 0.3,
    "from_density": 0.05,
    "estimate": 0.1,
    "factor": 3.0,
    "rounds": 2,
    "needed": 6,
    "criterion": "gain",
    "dense": 1,
    "gap": 0.013,
    "probes": 5,
    "before_low": 0.1,
    "before_high": 0.12,
    "after_low": 0.11,
    "after_high": 0.11,
}


def report(answer: Answer) -> AnswerReport:
    return AnswerReport(
        operating_density=answer.density,
        interval=answer.interval,
        gain_density=answer.gain_density,
        gain_interval=answer.gain_interval,
        gain_level=answer.gain_level,
        delta=answer.delta,
        allowed=answer.allowed,
        status=answer.status,
        rule=answer.rule,
        reason=answer.reason,
        details=answer.details,
    )


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence(reason: Reason) -> None:
    sentence = explain(reason, DETAILS, ACCURACY)
    assert sentence == explain(str(reason), DETAILS, ACCURACY)
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert "None" not in sentence


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("few_rounds", "The trajectory has 2 of the 6 rounds that an estimate needs."),
        ("answer_beyond_trunk", "The gain criterion needs density 30.0%; the densest network grown has 20.0%."),
        ("first_probes", "First probes, at densities up to 20.0% and the dense network."),
        ("most_informative", "Probing density 20.0% and 35.0%: most informative for its cost."),
        ("trajectory_rising", "Density 20.0% is below 3x the density at which the trajectory flattens (10.0%)."),
        ("flat", "The curve is flat: every density observed is within 1.3 pp of the reference."),
        ("no_rise", "The scores did not rise from density 5.0% to 20.0%."),
        ("enough\nfor me", "enough\nfor me"),
    ],
)
def test_sentences_contain_the_details(reason: str, sentence: str) -> None:
    assert explain(reason, DETAILS, ACCURACY) == sentence
    assert explain("first_probes", {"at_density": 0.2, "dense": 0}) == "First probes, at densities up to 20.0%."


def test_scores_before_and_after_training() -> None:
    assert explain("nothing_learned", DETAILS, ACCURACY).startswith(
        "The networks compared scored 10.00% to 12.00% before training and 11.00% after it, and the growing network"
    )


@pytest.mark.parametrize("name", rules.names())
@pytest.mark.parametrize("reference", [None, Reference(score=0.9, kind="given"), Reference(score=0.99, kind="given")])
@pytest.mark.parametrize(
    "shape", [saturating(10.0), lambda x: 0.8, lambda x: 0.2 + 0.6 * x], ids=["rise", "flat", "line"]
)
def test_every_verdict_and_answer_of_a_search_is_explained(name: str, reference: Reference | None, shape) -> None:
    options = {"probe_epochs": 16 if reference is None else 160, "can_probe": name == "probe"}
    found = search(rules.create(name), shape, reference=reference, **options)
    sentences = [explain(verdict.reason, verdict.details) for verdict in found.verdicts]
    lines = notes(report(found.answer), ACCURACY)
    assert lines[-1] == explain(found.answer.reason, found.answer.details, ACCURACY)
    for sentence in (*sentences, *lines):
        assert sentence.endswith(".")
        assert "None" not in sentence
    assert len(set(lines)) == len(lines)


def test_notes_on_short_probes_give_the_quantile_and_the_allowed_gap() -> None:
    found = search(ProbeRule(delta=0.01), saturating(10.0))
    median = found.answer.details["median_density"]
    quantile, short, *_, stopped = notes(report(found.answer), ACCURACY)
    assert quantile == (
        f"The reported density is the 67% quantile of the posterior (conservative); the median is {percent(median)}."
    )
    assert short == (
        "Probes were trained for 16 of 160 epochs. Gaps to the reference shrink with training, so a gap of 1.58 pp "
        "(90%: 1.09 pp to 2.31 pp) at 16 epochs is treated as 1 pp at 160. Passing a reference tightens the interval."
    )
    assert stopped == "Probes bracket both answers and the credible intervals are narrow enough."


def test_notes_on_an_answer_that_may_be_below_or_above_the_probes() -> None:
    answer = Answer(rule="probe", delta=0.01, status="found", density=0.2)
    inside = dataclasses.replace(answer, details={"lowest": 0.1, "share_below": 0.04, "share_above": 0.05})
    assert notes(report(inside)) == []
    outside = dataclasses.replace(answer, details={"lowest": 0.1, "share_below": 0.31, "share_above": 0.12})
    assert notes(report(outside)) == [
        "With probability 31% the operating density is below 10.0%, the sparsest probe.",
        "With probability 12% the operating density is above the densest probe, if it exists.",
    ]


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        (lambda x: 0.9, {}, "The operating density is below the sparsest network compared (3.0%)."),
        (
            lambda x: 0.9,
            {},
            "The scores do not rise with density by more than their noise, so the gain density is undefined.",
        ),
        (
            saturating(10.0),
            {"reference": Reference(score=0.95, kind="given")},
            "The fitted score of the densest network compared is 90.0",
        ),
        (lambda x: 0.5 + 0.4 * x, {}, "The fitted curve does not saturate: 95% of its gain is out of reach."),
    ],
)
def test_notes_on_missing_answers(shape, options: dict, expected: str) -> None:
    found = search(ProbeRule(delta=0.01), shape, probe_epochs=160, **options)
    assert any(line.startswith(expected) for line in notes(report(found.answer), ACCURACY))


def test_notes_on_open_answers() -> None:
    rough = points([0.03, 0.06, 0.1, 0.15, 0.2, 0.3], saturating(5.0), wiggle=5e-4)
    rule = ProbeRule(delta=0.01)
    assert notes(report(rule.answer(Curve(rough=rough, probes=rough[:2]))))[0] == (
        "An answer needs at least 3 probes, got 2."
    )
    high = Curve(rough=rough, probes=rough, reference=Reference(score=0.9, kind="given"))
    assert notes(report(rule.answer(high)))[0] == "Denser networks have not been grown."


@pytest.mark.parametrize(("gain", "expected"), [(0.16, "lower"), (0.17, None), (0.24, None), (0.27, "higher")])
def test_notes_on_answers_that_differ(gain: float, expected: str | None) -> None:
    answer = Answer(rule="probe", delta=0.01, status="found", density=0.205, gain_density=gain)
    lines = notes(report(answer), ACCURACY)
    assert len(lines) == (expected is not None)
    if expected is not None:
        assert lines[0].startswith(f"The gain density is {expected} because it is a fraction of the whole rise")
        assert "not a gap of 1 pp to the reference" in lines[0]


def test_notes_on_rules_without_probes() -> None:
    rough = points(ladder(), saturating(12.0), wiggle=5e-4)
    curve = Curve(rough=rough, can_probe=False, reference=Reference(score=0.95, kind="given"))
    unmatched, training, *_ = notes(report(rules.create("trajectory").answer(curve)), ACCURACY)
    assert unmatched.startswith("No round came within 1 pp of the reference 95.00%")
    assert training.startswith(
        "Networks were evaluated while still in training, so the answer may be off by a factor of 2"
    )
    (fitted, _) = notes(report(rules.create("exponential").answer(curve)), ACCURACY)
    asymptote = percent(math.log(40) / 12)
    assert fitted.startswith(f"The fit comes within 1 pp of its own asymptote, an extrapolation, at {asymptote[:2]}")
