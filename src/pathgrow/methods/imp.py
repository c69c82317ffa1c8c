"""Iterative magnitude pruning (IMP): train, prune a fifth of what is left, go back, train again; LTH and IMP-C."""

from __future__ import annotations

from pathgrow.errors import UserError, is_number
from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import AfterUpdate, ByScore, Method
from pathgrow.methods.picks import everything, smallness
from pathgrow.methods.schedules import PruneEachRound, require_steps

_REWIND_STEP, _OF_STEPS = 500, 10_000
"""Where late rewinding goes back to, in trainings of at least so many steps; shorter ones go back to the same share."""


def imp(
    *, density: float = 0.1, share: float = 0.2, num_steps: int = _OF_STEPS, rewind_step: int | None = None
) -> Method:
    """IMP with late rewinding (Frankle et al. 2020, Linear Mode Connectivity and the Lottery Ticket Hypothesis).

    Rule: level 0 trains dense. After each training, `share` of the remaining weights goes, the smallest |weight| over
    all layers together; weights and batch norm return to their values at `rewind_step`, the optimizer starts empty, and
    training goes on from there to the same last step. A training is one round: `observe` or `advance_` ends it. The
    loop sees to its length and to the learning rate, which is to be that of `rewind_step` again.

    Differences: a level is exactly round((1 - share)^level * n) weights, with ties drawn; the reference code removes
    one weight more, and all ties with it. Late rewinding goes back to a step that the papers choose for each network;
    here it is step 500, or a twentieth of trainings shorter than 10,000 steps, which would else lose most of each
    level.

    Parameters
    ----------
    density : float
        Where it ends; the last level is cut to end there exactly.
    share : float
        Of the remaining weights, taken by each level.
    num_steps : int
        Steps of one training, from which `rewind_step` follows unless it is given.
    rewind_step : int, optional
        Optimizer step of the first training whose weights are returned to.
    """
    require_steps(1, num_steps)
    if rewind_step is None:
        rewind_step = round(_REWIND_STEP * min(num_steps, _OF_STEPS) / _OF_STEPS)
    if not is_number(rewind_step) or rewind_step < 0 or rewind_step != int(rewind_step):
        raise UserError(
            f"rewind_step {rewind_step!r} was given, a whole number of steps from 0 up is wanted: give for example 500"
        )
    return _pruning("imp", density, share, "rewind", int(rewind_step))


def lth(*, density: float = 0.1, share: float = 0.2) -> Method:
    """The lottery ticket procedure (Frankle & Carbin 2019, The Lottery Ticket Hypothesis).

    Rule: as `imp`, returning to the initial weights. Options as there.

    Differences: the paper ranks within layers in its small networks, and prunes their output layer half as fast; here,
    as in its deeper ones, ranking is over all layers. Leaving layers out is a matter of the scope.
    """
    return _pruning("lth", density, share, "rewind", 0)


def imp_c(*, density: float = 0.1, share: float = 0.2) -> Method:
    """IMP-C, the continued-training variant that GCG is compared with (Yao & Dovrolis; cf. Renda et al. 2020).

    Rule: as `imp`, but weights and batch norm stay as they were trained; the optimizer starts empty.

    Differences: the paper states neither the length of a level nor its learning rate; both are the loop's, and a full
    schedule for each level is learning-rate rewinding.
    """
    return _pruning("imp_c", density, share, "reset_optimizer", 0)


def _pruning(name: str, density: float, share: float, after_update: AfterUpdate, rewind_step: int) -> Method:
    return Method(
        name=name,
        start=everything,
        start_density=1.0,
        drop=ByScore(smallness, top_k),
        schedule=PruneEachRound(density=density, share=share),
        after_update=after_update,
        rewind_step=rewind_step,
        needs=frozenset({"dense"}),
    )
