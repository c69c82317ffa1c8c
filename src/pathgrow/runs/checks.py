"""Sanity checks of a run: scores in different units, training without effect, too few mask updates."""

import inspect
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import nn

from pathgrow.checkpoint import Metadata
from pathgrow.config import Option, check_value
from pathgrow.density.estimate import MAX_GAIN, MIN_POINTS
from pathgrow.density.types import DENSE, Answer, Curve, Point, Reason
from pathgrow.errors import RunFailed, UserError, require
from pathgrow.methods.method import count_at
from pathgrow.methods.picks import at_random
from pathgrow.report.formats import number, percent, plural
from pathgrow.runs.iso_flop import Workload, updates_within_training
from pathgrow.runs.options import MIN_DIVIDED_BUDGET, DiscoverOptions
from pathgrow.runs.session import Session
from pathgrow.runs.trunk import GrowingTrunk, attach_dense, initialized_copy
from pathgrow.runs.user_functions import UNTRAINED as UNTRAINED
from pathgrow.runs.user_functions import check_fraction

# Functions


def check_functions(fit: Any, evaluate: Any) -> None:
    """Refuse functions that cannot be called as they will be, before anything is trained."""
    check_signature(fit, "fit", "model", "optimizer", "epochs")
    check_signature(evaluate, "evaluate", "model")


