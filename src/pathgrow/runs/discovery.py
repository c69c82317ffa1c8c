"""Gradual Capacity Growth: a seed network, rounds of growth, probes, and the final network.

Every stage depends only on stored earlier stages and on generators named after it, so the loop has no code for
resuming: it goes through all stages, and a stored stage is not run again.
"""

import dataclasses
import math
import os
import statistics
import warnings
from collections import Counter
from functools import partial

from pathgrow.checkpoint import RunDir
from pathgrow.density.probe import select_network
from pathgrow.density.shrink import ShrinkRule
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Rule, Stop
from pathgrow.distributed import interrupts
from pathgrow.distributed.comm import Communicator
from pathgrow.errors import RunFailed
from pathgrow.graph.flops import sample_training_flops
from pathgrow.masks import Masks
from pathgrow.methods.growth import without_paths
from pathgrow.methods.method import GrowEachRound, never
from pathgrow.report.formats import ScoreFormat
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import RunReport
from pathgrow.runs import checks
from pathgrow.runs.command import open_session, run_in
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.finishers import search_by_each
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import PlannedStage, Record, SearchForecast
from pathgrow.runs.result import Discovery, draw_figures
from pathgrow.runs.session import MAX_ADAPTIVE_EPOCHS, Session
from pathgrow.runs.shrinking import Lengths, ShrinkingTrunk, ShrinkSearch, fixed_network
from pathgrow.runs.tolerances import negated
from pathgrow.runs.trunk import GrowingTrunk, train_copies, train_dense


def search(session: Session, options: DiscoverOptions) -> Discovery:
    """Run the search of a session, with each of its finishers; a failure restores its model and optimizer."""
    check_methods(session, options)
    session.warn_of_kept()
    session.warn(checks.least_cost_warning(options))
    session.holds_fractions = options.num_val is not None
    session.callback.on_run_start(forecast(session, options))
    by_each = _search if len(options.finishers) == 1 else partial(search_by_each, search=_search)
    try:
        found = by_each(session, options)
    finally:
        session.restore_modes_()
    return dataclasses.replace(found, warnings=tuple(dict.fromkeys((*session.warnings, *found.warnings))))


def check_methods(session: Session, options: DiscoverOptions) -> None:
    """Refuse methods and rules that cannot be created, or that use gradients of a loss that was not passed."""
    for name in options.finishers:
        if (method := dataclasses.replace(options, finish=name).finishing_method) is not None:
            session.check_needs(method.at(1.0, num_steps=1))
    if options.probes:
        options.density_rule()
    if options.probes or options.max_density < 1:
        session.check_needs(options.growth_method())


def _search(session: Session, options: DiscoverOptions) -> Discovery:
    """Search with a single finisher."""
    trunk: GrowingTrunk | ShrinkingTrunk
    if options.prunes:
        trunk = ShrinkingTrunk(session, options)
    else:
        method = options.growth_method()
        trunk = GrowingTrunk(session, options, method if session.has_paths else without_paths(method))
    try:
        with interrupts.save_if_interrupted():
            if isinstance(trunk, GrowingTrunk):
                return _Search(trunk, options).run()
            found = ShrinkSearch(trunk, options).run()
        session.warn(checks.improved_warning(found.options, found.curve))
        return dataclasses.replace(found, warnings=tuple(session.warnings))
    except BaseException:
        trunk.restore_()
        raise


