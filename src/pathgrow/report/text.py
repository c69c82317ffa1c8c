"""Every sentence about a run; terminal, page, figure and `repr` all use these."""

from __future__ import annotations

from collections.abc import Sequence

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
from pathgrow.report.schema import AnswerReport, CurveReport, PointReport, RunReport


def answer_sentence(answer: AnswerReport, curve: CurveReport) -> str:
    """The answer of a discovery in one sentence."""
    within = f"within {ScoreFormat.of(curve).difference(answer.delta)} of the reference"
    grown = [point.density for point in (curve.probes or curve.rounds) if not point.is_dense]
    if answer.status == "found" and answer.operating_density is not None:
        interval = f" (90% interval {percent_range(answer.interval)})" if answer.interval else ""
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
    model, dataset = (None if name is None else printable(name) for name in (report.model, report.dataset))
    named = f"{model} on {dataset}" if model and dataset else model or dataset
    return ", ".join(part for part in (named, f"seed {report.seed}" if report.seed is not None else None) if part)


def findings(report: RunReport) -> list[tuple[str, str]]:
    """The results of a run, as pairs of a label and a phrase."""
    found = [] if report.answer is not None else [("method", printable(report.method.name))]
    if report.answer is not None:
        found += _answer_findings(report, report.answer)
    found += [("model", _model(report)), (score_format(report).name, _scores(report)), ("trained", _trained(report))]
    found += [("training cost", _training_cost(report)), ("inference", _inference(report))]
    if time := timing(report):
        found.append(("time", time))
    return [*found, *(("note", printable(note)) for note in report.notes)]


def timing(report: RunReport) -> str:
    """How long the run took; empty if nothing was measured."""
    named = (("training", report.timing.seconds), ("wall clock", report.timing.run_seconds))
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in named if seconds)


def explanations(report: RunReport) -> list[str]:
    """How the answer of a discovery was derived and how far to trust it, a sentence or two each."""
    answer = report.answer
    if answer is None:
        return []
    lines, scores = [_too_short(report)] if report.probes_too_short else [], score_format(report)
    try:
        return [*lines, *map(printable, reasons.notes(answer, scores))]
    except (KeyError, TypeError, ValueError):  # details that do not fit the reason: a damaged report
        return [*lines, printable(answer.reason)]


def paragraphs(report: RunReport) -> list[str]:
    """What a discovery did, in order."""
    rounds, probes = report.curve.rounds, report.curve.probes
    if report.answer is None:
        return []
    done = []
    if rounds:
        mask = "PHEW mask" if "paths" in report.method.needs else "mask"  # a user-defined method may start otherwise
        start = (
            f"Started from a {mask} at {percent(rounds[0].density)} density, trained for "
            f"{plural(rounds[0].epochs, 'epoch')}."
        )
        grown = (
            f"Grew in {plural(len(rounds) - 1, 'round')} to {percent(rounds[-1].density)}, with rough training after "
            "each round. These scores rise with training as well as with density, so they guide the growth only."
        )
        done.append(f"{start} {grown}" if len(rounds) > 1 else f"{start} It did not grow.")
    if probes:
        done.append(_probes(probes))
    return done


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


def is_conservative(answer: AnswerReport) -> bool:
    """Whether the answer is an upper quantile of the posterior, as that of the default rule is."""
    return answer.operating_density is not None and answer.details.get("quantile") not in (None, 0.5)


def _answer_findings(report: RunReport, answer: AnswerReport) -> list[tuple[str, str]]:
    scores, found = score_format(report), []
    if report.reference is not None:
        found.append(("criterion", f"{scores.name} within {scores.difference(answer.delta)} of the reference"))
        found.append(("reference", _reference(report)))
    if answer.status != "found" and answer.interval:
        found.append(("90% interval", f"{percent_range(answer.interval)} of the prunable weights"))
    if answer.gain_density is not None:
        interval = f" (90% interval {percent_range(answer.gain_interval)})" if answer.gain_interval else ""
        gain = f"where the fitted curve reaches {answer.gain_level:.0%} of its gain"
        found.append(("gain density", f"{percent(answer.gain_density)}{interval}, {gain}"))
    return found


