"""Gradual Capacity Growth with PathGrow: grow where paths already carry weight, by chance."""

from __future__ import annotations

from pathgrow.masks.sampling import sample_proportional
from pathgrow.methods.method import ByScore, GrowEachRound, Method, NetworkView
from pathgrow.methods.picks import by_walks


def gcg(*, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None) -> Method:
    """PathGrow, the growth rule of GCG (Yao & Dovrolis, Gradual Capacity Growth for Sparse Network Discovery).

    Rule: a missing weight's score is the sum, over all input-output paths through it, of the product of the other
    weights' magnitudes; `gamma` of the present number is drawn without replacement, in proportion to the score, from
    the missing weights of all layers together. New weights are zero. The seed network is a PHEW mask.

    Differences: the paper names no start density but for ImageNet (2%); None takes the smallest of 1, 2, 3 and 5% that
    isolates few units. Batch norm counts as the identity in scores, which the paper leaves open. Weights that no path
    would run through score zero; they are drawn last, each with the same chance.

    Parameters
    ----------
    gamma : float
        Share of the present weights that a round adds.
    start_density : float, optional
        Of the seed network.
    target_density : float, optional
        Growth ends exactly there, see `--density` of `pathgrow train`; None: at the last switchable weight.
    """
    return Method(
        name="gcg",
        start=by_walks,
        start_density=start_density,
        target_density=target_density,
        grow=ByScore(NetworkView.path_scores, sample_proportional),
        schedule=GrowEachRound(gamma=gamma, target_density=target_density),
        needs=frozenset({"paths"}),
    )
