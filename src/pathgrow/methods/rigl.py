"""RigL: drop the smallest weights of a layer, grow where the gradient is largest."""

from __future__ import annotations

from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import Method, NetworkView
from pathgrow.methods.rewire import RewireLayers
from pathgrow.methods.schedules import Cosine, RewireEvery


def rigl(
    *,
    density: float = 0.1,
    allocation: str = "erk",
    num_steps: int = 10_000,
    every: int = 100,
    rate: float = 0.3,
    end: float = 0.75,
) -> Method:
    """RigL (Evci et al. 2020, Rigging the Lottery: Making All Tickets Winners).

    Rule: every so many steps, from step 0 to the share `end` of the training, each layer drops
    int(rate/2 (1 + cos(pi t / T_end)) * n) of its n weights, the smallest |weight|, and grows as many with the largest
    |gradient| of the batch among all that it did not keep. New weights and their momentum are zero; a weight dropped
    and grown again keeps both. The change takes the place of that step's gradient step. Layer densities stay.

    Differences: the reference code has a constant share unless the cosine is asked for. It adds noise to all magnitudes
    before it ranks them, so that a weight of zero can lose to one that is off; here only ties are drawn. A dropped
    weight is zeroed at once rather than when it returns, which no training can tell. In the paper, uniform layers
    beside a dense first one are at the density themselves, which makes the total a little higher; here the total is
    exact. At a density of 1% its code keeps the first layer dense under ERK too, which here is a matter of the scope.
    `end` is the paper's 75%; its CIFAR-10 runs stop at 75,000 of 97,656 steps.

    Parameters
    ----------
    density, allocation
        Of all switchable weights, and how it is shared out: "erk", "er", or "uniform" with a dense first layer, which
        is no denser than the others where it would take more than half of their weights.
    num_steps, every, end
        Steps of the training, between changes, and the share of the training after which masks stay.
    rate : float
        Share of a layer's weights that is dropped at first.
    """
    return Method(
        name="rigl",
        start=RandomByLaw(allocation),
        start_density=density,
        schedule=RewireEvery(every=every, num_steps=num_steps, end=end),
        update=RewireLayers(rate=Cosine(first=rate, num_steps=end * num_steps), score=NetworkView.gradients),
        clock="step",
        skip_step_on_update=True,
        needs=frozenset({"gradients"}),
        cost="dense_gradient_at_changes",
    )