def _model(report: RunReport) -> str:
    network = report.network
    size = (
        f"{percent(network.density)} of the prunable weights ({network.num_on:,} of {network.num:,}), "
        f"{percent(network.density_model)} of all parameters"
    )
    answer = report.answer
    if answer is None or not is_conservative(answer):
        return size
    if answer.select_by == "gain":
        return f"{size}; selected by the gain density"
    if report.short_probe_epochs is None:
        return f"{size}; the sparsest visited mask at or above the operating density"
    return f"{size}; a visited mask near the operating density, at most a tenth sparser"


def _scores(report: RunReport) -> str:
    scores, network, answer = score_format(report), report.network, report.answer
    text = f"{scores(network.val.score)} validation"
    if network.test is not None:
        text += f", {scores(network.test.score)} test"
    if answer is not None and answer.dense is not None:
        test = f", {scores(answer.dense_test.score)} test" if answer.dense_test is not None else ""
        text += f" (dense: {scores(answer.dense.score)} validation{test})"
    return text


def _trained(report: RunReport) -> str:
    if report.answer is not None:
        return plural(report.network.epochs, "epoch")
    ledger, match = report.ledger, report.ledger.match
    trained = report.network.epochs if ledger.epochs_trained is None else ledger.epochs_trained
    text = plural(trained, "epoch") + (f" in {len(ledger.phases)} phases" if len(ledger.phases) > 1 else "")
    if match is None or match.budget is None:
        return text
    return f"{text}, matched to a budget of {match_unit(match.kind)}{_off_budget(match.relative_error)}"


def match_unit(kind: str) -> str:
    """What a matched budget is counted in.

    >>> match_unit("parameters")
    'epochs times parameters'
    """
    units = {"parameters": "epochs times parameters", "prunable": "epochs times prunable weights", "flops": "FLOPs"}
    return units.get(kind, printable(kind))


def _off_budget(relative_error: float | None) -> str:
    if relative_error is None or abs(relative_error) < 0.0005:
        return ""
    return f" ({abs(relative_error):.1%} {'over' if relative_error > 0 else 'under'})"


def _training_cost(report: RunReport) -> str:
    ledger = report.ledger
    relative = f"{ratio(ledger.relative)} a dense training" if ledger.relative is not None else ""
    return f"{relative} ({flops(ledger.training_flops)})" if relative else flops(ledger.training_flops)


def _inference(report: RunReport) -> str:
    return f"{ratio(report.network.inference_relative)} the FLOPs of the dense model"


def _reference(report: RunReport) -> str:
    scores, reference, probes = score_format(report), report.reference, report.curve.probes
    assert reference is not None
    score = scores(reference.score)
    trained = f", trained for {plural(reference.epochs, 'epoch')}" if reference.epochs else ""
    if reference.kind == "given":
        return f"{score}, given"
    if reference.kind == "dense":
        return f"{score}, dense baseline of this run{trained}"
    if reference.kind != "densest" or not probes:
        return f"{score}, {'densest network grown' if reference.kind == 'densest' else printable(reference.kind)}"
    densest = max(probes, key=lambda point: point.density)
    name = "dense probe" if densest.is_dense else "densest probe"
    longer = "" if report.short_probe_epochs is None else f" (returned model: {report.network.epochs:,})"
    return f"{score} fitted, {scores(densest.score)} measured: {name}{trained}{longer}"


def _probes(probes: Sequence[PointReport]) -> str:
    lengths = sorted({point.epochs for point in probes})
    length = plural(lengths[-1], "epoch") if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} epochs"
    grown = [point.density for point in probes if not point.is_dense]
    if not grown:
        return f"Trained a dense probe for {length}."
    count = "one probe" if len(grown) == 1 else f"{len(grown)} probes"
    span = percent(min(grown)) if len(grown) == 1 else f"densities from {percent(min(grown))} to {percent(max(grown))}"
    dense = " and a dense one" if len(grown) < len(probes) else ""
    each = "; the answer is estimated from it" if len(probes) == 1 else " each; the answer is estimated from these"
    return f"Trained {count} at {span}{dense} for {length}{each}."


def _too_short(report: RunReport) -> str:
    scores, curve = score_format(report), report.curve
    best, growing = (max(point.score for point in points) for points in (curve.probes, curve.rounds))
    length = plural(max(point.epochs for point in curve.probes), "epoch")
    return (
        f"Low confidence: the best probe ({scores(best)} after {length}) is below the growing network "
        f"({scores(growing)}), so the probes are too short to compare densities. Increase budget or probe_fraction."
    )
