"""Sentences for the reason codes and the numbers of a density rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathgrow.density.types import Reason
from pathgrow.report.formats import ScoreFormat, percent
from pathgrow.report.schema import AnswerReport

_PLAIN = ScoreFormat(is_fraction=False)

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
    Reason.BELOW_ESTIMATE: "Density {at_density} is below {factor:g}x the estimate {estimate}.",
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
    Reason.PAST_ESTIMATE: "Density {at_density} is at least {factor:g}x the estimate {estimate}.",
    Reason.ESTIMATE_OUT_OF_REACH: "Growth cannot continue to the estimate {estimate}.",
    Reason.NO_SATURATION: "Growth cannot continue, and the trajectory does not saturate.",
    Reason.NOTHING_LEARNED: "The networks compared scored {before} before training and {after} after it, and the"
    " growing network did not improve from round to round. Check the learning rate, that fit trains the model and the"
    " optimizer it receives, and that evaluate scores that model.",
}

_DENSITIES = ("at_density", "second_density", "needed_density", "from_density", "estimate")


def explain(reason: str, details: Mapping[str, Any], scores: ScoreFormat = _PLAIN) -> str:
    """Return a sentence for a reason code; the sentence of a user-defined rule is returned as it is.

    >>> explain("past_estimate", {"at_density": 0.4, "estimate": 0.15, "factor": 2.0})
    'Density 40.0% is at least 2x the estimate 15.0%.'
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
    if values.get("gap") is not None:
        values["gap"] = scores.difference(values["gap"])
    for key in ("before", "after"):
        ends = dict.fromkeys(scores(values.get(f"{key}_{end}")) for end in ("low", "high"))
        values[key] = " to ".join(ends)
    values["and_dense"] = " and the dense network" if values.get("dense") else ""
    second = values.get("second_density")
    values["and_second"] = f" and {second}" if second else ""
    return template.format_map(values)


def notes(answer: AnswerReport, scores: ScoreFormat = _PLAIN) -> list[str]:
    """Return how certain the answer is, what limits it and why the search stopped: one sentence or two each."""
    found = [] if answer.status == "unlearned" else [*_position(answer, scores), *_limits(answer, scores)]
    found += _gain(answer, scores)
    return [*found, explain(answer.reason, answer.details, scores)] if answer.reason else found


def _position(answer: AnswerReport, scores: ScoreFormat) -> list[str]:
    """Where the answer is in its posterior and relative to the networks compared."""
    details, found = answer.details, list[str]()
    if answer.operating_density is not None:
        quantile, median = details.get("quantile"), details.get("median_density")
        if quantile is not None:
            beside = "" if median is None else f"; the median is {percent(median)}"
            found.append(
                f"The reported density is the {quantile:.0%} quantile of the posterior (conservative){beside}."
            )
        if (below := details.get("share_below") or 0.0) > 0.05:
            sparsest = percent(details["lowest"])
            found.append(f"With probability {below:.0%} the operating density is below {sparsest}, the sparsest probe.")
        if (above := details.get("share_above") or 0.0) > 0.05:
            found.append(
                f"With probability {above:.0%} the operating density is above the densest probe, if it exists."
            )
    elif answer.status == "flat" and details.get("lowest") is not None:
        found.append(f"The operating density is below the sparsest network compared ({percent(details['lowest'])}).")
    elif answer.status == "unreached" and details.get("end_score") is not None:
        found.append(f"The fitted score of the densest network compared is {scores(details['end_score'])}.")
    elif answer.status == "open" and details.get("probes_needed") is not None:
        found.append(f"An answer needs at least {details['probes_needed']} probes, got {details['probes']}.")
    elif answer.status == "open" and details.get("densest") is not None:
        found.append("Denser networks have not been grown.")
    return found


def _limits(answer: AnswerReport, scores: ScoreFormat) -> list[str]:
    """What limits the answer: short probes, networks still in training, a fit without a reference."""
    details, found = answer.details, list[str]()
    if answer.allowed is not None and answer.allowed > answer.delta and details.get("probe_epochs") is not None:
        short, full = details["probe_epochs"], details["full_epochs"]
        low, high = (scores.difference(details[key]) for key in ("allowed_low", "allowed_high"))
        found.append(
            f"Probes were trained for {short} of {full} epochs. Gaps to the reference shrink with training, so a gap of"
            f" {scores.difference(answer.allowed)} (90%: {low} to {high}) at {short} epochs is treated as"
            f" {scores.difference(answer.delta)} at {full}. Passing a reference tightens the interval."
        )
    if details.get("unmatched_reference") is not None:
        found.append(
            f"No round came within {scores.difference(answer.delta)} of the reference"
            f" {scores(details['unmatched_reference'])}, which is not comparable with networks still in training."
        )
    if details.get("widened") is not None:
        found.append(
            "Networks were evaluated while still in training, so the answer may be off by a factor of"
            f" {details['widened']:g} either way; the interval includes that."
        )
    if details.get("fit_within_delta") is not None:
        found.append(
            f"The fit comes within {scores.difference(answer.delta)} of its own asymptote, an extrapolation, at"
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
        f" sparsest networks, not a gap of {scores.difference(answer.delta)} to the reference."
    ]
