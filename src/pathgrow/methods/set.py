"""SET: drop the smallest weights of a layer, grow any."""

from __future__ import annotations

from typing import Literal

from pathgrow.errors import unknown_name
from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import Method
from pathgrow.methods.rewire import Rate, RewireLayers
from pathgrow.methods.schedules import Constant, Cosine, RewireEvery

Anneal = Literal["cosine", "constant"]


def sparse_evolution(
    *,
    density: float = 0.1,
    allocation: str = "erk",
    num_steps: int = 10_000,
    every: int = 100,
    rate: float = 0.3,
    anneal: Anneal = "cosine",
    end: float = 0.75,
    by_sign: bool = False,
) -> Method:
    """Sparse Evolutionary Training (Mocanu et al. 2018, Scalable training of artificial neural networks ...).

    Rule: random masks; every so many steps each layer drops the share `rate` of its smallest |weight| and grows as many
    anywhere that is not kept, by chance. Layer densities stay.

    Differences: the defaults are those of RigL's comparison (ERK, every 100 steps, a cosine that reaches zero at the
    share `end` of the training). The paper's own are `allocation="er", anneal="constant", end=1, by_sign=True` with
    `every` an epoch: masks change to the end of the training, and the share is taken from the positive and from the
    negative weights. Its output layer is dense,
    which is a matter of the scope. Its code rebuilds the optimizer each epoch and so loses all momentum; here only that
    of weights that go is lost. A weight that is dropped and drawn again in one change keeps its value, as in RigL's
    code; in the paper's it returns as zero. The change comes before the optimizer's step, not after it.

    Parameters
    ----------
    density, allocation
        Of all switchable weights, and how it is shared out among layers.
    num_steps, every, end
        Steps of the training, between changes, and the share of the training after which masks stay.
    rate, anneal
        Share of a layer's weights that is dropped: at first, or always.
    by_sign : bool
        Drop from positive and negative weights each by itself.
    """
    if anneal not in ("cosine", "constant"):
        raise unknown_name("anneal", anneal, ("cosine", "constant"))
    falling: Rate = Constant(rate) if anneal == "constant" else Cosine(first=rate, num_steps=end * num_steps)
    return Method(
        name="set",
        start=RandomByLaw(allocation),
        start_density=density,
        schedule=RewireEvery(every=every, num_steps=num_steps, end=end),
        update=RewireLayers(rate=falling, score=None, by_sign=by_sign),
        clock="step",
    )
