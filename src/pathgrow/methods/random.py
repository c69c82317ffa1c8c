"""Random masks: what every other mask has to beat."""

from __future__ import annotations

from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import Method, require_density
from pathgrow.methods.picks import at_random


def random(*, density: float = 0.1, allocation: str = "plain") -> Method:
    """A random mask that stays: the static baseline of most papers on sparse training.

    Rule: weights are drawn once, uniformly, and never change. Weights that are kept have the values of the model's own
    initialisation; none is scaled up for its smaller fan-in.

    Parameters
    ----------
    density : float
        Of all switchable weights, exact to one weight.
    allocation : "plain", "equal", "uniform", "er", "er_matrix" or "erk"
        plain: any weight of any layer with the same chance. The others fix how many each layer keeps, see
        `allocation.allocated`; "erk" is also there as a method of its own.
    """
    require_density("density", density)
    start = at_random if allocation == "plain" else RandomByLaw(allocation)
    return Method(name="random", start=start, start_density=density)