class _Search:
    """The order of the stages, and the decisions between them."""

    def __init__(self, trunk: GrowingTrunk, options: DiscoverOptions) -> None:
        self._trunk = trunk
        self._session = trunk.session
        self._options = options
        self._probes: dict[int, Record] = {}
        self._dense: Record | None = None

    def run(self) -> Discovery:
        """Seed, grow and probe until the rule says stop, then train the final network."""
        self._trunk.advance_()
        if self._options.reference == "dense":
            self._dense = train_dense(self._session, self._options.budget)
        reason = self._follow_rule()
        curve = self._curve()
        answer = self._rule.answer(curve)
        checked, untrained = self._check_learning(curve, checks.unless_too_short(curve, answer))
        if checked.status == "unlearned":
            answer = checked  # equal scores look flat, of which the sparsest network would be returned
        network, new = self._finish(select_network(curve, answer, by=self._options.select_by).round)
        return Discovery(
            answer=self._shown(checked),
            reason=reason,
            curve=curve,
            network=network,
            probes=tuple(sorted(self._probes.values(), key=lambda record: record.point.density)),
            dense=self._dense,
            untrained=untrained,
            trained=(*self._trained, *new),
            warnings=tuple(self._session.warnings),
            options=self._options,
            trunk=self._trunk,
        )

    @property
    def _rule(self) -> Rule:
        """The density rule; a relative delta is a fraction of the reference, or else of the densest network's score."""
        curve = self._curve()
        densest = max(curve.probes or curve.rough, key=lambda point: point.density)
        return self._options.relative_to((curve.reference or densest).score).density_rule()

    def _shown(self, answer: Answer) -> Answer:
        return answer if self._options.mode == "max" else negated(answer)

    def _curve(self) -> Curve:
        return Curve(
            rough=tuple(map(self._options.ranked, self._trunk.records)),
            probes=tuple(map(self._options.ranked, self._probes.values())),
            reference=self._reference(),
            num_val=self._options.num_val,
            full_epochs=self._options.budget,
            select_by=self._options.select_by,
            can_probe_dense=self._can_probe_dense,
            at_ceiling=self._trunk.is_full,
        )

    @property
    def _can_probe_dense(self) -> bool:
        """Only if probes are short: a dense probe as long as the final training would cost more than is saved."""
        return self._options.reference is None and self._options.num_probe_epochs < self._options.budget

    def _reference(self) -> Reference | None:
        if self._dense is not None:
            return Reference(
                score=self._options.ranked(self._dense).score, kind="dense", epochs=self._dense.point.epochs
            )
        if self._options.reference is None:
            return None
        score = self._options.sign * float(self._options.reference)
        return Reference(score=score, kind="given", epochs=self._options.budget)

    def _follow_rule(self) -> str:
        """Do what the rule says until it says stop; returns its reason."""
        if isinstance(self._options.rule, str):  # a rule by name is created with this delta
            self._session.warn(checks.delta_warning(self._trunk.records[0].point.score, self._options))
        has_probed = False
        while True:
            curve = self._curve()
            checks.check_reference(curve)
            if not has_probed:  # warns once, after the first probes
                self._session.warn(checks.reference_warning(curve, self._options.sign))
            has_probed = bool(curve.probes)
            verdict = self._rule.decide(curve)
            self._session.callback.on_decision(verdict, self._shown(self._rule.answer(curve)))
            match verdict:
                case Stop():
                    return verdict.reason
                case Probe(rounds=rounds):
                    self._check_probes(rounds)
                    stages = {"probe-dense" if round == DENSE else f"probe-{round:03d}": round for round in rounds}
                    records = train_copies(self._trunk, self._options, stages, self._options.num_probe_epochs)
                    self._probes |= dict(zip(rounds, records, strict=True))
                case Grow(up_to=up_to):
                    if self._trunk.is_full:
                        raise RunFailed(f"rule {self._rule.name!r} asked to grow a network that cannot grow further")
                    self._trunk.advance_(self._next_size(up_to))

    def _check_learning(self, curve: Curve, answer: Answer) -> tuple[Answer, tuple[Point, ...]]:
        """The answer, unless nothing was learned; and the scores before training, if they were needed to tell."""
        if not checks.may_not_have_learned(curve):
            return answer, ()
        measured, after = checks.scores_before_training(self._trunk, curve), checks.compared(curve)
        before = [dataclasses.replace(point, score=self._options.sign * point.score) for point in measured]
        if checks.has_learned(before, after):
            return answer, measured
        self._session.warn(checks.nothing_learned(self._options, before, after))
        return checks.without_density(answer, before, after), measured

    def _next_size(self, up_to: float | None) -> int:
        """A full growth step, or as much of it as the rule asks for; at least one weight, so that growth ends."""
        full = self._trunk.next_size()
        if up_to is None:
            return full
        return min(full, max(math.ceil(min(up_to, 1.0) * self._trunk.num), self._trunk.records[-1].num_on + 1))

    def _check_probes(self, rounds: tuple[int, ...]) -> None:
        """Refuse a rule that asks for no probe or for the same one again: the search would never end."""
        num_visited = len(self._trunk.records)
        allowed = {*range(num_visited), *([DENSE] if self._can_probe_dense else [])}
        invalid = [k for k in rounds if k in self._probes or k not in allowed or rounds.count(k) > 1]
        if invalid or not rounds:
            asked = f"a probe of round {invalid[0]}" if invalid else "probes of no round"
            raise RunFailed(
                f"rule {self._rule.name!r} asked for {asked}; it must ask for visited rounds (0-{num_visited - 1}) "
                "that have not been probed"
            )

    def _finish(self, round: int) -> tuple[Record, list[Record]]:
        """Load the fully trained network of a round into the user's model; returns it and what was trained for it."""
        # On rank 0: records hold seconds, which differ between ranks.
        grown = self._trunk.records[round].point.epochs
        epochs = self._session.comm.broadcast_from_rank0(lambda: self._options.num_final_epochs(self._trained, grown))
        record = probe = self._probes.get(round)
        is_new = record is None or record.point.epochs < epochs
        if record is None or is_new:
            warm = probe if self._options.warm_start and self._options.final == "fresh" and self._keeps_masks else None
            [record] = train_copies(self._trunk, self._options, {"final": round}, epochs, probe=warm)
            for other in self._probes.values():
                self._session.store.delete_tensors(other.stage)
        last, ranked = self._trunk.records[-1], self._options.ranked
        if self._keeps_masks and ranked(last).score > ranked(record).score + self._rule.answer(self._curve()).delta:
            # After a very short training the network that grew is the better one.
            self._trunk.go_to_(last.point.round)
            self._trunk.attached = fixed_network(self._session, self._trunk.attached)
            return last, [record] if is_new else []
        self._trunk.finish_(*self._session.tensors(record.stage))
        return record, [record] if is_new else []

    @property
    def _keeps_masks(self) -> bool:
        """Whether candidates are trained with constant masks, so that a probe is the first part of a full training."""
        finisher = self._options.finishing_method
        if finisher is None:
            return True
        method = finisher.at(self._trunk.records[-1].point.density, num_steps=1)
        return method.schedule is never and method.weights is None

    @property
    def _trained(self) -> list[Record]:
        """Records of everything that was trained to find the answer."""
        dense = [self._dense] if self._dense is not None else []
        rounds, probes = self._trunk.records, list(self._probes.values())
        return [*rounds[:1], *dense, *rounds[1:], *probes]


