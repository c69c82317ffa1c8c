"""What the default rule says of its answer, sentence by sentence."""

from __future__ import annotations

import numpy as np

from pathgrow.density import words
from pathgrow.density.estimate import Estimate, allowed_meanwhile
from pathgrow.density.types import Curve, Status


def allowed_gap(curve: Curve, reading: Estimate, delta: float) -> str:
    """How far below the reference a probe may stay: delta, or the gap that stands for it after a short training."""
    allowed = allowed_meanwhile(delta, reading.densest.epochs, curve.epochs_in_full)[0]
    return words.score(delta) if allowed == delta else f"{allowed:.2g}"


def answer_words(
    curve: Curve, reading: Estimate, delta: float, status: Status, density: float | None
) -> tuple[str, ...]:
    """The delta answer in one sentence, and what to know of it, a sentence each."""
    against = words.reference(reading.reference, reading.densest)
    lowest, densest = (words.density(x) for x in (reading.lowest, min(reading.densest.density, curve.ceiling)))
    far = allowed_gap(curve, reading, delta)
    match status:
        case "flat":
            return (
                f"Every density trained out, from {lowest} on, is within {far} of {against}.",
                "The smallest density needed lies below those.",
            )
        case "unreached":
            end = float(np.median(reading.curves.at(reading.densest.density)))
            return (
                f"No density up to {densest} comes within {far} of {against}.",
                f"The trained-out networks end at {words.score(end)}.",
            )
        case "open":
            return (
                f"Up to {densest} no density is clearly within {far} of {against}.",
                "Denser networks have not been grown.",
            )
        case _:
            assert density is not None
            beyond = [
                f"With a chance of {share:.0%} the answer lies {where}."
                for share, where in (
                    (reading.share_below, f"below {lowest}, the lowest density trained out"),
                    (reading.share_above, "above the densest network trained out, or nowhere"),
                )
                if share > 0.05
            ]
            name = words.dense_one(reading.reference, reading.densest)
            in_the_end = allowed_meanwhile(delta, reading.densest.epochs, curve.epochs_in_full)[0] > delta
            enough = "should be enough" if in_the_end else "are enough"
            return (
                f"{words.density(density)} of the switchable weights {enough} to score within {words.score(delta)} of"
                f" {name}.",
                *beyond,
            )


def read_where(curve: Curve, reading: Estimate, delta: float) -> str:
    """What an answer was read against, where its first sentence does not say it."""
    if reading.reference.kind != "densest":
        return ""
    against = words.reference(reading.reference, reading.densest)
    return f"The answer was read where the curve comes within {allowed_gap(curve, reading, delta)} of {against}."


def no_gain(reading: Estimate) -> str:
    """Why there is no gain answer."""
    if not reading.has_gain:
        return "The scores do not rise with density by more than their noise, so there is no gain to take 95% of."
    return "The rise does not saturate: the exponential fit makes 95% of its gain only beyond density 100%."
