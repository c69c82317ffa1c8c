"""The words and numbers about a run that terminal, page, figure and `repr` share."""

from __future__ import annotations

from pathgrow.report import reasons
from pathgrow.report.formats import (
    ScoreFormat,
    duration,
    flops,
    percent,
    percent_range,
    plural,
    printable,
    ratio,
    score_format,
)
from pathgrow.report.schema import AnswerReport, CurveReport, Interval, ReferenceReport, RunReport, Score

Table = tuple[list[str], list[list[str]]]
"""Headings and rows of text."""


def answer_sentence(answer: AnswerReport, curve: CurveReport) -> str:
    """The answer of a discovery in one sentence."""
    within = f"within {ScoreFormat.of(curve).difference(answer.delta)} of the reference"
    grown = [point.density for point in (curve.probes or curve.rounds) if not point.is_dense]
    if answer.status == "found" and answer.operating_density is not None:
        interval = _interval(answer.interval)
        return f"Operating density: {percent(answer.operating_density)} of the prunable weights{interval}."
    if answer.status == "flat" and grown:
        sparsest = percent(min(grown))
        return f"Operating density: {sparsest} or less; even the sparsest network is {within}."
    if answer.status == "unreached" and grown:
        return f"No operating density: no network up to {percent(max(grown))} density is {within}."
    if answer.status == "unlearned":
        return "No operating density: training did not improve any network."
    return "No operating density: too few networks were evaluated."


def headline(report: RunReport) -> str:
    """The result of a run in one sentence."""
    if report.answer is not None:
        return answer_sentence(report.answer, report.curve)
    network, scores = report.network, score_format(report)
    measured, split = (network.val, "validation") if network.test is None else (network.test, "test")
    return (
        f"{printable(report.method.name)} at {percent(network.density)} density: "
        f"{scores(measured.score)} {split} {scores.name}."
    )


def subject(report: RunReport) -> str:
    """Model, dataset and seed, as far as the config names them."""
    named = " on ".join(printable(name) for name in (report.model, report.dataset) if name)
    return ", ".join(part for part in (named, f"seed {report.seed}" if report.seed is not None else "") if part)


def findings(report: RunReport) -> list[tuple[str, str]]:
    """The results of a run, as pairs of a label and a phrase."""
    network, ledger, answer = report.network, report.ledger, report.answer
    size = f"{percent(network.density)} of the prunable weights ({network.num_on:,} of {network.num:,})"
    cost = flops(ledger.training_flops)
    times = (("training", report.timing.seconds), ("wall clock", report.timing.run_seconds))
    time = ", ".join(f"{name} {duration(seconds)}" for name, seconds in times if seconds)
    return [
        *([("method", printable(report.method.name))] if answer is None else _answer_findings(report, answer)),
        ("model", f"{size}; {percent(network.density_model)} of model"),
        *([] if answer is None or network.round is None else [("mask", _mask(report, answer))]),
        (score_format(report).name, _scores(report)),
        ("trained", _trained(report)),
        ("training cost", cost if ledger.relative is None else f"{ratio(ledger.relative)} dense training ({cost})"),
        ("inference", f"{ratio(network.inference_relative)} the FLOPs of the dense model"),
        *([("time", time)] if time else []),
        *(("note", printable(note)) for note in report.notes),
    ]


def explanations(report: RunReport) -> list[str]:
    """How the answer of a discovery was derived and how far to trust it, a sentence or two each."""
    answer = report.answer
    if answer is None:
        return []
    lines, scores = [_too_short(report)] if report.probes_too_short else [], score_format(report)
    try:
        return [*lines, *map(printable, reasons.notes(answer, scores))]
    except (KeyError, TypeError, ValueError):  # a user-defined rule may use a reason without its details
        return [*lines, printable(answer.reason)]


def procedure(report: RunReport) -> list[str]:
    """What a discovery did, in order."""
    rounds, probes, done = report.curve.rounds, report.curve.probes, list[str]()
    if rounds:
        done.append(
            f"Grew from {percent(rounds[0].density)} to {percent(rounds[-1].density)} density in "
            f"{plural(len(rounds) - 1, 'round')}, with rough training after each. These scores rise with training as "
            "well as with density, so they only guide the growth."
        )
    if probes:
        densities = ", ".join(percent(point.density) for point in probes)
        epochs = " to ".join(map(str, sorted({min(p.epochs for p in probes), max(p.epochs for p in probes)})))
        done.append(
            f"Trained {plural(len(probes), 'probe')} ({densities} density) for {epochs} epochs each; the answer is "
            "estimated from these scores."
        )
    return done


def rounds(report: RunReport) -> Table:
    """The growing network after each round beside the probe of its mask; the dense network, if any, comes last."""
    scores = score_format(report)
    probes = {point.round: [scores(point.score), str(point.epochs)] for point in report.curve.probes}
    if -1 not in probes and report.answer is not None and report.answer.dense is not None:
        epochs = None if report.reference is None else report.reference.epochs
        probes[-1] = [scores(report.answer.dense.score), "" if epochs is None else str(epochs)]
    rows = [
        [
            str(point.round), percent(point.density),
            "-" if point.density_model is None else percent(point.density_model), str(point.epochs),
            scores(point.score), "-" if point.loss is None else f"{point.loss:.3f}", *probes.get(point.round, ["", ""]),
        ]
        for point in report.curve.rounds
    ]  # fmt: skip
    if -1 in probes:
        rows.append(["dense", "100%", "100%", "", "", "", *probes[-1]])
    headings = ["round", "density", "of model", "epochs", scores.name, "loss", "probe", "epochs"]
    return (headings, rows) if probes else (headings[:-2], [row[:-2] for row in rows])


