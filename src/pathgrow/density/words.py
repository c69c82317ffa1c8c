"""Sentences about an answer."""

from __future__ import annotations

from pathgrow.density.curve import DENSE, Grow, Point, Probe, Reference, Stop, Verdict


def density(value: float) -> str:
    """A density as people say it.

    >>> density(0.0731), density(0.3), density(1.0)
    ('7.3%', '30%', '100%')
    """
    percent = 100.0 * value
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def score(value: float) -> str:
    """A score in five figures, which tell apart all scores that differ by more than noise.

    >>> score(0.98611), score(-2.3456789), score(76.0)
    ('0.98611', '-2.3457', '76')
    """
    return f"{value:.5g}"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "epoch"), counted(16, "epoch")
    ('1 epoch', '16 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def span(interval: tuple[float, float]) -> str:
    """An interval of densities; one that begins at 0 has an open lower end.

    >>> span((0.12, 0.47)), span((0.0, 0.47))
    ('12% to 47%', 'up to 47%')
    """
    low, high = interval
    return f"{density(low)} to {density(high)}" if low > 0 else f"up to {density(high)}"


def reference(value: Reference, densest: Point | None = None) -> str:
    """What the answer is read against; `densest` is that network, where the reference is one of those observed."""
    match value.kind:
        case "given":
            return f"the given dense score {score(value.score)}"
        case "dense":
            return f"the measured dense score {score(value.score)}"
        case "densest":
            if densest is not None and densest.round == DENSE:
                return f"{score(value.score)}, the score fitted for a dense network trained as long"
            at = "" if densest is None else f" ({density(densest.density)})"
            return f"{score(value.score)}, the score fitted for the densest network grown{at}"


def verdict(said: Verdict) -> str:
    """What a rule said, and why.

    >>> verdict(Grow(reason="the scores do not rise yet"))
    'Growth goes on: the scores do not rise yet.'
    """
    match said:
        case Stop():
            return f"Stopped: {said.reason}."
        case Grow():
            return f"Growth goes on: {said.reason}."
        case Probe():
            return f"Another probe is due: {said.reason}."


def disagreement(delta_density: float, gain_density: float, delta: float) -> str:
    """How and why the two answers differ; empty where they agree to within a quarter."""
    ratio = gain_density / delta_density
    if 0.8 <= ratio <= 1.25:
        return ""
    later = "later" if ratio > 1 else "earlier"
    return (
        f"The gain answer comes {later} than the delta answer because they ask different things: one counts a share of"
        f" the whole rise from the sparsest networks on, the other {score(delta)} of score below the reference."
    )
