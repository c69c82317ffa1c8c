"""Sentences about an answer."""

from __future__ import annotations

from pathgrow.density.types import DENSE, Grow, Point, Probe, Reference, Stop, Verdict


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


def dense_one(value: Reference, densest: Point | None = None) -> str:
    """The same for a first sentence: the network, or its score where that is all that is known."""
    if value.kind != "densest":
        return reference(value)
    if densest is not None and densest.round == DENSE:
        return "a dense network"
    return "the densest network grown" + ("" if densest is None else f" ({density(densest.density)})")


def lines(*sentences: str) -> str:
    """An answer in words: the answer itself in the first line, then, a line each, what else there is to say.

    >>> print(lines("All are enough.", "", "Stopped: growth cannot go on."))
    All are enough.
    Stopped: growth cannot go on.
    """
    return "\n".join(sentence for sentence in sentences if sentence)


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
    """How and why the other answer differs; empty where they agree to within a quarter."""
    ratio = gain_density / delta_density
    if 0.8 <= ratio <= 1.25:
        return ""
    than = "denser" if ratio > 1 else "sparser"
    return (
        f"The gain answer is {than} because it asks for a share of the whole rise from the sparsest networks on, not"
        f" for {score(delta)} of score below the reference."
    )


def gain(value: float, interval: tuple[float, float]) -> str:
    """The other answer, and what it means.

    >>> gain(0.25, (0.078, 0.65))
    'The gain answer is 25% (90% interval 7.8% to 65%): there the fitted curve has made 95% of its rise.'
    """
    where = f"{density(value)} (90% interval {span(interval)})"
    return f"The gain answer is {where}: there the fitted curve has made 95% of its rise."
