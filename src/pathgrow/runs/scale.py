"""Numbers given in another unit than the scores: percent beside shares of one, losses beside scores.

Scores may be anything, so little is refused: only what two scores of one kind can hardly be. About the rest there is a
warning, where it would cost trainings to find out.
"""

from __future__ import annotations

from pathgrow.density.types import Curve
from pathgrow.errors import RunFailed

_SHARE = 1.0
_BEYOND_A_SHARE = 1.5
_APART = 20.0
"""Percent are a hundred times a share, and sparsity alone does not put a trained-out network this far from dense."""
_ROUNDS = 5
_ABOUT = (0.5, 1.2)
"""Growing networks may score next to nothing in any unit, so they count only after this many rounds, and if their best
score, taken as percent, would be this much of the reference."""


def check_reference(curve: Curve) -> None:
    """Refuse a reference that was given as percent where scores are shares of one, or the other way round.

    Checked again after every stage; what was stored by then is kept.
    """
    if curve.reference is None or curve.reference.kind != "given":
        return
    best, wanted = _best(curve), curve.reference.score
    small, large = sorted((best, wanted))
    if not (0 < small <= _SHARE and large > _BEYOND_A_SHARE and large > _APART * small):
        return
    is_about_percent = len(curve.rough) >= _ROUNDS and _ABOUT[0] * wanted < 100 * best < _ABOUT[1] * wanted
    if best < wanted and not curve.probes and not is_about_percent:
        return  # it may still rise
    raise RunFailed(
        f"the reference is {wanted:g} and the best score so far {best:.4g}, both in one unit are wanted (not percent "
        "and shares of one): give as reference what evaluate returns for the dense network; what was trained is kept "
        "where there is a store"
    )


def doubt_about_reference(curve: Curve) -> str | None:
    """A warning about a given reference that looks like an error or a loss beside the scores of probes, or None.

    A reward of 15 beside networks that reach 0.9 looks the same, so this is no reason to end a run.
    """
    if curve.reference is None or curve.reference.kind != "given" or not curve.probes:
        return None
    best, wanted = _best(curve), curve.reference.score
    found = f"the reference is {wanted:g} and the best score so far {best:.4g}"
    if 0 < best <= _SHARE and wanted > _BEYOND_A_SHARE:
        return (
            f"{found}: if scores are accuracies as shares of one, none can reach it, so give what evaluate returns for "
            "the dense network, not its error or loss"
        )
    if wanted > 0 and best < -_ABOUT[0] * wanted:
        return f"{found}: if scores are losses with a minus sign, give the reference one too"
    return None


def _best(curve: Curve) -> float:
    return max(point.score for point in (*curve.rough, *curve.probes))


def doubt_about_delta(score: float, delta: float, default: float) -> str | None:
    """A warning about a first score that is no share of one, where delta has its default, which is for shares; or None.

    For scores below zero, such as losses with a minus sign, a delta of a hundredth may well be meant.

    >>> doubt_about_delta(87.5, delta=0.01, default=0.01)
    'the first score is 87.5 and delta is 0.01, the default for scores from 0 to 1: ...'
    >>> doubt_about_delta(87.5, delta=1.0, default=0.01), doubt_about_delta(-2.3, delta=0.01, default=0.01)
    (None, None)
    """
    if score <= _BEYOND_A_SHARE or delta != default:
        return None
    return (
        f"the first score is {score:.4g} and delta is {delta:g}, the default for scores from 0 to 1: "
        "if scores are percent, give delta=1 for one point"
    )
