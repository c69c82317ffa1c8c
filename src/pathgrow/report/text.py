"""The words and numbers about a run that terminal, page, figure and `repr` share."""

from collections.abc import Mapping
from typing import Any

from pathgrow.density.types import Reason
from pathgrow.errors import printable
from pathgrow.report.answer import (
    answer_sentence,
    compares_too_few,
    interval_phrase,
    other_tolerances,
    probability,
    what_narrows,
)
from pathgrow.report.formats import (
    ScoreFormat,
    duration,
    flops,
    percent,
    percent_range,
    plural,
    ratio,
    score_format,
    size_phrase,
)
from pathgrow.report.networks import compared_with_dense, finishing_method, lengths_compared
from pathgrow.report.schema import AnswerReport, CurveReport, ReferenceReport, RunReport, Score

_PLAIN = ScoreFormat(is_fraction=False)
_NO_NETWORKS = CurveReport()

_TEMPLATES: dict[Reason, str] = {
    # Grow
    Reason.NOTHING_OBSERVED: "No network has been evaluated yet.",
    Reason.FEW_ROUNDS: "The trajectory has {rounds} of the {needed} rounds that an estimate needs.",
    Reason.NOT_RISING: "The scores do not rise with density yet.",
    Reason.TRAJECTORY_RISING: "Density {at_density} is below {factor:g}x the density at which the trajectory"
    " flattens ({estimate}).",
    Reason.ANSWER_BEYOND_TRUNK: "The {criterion} criterion needs density {needed_density}; the densest network grown"
    " has {at_density}.",
    Reason.DELTA_NOT_BRACKETED: "The delta density is not yet well below the densest probe ({at_density}).",
    Reason.GAIN_NOT_BRACKETED: "The gain density is not yet well below the densest probe ({at_density}).",
    Reason.BELOW_ESTIMATE: "Density {at_density} is below {factor:g}x the density at which the scores of the"
    " growing network flatten ({estimate}).",
    Reason.NO_SATURATION_YET: "The trajectory does not saturate yet.",
    # Probe
    Reason.FIRST_PROBES: "First probes, at densities up to {at_density}{and_dense}.",
    Reason.PROBE_TRUNK: "Probing the densest network grown ({at_density}) to bracket the answer from above.",
    Reason.MOST_INFORMATIVE: "Probing density {at_density}{and_second}: most informative for its cost.",
    # Stop
    Reason.FEW_DENSITIES: "Growth cannot continue, and too few densities were visited ({rounds}).",
    Reason.INTERVALS_NARROW: "Probes bracket both answers and the credible intervals are narrow enough.",
    Reason.FLAT: "The curve is flat: every density observed is within {gap} of the reference.",
    Reason.UNREACHED: "No density up to {at_density} comes within {gap} of the reference, and more probes would not"
    " change that.",
    Reason.ANSWER_PROBED: "The network to return ({at_density}) has been probed; without a reference, further probes"
    " are not worth their cost.",
    Reason.ALL_PROBED: "Growth cannot continue, and every visited density has been probed.",
    Reason.PROBES_SPENT: "The probe budget is spent ({probes} probes); more probes would narrow the interval.",
    Reason.NOTHING_INFORMATIVE: "Further probes of the visited densities would hardly narrow the interval.",
    Reason.GROWTH_ENDED: "Growth cannot continue.",
    Reason.NO_RISE: "The scores did not rise from density {from_density} to {at_density}.",
    Reason.PAST_ESTIMATE: "Density {at_density} is at least {factor:g}x the density at which the scores of the"
    " growing network flatten ({estimate}).",
    Reason.ESTIMATE_OUT_OF_REACH: "Growth cannot continue to {estimate}, where the scores of the growing network would"
    " flatten.",
    Reason.NO_SATURATION: "Growth cannot continue, and the trajectory does not saturate.",
    Reason.SHRUNK: "The search ended after {num_rounds} of pruning.",
    # attach
    Reason.UPDATES_DURING_TRAINING: "Method {method!r} updates its masks during training.",
    Reason.SCHEDULE_CONTINUES: "The schedule of method {method!r} continues.",
    Reason.MASKS_FINAL: "The masks of method {method!r} are final.",
    Reason.NOTHING_LEARNED: "The networks compared scored {before} before training and {after} after it. Check the"
    " learning rate, that fit trains the model and the optimizer it receives, and that evaluate scores that model."
    " The scores do not show which density is sufficient: the returned model is the densest one that was grown, or the"
    " one before pruning.",
}