def reference_label(report: RunReport) -> str:
    """The score of the reference for legends; for a network of this run it is read from the fitted curve."""
    assert report.reference is not None
    fitted = " (fitted)" if report.reference.kind == "densest" else ""
    return f"reference {score_format(report)(report.reference.score)}{fitted}"


def goal_label(report: RunReport) -> str:
    """How far below the reference the target is, for legends; after short training also what that stands for."""
    answer, scores = report.answer, score_format(report)
    assert answer is not None
    gap = answer.delta if answer.allowed is None else answer.allowed
    finally_ = "" if gap == answer.delta else f" ({scores.difference(answer.delta)} after full training)"
    return f"target: {scores.difference(gap)} below{finally_}"


def probes_label(report: RunReport) -> str:
    """What the probes are, for legends."""
    epochs = report.short_probe_epochs
    return "probes" if epochs is None else f"probes ({plural(epochs, 'epoch')})"


def quantile(answer: AnswerReport) -> float | None:
    """The posterior quantile that the answer is; None if it is the median, and for other rules than the default."""
    found = answer.details.get("quantile") if answer.operating_density is not None else None
    return found if isinstance(found, float) and found != 0.5 else None


def match_unit(kind: str) -> str:
    """What a matched budget is counted in.

    >>> match_unit("parameters")
    'epochs times parameters'
    """
    units = {"parameters": "epochs times parameters", "prunable": "epochs times prunable weights", "flops": "FLOPs"}
    return units.get(kind, printable(kind))


def _interval(interval: Interval | None) -> str:
    return f" (90% interval {percent_range(interval)})" if interval else ""


def _answer_findings(report: RunReport, answer: AnswerReport) -> list[tuple[str, str]]:
    scores, found = score_format(report), []
    if answer.reference is not None:
        found.append(("criterion", f"{scores.name} within {scores.difference(answer.delta)} of the reference"))
        found.append(("reference", _reference(report, answer.reference)))
    if answer.status != "found" and answer.interval:
        found.append(("90% interval", f"{percent_range(answer.interval)} of the prunable weights"))
    if answer.gain_density is not None:
        gain = f"{percent(answer.gain_density)}{_interval(answer.gain_interval)}"
        found.append(("gain density", f"{gain}: {answer.gain_level:.0%} of the fitted gain"))
    return found


def _reference(report: RunReport, reference: ReferenceReport) -> str:
    scores, probes = score_format(report), report.curve.probes
    trained = f" after {plural(reference.epochs, 'epoch')}" if reference.epochs else ""
    if reference.kind == "densest" and probes:
        densest = max(probes, key=lambda point: point.density)
        name = "dense probe" if densest.is_dense else "densest probe"
        return f"{scores(reference.score)} (fitted; measured {scores(densest.score)}), {name}{trained}"
    kinds = {"given": "given", "dense": f"dense baseline{trained}", "densest": "densest network grown"}
    return f"{scores(reference.score)}, {kinds.get(reference.kind, printable(reference.kind))}"


def _mask(report: RunReport, answer: AnswerReport) -> str:
    round = "dense" if report.network.round == -1 else f"round {report.network.round}"
    if quantile(answer) is None:
        return round
    if answer.select_by == "gain":
        return f"{round}, selected by the gain density"
    if report.short_probe_epochs is None:
        return f"{round}, the sparsest at or above the operating density"
    return f"{round}, near the operating density (at most a tenth sparser)"


def _scores(report: RunReport) -> str:
    scores, network, answer = score_format(report), report.network, report.answer

    def splits(val: Score, test: Score | None) -> str:
        return f"{scores(val.score)} validation" + ("" if test is None else f", {scores(test.score)} test")

    dense = "" if answer is None or answer.dense is None else f" (dense: {splits(answer.dense, answer.dense_test)})"
    return splits(network.val, network.test) + dense


def _trained(report: RunReport) -> str:
    if report.answer is not None:
        return plural(report.network.epochs, "epoch")
    ledger, match = report.ledger, report.ledger.match
    text = plural(ledger.total_epochs, "epoch") + (f" in {len(ledger.phases)} phases" if len(ledger.phases) > 1 else "")
    if match is None or match.budget is None:
        return text
    off = match.relative_error or 0.0
    exactly = "" if abs(off) < 0.0005 else f" ({abs(off):.1%} {'over' if off > 0 else 'under'})"
    return f"{text}, matched to a budget of {match_unit(match.kind)}{exactly}"


def _too_short(report: RunReport) -> str:
    scores, curve = score_format(report), report.curve
    best, growing = (max(point.score for point in points) for points in (curve.probes, curve.rounds))
    length = plural(max(point.epochs for point in curve.probes), "epoch")
    return (
        f"Low confidence: the best probe ({scores(best)} after {length}) is below the growing network "
        f"({scores(growing)}), so the probes are too short to compare densities. Increase budget or probe_fraction."
    )