def check_signature(function: Any, name: str, *arguments: str) -> None:
    """Refuse a function that cannot be called with these arguments."""
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise UserError(f"{name} must be a function {call}, got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # functions written in C may have none
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UserError(f"{name} must accept {call}, but its signature is {signature} ({error})") from error


_ONE_OPTIMIZER = (
    "put all weights in scope into one optimizer, which may have several parameter groups, or restrict scope= to the "
    "weights of one, or prune in a training loop of your own with attach, which takes several"
)


def check_optimizer(optimizer: Any) -> None:
    """Refuse several optimizers."""
    if isinstance(optimizer, list | tuple) and optimizer:
        raise UserError(f"discover takes one optimizer, got a {type(optimizer).__name__}: {_ONE_OPTIMIZER}")


def check_owned(session: Session) -> None:
    """Refuse an optimizer that owns only some of the weights in scope."""
    groups, parameters = session.optimizer.param_groups, dict(session.model.named_parameters(remove_duplicate=False))
    owned = {id(parameter) for group in groups for parameter in group["params"]}
    prunable = {name: parameters[name] for name in session.scope if parameters[name].requires_grad}
    left = [name for name, parameter in prunable.items() if id(parameter) not in owned]
    if 0 < len(left) < len(prunable):
        raise UserError(
            f"{left[0]!r} is in scope but not owned by the optimizer, and discover takes only one: {_ONE_OPTIMIZER}"
        )


def unit_of(fit: Any) -> str:
    """What the third argument of `fit` counts, by its name.

    >>> unit_of(lambda model, optimizer, num_steps: None), unit_of(lambda *arguments: None)
    ('steps', 'epochs')
    """
    try:
        name = list(inspect.signature(fit).parameters)[2].rpartition("_")[2]
    except (TypeError, ValueError, IndexError):
        return "epochs"
    return name if name in ("steps", "iterations", "updates", "batches") else "epochs"


def refuse_paths(model: nn.Module, options: DiscoverOptions) -> None:
    """Refuse options that need paths, for a model that cannot be traced."""
    if (options.probes or options.max_density < 1) and options.growth_method().grow is not at_random:
        prune = "finish='gts', which only prunes" if options.probes else "max_density=1, which only prunes"
        raise UserError(
            f"{type(model).__name__} cannot be traced, so it cannot grow along paths; use method='random_growth', or "
            f"{prune}"
        )


# Units of scores

_MAX_FRACTION = 1.5
"""Scores above this are not fractions of one, allowing for noise."""
_MAX_LOSS, _MAX_UNTRAINED_LOSS = 5.0, 50.0
"""Larger scores, of which the lower is better, are not losses but perplexities, percentages or amounts."""
_MIN_UNIT_RATIO = 20.0
"""Percentages are 100 times fractions; sparsity alone does not put a trained network this far below dense."""
_MIN_ROUNDS = 5
_CLOSE = (0.5, 1.2)
"""Growing networks may score next to nothing in any unit. They count only after this many rounds, and if their best
score, read as a percentage, is this close to the reference."""


MIN_SEARCH_BUDGET = 4
"""Budgets below this leave no room for rounds: even phases of one epoch each may cost more than any limit."""


def too_short_warning(curve: Curve, options: DiscoverOptions) -> str:
    """Why a dense baseline is trained, although the search then costs more than a dense training."""
    gains = [after.score - before.score for before, after in pairwise(curve.rough)]
    later = max((point.score - curve.rough[-1].score for point in curve.probes), default=-math.inf)
    if not gains:
        reason = f"a budget of {_budget(options)} is too short to be divided"
    else:
        gained = (
            f"the second half of the training so far gained {number(gains[-1])}"
            if gains[-1] >= later
            else f"pruned networks, which were trained for longer, gained {number(later)}"
        )
        reason = f"{gained}, more than {MAX_GAIN:.2g} times delta, so it does not predict the score after full training"
    trained = f"{reason}. A dense baseline is therefore trained for the whole budget, as with reference='dense'"
    if options.budget < MIN_SEARCH_BUDGET:
        return f"{trained}. {_cost_clause(options)}"
    return (
        f"{trained}, and the search may cost up to {options.highest_cost:g} dense trainings. To prevent this, use "
        "max_cost=1 (--max-cost 1)."
    )


def least_cost_warning(options: DiscoverOptions) -> str | None:
    """A warning if even the shortest search is likely to cost more than its limit.

    Not where a dense baseline is trained: `too_short_warning` says so.
    """
    if not options.prunes or options.budget >= MIN_SEARCH_BUDGET or options.may_train_reference:
        return None
    return f"a budget of {_budget(options)} is too short for a search. {_cost_clause(options)}"


def _cost_clause(options: DiscoverOptions) -> str:
    unit = (options.unit or "epochs").removesuffix("s")
    more = "" if unit != "epoch" else " (if fit can count steps, so can the budget)"
    return (
        f"No phase is shorter than one {unit}, so the search may exceed max_cost (at budget 1: two or more dense "
        f"trainings). Use a budget of at least {MIN_DIVIDED_BUDGET}{more}."
    )


def _budget(options: DiscoverOptions) -> str:
    return plural(options.budget, (options.unit or "epochs").removesuffix("s"))


def check_reference(curve: Curve) -> None:
    """Refuse a reference in percent if scores are fractions of one, or the other way round."""
    if curve.reference is None or curve.reference.kind != "given":
        return
    best, reference = _best_score(curve), curve.reference.score
    small, large = sorted((best, reference))
    if not (0 < small <= 1 and large > _MAX_FRACTION and large > _MIN_UNIT_RATIO * small):
        return
    is_percent = len(curve.rough) >= _MIN_ROUNDS and _CLOSE[0] * reference < 100 * best < _CLOSE[1] * reference
    if best < reference and not curve.probes and not is_percent:
        return  # scores may still rise
    raise RunFailed(
        f"reference is {number(reference)}, but the best score so far is {number(best)}: they seem to be in different "
        "units (percent and fractions); pass what evaluate returns for the dense network (finished stages are kept if "
        "there is a store)"
    )


def reference_warning(curve: Curve, sign: int = 1) -> str | None:
    """A warning if a given reference looks like an error or a loss, compared with the scores of probes.

    A reward of 15, where networks reach 0.9 so far, looks the same, so this does not end a run. `sign` is what the
    scores of the curve were multiplied by.
    """
    if curve.reference is None or curve.reference.kind != "given" or not curve.probes:
        return None
    best, reference = _best_score(curve), curve.reference.score
    found = f"reference is {number(sign * reference)}, but the best score so far is {number(sign * best)}"
    if 0 < best <= 1 and reference > _MAX_FRACTION:
        return f"{found}; if scores are accuracies in [0, 1], pass the accuracy of the dense network, not its error"
    if reference > 0 and best < -_CLOSE[0] * reference:
        negated = "if scores are negative losses, negate the reference too"
        return f"{found}; {negated if sign > 0 else 'pass the reference in the sign of the scores'}"
    return None


def delta_warning(score: float, options: DiscoverOptions, *, is_trained: bool = True) -> str | None:
    """A warning if delta and a first score are in different units; with `num_val`, which says the unit, an error.

    Either delta has its default, which suits fractions of one, and the score is larger; for losses and their negatives
    that may be intended. Or delta is more than fractions can differ by; not so clear for an untrained network, whose
    score may be a small number in any unit.

    >>> delta_warning(87.5, DiscoverOptions())
    "evaluate returned 87.5, but delta is 0.01, the default for scores in [0, 1]: ... or delta='1%' of the score"
    >>> delta_warning(87.5, DiscoverOptions(delta=1.0)), delta_warning(-2.3, DiscoverOptions())
    (None, None)
    >>> [delta_warning(score, DiscoverOptions(mode="min")) is None for score in (2.3, 31.0)]
    [True, False]
    >>> delta_warning(0.8, DiscoverOptions(delta=2.0))
    'evaluate returned 0.8, and scores in [0, 1] cannot differ by more than delta=2: pass 0.02 for 2 percentage points'
    """
    if not options.delta_is_relative and options.delta >= 1 and 0 <= score <= 1:
        too_large = (
            f"evaluate returned {number(score)}, and scores in [0, 1] cannot differ by more than "
            f"delta={options.delta:g}: pass {options.delta / 100:g} for {plural(options.delta, 'percentage point')}"
        )
        if options.num_val is not None:
            raise UserError(too_large)
        return too_large if is_trained and options.mode == "max" else None
    loss = _MAX_LOSS if is_trained else _MAX_UNTRAINED_LOSS
    least = _MAX_FRACTION if options.mode == "max" and score > 0 else loss
    if abs(score) <= least or options.delta_is_relative or options.delta != DiscoverOptions.delta:
        return None
    return (
        f"evaluate returned {number(score)}, but delta is {options.delta:g}, the default for scores in [0, 1]: "
        "pass delta in the unit of the scores (1 for one percentage point), or delta='1%' of the score"
    )


def large_delta_warning(before: float, after: float, delta: float) -> str | None:
    """A warning if delta is so large that networks which hardly learned are within it.

    >>> large_delta_warning(0.0203, 0.0059, 0.01)
    "delta is 0.01, but the training only changed the score from 0.0203 to 0.0059, so networks ... delta='1%')"
    """
    if delta < _LARGE_DELTA * abs(after - before):
        return None
    return (
        f"delta is {number(delta)}, but the training only changed the score from {number(before)} to {number(after)}, "
        "so networks that hardly learned are within delta: pass a smaller delta (or one relative to the score, such as "
        "delta='1%')"
    )


def _best_score(curve: Curve) -> float:
    return max(point.score for point in (*curve.rough, *curve.probes))


# Training without effect: a `fit` that trains nothing still yields scores, and a rule reads an answer from any scores

_SIGNIFICANT = 2.326
"""One-sided 1% quantile of the normal distribution. A false alarm costs a few evaluations only."""
NOTHING_LEARNED = (
    "training improved no network, so no density can be recommended: check the learning rate, that fit trains the "
    "model and the optimizer it receives, and that evaluate scores that model"
)


_TRAINED_ON = (
    "; start='scratch' trains on from the given weights, and if these were trained already (then use "
    "start='pretrained'), their score may not improve"
)


def nothing_learned_warning(options: DiscoverOptions, before: Sequence[Point], after: Sequence[Point]) -> str:
    """The warning about a training without effect; scores that got worse may have the other sign."""
    first, last = (statistics.median(point.score for point in points) for points in (before, after))
    given = _TRAINED_ON if options.start == "scratch" else ""
    if last >= first:
        return NOTHING_LEARNED + given
    asked = "higher is better? mode='max'" if options.mode == "min" else "lower is better? mode='min'"
    change = f"from {number(options.sign * first)} to {number(options.sign * last)}"
    return f"scores went {change} in training: {asked}. If not, {NOTHING_LEARNED}{given}"


def may_not_have_learned(curve: Curve) -> bool:
    """Whether there are enough networks to compare, and the growing one did not improve."""
    return len(compared_points(curve)) >= MIN_POINTS and not has_risen(curve.rough)


def has_risen(rough: Sequence[Point]) -> bool:
    """Whether the growing network improved from round to round significantly (Mann-Kendall test)."""
    scores = [point.score for point in rough]
    ups = sum((later > earlier) - (later < earlier) for k, earlier in enumerate(scores) for later in scores[k + 1 :])
    ties = sum(_kendall_variance(times) for times in Counter(scores).values())
    return ups > _SIGNIFICANT * math.sqrt((_kendall_variance(len(scores)) - ties) / 18)


def _kendall_variance(num: int) -> int:
    return num * (num - 1) * (2 * num + 5)


def compared_points(curve: Curve) -> tuple[Point, ...]:
    """The networks that an answer is read from: the probes, or the rounds if the rule trains no probes."""
    return curve.probes or curve.rough


def scores_before_training(trunk: GrowingTrunk, curve: Curve) -> tuple[Point, ...]:
    """Evaluate the networks compared with their initial weights; stored like any stage."""
    points, session = compared_points(curve), trunk.session
    scores = session.stored(UNTRAINED, lambda stage: stored_scores(stage.metadata, len(points)))
    if scores is None:
        rounds = [point.round for point in points]
        copies = [initialized_copy(session, k, None if k == DENSE else trunk.masks(k)) for k in rounds]
        scores = [session.score(copy, UNTRAINED, part=k).score for k, copy in zip(rounds, copies, strict=True)]
        session.store.save(UNTRAINED, {"scores": scores})
    return tuple(replace(point, epochs=0, score=score, loss=None) for point, score in zip(points, scores, strict=True))


def stored_scores(metadata: Metadata, num: int) -> list[float]:
    """The scores of a stored stage, checked."""
    scores: list[float] = check_value(metadata.get("scores"), list[float], Option(), "scores")
    require(len(scores) == num, "scores", scores, f"{num} numbers")
    return scores


def has_learned(before: Sequence[Point], after: Sequence[Point]) -> bool:
    """Whether every network beats the best untrained one, or one does so by more than the untrained ones differ.

    If training has no effect, the first happens by chance once in 20 cases for three networks, once in 70 for four.
    """
    worst, best = min(point.score for point in before), max(point.score for point in before)
    scores = [point.score for point in after]
    return min(scores) > best or max(scores) > best + (best - worst)


def answer_unless_probes_too_short(curve: Curve, answer: Answer) -> Answer:
    """The answer, but without a density if no probe comes within delta of the growing network."""
    if not curve.probes or _best_score(replace(curve, rough=())) + answer.delta >= max(p.score for p in curve.rough):
        return answer
    details = {**answer.details, "too_short": 1}
    return replace(answer, status="open", density=None, interval=None, gain_density=None, details=details)


def unlearned_answer(answer: Answer, before: Sequence[Point], after: Sequence[Point]) -> Answer:
    """The answer if nothing was learned: no density, and an interval over all of them.

    A reference that was fitted to the scores is dropped with the fit.
    """
    reference = answer.reference
    details: dict[str, float | int | str | None] = {}
    for name, points in (("before", before), ("after", after)):
        scores = [point.score for point in points]
        details |= {f"{name}_low": min(scores), f"{name}_high": max(scores)}
    return replace(
        answer,
        status="unlearned",
        density=None,
        interval=(0.0, 1.0),
        gain_density=None,
        gain_interval=None,
        reference=None if reference is None or reference.kind == "densest" else reference,
        reason=Reason.NOTHING_LEARNED,
        details=details,
    )


_LARGE_DELTA = 0.5
"""Fraction of what training gains."""
_NUM_FRESH = 5
_FAR = 4.0
"""Standard deviations of fresh initializations above their mean; by chance about once in a hundred models."""


def refuse_trained(session: Session, options: DiscoverOptions) -> None:
    """Refuse a model that scores far above fresh initializations of itself, since nobody said what to do with it."""
    given, fresh = _given_score(session), list[float]()
    if options.num_val is not None:  # now, while the run directory is still unused
        check_fraction(given)
        delta_warning(given, options, is_trained=False)
    delta = options.delta * (abs(given) if options.delta_is_relative else 1.0)
    for score in _fresh_scores(session):
        fresh.append(score)
        if options.sign * (given - score) <= max(5 * delta, 0.15 * max(abs(given), abs(score))):
            return  # most fresh models end here, after one evaluation
    if _is_far_above(given, fresh, options.sign):
        raise UserError(
            f"the model seems to be trained: it scores {number(given)}, a fresh initialization of it "
            f"{number(fresh[0])}; pass start='pretrained' to keep its weights and prune them, or start='scratch' to "
            "train on from these weights for the whole budget"
        )


def resolve_start(session: Session, options: DiscoverOptions) -> DiscoverOptions:
    """The options for a pretrained model: one that scores like a fresh one, as with a new head, has to be trained.

    Otherwise every density would be within delta of its score.
    """
    given, fresh = _given_score(session), list(_fresh_scores(session))
    if _is_far_above(given, fresh, options.sign):
        return options
    session.warnings.append(
        f"the given model scores {number(given)}, not clearly better than fresh initializations of it "
        f"({number(min(fresh))} to {number(max(fresh))}), perhaps because its last layer is new: it is trained from "
        "the given weights before it is pruned, and compared with a dense training from them for the whole budget"
    )
    return replace(options, start="scratch")


def improved_warning(options: DiscoverOptions, curve: Curve) -> str | None:
    """A warning if finished networks end above the pretrained one by more than delta: training on improves it too."""
    if curve.reference is None or curve.reference.kind != "pretrained":
        return None
    given, best = curve.reference.score, max(curve.finished, key=lambda point: point.score)
    if best.score <= given + options.with_absolute_delta(given).delta:
        return None
    return (
        f"after more training a network at {percent(best.density)} density scores {number(options.sign * best.score)}, "
        f"better than the given one ({number(options.sign * given)}), which more training would improve too; "
        "reference='dense' trains it on and compares with that"
    )


def _given_score(session: Session) -> float:
    return session.score(attach_dense(session), UNTRAINED).score


def _fresh_scores(session: Session) -> Iterator[float]:
    for part in range(DENSE, DENSE - _NUM_FRESH, -1):
        yield session.score(initialized_copy(session, part), UNTRAINED, part=part).score


def _is_far_above(given: float, fresh: Sequence[float], sign: int) -> bool:
    return sign * (given - statistics.mean(fresh)) > _FAR * statistics.stdev(fresh)


# Trainings that are too short for their method

_FEW_UPDATES = 5


def training_warnings(workload: Workload, epochs: int) -> list[str]:
    """Warnings about a training of this many epochs (per level) that is about to start; mostly none."""
    method, num_steps, found = workload.method(epochs), epochs * workload.steps_per_epoch, []
    if updates_within_training(method) and method.start_density is not None:
        num_on = count_at(method.start_density, workload.session.scope.num)
        num_updates = sum(span.num_updates for span in workload.spans(epochs, num_on))
        if num_updates < _FEW_UPDATES:
            interval = workload.config.method_options.get("update_interval")
            every = f" (update interval {interval})" if interval is not None else ""
            found.append(
                f"only {num_updates} mask update{'' if num_updates == 1 else 's'} in {num_steps} steps{every}; "
                "train longer or update more often"
            )
    if method.after_update == "rewind" and num_steps / 2 < method.rewind_step < num_steps:
        found.append(
            f"rewind_step {method.rewind_step} leaves {num_steps - method.rewind_step} of {num_steps} steps per level; "
            "use a smaller rewind_step or train longer"
        )
    return found