_DENSITIES = ("at_density", "second_density", "needed_density", "from_density", "estimate")


def explain(reason: str, details: Mapping[str, Any], scores: ScoreFormat = _PLAIN) -> str:
    """Return a sentence for a reason code; the sentence of a user-defined rule is returned as it is.

    >>> explain("past_estimate", {"at_density": 0.4, "estimate": 0.15, "factor": 2.0})
    'Density 40.0% is at least 2x the density at which the scores of the growing network flatten (15.0%).'
    >>> explain("flat", {"gap": 0.01}, ScoreFormat(is_fraction=True))
    'The curve is flat: every density observed is within 1 pp of the reference.'
    >>> explain("my rule is satisfied", {})
    'my rule is satisfied'
    """
    try:
        template = _TEMPLATES[Reason(reason)]
    except ValueError:
        return reason
    values = dict(details)
    for key in _DENSITIES:
        if values.get(key) is not None:
            values[key] = percent(values[key])
    if not isinstance(gap := values.get("gap"), str | None):
        values["gap"] = scores.difference(gap)
    for key in ("before", "after"):
        ends = dict.fromkeys(scores(values.get(f"{key}_{end}")) for end in ("low", "high"))
        values[key] = " to ".join(ends)
    values["num_rounds"] = plural(values.get("rounds") or 0, "round")
    values["and_dense"] = " and the dense network" if values.get("dense") else ""
    second = values.get("second_density")
    values["and_second"] = f" and {second}" if second else ""
    return template.format_map(values)


def notes(answer: AnswerReport, scores: ScoreFormat = _PLAIN, curve: CurveReport = _NO_NETWORKS) -> list[str]:
    """Return how certain the answer is, what limits it and why the search stopped: one sentence or two each."""
    found = [] if answer.status == "unlearned" else [*_position(answer, scores, curve), *_limits(answer, scores)]
    found += _gain(answer, scores)
    has_no_rounds = answer.reason == Reason.SHRUNK and not answer.details.get("rounds")
    if not answer.reason or has_no_rounds:
        return found
    named = {"gap": scores.tolerance(answer.delta)} if answer.details.get("gap") == answer.delta else {}
    return [*found, explain(answer.reason, {**answer.details, **named}, scores)]


def _position(answer: AnswerReport, scores: ScoreFormat, curve: CurveReport) -> list[str]:
    """Where the answer is in its posterior and relative to the networks compared."""
    details, found = answer.details, list[str]()
    is_pruned = answer.reason == Reason.SHRUNK
    below, above = (details.get(key) or 0.0 for key in ("share_below", "share_above"))
    none_within = f"no pruned network is within {scores.tolerance(answer.delta)} of the reference"
    if answer.operating_density is not None:
        if (level := details.get("quantile")) is not None:
            found.append(_quantile_sentence(level, details.get("median_density")))
        if (wanted := details.get("returned_for")) is not None:
            expected = f"where the expected loss is at most {scores.tolerance(answer.delta)}"
            found.append(
                "The operating density is the median of its posterior distribution; the returned model was chosen for a"
                f" density of {percent(wanted)}, {expected}."
            )
        if below > 0.05:
            sparsest = f"{percent(details['lowest'])}, the sparsest {'network compared' if is_pruned else 'probe'}"
            found.append(f"With probability {probability(below)} the operating density is below {sparsest}.")
        if above > 0.05:
            beyond = none_within if is_pruned else "the operating density is above the densest probe, if it exists"
            found.append(f"With probability {probability(above)} {beyond}.")
    elif answer.status == "flat" and details.get("lowest") is not None:
        lowest = percent(details["lowest"])
        found.append(
            f"With probability {probability(below)} the operating density is below {lowest}, the sparsest network"
            " compared."
            if is_pruned and below
            else f"Even the sparsest network compared ({lowest}) is within {scores.tolerance(answer.delta)} of the"
            " reference."
        )
    elif is_pruned and answer.status == "unreached":
        found.append(f"The network before pruning scored {scores(details['end_score'])}.")
    elif is_pruned and answer.status == "open" and details.get("lowest") is not None:
        found.append(
            f"The scores do not determine the density: it is below {percent(details['lowest'])} with probability"
            f" {probability(below)}, and with probability {probability(above)} {none_within}."
            f" {what_narrows(answer).capitalize()} may narrow it down."
        )
    elif compares_too_few(answer, curve):
        found.append("Too few pruned networks were trained within the cost limit for an answer.")
    elif is_pruned and answer.status == "open" and details.get("rounds") == 0:
        found.append("Nothing was pruned, since the network did not improve before its last phase of training.")
    elif is_pruned and answer.status == "open":
        found.append("Too few densities were pruned to before the score had dropped far below the target.")
    elif answer.status == "unreached" and details.get("end_score") is not None:
        found.append(f"The fitted score of the densest network compared is {scores(details['end_score'])}.")
    elif answer.status == "open" and details.get("probes_needed") is not None:
        found.append(f"An answer needs at least {details['probes_needed']} probes, got {details['probes']}.")
    elif answer.status == "open" and details.get("densest") is not None and not details.get("too_short"):
        found.append("Denser networks have not been grown.")
    return found