# What to expect

_USUAL_PROBES = {"reference": 8, "no reference": 5}
_USUAL_START = 0.05


def usual_stages(options: DiscoverOptions) -> tuple[PlannedStage, ...]:
    """The stages of a usual search; how many rounds, probes and finished networks there are is up to the rule."""
    if len(options.finishers) > 1:
        each = [usual_stages(dataclasses.replace(options, finish=name)) for name in options.finishers]
        return tuple(stage for number, own in enumerate(each) for stage in own if not number or stage.kind != "dense")
    found, budget, start = list[PlannedStage](), options.budget, options.start_density or _USUAL_START

    def add(kind: str, count: int, epochs: int, density: float) -> None:
        found.append(PlannedStage(kind=kind, count=count, epochs=epochs, density=density))

    def grow(kind: str, up_to: float, epochs: int) -> int:
        schedule = options.growth_method().schedule
        gamma = schedule.gamma if isinstance(schedule, GrowEachRound) else GrowEachRound.gamma
        num_rounds = max(0, math.ceil(math.log(up_to / start) / math.log1p(gamma)))
        add(kind, num_rounds, epochs, (up_to - start) / math.log(up_to / start) if num_rounds else up_to)
        return num_rounds * epochs

    if options.prunes:
        lengths, most = Lengths(options), options.max_density
        grown = 0
        if most < 1:
            add("grow", 1, lengths.seed, start)
            grown = lengths.seed + grow("grow", most, lengths.growth)
        if options.start == "pretrained":
            add("given", 1, 0, 1.0)
        else:
            phases = Counter([max(1, lengths.phases[0] - grown), *lengths.phases[1:]])
            for epochs, count in phases.items():
                add("train", count, epochs, most)
        rounds = [most * (1 - ShrinkRule.first_prune_fraction) * (1 - ShrinkRule.prune_fraction) ** k for k in range(5)]
        add("shrink", len(rounds), lengths.round, statistics.fmean(rounds))
        add("final", 2, lengths.finish, rounds[2])
    else:
        add("seed", 1, options.num_seed_epochs, start)
        grow("round", 1.0, options.num_rough_epochs or MAX_ADAPTIVE_EPOCHS)
        epochs = options.num_probe_epochs
        add("probe", _USUAL_PROBES["no reference" if options.reference is None else "reference"], epochs, 0.3)
        if epochs < budget:
            add("final", 1, budget - (epochs if options.warm_start and options.finishing_method is None else 0), 0.3)
    if options.reference == "dense":
        add("dense", 1, budget, 1.0)
    return tuple(found)


