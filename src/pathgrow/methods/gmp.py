"""Gradual magnitude pruning (GMP): from dense to sparse within one training."""

from pathgrow.methods.method import Method
from pathgrow.methods.picks import PruneScore, all_candidates, prune_by
from pathgrow.methods.schedules import PruneCubically, scaled_interval


def gmp(
    *,
    density: float = 0.1,
    num_steps: int = 10_000,
    update_interval: int | None = None,
    start_fraction: float = 0.2,
    stop_fraction: float = 0.75,
    score: PruneScore = "magnitude",
) -> Method:
    """Gradual pruning (Zhu & Gupta 2017, To prune, or not to prune), ranked over all layers together.

    Rule: the density follows d(x) = d_f + (1 - d_f) (1 - x)^3, where x runs from 0 to 1 between `start_fraction` and
    `stop_fraction` of `num_steps`; every `update_interval` steps and at the last one the smallest |weight| are pruned,
    for good.

    Differences: the paper prunes every layer to the same density; ranking over all layers is the common form since. Its
    code keeps the values of pruned weights and ranks them too, so that some return when others have shrunk; it finds
    its thresholds in a histogram, where counts here are exact. The fractions are about those of RigL's comparison on
    CIFAR-10 (20k and 75k of 98k steps). Unless `update_interval` is given, it is 100 steps, or a hundredth of trainings
    shorter than 10,000. `score="lamp"` ranks by LAMP scores instead (Lee et al. 2021, Layer-Adaptive Sparsity for the
    Magnitude-based Pruning): weight^2 over the sum of all weight^2 in its layer that are at least as large, so that no
    layer loses all of its weights.
    """
    interval = scaled_interval(update_interval, published=100, of_steps=10_000, num_steps=num_steps)
    return Method(
        name="gmp",
        start=all_candidates,
        start_density=1.0,
        drop=prune_by(score),
        schedule=PruneCubically(
            density=density,
            update_interval=interval,
            num_steps=num_steps,
            start_fraction=start_fraction,
            stop_fraction=stop_fraction,
        ),
        final_density=density,
        num_steps=num_steps,
        clock="step",
        needs=frozenset({"dense"}),
    )