def _quantile_sentence(level: float, median: float | None) -> str:
    if level == 0.5:
        return "The reported density is the median of the posterior."
    side = " (conservative)" if level > 0.5 else ""
    other = "" if median is None else f"; the median is {percent(median)}"
    return f"The reported density is the {level:.0%} quantile of the posterior{side}{other}."


def _limits(answer: AnswerReport, scores: ScoreFormat) -> list[str]:
    """What limits the answer: short probes, networks still in training, a fit without a reference."""
    details, found = answer.details, list[str]()
    if answer.allowed is not None and answer.allowed > answer.delta and details.get("probe_epochs") is not None:
        short, full = details["probe_epochs"], details["full_epochs"]
        low, high = (scores.difference(details[key]) for key in ("allowed_low", "allowed_high"))
        found.append(
            f"Probes were trained for {short} of {full} {scores.unit}. Assumed, not measured: gaps to the reference"
            f" shrink with training, so a gap of {scores.difference(answer.allowed)} (90%: {low} to {high}) at {short}"
            f" {scores.unit} stands for {scores.tolerance(answer.delta)} at {full}. A reference avoids this."
        )
    if details.get("unmatched_reference") is not None:
        found.append(
            f"No round came within {scores.tolerance(answer.delta)} of the reference"
            f" {scores(details['unmatched_reference'])}, which is not comparable with networks still in training."
        )
    if details.get("widened") is not None:
        found.append(
            "Networks were evaluated while still in training, so the answer may be off by a factor of"
            f" {details['widened']:g} either way; the interval includes that."
        )
        is_relative = answer.reference is not None and answer.reference.kind == "densest"
        if is_relative and details.get("densest") is not None:
            found.append(
                f"It is relative to the densest network grown ({percent(details['densest'])}), not to a dense training,"
                " which was not seen: relative to that, it is a lower bound. pathgrow.discover compares with dense."
            )
    is_estimate = answer.reference is not None and answer.reference.kind == "estimated"
    if is_estimate and (details.get("densest") or 1.0) < 1:
        found.append(
            f"The dense score is estimated from a network with {percent(details['densest'])} of the weights, and may"
            " be too low; pass a reference to compare with a dense training."
        )
    if details.get("fit_within_delta") is not None:
        found.append(
            f"The fit comes within {scores.tolerance(answer.delta)} of its own asymptote, an extrapolation, at"
            f" {percent(details['fit_within_delta'])}. The rule uses neither a reference nor fully trained networks."
        )
    return found


def _gain(answer: AnswerReport, scores: ScoreFormat) -> list[str]:
    """Why the gain density is missing or differs from the reported density."""
    match answer.details.get("gain_missing"):
        case "no_rise":
            return ["The scores do not rise with density by more than their noise, so the gain density is undefined."]
        case "no_saturation":
            return [f"The fitted curve does not saturate: {answer.gain_level:.0%} of its gain is out of reach."]
    if answer.operating_density is None or answer.gain_density is None:
        return []
    ratio = answer.gain_density / answer.operating_density
    if 0.8 <= ratio <= 1.25:
        return []
    return [
        f"The gain density is {'higher' if ratio > 1 else 'lower'} because it is a fraction of the whole rise from the"
        f" sparsest networks, not a gap of {scores.tolerance(answer.delta)} to the reference."
    ]


def headline(report: RunReport) -> str:
    """The result of a run in one sentence."""
    if report.answer is not None:
        return answer_sentence(report.answer, report.curve, score_format(report), report.config.get("budget"))
    network, scores = report.network, score_format(report)
    measured, split = (network.val, "validation") if network.test is None else (network.test, "test")
    return (
        f"{printable(report.method.name)} at {percent(network.density)} density: "
        f"{scores(measured.score)} {split} {scores.name}."
    )


