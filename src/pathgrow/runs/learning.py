"""Whether training made any network better. Where it did not, no score says anything about density.

A `fit` that trains nothing, or an `evaluate` that scores something else, still gives scores, and a rule reads an answer
from any scores. A network that grows and trains gets better, though, so there is doubt only where it did not. Then the
networks compared are scored once more, as they were before their training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pathgrow.density import words
from pathgrow.density.estimate import MIN_POINTS
from pathgrow.density.types import Answer, Curve, Point
from pathgrow.runs.probes import untrained_copy
from pathgrow.runs.site import Site
from pathgrow.runs.trunk import Trunk

STAGE = "untrained"
_SURE = 2.326
"""Standard deviations beyond which chance comes in one of a hundred cases. To doubt for nothing costs a few scores."""
_ADVICE = (
    "see whether the learning rate is one that learns, whether fit trains the model and the optimizer that it is "
    "given, and whether evaluate scores that model"
)
WARNING = f"training made no network better, so how dense the network must be cannot be told: {_ADVICE}"


def is_doubtful(curve: Curve) -> bool:
    """Whether there are enough networks to tell, and the growing one did not get better."""
    return len(compared(curve)) >= MIN_POINTS and not has_risen(curve.rough)


def has_risen(rough: Sequence[Point]) -> bool:
    """Whether the growing network got better from round to round more often than by chance (Mann-Kendall test)."""
    scores = [point.score for point in rough]
    num = len(scores)
    ups = sum((later > earlier) - (later < earlier) for k, earlier in enumerate(scores) for later in scores[k + 1 :])
    tied = sum(_spread(times) for times in Counter(scores).values())
    return ups > _SURE * math.sqrt((_spread(num) - tied) / 18)


def _spread(num: int) -> int:
    return num * (num - 1) * (2 * num + 5)


def compared(curve: Curve) -> tuple[Point, ...]:
    """The networks that an answer was read from: the probes, or the rounds of a rule that trains none."""
    return curve.probes or curve.rough


def scored_untrained(site: Site, trunk: Trunk, curve: Curve) -> tuple[Point, ...]:
    """The networks compared, as they were before their training; a stage of its own, so it is done once."""
    points = compared(curve)
    found = site.store.load(STAGE)
    if found is None:
        scores = [
            site.phases.score(untrained_copy(site, trunk, point.round), STAGE, part=point.round).score
            for point in points
        ]
        site.store.save(STAGE, {"scores": scores})
    else:
        scores = found.metadata["scores"]
    return tuple(replace(point, epochs=0, score=score, loss=None) for point, score in zip(points, scores, strict=True))


def learned(before: Sequence[Point], after: Sequence[Point]) -> bool:
    """Whether all networks score better than any did before training, or one does by more than those differ.

    If training does nothing, the first happens by chance once in 20 cases for three networks, once in 70 for four.
    """
    worst, best = min(point.score for point in before), max(point.score for point in before)
    scores = [point.score for point in after]
    return min(scores) > best or max(scores) > best + (best - worst)


def nothing_learned(answer: Answer, before: Sequence[Point], after: Sequence[Point]) -> Answer:
    """What is left of an answer where nothing was learned: no density, and an interval over all of them.

    A reference that was fitted to the scores is dropped with the fit.
    """
    told = (
        f"Before training the networks compared scored {_range(before)}, after it {_range(after)}, and the growing one"
        " got no better from round to round.",
        f"{_ADVICE.capitalize()}.",
    )
    return replace(
        answer,
        status="unlearned",
        density=None,
        interval=(0.0, 1.0),
        gain_density=None,
        gain_interval=None,
        reference=None if answer.reference is None or answer.reference.kind == "densest" else answer.reference,
        words=words.lines("How dense the network must be cannot be told: training made no network better.", *told),
        notes=told,
    )


def _range(points: Sequence[Point]) -> str:
    scores = [words.score(value([point.score for point in points])) for value in (min, max)]
    return scores[0] if scores[0] == scores[1] else f"{scores[0]} to {scores[1]}"
