"""RigL: drop the smallest weights of each layer, grow those with the largest gradients."""

from pathgrow.methods.allocation import RandomInLayers
from pathgrow.methods.method import Method, NetworkView
from pathgrow.methods.rewire import Cosine, RewireEvery, RewireLayers


def rigl(
    *,
    density: float = 0.1,
    allocation: str = "erk",
    num_steps: int = 10_000,
    update_interval: int = 100,
    drop_fraction: float = 0.3,
    stop_fraction: float = 0.75,
) -> Method:
    """RigL (Evci et al. 2020, Rigging the Lottery: Making All Tickets Winners).

    Rule: every `update_interval` steps, from step 0 to `stop_fraction` of the training, each layer drops
    int(drop_fraction/2 (1 + cos(pi t / T_end)) * n) of its n active weights, those with the smallest |weight|, and
    grows as many with the largest |gradient| of the batch among all that it did not keep. New weights and their
    momentum are zero; a weight dropped and grown again keeps both. The update replaces that optimizer step. Layer
    densities stay constant.

    Differences: the reference code has a constant drop fraction unless the cosine is selected. It adds noise to all
    magnitudes before it ranks them, so that an active weight of zero can lose to a pruned one; here only ties are
    random. A dropped weight is zeroed at once rather than when it returns, which makes no difference to training. In
    the paper, uniform layers beside a dense first one have the given density themselves, which makes the total a little
    higher; here the total is exact. At a density of 1% its code keeps the first layer dense under ERK too; here the
    scope decides that. `stop_fraction` is the paper's 75%; its CIFAR-10 runs stop at 75,000 of 97,656 steps.

    Parameters
    ----------
    density, allocation
        Overall density of the prunable weights, and its distribution over layers: "equal", "uniform", "er",
        "er_matrix" or "erk", see `pathgrow.methods.allocation.allocate`.
    num_steps, update_interval, stop_fraction
        Steps of the training, steps between mask updates, and the fraction of the training after which masks are final.
    drop_fraction : float
        Initial fraction of a layer's active weights to drop.
    """
    return Method(
        name="rigl",
        start=RandomInLayers(allocation),
        start_density=density,
        schedule=RewireEvery(update_interval=update_interval, num_steps=num_steps, stop_fraction=stop_fraction),
        update=RewireLayers(
            drop_fraction=Cosine(first=drop_fraction, num_steps=stop_fraction * num_steps), score=NetworkView.gradients
        ),
        clock="step",
        skip_step_on_update=True,
        needs=frozenset({"gradients"}),
        cost="dense_gradient_at_updates",
    )
