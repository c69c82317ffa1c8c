"""Gradient growth (GG): grow where the loss pulls hardest."""

from __future__ import annotations

from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, GrowEachRound, Method, NetworkView
from pathgrow.methods.picks import by_walks


def gradient_growth(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """GG, the gradient-based growth rule that GCG is compared with (Yao & Dovrolis; the criterion is RigL's).

    Rule: the network is seen as fully connected for one batch; the missing weights with the largest |loss gradient|
    over all layers together are added. `attach` needs `loss` and `batches`. Options as in `gcg`.

    Differences: batch and mode are not stated in the paper. Here: one training batch, training mode, with the running
    statistics restored afterwards. RigL itself ranks within layers.
    """
    return Method(
        name="gradient_growth",
        start=by_walks,
        start_density=start_density,
        target_density=target_density,
        grow=ByScore(NetworkView.gradients, top_k),
        schedule=GrowEachRound(gamma=gamma, target_density=target_density),
        needs=frozenset({"paths", "gradients"}),
    )