def subject(report: RunReport) -> str:
    """Model and dataset, or the name of a call of `discover`, and seed."""
    named = " on ".join(printable(name) for name in (report.model or report.name, report.dataset) if name)
    return ", ".join(part for part in (named, f"seed {report.seed}" if report.seed is not None else "") if part)


def findings(report: RunReport) -> list[tuple[str, str]]:
    """The results of a run, as pairs of a label and a phrase."""
    network, answer = report.network, report.answer
    unpruned = "" if answer is None or network.density < 1 else ", not pruned"
    size = f"{percent(network.density)} of the prunable weights ({network.num_on:,} of {network.num:,}{unpruned})"
    times = (("training", report.timing.seconds), ("wall clock", report.timing.run_seconds))
    time = ", ".join(f"{name} {duration(seconds)}" for name, seconds in times if seconds)
    return [
        *([("method", printable(report.method.name))] if answer is None else _answer_findings(report, answer)),
        *([("trained by", method)] if (method := finishing_method(report)) else []),
        ("model", f"{size}; {percent(network.density_model)} of model"),
        *([] if answer is None or network.round is None else [("mask", _mask(report, answer))]),
        (score_format(report).name, _scores(report)),
        *([("check", check)] if (check := check_phrase(report)) is not None else []),
        ("trained", _trained(report)),
        ("training cost", _cost(report)),
        ("inference", f"{ratio(network.inference_relative)} the FLOPs of the dense model"),
        *([("time", time)] if time else []),
        *([("tolerances", densities)] if (densities := other_tolerances(report)) is not None else []),
        *(("note", printable(note)) for note in report.notes),
    ]


def closing(report: RunReport) -> tuple[list[str], list[tuple[str, str]]]:
    """The answer in at most three lines (density, returned model compared with dense, cost), and all other findings."""
    pairs = findings(report)
    found, lines, used = dict(pairs), [headline(report)], ["training cost"]
    seconds = report.timing.run_seconds or report.timing.seconds
    cost = _cost(report, seconds)
    if report.answer is not None:
        compared, score = compared_with_dense(report), score_format(report).name
        # One line of 80 columns: the gap to dense, or the score where that is unknown.
        used += [*(["check"] if compared else []), *([] if compared and compared[0] else [score])]
        phrase = "; ".join(found[key] for key in used[1:])
        longer = f"; {lengths}" if (lengths := lengths_compared(report)) else ""
        lines.append(f"Returned model ({size_phrase(report.network.density)}): {phrase}{longer}.")
    return [*lines, f"Cost: {cost}."], [pair for pair in pairs if pair[0] not in used]


def _cost(report: RunReport, seconds: float | None = None) -> str:
    """The cost in dense trainings: FLOPs, and for a discovery also epochs, which its time grows with."""
    ledger, budget = report.ledger, report.config.get("budget")
    absolute = flops(ledger.training_flops) + (f", {duration(seconds)}" if seconds else "")
    if ledger.relative is None:
        return absolute
    dense = "dense fine-tuning" if report.config.get("start") == "pretrained" else "dense training"
    longer = ""
    if report.answer is not None and isinstance(budget, int) and budget > 0:
        longer = f", {ratio(ledger.total_epochs / budget)} its {score_format(report).unit}"
    return f"{ratio(ledger.relative)} the FLOPs of a {dense}{longer} ({absolute})"


def check_phrase(report: RunReport) -> str | None:
    """How the returned model compares with dense, and with which dense score; None without learning."""
    if (compared := compared_with_dense(report)) is None:
        return None
    gap, outcome = compared
    return f"{outcome}{': ' if outcome.startswith('missed') else ', '}{gap}" if gap else outcome


def explanations(report: RunReport) -> list[str]:
    """How the answer of a discovery was derived and how far to trust it, a sentence or two each."""
    answer = report.answer
    if answer is None:
        return []
    lines, scores = [_too_short(report)] if report.probes_too_short else [], score_format(report)
    try:
        lines += map(printable, notes(answer, scores, report.curve))
    except (KeyError, TypeError, ValueError):  # a user-defined rule may use a reason without its details
        lines.append(printable(answer.reason))
    return lines


def advice(report: RunReport) -> list[str]:
    """How to verify an answer that is not; no sentence for others."""
    if (compared := compared_with_dense(report)) is None or compared[1] != "not verified":
        return []
    option = "--verify" if report.dataset else 'reference="dense"'
    compare = " `pathgrow train --method dense` and `pathgrow compare` only compare." if report.dataset else ""
    return [
        f"Not verified: the dense network was not trained to the end. A new run with {option} trains it too, at the"
        f" cost of one more dense training, and searches with its score.{compare}"
    ]