def forecast(session: Session, options: DiscoverOptions) -> SearchForecast:
    """What a search will probably train, and what that costs."""
    return SearchForecast(
        stages=usual_stages(options),
        budget=options.budget,
        dense_flops=sample_training_flops(session.graph),
        fixed_flops=sample_training_flops(session.graph, Masks.empty(session.scope)),
    )


# The command `pathgrow discover`


def run_discovery(
    config: DiscoverConfig,
    out: str | os.PathLike[str],
    progress: ProgressBar | None = None,
    comm: Communicator | None = None,
) -> RunReport:
    """Run a discovery in a run directory and return its report; for the parameters, see `run_in`."""
    return run_in(config, out, _discover, progress, comm, draw_figures)


def expected_epochs(config: DiscoverConfig, out: str | os.PathLike[str]) -> int:
    """Estimate how many epochs are left to train."""
    expected = sum(stage.count * stage.epochs for stage in usual_stages(DiscoverOptions(**config.search())))
    stages = RunDir(out).stages
    done = [stages.number(stage, "num_epochs") for stage in stages.names()]
    return max(0, expected - sum(done))


def _discover(config: DiscoverConfig, run_dir: RunDir | None, progress: ProgressBar, comm: Communicator) -> None:
    """Search, test, write; only rank 0 has a run directory."""
    options = DiscoverOptions(**config.search(), comm=comm)
    session, trainer = open_session(
        config,
        run_dir,
        progress,
        comm,
        num_epochs=None if run_dir is None else expected_epochs(config, run_dir.path),
        use_ema=options.eval_weights == "ema",
    )
    notes, num_val = [], len(trainer.data.val)
    is_accuracy = config.mode == "max"
    if is_accuracy and config.delta * num_val < 1.0:
        notes.append(
            f"delta ({config.delta:g}) is less than one of the {num_val} validation examples "
            f"({1 / num_val:.2g}), so the answer will be noise; use a larger --delta or more data"
        )
        if run_dir is not None:
            warnings.warn(notes[0], stacklevel=2)
    if is_accuracy:
        options, progress.scores = dataclasses.replace(options, metric="accuracy"), ScoreFormat(True, "accuracy")
    if is_accuracy and options.prunes:
        # Static masks: without it, since their rule was tuned without it, see docs/design/train_and_compare.md.
        options = dataclasses.replace(options, num_val=num_val)
    found = search(session, options)
    # Everything is decided: only now is the test split used, once.
    test, dense_test = found.examine(trainer.evaluate(trainer.data.test))
    report = found.report(test=test, dense_test=dense_test)
    found.write_to(
        run_dir, dataclasses.replace(report, config=config.as_dict(), notes=(*notes, *report.notes)), draws=False
    )
