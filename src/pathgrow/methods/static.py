"""Static masks: random, ERK, magnitude and PHEW masks, and dense training."""

from pathgrow.errors import unknown_name
from pathgrow.masks.sampling import top_k
from pathgrow.methods.allocation import DISTRIBUTIONS, RandomInLayers
from pathgrow.methods.method import ByScore, Method
from pathgrow.methods.picks import all_candidates, at_random, by_walks, magnitudes


def random(*, density: float = 0.1, allocation: str = "plain") -> Method:
    """A static random mask, the baseline of most papers on sparse training.

    Rule: weights are drawn once, uniformly, and never change. Active weights keep the values of the model's own
    initialization; they are not rescaled for the smaller fan-in.

    Parameters
    ----------
    density : float
        Fraction of the prunable weights, exact to one weight.
    allocation : "plain", "equal", "uniform", "er", "er_matrix" or "erk"
        plain: uniform over all layers together. The others fix how many weights each layer keeps, see
        `pathgrow.methods.allocation.allocate`; "erk" is also a method of its own.
    """
    if allocation not in (known := ["plain", *DISTRIBUTIONS]):
        raise unknown_name("allocation", allocation, known)
    start = at_random if allocation == "plain" else RandomInLayers(allocation)
    return Method(name="random", start=start, start_density=density)


def erk(*, density: float = 0.1) -> Method:
    """A static random mask with the Erdos-Renyi-Kernel layer densities of RigL (Evci et al. 2020, "static ERK").

    Rule: a layer keeps eps (n_in + n_out + k_w + k_h) / (n_in n_out k_w k_h) of its weights; layers for which that
    exceeds one are dense, and eps is solved for the rest. First layer, shortcuts and classifier take part if they are
    in the scope.

    Differences: numbers per layer are rounded so that the total is exact; the reference code truncates each.
    """
    return Method(name="erk", start=RandomInLayers("erk"), start_density=density)


def magnitude(*, density: float = 0.1) -> Method:
    """One-shot magnitude pruning before training, a baseline of pruning at initialization (Frankle et al. 2021).

    Rule: keep the largest |weight| over all layers; ties are broken at random. Layers with many inputs have small
    initial weights and lose most, at high sparsity all of them: the baseline is known to collapse there.
    """
    return Method(name="magnitude", start=ByScore(magnitudes, top_k), start_density=density)


def phew_masks(*, density: float = 0.1) -> Method:
    """PHEW (Patil & Dovrolis, Constructing Sparse Networks that Learn Fast and Generalize Well without Training Data).

    Rule: random walks alternate between inputs and outputs as their start, each step in proportion to |weight| at
    initialization; every weight on a walk is kept until the density is reached. No data; layer densities emerge.

    Differences: walks follow the traced graph of the network. The authors' code takes every 1x1 kernel for a shortcut,
    which misreads bottleneck blocks, and a forward walk onto a shortcut leaves out the last layer of the block before
    it. Counts are exact: when the next walk does not fit, weights between units of earlier walks fill the rest. The
    generators of their walks ignore the seed, and a kernel of zeros gives NaN; here the seed determines everything, and
    such a kernel has uniform transition probabilities. Biases of units without inputs stay.
    """
    return Method(name="phew", start=by_walks, start_density=density, needs=frozenset({"paths"}))


def dense() -> Method:
    """Dense training, the baseline of every comparison.

    It uses masks like any other method, so that scope, recipe and compute ledger are comparable.
    """
    return Method(name="dense", start=all_candidates, start_density=1.0, cost="dense")
