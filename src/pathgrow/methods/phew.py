"""PHEW as a method of its own: a mask made of random walks, trained as it is."""

from __future__ import annotations

from pathgrow.methods.method import Method, require_density
from pathgrow.methods.picks import by_walks


def phew(*, density: float = 0.1) -> Method:
    """PHEW (Patil & Dovrolis, Constructing Sparse Networks that Learn Fast and Generalize Well without Training Data).

    Rule: random walks from inputs and from outputs in turn, each step in proportion to |weight| at initialisation;
    whatever they tread on is kept until the density is reached. No data; layer densities emerge.

    Differences: walks go along the network as it is wired. The authors' code takes every 1x1 kernel for a shortcut,
    which misreads bottleneck blocks, and a forward walk onto a shortcut leaves out the last layer of the block before
    it. Numbers are exact: what is left when the next walk does not fit are weights between units of walks already made.
    Their walks are drawn by generators that the seed does not reach, and a kernel of zeros gives NaN; here all chance
    comes from the seed, and such a kernel has no preference. Biases of units without inputs stay.
    """
    require_density("density", density)
    return Method(name="phew", start=by_walks, start_density=density, needs=frozenset({"paths"}))
