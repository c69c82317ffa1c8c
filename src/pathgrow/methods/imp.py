"""Iterative magnitude pruning (IMP): train, prune 20% of the remaining weights, rewind, train again; LTH and IMP-C."""

from pathgrow.errors import is_number, require
from pathgrow.methods.method import AfterUpdate, Method
from pathgrow.methods.picks import PruneScore, all_candidates, prune_by
from pathgrow.methods.schedules import PruneEachRound, require_steps

_REWIND_STEP, _OF_STEPS = 500, 10_000
"""Rewind step for trainings of at least so many steps; shorter ones rewind to the same fraction."""


def imp(
    *,
    density: float = 0.1,
    prune_fraction: float = 0.2,
    num_steps: int = _OF_STEPS,
    rewind_step: int | None = None,
    score: PruneScore = "magnitude",
) -> Method:
    """IMP with late rewinding (Frankle et al. 2020, Linear Mode Connectivity and the Lottery Ticket Hypothesis).

    Rule: round 0 trains dense. After each training, `prune_fraction` of the remaining weights are pruned, those with
    the smallest |weight| over all layers; weights and batch norm are rewound to `rewind_step`, the optimizer state is
    reset, and training continues from there to the same last step. One training is one round: `observe` or `advance_`
    ends it. The training loop is responsible for its length and for rewinding the learning rate to `rewind_step`.

    Differences: round k has exactly round((1 - prune_fraction)^k * n) weights, with ties broken at random; the
    reference code removes one weight more, and all ties with it. The papers choose the rewind step for each network;
    here it is step 500, or 5% of trainings shorter than 10,000 steps, which would otherwise lose most of each round.

    Parameters
    ----------
    density : float
        Final density; the last round is cut to end there exactly.
    prune_fraction : float
        Fraction of the remaining weights that each round prunes.
    num_steps : int
        Steps of one training, for the default of `rewind_step`.
    rewind_step : int, optional
        Optimizer step of the first training to whose weights to rewind.
    score : "magnitude" or "lamp"
        What weights are ranked by: |weight|, or the LAMP scores of `gmp`.
    """
    require_steps(1, num_steps)
    if rewind_step is None:
        rewind_step = round(_REWIND_STEP * min(num_steps, _OF_STEPS) / _OF_STEPS)
    is_step = is_number(rewind_step) and rewind_step >= 0 and rewind_step == int(rewind_step)
    require(is_step, "rewind_step", rewind_step, "an integer >= 0", 500)
    return _pruning("imp", density, prune_fraction, score, "rewind", int(rewind_step))


def lth(*, density: float = 0.1, prune_fraction: float = 0.2, score: PruneScore = "magnitude") -> Method:
    """The lottery ticket procedure (Frankle & Carbin 2019, The Lottery Ticket Hypothesis).

    Rule: as `imp`, rewinding to the initial weights. Options as there.

    Differences: the paper ranks within layers for its small networks, and prunes their output layer half as fast; here,
    as for its deeper ones, ranking is over all layers. The scope decides which layers take part.
    """
    return _pruning("lth", density, prune_fraction, score, "rewind", 0)


def imp_c(*, density: float = 0.1, prune_fraction: float = 0.2, score: PruneScore = "magnitude") -> Method:
    """IMP-C, the continued-training variant that GCG is compared with (Yao & Dovrolis; cf. Renda et al. 2020).

    Rule: as `imp`, but weights and batch norm stay as trained; the optimizer state is reset. Options as there.

    Differences: the paper gives neither the length of a round nor its learning rate; both are up to the training loop,
    and a full schedule for each round is learning-rate rewinding.
    """
    return _pruning("imp_c", density, prune_fraction, score, "reset_optimizer", 0)


def _pruning(
    name: str,
    density: float,
    prune_fraction: float,
    score: PruneScore,
    after_update: AfterUpdate,
    rewind_step: int,
) -> Method:
    return Method(
        name=name,
        start=all_candidates,
        start_density=1.0,
        drop=prune_by(score),
        schedule=PruneEachRound(density=density, prune_fraction=prune_fraction),
        final_density=density,
        after_update=after_update,
        rewind_step=rewind_step,
        needs=frozenset({"dense"}),
    )
