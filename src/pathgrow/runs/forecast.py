"""What a search will probably train: the stages of a usual one, and what they cost.

How many rounds, probes and finished networks there are is up to the density rule, so the numbers are those of measured
searches. Several finishers each search from the beginning and share nothing but a dense baseline: theirs add up.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from pathgrow.density.shrink import INITIAL, ShrinkRule
from pathgrow.graph.flops import forward_macs, sample_flops, sample_training_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import GrowEachRound, Method, count_at
from pathgrow.runs.iso_flop import Span, spans_of_steps
from pathgrow.runs.options import LEAST_COST_TO_COMPARE, MIN_DIVIDED_BUDGET, DiscoverOptions
from pathgrow.runs.records import PlannedStage, SearchForecast
from pathgrow.runs.session import MAX_ADAPTIVE_EPOCHS, Session
from pathgrow.runs.shrinking import Lengths, extra_cost
from pathgrow.runs.trunk import DENSE_STAGE

_START = 0.05
_COMPARED = 0.2
_PROBED, _PROBED_BESIDE_DENSE = 0.3, 0.2
"""Mean density of probes: the dense probe, where there is one, replaces the densest of them."""
_NUM_PROBES, _NUM_PROBES_WITH_REFERENCE = 5, 10
_GROWN, _GROWN_WITH_REFERENCE, _GROWN_WITHOUT_PROBES = 0.5, 1.0, 0.3
"""Density at which growth ends."""
_NUM_STEPS = 1000
"""Steps of the training whose schedule is played through: the mean density hardly depends on their number."""


def search_forecast(session: Session, options: DiscoverOptions) -> SearchForecast:
    """What a search will probably train, and what that costs."""
    stages = expected_stages(options)
    return SearchForecast(
        stages=tuple(replace(stage, sample_flops=_sample_flops(session, options, stage)) for stage in stages),
        budget=options.budget,
        dense_flops=sample_training_flops(session.graph),
        fixed_flops=sample_training_flops(session.graph, Masks.empty(session.scope)),
    )


def expected_stages(options: DiscoverOptions) -> tuple[PlannedStage, ...]:
    """The stages of a usual search, or of one for each finisher; a dense baseline is shared."""
    several = len(options.finishers) > 1
    each = [(name, replace(options, finish=name)) for name in options.finishers]
    stages = [
        replace(stage, finisher=name if several else None)
        for name, own in each
        for stage in (_pruning(own) if own.prunes else _probing(own))
    ]
    is_first = any(own.trains_dense_first for _, own in each)
    if options.reference == "dense" or is_first:
        dense = PlannedStage(kind=DENSE_STAGE, count=1, epochs=options.budget, density=1.0)
        stages.insert(0 if is_first else len(stages), dense)
    return tuple(stages)


def _pruning(options: DiscoverOptions) -> Iterator[PlannedStage]:
    """A network is trained, pruned in rounds, and finished at two densities; with a reference at three."""
    lengths, most, budget, grown = Lengths(options), options.max_density, options.budget, 0
    if most < 1:
        start = options.start_density or _START
        yield PlannedStage(kind="grow", count=1, epochs=lengths.seed, density=start)
        growth = _growth("grow", options, most, lengths.growth)
        yield growth
        grown = lengths.seed + growth.count * growth.epochs
    if options.start == "pretrained":
        yield PlannedStage(kind="given", count=1, epochs=0, density=1.0)
    elif not options.trains_dense_first:
        phases = Counter([max(1, lengths.phases[0] - grown), *lengths.phases[1:]])
        for epochs, count in phases.items():
            yield PlannedStage(kind="train", count=count, epochs=epochs, density=most)
    has_reference = options.reference is not None
    is_given = has_reference and most == 1 and options.start != "pretrained" and budget < MIN_DIVIDED_BUDGET
    if options.trains_dense_first or (is_given and options.cost_limit >= LEAST_COST_TO_COMPARE):
        # Networks from the initial weights, each pruned during the whole budget.
        density = _COMPARED + extra_cost(INITIAL) * (1 - _COMPARED)
        limit = options.highest_cost - (1.0 if options.may_train_reference else 0.0)
        yield PlannedStage(kind="final", count=max(1, min(3, int(limit / density))), epochs=budget, density=density)
        return
    rounds = [most * (1 - ShrinkRule.first_prune_fraction) * (1 - ShrinkRule.prune_fraction) ** k for k in range(5)]
    yield PlannedStage(kind="shrink", count=len(rounds), epochs=lengths.round, density=statistics.fmean(rounds))
    before = 0 if options.start == "pretrained" else sum(lengths.phases)
    epochs = lengths.finish(before + 2 * lengths.round)
    yield PlannedStage(kind="final", count=3 if has_reference else 2, epochs=epochs, density=rounds[2])


def _probing(options: DiscoverOptions) -> Iterator[PlannedStage]:
    """A network grows in rounds, some of which are probed, and the chosen one is trained fully."""
    has_probes, has_reference = (
        options.rule == "probe" or not isinstance(options.rule, str),
        options.reference is not None,
    )
    up_to = _GROWN_WITHOUT_PROBES
    if has_probes:
        up_to = _GROWN_WITH_REFERENCE if has_reference else _GROWN
    yield PlannedStage(kind="seed", count=1, epochs=options.num_seed_epochs, density=options.start_density or _START)
    growth = _growth("round", options, up_to, options.num_rough_epochs or MAX_ADAPTIVE_EPOCHS)
    yield growth
    # Networks of the earliest and of the latest rounds have had less and more.
    grown = options.num_seed_epochs + growth.count * growth.epochs // 2 if options.final == "grown" else 0
    least = min(options.budget, options.num_seed_epochs)
    probed = options.num_probe_epochs if has_probes else 0
    if has_probes:
        epochs, has_dense = max(probed - grown, least), not has_reference and probed < options.budget
        count = _NUM_PROBES_WITH_REFERENCE if has_reference else _NUM_PROBES - has_dense
        density = _PROBED_BESIDE_DENSE if has_dense else _PROBED
        yield PlannedStage(kind="probe", count=count, epochs=epochs, density=density)
        if has_dense:
            yield PlannedStage(kind="probe-dense", count=1, epochs=epochs, density=1.0)
    # A function of the records cannot be asked before there are any.
    final = options.budget if callable(options.final_epochs) else options.num_final_epochs([], grown)
    if final > probed:
        is_warm = options.warm_start and options.final == "fresh" and options.finishing_method is None
        before = probed if is_warm else grown
        yield PlannedStage(kind="final", count=1, epochs=max(final - before, least), density=_PROBED)


def _growth(kind: str, options: DiscoverOptions, up_to: float, epochs: int) -> PlannedStage:
    """Growth rounds up to a density."""
    schedule, start = options.growth_method().schedule, options.start_density or _START
    gamma = schedule.gamma if isinstance(schedule, GrowEachRound) else GrowEachRound.gamma
    count = max(0, math.ceil(math.log(up_to / start) / math.log1p(gamma)))
    density = (up_to - start) / math.log(up_to / start) if count else up_to
    return PlannedStage(kind=kind, count=count, epochs=epochs, density=density)


def _sample_flops(session: Session, options: DiscoverOptions, stage: PlannedStage) -> float | None:
    """FLOPs of a training sample with the method that trains a stage; None if it trains with constant masks."""
    own = options if stage.finisher is None else replace(options, finish=stage.finisher)
    if stage.kind not in ("probe", "final") or own.finishing_method is None:
        return None
    return mean_sample_flops(session, own.finishing_method.at(stage.density, _NUM_STEPS), stage.density, _NUM_STEPS)


def mean_sample_flops(session: Session, method: Method, density: float, num_steps: int) -> float:
    """FLOPs of a training sample, on average over a training in which a method ends at a density.

    As if it pruned the same fraction of every layer, and without the cost of choosing masks.
    """
    if method.sample_flops is not None:
        return method.sample_flops(session.graph, session.scope)
    dense, num = forward_macs(session.graph), session.scope.num
    fixed = forward_macs(session.graph, Masks.empty(session.scope))
    if method.weights is not None:  # latent weights are trained densely
        return sample_flops(method.cost, dense, dense)
    num_on = count_at(density if method.start_density is None else method.start_density, num)
    spans = [Span(num_steps=num_steps, num_on=num_on)]
    if method.clock == "step":
        spans = list(spans_of_steps(method, num_steps, num_on, num))
    macs = [fixed + (dense - fixed) * span.num_on // num for span in spans]
    costs = [sample_flops(method.cost, value, dense) for value in macs]
    return sum(span.num_steps * cost for span, cost in zip(spans, costs, strict=True)) / num_steps
