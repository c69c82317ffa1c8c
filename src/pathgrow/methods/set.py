"""SET: drop the smallest weights of each layer, grow random ones."""

from typing import Literal

from pathgrow.errors import unknown_name
from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import Method
from pathgrow.methods.rewire import Cosine, RewireEvery, RewireLayers

Anneal = Literal["cosine", "constant"]


def sparse_evolution(
    *,
    density: float = 0.1,
    allocation: str = "erk",
    num_steps: int = 10_000,
    update_interval: int = 100,
    drop_fraction: float = 0.3,
    anneal: Anneal = "cosine",
    stop_fraction: float = 0.75,
    by_sign: bool = False,
) -> Method:
    """Sparse Evolutionary Training (Mocanu et al. 2018, Scalable training of artificial neural networks ...).

    Rule: random masks; every `update_interval` steps each layer drops `drop_fraction` of its active weights, those with
    the smallest |weight|, and grows as many random ones among all that it did not keep. Layer densities stay constant.

    Differences: the defaults are those of RigL's comparison (ERK, every 100 steps, a cosine that reaches zero at
    `stop_fraction` of the training). The paper's own are
    `allocation="er", anneal="constant", stop_fraction=1, by_sign=True` with an `update_interval` of one epoch: masks
    are updated to the end of the training, and the fraction is dropped from the positive and from the negative weights.
    Its output layer is dense; here the scope decides that. Its code rebuilds the optimizer each epoch and so loses all
    momentum; here only that of dropped weights is lost. A weight that is dropped and drawn again in one update keeps
    its value, as in RigL's code; in the paper's it returns as zero. The update comes before the optimizer step, not
    after it.

    Parameters
    ----------
    density, allocation
        Overall density of the prunable weights, and its distribution over layers.
    num_steps, update_interval, stop_fraction
        Steps of the training, steps between mask updates, and the fraction of the training after which masks are final.
    drop_fraction, anneal
        Fraction of a layer's active weights to drop: the initial one ("cosine") or a constant.
    by_sign : bool
        Drop from positive and negative weights separately.
    """
    if anneal not in ("cosine", "constant"):
        raise unknown_name("anneal", anneal, ("cosine", "constant"))
    last = drop_fraction if anneal == "constant" else 0.0
    annealed = Cosine(first=drop_fraction, last=last, num_steps=stop_fraction * num_steps)
    return Method(
        name="set",
        start=RandomInLayers(allocation),
        start_density=density,
        schedule=RewireEvery(update_interval=update_interval, num_steps=num_steps, stop_fraction=stop_fraction),
        update=RewireLayers(drop_fraction=annealed, score=None, by_sign=by_sign),
        clock="step",
    )
