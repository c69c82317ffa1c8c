"""Magnitude pruning at initialisation: the largest weights of a network that has learnt nothing yet."""

from __future__ import annotations

from torch import Tensor

from pathgrow.method import Method
from pathgrow.methods.picks import ByScore
from pathgrow.methods.schedules import require_density
from pathgrow.net import Net
from pathgrow.sampling import top_k


def magnitude(*, density: float = 0.1) -> Method:
    """One-shot magnitude pruning before training, a baseline of pruning at initialisation (Frankle et al. 2021).

    Rule: the largest |weight| over all layers together; ties are drawn. Layers with many inputs have small initial
    weights and lose most, at high sparsity all of them: the baseline is known to collapse there.
    """
    require_density("density", density)
    return Method(name="magnitude", start=ByScore(_magnitudes, top_k), start_density=density)


def _magnitudes(net: Net) -> dict[str, Tensor]:
    return {name: weight.abs() for name, weight in net.weights().items()}
