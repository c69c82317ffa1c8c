"""Gradual magnitude pruning (GMP): from dense to sparse within one training."""

from __future__ import annotations

from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, Method
from pathgrow.methods.picks import everything, smallness
from pathgrow.methods.schedules import PruneCubically, interval


def gmp(
    *, density: float = 0.1, num_steps: int = 10_000, every: int | None = None, begin: float = 0.2, end: float = 0.75
) -> Method:
    """Gradual pruning (Zhu & Gupta 2017, To prune, or not to prune), ranked over all layers together.

    Rule: d(x) = d_f + (1 - d_f) (1 - x)^3 of the weights are left, where x runs from 0 to 1 between the shares `begin`
    and `end` of `num_steps`; the smallest |weight| go, every so many steps and at the last, and never come back.

    Differences: the paper prunes every layer to the same density; ranking over all layers is the common form since. Its
    code leaves weights that are off their values and ranks them too, so that some return when others have shrunk; it
    finds its thresholds in a histogram, where counts here are exact. `begin` and `end` are about those of RigL's
    comparison on CIFAR-10 (20k and 75k of 98k steps). Unless `every` says otherwise, weights go every 100 steps, and
    after each hundredth of trainings shorter than 10,000.
    """
    every = interval(every, published=100, of_steps=10_000, num_steps=num_steps)
    return Method(
        name="gmp",
        start=everything,
        start_density=1.0,
        drop=ByScore(smallness, top_k),
        schedule=PruneCubically(density=density, every=every, num_steps=num_steps, begin=begin, end=end),
        clock="step",
        needs=frozenset({"dense"}),
    )
