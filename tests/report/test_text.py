"""Sentences about a run: each number from its own field, no claim beyond the data, nothing said twice."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from pathgrow.density import rules
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import Answer, Curve, Reason, Reference
from pathgrow.report import text
from pathgrow.report.formats import ScoreFormat, percent, percent_range, score_format
from pathgrow.report.html import page
from pathgrow.report.schema import (
    AnswerReport,
    CheckReport,
    MatchReport,
    PhaseReport,
    ReferenceReport,
    RunReport,
    Score,
)
from pathgrow.report.terminal import summary
from pathgrow.report.text import explain, notes
from tests.support.sample_report import (
    discovery_report,
    point,
    short_probe_report,
    shrunk_report,
    training_report,
    with_answer,
    with_curve,
)
from tests.support.searching import ladder, points, saturating, search


def finding(report: RunReport, label: str) -> str:
    return dict(text.findings(report))[label]


def terminal(report: RunReport) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(summary(report, 120))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def visible(report: RunReport) -> str:
    """The text of the page without its title and figures."""
    body = re.sub(r"<(title|style|svg)\b.*?</\1>", "", page(report), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


# The answer


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Operating density (within 1 pp of dense): 8.5% (90% interval 6.7-10.4%)."),
        ({"interval": None}, "Operating density (within 1 pp of dense): 8.5%."),
        ({"interval": (0.0, 0.1042)}, "Operating density (within 1 pp of dense): 8.5% (90% interval up to 10.4%)."),
        (
            {"status": "flat", "interval": (0.0, 0.025)},
            "Operating density (within 1 pp of dense): probably below 2.5%, the sparsest network compared.",
        ),
        (
            {"status": "flat", "interval": (0.0, 0.04)},
            "Operating density (within 1 pp of dense): probably below 2.5%, the sparsest network compared "
            "(90% interval up to 4.0%).",
        ),
        (
            {"status": "flat", "interval": (0.0, None)},
            "Operating density (within 1 pp of dense): probably below 2.5%, the sparsest network compared "
            "(90% interval up to 100%).",
        ),
        (
            {"status": "unreached"},
            "No operating density: no network up to 36.4% density is within 1 pp of dense.",
        ),
        ({"status": "open"}, "No operating density: too few networks were evaluated."),
        ({"status": "unlearned"}, "No operating density: training did not improve any network."),
    ],
)
def test_the_answer_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    density = 0.0848 if "status" not in changes else None
    report = with_answer(short_probe_report(), **{"operating_density": density, **changes})
    assert text.headline(report) == sentence
    assert sentence in " ".join(terminal(report).split())
    if not changes:  # drawing a page takes a second
        assert f"<h1>{sentence}</h1>" in page(report)


def test_differences_are_in_the_unit_of_the_scores() -> None:
    report = with_answer(discovery_report(), status="unreached", operating_density=None)
    assert report.answer is not None
    shifted = [replace(probe, score=probe.score - 3) for probe in report.curve.probes]
    report = replace(with_curve(report, probes=tuple(shifted)), config={})
    assert text.headline(report).endswith("is within 0.01 of dense.")
    assert finding(report, "criterion") == "score within 0.01 of the reference"
    assert f"{shifted[-1].score:.5g}" in terminal(report)


def relative(report: RunReport, delta: float) -> RunReport:
    """The report of a run that asked for a fraction of the dense score."""
    return replace(report, config={**report.config, "delta": delta, "delta_is_relative": True})


def test_a_relative_tolerance_is_named_as_it_was_asked_for() -> None:
    report = relative(discovery_report(), 0.02)
    assert text.headline(report).startswith("Operating density (within 2% (1 pp) of dense): 8.5%")
    assert finding(report, "criterion") == "accuracy within 2% (1 pp) of the reference"
    assert text.goal_label(report) == "target: 2% (1 pp) below the reference"
    assert "within 2% (1 pp) of dense" in terminal(report)
    assert "within 2% (1 pp) of dense" in visible(report)
    short = relative(short_probe_report(), 0.005)
    assert text.goal_label(short) == "target: 1.38 pp below the reference (0.5% (1 pp) after full training)"
    flat = with_answer(report, status="flat", operating_density=None, reason="flat", details={"gap": 0.01})
    assert "The curve is flat: every density observed is within 2% (1 pp) of the reference." in text.explanations(flat)
    plain = replace(report, config={**report.config, "delta": 0.01, "delta_is_relative": False})
    assert "(within 1 pp of dense)" in text.headline(plain)


@pytest.mark.parametrize("show", [terminal, visible])
@pytest.mark.parametrize("report", [discovery_report(), short_probe_report()])
def test_intervals_stand_once_and_densities_have_one_format(report: RunReport, show: Any) -> None:
    shown, answer = (
        re.sub(r"(?s)accuracy by density.*operating density \(67% quantile\)", "", show(report)),
        report.answer,
    )
    assert answer is not None
    for interval in (answer.interval, answer.gain_interval):
        assert interval is not None
        assert shown.count(percent_range(interval)) == 1
    for density in (answer.operating_density, answer.gain_density, report.network.density):
        assert density is not None
        assert percent(density) in shown
        assert not re.search(rf"(?<![\d.]){100 * density:.0f}%", shown)
        assert f"{100 * density:.2f}%" not in shown


# Findings


def test_the_findings_of_a_training_say_each_number_in_its_place() -> None:
    assert text.findings(training_report()) == [
        ("method", "rigl"),
        ("model", "12.3% of the prunable weights (1,234 of 10,000); 23.4% of model"),
        ("accuracy", "91.11% validation, 82.22% test"),
        ("trained", "57 epochs"),
        ("training cost", "0.678x the FLOPs of a dense training (4.56 GFLOPs)"),
        ("inference", "0.345x the FLOPs of the dense model"),
        ("time", "training 1 min 23 s, wall clock 1 min 36 s"),
    ]
    report = training_report()
    untested = replace(report, network=replace(report.network, test=None), notes=("few mask updates", "so\x1b"))
    assert finding(untested, "accuracy") == "91.11% validation"
    assert text.headline(untested) == "rigl at 12.3% density: 91.11% validation accuracy."
    assert text.headline(report) == "rigl at 12.3% density: 82.22% test accuracy."
    assert [phrase for label, phrase in text.findings(untested) if label == "note"] == ["few mask updates", "so?"]


@pytest.mark.parametrize(
    ("kind", "error", "phrase"),
    [
        ("flops", 0.0216, ", matched to a budget of FLOPs (2.2% over)"),
        ("flops", -0.0216, ", matched to a budget of FLOPs (2.2% under)"),
        ("parameters", 0.0004, ", matched to a budget of epochs times parameters"),
        ("prunable", 0.0, ", matched to a budget of epochs times prunable weights"),
        ("none", None, ""),
    ],
)
def test_a_matched_budget_and_its_error_are_named(kind: str, error: float | None, phrase: str) -> None:
    report = training_report()
    phases = tuple(
        PhaseReport(phase=f"level-{k:03d}", epochs=20, samples=200, density=0.1, training_flops=1) for k in range(2)
    )
    match = MatchReport(kind=kind, epochs=20, budget=None if kind == "none" else 1e9, relative_error=error)
    report = replace(report, ledger=replace(report.ledger, phases=phases, epochs_trained=43.57, match=match))
    assert finding(report, "trained") == f"43.6 epochs in 2 phases{phrase}"


@pytest.mark.parametrize(
    ("reference", "phrase"),
    [
        (ReferenceReport(score=0.98, kind="given"), "98.00%, given"),
        (ReferenceReport(score=0.98, kind="dense", epochs=80), "98.00%, dense baseline after 80 epochs"),
        (ReferenceReport(score=0.98, kind="estimated"), "98.00%, estimated for a full dense training"),
        (
            ReferenceReport(score=0.974, kind="densest", epochs=16),
            "97.40% (fitted; measured 97.60%), dense probe after 16 epochs",
        ),
    ],
)
def test_the_reference_is_named_by_its_kind(reference: ReferenceReport, phrase: str) -> None:
    report = with_answer(short_probe_report(), reference=reference)
    assert finding(report, "reference") == phrase
    without_dense = with_curve(report, probes=report.curve.probes[:-1])
    if reference.kind == "densest":
        assert "(fitted; measured 97.48%), densest probe after 16 epochs" in finding(without_dense, "reference")
        assert text.reference_label(report) == "reference 97.40% (fitted)"
        without_probes = with_curve(report, probes=())
        assert finding(without_probes, "reference") == "97.40%, densest network grown"
    else:
        kind = {"given": "given", "dense": "dense baseline", "estimated": "estimated"}[reference.kind]
        assert text.reference_label(report) == f"reference 98.00% ({kind})"


def test_the_returned_model_is_related_to_the_answer() -> None:
    report = short_probe_report()
    assert finding(report, "mask") == "round 7, near the operating density (at most a tenth sparser)"
    assert finding(discovery_report(), "mask") == "round 7, the sparsest at or above the operating density"
    assert finding(with_answer(report, select_by="gain"), "mask") == "round 7, selected by the gain density"
    assert finding(with_answer(report, operating_density=None), "mask") == "round 7"
    dense = replace(report, network=replace(report.network, round=-1))
    assert finding(with_answer(dense, operating_density=None), "mask") == "dense"


def test_the_scores_of_a_dense_baseline_stand_beside_those_of_the_model() -> None:
    report = with_answer(discovery_report(), dense=Score(score=0.981))
    assert finding(report, "accuracy") == "96.79% validation, 96.55% test (dense: 98.10% validation)"
    report = with_answer(report, dense_test=Score(score=0.973))
    assert finding(report, "accuracy").endswith("(dense: 98.10% validation, 97.30% test)")


def test_only_measured_times_and_costs_are_shown() -> None:
    report = discovery_report()
    assert finding(report, "time") == "training 48 s, wall clock 1 min 15 s"
    report = replace(report, timing=replace(report.timing, run_seconds=None))
    assert finding(report, "time") == "training 48 s"
    report = replace(report, timing=replace(report.timing, seconds=0.0))
    assert "time" not in dict(text.findings(report))
    report = replace(report, ledger=replace(report.ledger, relative=None, dense_training_flops=None))
    assert finding(report, "training cost") == "15.8 GFLOPs"


def test_the_cost_of_a_pretrained_network_is_that_of_fine_tuning() -> None:
    """Its budget is the length of a fine-tuning: the training before that is not known."""
    report = discovery_report()
    report = replace(report, config={**report.config, "start": "pretrained"})
    assert finding(report, "training cost") == (
        "0.898x the FLOPs of a dense fine-tuning, 5.45x its epochs (15.8 GFLOPs)"
    )


def test_an_interval_without_an_answer_is_a_finding() -> None:
    report = with_answer(discovery_report(), status="flat", operating_density=None, interval=(0.0, 0.02))
    assert finding(report, "90% interval") == "up to 2.0% of the prunable weights"
    assert "90% interval" not in dict(text.findings(discovery_report())), "the headline has it"


@pytest.mark.parametrize(
    ("outcome", "kind", "shortfall", "phrase"),
    [
        ("verified", "dense", 0.0042, "verified, 0.42 ± 0.30 pp below the dense baseline"),
        ("verified", "given", -0.001, "verified, 0.10 ± 0.30 pp above dense (given)"),
        ("consistent", "estimated", 0.0042, "consistent, 0.42 ± 0.30 pp below dense (estimated)"),
        ("not verified", "estimated", 0.012, "not verified, 1.20 ± 0.30 pp below dense (estimated)"),
        ("missed", "given", 0.019, "missed by 0.90 ± 0.30 pp: 1.9 pp below dense (given)"),
    ],
)
def test_the_check_says_how_the_model_compares_with_which_dense_score(
    outcome: str, kind: str, shortfall: float, phrase: str
) -> None:
    check = CheckReport(outcome=outcome, shortfall=shortfall, error=0.003)
    report = with_answer(shrunk_report(), check=check, reference=ReferenceReport(score=0.976, kind=kind))
    assert finding(report, "check") == phrase
    assert text.closing(report)[0][1] == f"Returned model (9.5%): {phrase}."
    assert bool(text.advice(report)) == (outcome == "not verified")


@pytest.mark.parametrize(
    ("kind", "score", "num_val", "phrase"),
    [
        ("dense", 0.976, 900, "verified, 0.70 ± 0.77 pp below the dense baseline"),
        ("given", 0.976, 900, "verified, 0.70 ± 0.58 pp below dense (given)"),
        ("given", 0.987, 900, "consistent, 1.80 ± 0.58 pp below dense (given)"),
        ("given", 0.987, None, "missed by 0.8 pp: 1.8 pp below dense (given)"),
        ("estimated", 0.976, 900, "not verified"),
    ],
)
def test_a_search_without_a_check_of_its_own_is_compared_with_a_measured_dense_score(
    kind: str, score: float, num_val: int | None, phrase: str
) -> None:
    report = with_answer(shrunk_report(), check=None, reference=ReferenceReport(score=score, kind=kind))
    report = with_curve(report, num_val=num_val)
    assert text.check_phrase(report) == phrase
    [*sentence] = text.advice(report)
    assert bool(sentence) == (phrase == "not verified")
    assert all(
        line.startswith("Not verified: ") and "A new run with --verify trains it too" in line for line in sentence
    )
    assert all(line in " ".join(terminal(report).split()) for line in sentence)


def test_the_answer_ends_with_density_model_and_cost() -> None:
    check = CheckReport(outcome="consistent", shortfall=0.0084, error=0.0013)
    lines, others = text.closing(
        with_answer(shrunk_report(), operating_density=0.091, interval=(0.081, 0.097), check=check)
    )
    assert lines == [
        "Operating density (within 1 pp of dense): 9.1% (90% interval 8.1-9.7%).",
        "Returned model (9.5%): consistent, 0.84 ± 0.13 pp below dense (estimated).",
        "Cost: 0.613x the FLOPs of a dense training, 1.15x its epochs (10.8 GFLOPs, 1 min 15 s).",
    ]
    assert {label for label, _ in text.findings(shrunk_report())} - {label for label, _ in others} == {
        "check",
        "training cost",
    }
    assert (
        text.closing(discovery_report())[0][1] == "Returned model (9.5%): not verified; 96.79% validation, 96.55% test."
    )
    assert text.closing(training_report())[0] == [
        "rigl at 12.3% density: 82.22% test accuracy.",
        "Cost: 0.678x the FLOPs of a dense training (4.56 GFLOPs, 1 min 36 s).",
    ]


@pytest.mark.parametrize(
    ("kind", "epochs", "dense_epochs", "said"),
    [
        ("dense", 120, 80, "; 120 epochs, dense 80."),
        ("dense", 84, 80, "dense baseline."),
        ("estimated", 120, None, "; 120 epochs, dense 80."),  # the budget
        ("pretrained", 120, None, "pretrained model."),
    ],
)
def test_a_model_that_was_trained_longer_than_dense_says_so_at_once(
    kind: str, epochs: int, dense_epochs: int | None, said: str
) -> None:
    report = with_answer(
        shrunk_report(),
        reference=ReferenceReport(score=0.976, kind=kind, epochs=dense_epochs),
        check=CheckReport(outcome="verified", shortfall=0.004, error=0.001),
    )
    longer = dataclasses.replace(report, network=dataclasses.replace(report.network, epochs=epochs))
    assert text.closing(longer)[0][1].endswith(said)


def test_densities_for_other_tolerances_are_one_line() -> None:
    found = ((0.0025, 0.14, "found"), (0.005, None, "open"), (0.01, None, "unreached"), (0.02, None, "flat"))
    report = with_answer(shrunk_report(), tolerances=found, tolerance_intervals=((0.1, 1.0), None, None, (0.0, 0.016)))
    expected = "up to 0.5 pp: too short or too noisy for an answer, 1 pp: none, 2 pp: below 1.6%"
    assert finding(report, "tolerances") == expected
    clear = with_answer(report, tolerances=(found[0], *found[2:]), tolerance_intervals=((0.1, 1.0), None, None))
    assert finding(clear, "tolerances") == "0.25 pp: 14.0% (10.0-100%), 1 pp: none, 2 pp: below 1.6%"
    wide = with_answer(report, tolerances=found[3:], tolerance_intervals=((0.0, 0.05),))
    assert finding(wide, "tolerances") == "2 pp: below 1.6% (up to 5.0%)"
    one = with_answer(clear, tolerances=((0.0025, None, "open"), (0.01, 0.02, "found")), tolerance_intervals=())
    assert finding(one, "tolerances") == "0.25 pp: too short or too noisy for an answer, 1 pp: 2.0%"
    assert "tolerances" not in dict(text.findings(discovery_report())), "a report of an earlier version"


def test_a_larger_tolerance_never_seems_to_need_more() -> None:
    """Density and upper bound come from different networks: an answer may be below the sparsest one that was read."""
    found = ((0.01, 0.0076, "found"), (0.02, None, "flat"))
    report = with_answer(shrunk_report(), tolerances=found, tolerance_intervals=((0.0, 0.0138), (0.0, 0.0076)))
    assert finding(report, "tolerances") == "1 pp: 0.76% (up to 1.4%), 2 pp: below 0.76%"


@pytest.mark.parametrize(
    ("below", "above", "kind", "sentence"),
    [
        (
            0.0,
            0.65,
            None,
            "it is below 16.5% with probability less than 1%, and with probability 65% no pruned network is within 1 "
            "pp of the reference. More training, more validation examples or a reference may narrow it down.",
        ),
        (
            0.1,
            0.999,
            "dense",
            "it is below 16.5% with probability 10%, and with probability more than 99% no pruned network is within 1 "
            "pp of the reference. More training or more validation examples may narrow it down.",
        ),
    ],
)
def test_an_open_answer_says_what_is_likely_and_what_helps(
    below: float, above: float, kind: str | None, sentence: str
) -> None:
    details = {"lowest": 0.165, "share_below": below, "share_above": above, "rounds": 3}
    reference = None if kind is None else ReferenceReport(score=0.98, kind=kind, epochs=80)
    options = {"operating_density": None, "interval": None, "details": details, "reference": reference}
    report = with_answer(shrunk_report(), status="open", reason=Reason.SHRUNK, **options)
    assert text.explanations(report)[0] == f"The scores do not determine the density: {sentence}"


@pytest.mark.parametrize(("outcome", "shortfall"), [("verified", -0.0068), ("verified", 0.0068), ("missed", 0.0168)])
def test_scores_of_which_the_lower_is_better_are_better_or_worse(outcome: str, shortfall: float) -> None:
    """An error rate below that of dense is better, which "below" does not say."""
    check = CheckReport(outcome=outcome, shortfall=shortfall, error=0.0057)
    report = with_answer(shrunk_report(), check=check, reference=ReferenceReport(score=0.03, kind="dense"))
    report = replace(report, config={"mode": "min", "num_val": 900, "budget": 80})
    expected = {
        -0.0068: "verified, 0.68 ± 0.57 pp better than the dense baseline",
        0.0068: "verified, 0.68 ± 0.57 pp worse than the dense baseline",
        0.0168: "missed by 0.68 ± 0.57 pp: 1.68 pp worse than the dense baseline",
    }
    assert finding(report, "check") == expected[shortfall]
    assert text.goal_label(report) == "target: 1 pp worse than the reference"


def test_a_model_that_was_not_pruned_says_so_at_once() -> None:
    report = shrunk_report()
    whole = replace(report.network, density=1.0, density_model=1.0, num_on=report.network.num)
    report = replace(report, network=whole)
    assert text.closing(report)[0][1].startswith("Returned model (100%, not pruned): ")
    assert ", not pruned); 100% of model" in finding(report, "model")


def test_the_cost_counts_epochs_in_the_unit_of_the_run() -> None:
    report = shrunk_report()
    report = replace(report, config={**report.config, "unit": "steps", "budget": 40})
    assert f"{report.ledger.total_epochs / 40:.2f}x its steps (" in finding(report, "training cost")


# How it was found


def test_explanations_give_quantile_length_of_probes_and_the_reason_to_stop() -> None:
    lines = text.explanations(short_probe_report())
    assert lines[0] == "The reported density is the 67% quantile of the posterior (conservative); the median is 8.0%."
    assert "16 of 80 epochs" in lines[1]
    assert "a gap of 1.38 pp" in lines[1]
    assert lines[-1].startswith("The network to return (9.5%) has been probed")
    assert text.explanations(with_answer(discovery_report(), reason="enough\x07", details={})) == ["enough?"]
    assert text.explanations(training_report()) == []


@pytest.mark.parametrize("details", [{}, {"at_density": "x"}, {"at_density": 0.1, "quantile": "high"}])
def test_details_that_do_not_fit_their_reason_do_not_break_a_report(details: dict[str, Any]) -> None:
    assert text.explanations(with_answer(discovery_report(), details=details)) == ["answer_probed"]


def test_probes_that_are_too_short_lower_the_confidence() -> None:
    report = short_probe_report()
    best = max(probe.score for probe in report.curve.probes)
    report = with_curve(report, rounds=(*report.curve.rounds[:-1], point(13, 0.36, 36, best + 0.011)))
    assert text.explanations(report)[0] == (
        "Low confidence: the best probe (97.60% after 16 epochs) is below the growing network (98.70%), so the probes "
        "are too short to compare densities. Increase budget or probe_fraction."
    )


def test_training_without_effect_is_explained_by_the_scores() -> None:
    details = {"before_low": 0.11, "before_high": 0.13, "after_low": 0.12, "after_high": 0.12}
    report = with_answer(
        discovery_report(), status="unlearned", operating_density=None, reason="nothing_learned", details=details
    )
    (line,) = text.explanations(report)
    assert line.startswith("The networks compared scored 11.00% to 13.00% before training and 12.00% after it. Check")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"data": "digits", "model": "mlp", "seed": 0}, "mlp on digits, seed 0"),
        ({"model": "a\x1bb"}, "a?b"),
        ({"seed": 3}, "seed 3"),
        ({"data": 5}, ""),
    ],
)
def test_the_subject_is_what_the_config_names(config: dict[str, Any], expected: str) -> None:
    assert text.subject(replace(discovery_report(), config=config)) == expected


def test_legends_name_the_length_of_short_probes_and_what_the_target_stands_for() -> None:
    assert text.probes_label(short_probe_report()) == "probes (16 epochs)"
    assert text.probes_label(discovery_report()) == "probes"
    assert text.goal_label(short_probe_report()) == "target: 1.38 pp below the reference (1 pp after full training)"
    assert text.goal_label(discovery_report()) == "target: 1 pp below the reference"


@pytest.mark.parametrize(
    ("config", "scores", "expected"),
    [
        ({"data": "digits"}, 0.9, ("accuracy", "90.00%")),
        ({"num_val": 500}, 0.9, ("accuracy", "90.00%")),
        ({"num_val": 500}, 90.0, ("accuracy", "90")),
        ({"num_val": None}, 0.9, ("score", "0.9")),  # an R2 score, for all we know
        ({}, 0.9, ("score", "0.9")),
    ],
)
def test_only_accuracies_are_percentages(config: dict[str, Any], scores: float, expected: tuple[str, str]) -> None:
    rounds = tuple(replace(point, score=scores) for point in discovery_report().curve.rounds)
    scored = replace(with_curve(discovery_report(), rounds=rounds, probes=()), config=config)
    found = score_format(scored)
    assert (found.name, found(scores)) == expected
    unreached = replace(scored, answer=replace(scored.answer, status="unreached"))  # type: ignore[type-var]
    assert ("1 pp" in text.headline(unreached)) is ("%" in expected[1])


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
    "method": "rigl",
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
        "The networks compared scored 10.00% to 12.00% before training and 11.00% after it. Check the learning rate, "
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
        "Probes were trained for 16 of 160 epochs. Assumed, not measured: gaps to the reference shrink with training, "
        "so a gap of 1.58 pp (90%: 1.09 pp to 2.31 pp) at 16 epochs stands for 1 pp at 160. A reference avoids this."
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
    ("level", "expected"),
    [
        (0.6, "the 60% quantile of the posterior (conservative); the median is 8.0%."),
        (0.5, "the median of the posterior."),
        (0.25, "the 25% quantile of the posterior; the median is 8.0%."),
    ],
)
def test_only_a_quantile_above_the_median_is_conservative(level: float, expected: str) -> None:
    report = with_answer(discovery_report(), details={"quantile": level, "median_density": 0.08}, reason="")
    assert text.explanations(report) == [f"The reported density is {expected}"]


def test_notes_on_pruned_networks_do_not_speak_of_probes() -> None:
    details = {"lowest": 0.025, "densest": 1.0, "share_below": 0.31, "share_above": 0.12, "rounds": 1}
    found = with_answer(shrunk_report(), details=details)
    none_within = "with probability 12% no pruned network is within 1 pp of the reference."
    assert text.explanations(found) == [
        "With probability 31% the operating density is below 2.5%, the sparsest network compared.",
        none_within.replace("with", "With", 1),
        "The search ended after 1 round of pruning.",
    ]
    no_rounds = with_answer(found, details={**details, "rounds": 0})
    assert text.explanations(no_rounds) == text.explanations(found)[:-1]
    open_ = with_answer(found, status="open", operating_density=None, interval=None)
    assert (
        text.headline(open_)
        == "No operating density: the training (80 epochs) was too short or too noisy for an answer."
    )
    assert text.explanations(open_)[0].startswith(
        f"The scores do not determine the density: it is below 2.5% with probability 31%, and {none_within}"
    )
    few = shrunk_report(lowest=0.2)
    assert text.headline(few) == text.headline(open_)
    assert text.explanations(few)[0].startswith("Too few densities")
    assert text.closing(few)[0][1] == "Returned model (9.5%): not verified; 96.90% validation, 96.55% test."
    unreached = with_answer(
        found, status="unreached", operating_density=None, interval=None, details={"end_score": 0.976, "rounds": 3}
    )
    assert text.headline(unreached) == (
        "No operating density: no pruned network is expected to be within 1 pp of dense."
    )
    assert text.explanations(unreached)[0] == "The network before pruning scored 97.60%."
    flat = with_answer(found, status="flat", operating_density=None)
    assert "probably below" in text.headline(flat)
    assert text.explanations(flat)[0] == (
        "With probability 31% the operating density is below 2.5%, the sparsest network compared."
    )
    for shown in (found, open_, few, unreached):
        assert "probe" not in terminal(shown)


@pytest.mark.parametrize(
    ("densities", "headline", "sentence"),
    [
        ((0.2,), "too few networks were evaluated.", "Too few pruned networks were trained within the cost limit for"),
        ((1.0, 0.2), "too few networks were evaluated.", "Too few pruned networks were trained within the cost limit"),
        (
            (1.0,),
            "the training (80 epochs) was too short or too noisy for an answer.",
            "Nothing was pruned, since the network did not improve before its last phase of training.",
        ),
    ],
)
def test_a_search_without_rounds_says_whether_networks_were_pruned(
    densities: tuple[float, ...], headline: str, sentence: str
) -> None:
    finished = tuple(point(k, density, 80, 0.96) for k, density in enumerate(densities, 2))
    report = with_curve(shrunk_report(), probes=(), finished=finished, fit=None)
    report = with_answer(report, status="open", operating_density=None, interval=None, details={"rounds": 0})
    assert text.headline(report) == f"No operating density: {headline}"
    (said,) = text.explanations(report)
    assert said.startswith(sentence)


def test_a_trained_network_above_all_pruned_ones_does_not_lower_the_confidence() -> None:
    report = shrunk_report()
    better = tuple(replace(point, score=0.99) for point in report.curve.rounds)
    assert not with_curve(report, rounds=better).probes_too_short


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        (lambda x: 0.9, {}, "Even the sparsest network compared (3.0%) is within 1 pp of the reference."),
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


def test_a_trajectory_does_not_claim_to_know_dense() -> None:
    found = search(rules.create("trajectory"), saturating(12.0), can_probe=False).answer
    report = with_answer(
        discovery_report(), details=found.details, reference=ReferenceReport(score=0.9, kind="densest"), status="found"
    )
    [said] = [line for line in notes(report.answer) if "lower bound" in line]
    assert said.startswith(f"It is relative to the densest network grown ({percent(found.details['densest'])}), not to")
