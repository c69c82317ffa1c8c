"""Growth methods: Gradual Capacity Growth (GCG) with PathGrow, and the growth rules it is compared with."""

from dataclasses import replace

from pathgrow.masks.sampling import sample_proportional, top_k
from pathgrow.methods.method import ByScore, GrowEachRound, Method, Need, NetworkView, Pick
from pathgrow.methods.picks import at_random, by_walks


def gcg(*, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None) -> Method:
    """PathGrow, the growth rule of GCG (Yao & Dovrolis, Gradual Capacity Growth for Sparse Network Discovery).

    Rule: the score of a missing weight is the sum, over all input-output paths through it, of the product of the other
    weights' magnitudes. Each round samples `gamma` times the number of active weights without replacement, in
    proportion to the score, from the missing weights of all layers together. New weights are zero. The seed network is
    a PHEW mask.

    Differences: the paper gives a start density for ImageNet only (2%); None uses the lowest of 1, 2, 3 and 5% that
    isolates few units. Batch norm counts as the identity in scores, which the paper leaves open. Weights that no path
    would run through have score zero; they are drawn last, uniformly. The paper trains one network continuously, and
    does not say how its final training starts: `pathgrow train` starts the final mask from a fresh initialization, or
    with `--final grown` from the grown weights.

    Parameters
    ----------
    gamma : float
        Growth per round as a fraction of the active weights.
    start_density : float, optional
        Density of the seed network.
    target_density : float, optional
        Growth ends exactly there (`--density` of `pathgrow train`); None: at full density.
    """
    grow = ByScore(NetworkView.path_scores, sample_proportional)
    return _growth("gcg", grow, gamma, start_density, target_density)


def pathgrow_d(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """PathGrow-D, the deterministic ablation of GCG's growth rule (Yao & Dovrolis).

    Rule: add the weights with the largest PathGrow scores over all layers; ties are broken at random. The paper finds
    it generally worse than sampling: growth concentrates in few units. Options as in `gcg`.

    Differences: the paper does not say how ties are broken.
    """
    return _growth("pathgrow_d", ByScore(NetworkView.path_scores, top_k), gamma, start_density, target_density)


def random_growth(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """Random growth (RG), the baseline growth rule of GCG (Yao & Dovrolis).

    Rule: sample uniformly from the missing weights of all layers together, so that a layer grows in proportion to what
    it lacks. The seed network is the same PHEW mask as for PathGrow; a model that cannot be traced starts with random
    masks, by default at 10%. Options as in `gcg`.

    Differences: the paper does not say whether sampling is global or per layer; the common budget suggests global.
    """
    return _growth("random_growth", at_random, gamma, start_density, target_density)


_RANDOM_START = 0.1
"""Density at which random masks disconnect few units of usual layers."""


def without_paths(method: Method) -> Method:
    """Random growth from random masks, for models that cannot be traced."""
    density = _RANDOM_START if method.start_density is None else method.start_density
    density = density if method.target_density is None else min(density, method.target_density)
    return replace(method, start=at_random, start_density=density, needs=frozenset())


def gradient_growth(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """Gradient growth (GG), the baseline of GCG that grows by gradient (Yao & Dovrolis; the criterion is RigL's).

    Rule: add the missing weights with the largest |loss gradient| over all layers, with the network treated as fully
    connected for one batch. `attach` needs `loss` and `batches`. Options as in `gcg`.

    Differences: the paper does not specify batch or mode. Here: one training batch, training mode, with the running
    statistics restored afterwards. RigL itself ranks within layers.
    """
    grow = ByScore(NetworkView.gradients, top_k)
    return _growth("gradient_growth", grow, gamma, start_density, target_density, "gradients")


def trace_growth(
    *, gamma: float = 0.25, start_density: float | None = None, target_density: float | None = None
) -> Method:
    """Trace growth, PathGrow with squared weights (motivated in Yao & Dovrolis, who use magnitudes instead).

    Rule: the score of a missing weight is the exact gain in the trace of the path kernel, the sum over paths through it
    of the squared product of the other weights; sampled in proportion, globally. Options as in `gcg`.

    Differences: not a method of the paper, which derives the gain and then samples by its magnitude form. The two rank
    weights differently.
    """
    grow = ByScore(NetworkView.trace_gains, sample_proportional)
    return _growth("trace_growth", grow, gamma, start_density, target_density)


def _growth(
    name: str, grow: Pick, gamma: float, start_density: float | None, target_density: float | None, *needs: Need
) -> Method:
    return Method(
        name=name,
        start=by_walks,
        start_density=start_density,
        target_density=target_density,
        grow=grow,
        schedule=GrowEachRound(gamma=gamma, target_density=target_density),
        needs=frozenset({"paths", *needs}),
    )
