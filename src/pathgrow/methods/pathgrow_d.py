"""PathGrow-D: grow where paths carry most weight, without chance."""

from __future__ import annotations

from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, GrowEachRound, Method, NetworkView
from pathgrow.methods.picks import by_walks


def pathgrow_d(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """PathGrow-D, the deterministic ablation of GCG's growth rule (Yao & Dovrolis).

    Rule: the scores of PathGrow, of which the largest over all layers are taken; ties are broken at random. The paper
    finds it generally worse than sampling: growth crowds into few units. Options as in `gcg`.

    Differences: how ties are broken is not stated in the paper.
    """
    return Method(
        name="pathgrow_d",
        start=by_walks,
        start_density=start_density,
        target_density=target_density,
        grow=ByScore(NetworkView.path_scores, top_k),
        schedule=GrowEachRound(gamma=gamma, target_density=target_density),
        needs=frozenset({"paths"}),
    )