def reference_label(report: RunReport) -> str:
    """The score of the reference and its origin, for legends."""
    assert report.reference is not None
    named = {"densest": "fitted", "dense": "dense baseline", "pretrained": "pretrained model"}
    kind = named.get(report.reference.kind, report.reference.kind)
    return f"reference {score_format(report)(report.reference.score)} ({printable(kind)})"


def goal_label(report: RunReport) -> str:
    """How far below the reference the target is, for legends; after short training also what that stands for."""
    answer, scores = report.answer, score_format(report)
    assert answer is not None
    gap = answer.delta if answer.allowed is None else answer.allowed
    worse, own = "worse than" if report.mode == "min" else "below", scores.tolerance(answer.delta)
    if gap == answer.delta:
        return f"target: {own} {worse} the reference"
    return f"target: {scores.difference(gap)} {worse} the reference ({own} after full training)"


def probes_label(report: RunReport) -> str:
    """What the probes are, for legends."""
    if report.curve.finished:
        return "pruned networks"
    epochs = report.short_probe_epochs
    return "probes" if epochs is None else f"probes ({score_format(report).length(epochs)})"


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


def _answer_findings(report: RunReport, answer: AnswerReport) -> list[tuple[str, str]]:
    scores, found = score_format(report), []
    if answer.reference is not None:
        goal = f"within {scores.tolerance(answer.delta)} of the reference"
        found.append(("criterion", f"{scores.name} {goal}"))
        found.append(("reference", _reference(report, answer.reference)))
    if answer.status != "found" and answer.interval:
        found.append(("90% interval", f"{percent_range(answer.interval)} of the prunable weights"))
    if answer.gain_density is not None:
        gain = f"{percent(answer.gain_density)}{interval_phrase(answer.gain_interval)}"
        found.append(("gain density", f"{gain}: {answer.gain_level:.0%} of the fitted gain"))
    return found


def _reference(report: RunReport, reference: ReferenceReport) -> str:
    scores, probes = score_format(report), report.curve.probes
    trained = f" after {scores.length(reference.epochs)}" if reference.epochs else ""
    if reference.kind == "densest" and probes:
        densest = max(probes, key=lambda point: point.density)
        name = "dense probe" if densest.is_dense else "densest probe"
        return f"{scores(reference.score)} (fitted; measured {scores(densest.score)}), {name}{trained}"
    kinds = {
        "given": "given",
        "pretrained": "the pretrained model",
        "dense": f"dense baseline{trained}",
        "densest": "densest network grown",
        "estimated": f"estimated for a full dense training{_dense_range(report)}",
    }
    return f"{scores(reference.score)}, {kinds.get(reference.kind, printable(reference.kind))}"


def _dense_range(report: RunReport) -> str:
    details = {} if report.answer is None else report.answer.details
    ends = [
        score_format(report)(end) for key in ("dense_low", "dense_high") if isinstance(end := details.get(key), float)
    ]
    return f" (90% interval {ends[0]} to {ends[1]})" if len(ends) == 2 else ""


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
        return score_format(report).length(report.network.epochs)
    ledger, match = report.ledger, report.ledger.match
    text = plural(ledger.total_epochs, "epoch") + (f" in {len(ledger.phases)} phases" if len(ledger.phases) > 1 else "")
    text += {"fresh": ", the last from a fresh initialization", "grown": ", the last from the grown weights"}.get(
        report.network.final or "", ""
    )
    if match is None or match.budget is None:
        return text
    off = match.relative_error or 0.0
    exactly = "" if abs(off) < 0.0005 else f" ({abs(off):.1%} {'over' if off > 0 else 'under'})"
    return f"{text}, matched to a budget of {match_unit(match.kind)}{exactly}"


def _too_short(report: RunReport) -> str:
    scores, curve = score_format(report), report.curve
    best_of, worse = (min, "worse than") if report.mode == "min" else (max, "below")
    best, growing = (best_of(point.score for point in points) for points in (curve.probes, curve.rounds))
    length = scores.length(max(point.epochs for point in curve.probes))
    return (
        f"Low confidence: the best probe ({scores(best)} after {length}) is {worse} the growing network "
        f"({scores(growing)}), so the probes are too short to compare densities. Increase budget or probe_fraction."
    )
