"""Growth by the gain in path-kernel trace: the quantity that PathGrow's score stands in for."""

from __future__ import annotations

from pathgrow.masks.sampling import sample_proportional
from pathgrow.methods.method import ByScore, GrowEachRound, Method, NetworkView
from pathgrow.methods.picks import by_walks


def trace_growth(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """Trace growth, PathGrow with squared weights (motivated in Yao & Dovrolis, who use magnitudes in its place).

    Rule: a missing weight's score is the exact gain in the trace of the path kernel, the sum over paths through it of
    the squared product of the other weights; sampled in proportion, globally. Options as in `gcg`.

    Differences: not a method of the paper, which derives the gain and then samples by its magnitude form. The two rank
    weights differently.
    """
    return Method(
        name="trace_growth",
        start=by_walks,
        start_density=start_density,
        target_density=target_density,
        grow=ByScore(NetworkView.trace_gains, sample_proportional),
        schedule=GrowEachRound(gamma=gamma, target_density=target_density),
        needs=frozenset({"paths"}),
    )
