"""Random masks with layer densities by ERK: static sparse training as RigL is compared with."""

from __future__ import annotations

from pathgrow.methods.allocation import RandomByLaw
from pathgrow.methods.method import Method, require_density


def erk(*, density: float = 0.1) -> Method:
    """A static random mask with the Erdos-Renyi-Kernel layer densities of RigL (Evci et al. 2020, "static ERK").

    Rule: a layer keeps eps (n_in + n_out + k_w + k_h) / (n_in n_out k_w k_h) of its weights; layers for which that
    exceeds one are dense, and eps is solved for the rest. First layer, shortcuts and classifier take part if they are
    in the scope.

    Differences: numbers per layer are rounded so that the total is exact; the reference code truncates each.
    """
    require_density("density", density)
    return Method(name="erk", start=RandomByLaw("erk"), start_density=density)
