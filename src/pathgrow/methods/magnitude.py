"""Magnitude pruning at initialisation: the largest weights of a network that has learnt nothing yet."""

from __future__ import annotations

from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, Method, require_density
from pathgrow.methods.picks import magnitudes


def magnitude(*, density: float = 0.1) -> Method:
    """One-shot magnitude pruning before training, a baseline of pruning at initialisation (Frankle et al. 2021).

    Rule: the largest |weight| over all layers together; ties are drawn. Layers with many inputs have small initial
    weights and lose most, at high sparsity all of them: the baseline is known to collapse there.
    """
    require_density("density", density)
    return Method(name="magnitude", start=ByScore(magnitudes, top_k), start_density=density)
