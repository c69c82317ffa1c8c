"""Random growth (RG): grow anywhere."""

from __future__ import annotations

from pathgrow.methods.method import GrowEachRound, Method
from pathgrow.methods.picks import at_random, by_walks


def random_growth(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """RG, the baseline growth rule of GCG (Yao & Dovrolis).

    Rule: missing weights of all layers together, each with the same chance, so that a layer grows in proportion to what
    it lacks. The seed network is the same PHEW mask as PathGrow's. Options as in `gcg`.

    Differences: whether the draw is global or per layer is not stated in the paper; the common budget suggests global.
    """
    return Method(
        name="random_growth",
        start=by_walks,
        start_density=start_density,
        target_density=target_density,
        grow=at_random,
        schedule=GrowEachRound(gamma=gamma, target_density=target_density),
        needs=frozenset({"paths"}),
    )
