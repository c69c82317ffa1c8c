"""Grow, train, shrink: the default search of a discovery.

The network is trained for half of the budget and pruned in short rounds until its score has dropped by more than the
tolerance. The network of the density read from these rounds is then finished: pruned gradually while it is trained for
another quarter of the budget, or with a reference for the rest of it. If the score moves the answer, another network is
finished, until one is close to the answer or the cost limit is reached. If half of the budget does not predict the
final score, a dense baseline is trained too and becomes the reference; with a short budget it is all that is trained
before pruning. A pretrained network is pruned as it is. With `max_density` below 1 the network starts from a PHEW mask
and grows along paths up to that density, so it never holds more weights at once.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial

import numpy as np

from pathgrow.density.shrink import INITIAL, NextRound, ShrinkRule
from pathgrow.density.types import Curve, Point, Reason, Reference
from pathgrow.graph.flops import sample_training_flops
from pathgrow.masks.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.growth import without_paths
from pathgrow.methods.method import ByScore, Method, fixed
from pathgrow.methods.picks import all_candidates, smallness
from pathgrow.runs import checks
from pathgrow.runs.iso_flop import CostMeter, cost_logger
from pathgrow.runs.options import MIN_DIVIDED_BUDGET, DiscoverOptions
from pathgrow.runs.records import Record, StageOutput
from pathgrow.runs.result import Discovery
from pathgrow.runs.session import Session, Trained
from pathgrow.runs.tolerances import in_user_sign
from pathgrow.runs.trunk import DENSE_STAGE, Trunk, stored_dense, train_dense
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.pruning import GRADUAL, UNTRAINED_START
from pathgrow.sparse.training_state import pack_training, unpack_training_

USUAL_COST = 0.9
"""Cost of a whole discovery in dense trainings; a lower limit shortens all phases in proportion."""
_LONG_ROUND = 4
"""Epochs of a round, at most, if they are more than a sixteenth of the budget: scores after very few epochs mislead."""
_PRUNE = ByScore(smallness, top_k)


def extra_cost(start: int) -> float:
    """What gradual pruning costs in addition to a training at the final density, as a fraction of what it prunes.

    The mean of a cubic curve, and of the steps before it for a network that starts untrained.
    """
    first = UNTRAINED_START if start == INITIAL else 0.0
    return first + (GRADUAL - first) / 4


class Lengths:
    """Epochs of the phases."""

    def __init__(self, options: DiscoverOptions) -> None:
        self.budget = max(1, round(options.budget * min(1.0, options.cost_limit / USUAL_COST)))
        quarter, half = self.budget // 4, self.budget // 2
        is_short = self.budget < MIN_DIVIDED_BUDGET
        self.phases = (self.budget - half,) if is_short else (quarter, quarter)
        """Those before pruning. A short training is not divided, although its learning curve is then unknown."""
        self.has_reference = options.reference is not None
        """Whether networks are compared with one that had the whole budget."""
        self._finish = max(1, half if is_short else quarter)
        self.whole = self.budget if options.start == "pretrained" else options.budget
        """The whole training of a network that is compared with the reference."""
        self.round = max(1, round(self.budget / 16), min(round(self.budget / 10), _LONG_ROUND))
        self.seed, self.growth = max(1, self.budget // 16), max(1, round(self.budget / 160))

    def finish(self, trained: int) -> int:
        """The last phase of a network that was trained for so many epochs: to the end of the budget, as a reference.

        A low cost limit shortens it, except for a network that is trained like the reference from the start.
        """
        if not self.has_reference:
            return self._finish
        return max(self._finish, self.budget - trained) if trained else self.whole


class ShrinkingTrunk(Trunk):
    """A trunk that is grown if need be, trained and then pruned; all its weights are kept until it is finished."""

    def __init__(self, session: Session, options: DiscoverOptions) -> None:
        method = Method(name="gts", start=all_candidates, start_density=1.0)
        if options.max_density < 1:
            start = None if options.start_density is None else min(options.start_density, options.max_density)
            method = options.growth_method()
            method = method.growing(start_density=start, target_density=options.max_density)
            if not session.has_paths:
                method = without_paths(method)
        method = replace(method, drop=_PRUNE, after_update="reset_optimizer")
        super().__init__(session, method, on_mask_update=cost_logger(session.graph), keep_weights=True)
        self.lengths = Lengths(options)
        self._is_pretrained = options.start == "pretrained"
        self._starts_dense = options.trains_dense_first
        self.num_trained = 0
        """Stages before the first pruning round."""

    def train_(self) -> None:
        """Grow to the highest density allowed, if it is not there yet, and train in annealed phases.

        A pretrained network is only evaluated. With a short budget it is the dense baseline that is trained.
        """
        lengths, grown = self.lengths, 0
        if self._starts_dense:
            self.records.append(train_dense(self.session, lengths.whole))
            self.num_trained = 1
            return
        if self._is_pretrained:
            self._visit("given", 0)
            self.num_trained = 1
            return
        if self.method.grow is not None:
            self._visit("grow-0", lengths.seed)
            while (update := self._next_growth()) > 0:
                self._visit(f"grow-{len(self.records)}", lengths.growth, grow=update)
            grown = self.records[-1].point.epochs
        for number, epochs in enumerate(lengths.phases, start=1):
            self._visit(f"train-{number}", max(1, epochs - grown) if number == 1 else epochs)
        self.num_trained = len(self.records)

    def shrink_(self, round: NextRound) -> Record:
        """Prune a visited network to a density and train it for a short round.

        All weights are pruned before the training, so that the score belongs to this density.
        """
        stage = f"shrink-{len(self.records) - self.num_trained + 1}"
        return self._visit(stage, self.lengths.round, after=round.start, density=round.density)

    def train_candidates_(self, candidates: Sequence[NextRound]) -> list[Record]:
        """Prune visited networks to densities while each is trained for the last time.

        Several are trained on copies, concurrently if the trainer can; the result is the same.
        """
        first = sum(record.stage.startswith("final") for record in self.records) + 1
        stages = [f"final-{first + k}" for k in range(len(candidates))]
        lengths = {
            stage: self.lengths.finish(self.epochs_before(one.start))
            for stage, one in zip(stages, candidates, strict=True)
        }
        if len(candidates) == 1:
            [one], [stage] = candidates, stages
            return [self._visit(stage, lengths[stage], after=one.start, density=one.density, gradually=True)]
        numbers = {stage: len(self.records) + k for k, stage in enumerate(stages)}
        due = dict(zip(stages, candidates, strict=True))
        for stage, one in due.items():
            train_ = partial(self._train_, stage, lengths[stage], density=one.density, after=one.start)
            self._train[numbers[stage]] = (one.start, train_)

        def work(missing: Sequence[str]) -> list[StageOutput]:
            began = time.perf_counter()
            copies = [self._copy_at(due[stage].start) for stage in missing]
            epochs = [lengths[stage] for stage in missing]
            for stage, attached in zip(missing, copies, strict=True):
                self._prune_gradually_(attached, due[stage].density, lengths[stage], due[stage].start)
            trained = self.session.train_together_(list(zip(copies, missing, strict=True)), epochs)
            seconds = (time.perf_counter() - began) / len(missing)
            outputs = []
            for stage, attached, phase in zip(missing, copies, trained, strict=True):
                self._save_weights(numbers[stage], attached)
                before = self.epochs_before(due[stage].start)
                outputs.append(self._output(stage, attached, phase, numbers[stage], before, seconds))
                attached.detach()
            return outputs

        found = self.session.all_once(stages, work)
        self.records += [self._expected(record, numbers[record.stage]) for record in found]
        return self.records[-len(candidates) :]

    def masks(self, round: int) -> Masks:
        """Masks of a visited stage."""
        if self.records[round].stage == DENSE_STAGE:
            return Masks.full(self.attached.model, self.session.scope)
        return super().masks(round)

    def epochs_before(self, number: int) -> int:
        """How long a visited network was trained."""
        return 0 if number == INITIAL else self.records[number].point.epochs

    def _copy_at(self, number: int) -> Attached:
        """A copy of the model, attached as the trunk is, as a visited stage left it."""
        attached = self._attach(*self.session.untrained_copy())
        if number == INITIAL:
            return attached
        if not self._restore_(attached, number):
            self.go_to_(number)
            unpack_training_(attached, *pack_training(self.attached))
        return attached

    def _visit(
        self,
        stage: str,
        epochs: int,
        *,
        after: int | None = None,
        grow: int = 0,
        density: float = 1.0,
        gradually: bool = False,
    ) -> Record:
        number = len(self.records)
        start = number - 1 if after is None else after
        before = self.epochs_before(start)

        def finish(trained: Trained, seconds: float) -> StageOutput:
            return self._output(stage, self.attached, trained, number, before, seconds)

        train_ = partial(self._train_, stage, epochs, grow=grow, density=density, after=start if gradually else None)
        return self.visit_(stage, train_, finish, after=after)

    def _train_(
        self, stage: str, epochs: int, *, grow: int = 0, density: float = 1.0, after: int | None = None
    ) -> Trained:
        """Grow or prune, and train; gradually, if it continues from visited stage `after`."""
        if after == INITIAL:
            _ = self._steps_per_epoch  # measured before the model is used: it may have to be trained for that
        self.attached.grow_(grow)
        if after is None:
            self.attached.prune_(density)
        else:
            self._prune_gradually_(self.attached, density, epochs, after)
        if epochs == 0:
            return Trained(num_epochs=0, num_samples=0, score=self.session.score(self.attached, stage))
        return self.session.train_(self.attached, stage, epochs)

    def _prune_gradually_(self, attached: Attached, density: float, epochs: int, after: int) -> None:
        """Prune during the next epochs, whose steps are known from those until visited stage `after`.

        A pretrained network that was not trained yet has made none: it is pruned at once.
        """
        if after == INITIAL:
            attached.prune_gradually_(density, round(epochs * self._steps_per_epoch), start_fraction=UNTRAINED_START)
            return
        past = self.epochs_before(after)
        attached.prune_gradually_(density, round(epochs * attached.step / past) if past else 0)

    @cached_property
    def _steps_per_epoch(self) -> float:
        """Optimizer steps of an epoch before pruning.

        Read from a copy: the trunk stays where it is, unless that stage has to be trained again.
        """
        last, position = self.num_trained - 1, self._position
        if self._starts_dense:
            copy = stored_dense(self.session)
            self.session.check_score(copy, self.records[last])
        else:
            copy = self._copy_at(last)
        steps = copy.step / self.epochs_before(last)
        copy.detach()
        if self._position != position:
            self.go_to_(INITIAL)
            self._position = None
        return steps

    def _flops(self, attached: Attached, trained: Trained) -> int:
        """What a training costs whose masks may have changed meanwhile."""
        meter = CostMeter.of(self.session, self.method, Fraction(trained.num_samples, max(1, trained.num_steps)))
        return meter.training_flops(attached.method_state, attached.step - trained.num_steps, attached.step)

    def _output(
        self, stage: str, attached: Attached, trained: Trained, number: int, epochs_before: int, seconds: float
    ) -> StageOutput:
        record = self.session.record(
            stage,
            attached,
            trained,
            round=number,
            epochs_before=epochs_before,
            training_flops=self._flops(attached, trained),
            update_flops=0 if number else self.start_flops,
            seconds=seconds,
        )
        return StageOutput(record, dict(attached.masks))

    def _next_growth(self) -> int:
        return self.next_size() - self.records[-1].num_on


class ShrinkSearch:
    """The default search: train, prune in rounds, finish."""

    def __init__(self, trunk: ShrinkingTrunk, options: DiscoverOptions) -> None:
        self._trunk = trunk
        self._session = trunk.session
        self._requested = self._options = options
        self._rule = ShrinkRule(delta=options.delta)
        self._finished: list[Record] = []
        self._dense: Record | None = None
        self._may_train_reference = False
        self._limit = options.cost_limit

    def run(self) -> Discovery:
        """Train, prune round by round, finish; returns the sparsest finished network that does not miss."""
        untrained, base, has_learned = self._train_network_()
        # Where nothing was learned, every density would look sufficient: nothing is pruned.
        while has_learned and (due := self._rule.next_round(self._curve())) is not None:
            self._trunk.shrink_(due)
            checks.check_reference(self._curve())
        if has_learned:
            self._train_reference_if_too_short_()
        self._session.warn(checks.reference_warning(self._curve(), self._options.sign))
        if not has_learned and self._dense is not self._trunk.records[-1]:
            self._finished += self._trunk.train_candidates_([NextRound(start=base.round, density=base.density)])
        while has_learned and (candidates := self._next_candidates()):
            self._finished += self._trunk.train_candidates_(candidates)
        curve = self._curve()
        network, answer = self._returned(curve), self._rule.answer(curve)
        if not has_learned and all(point.score <= untrained.score for point in curve.finished):
            answer = checks.unlearned_answer(answer, [untrained], [base, *curve.finished])
        dense = () if self._dense is None else (self._dense,)
        return Discovery(
            answer=in_user_sign(answer, self._options.mode),
            reason=Reason.SHRUNK,
            curve=curve,
            network=network,
            probes=tuple(sorted(self._pruned, key=lambda record: record.point.density)),
            dense=self._dense,
            finished=tuple(self._finished),
            check=None if answer.status == "unlearned" else self._rule.check(curve, self._options.ranked(network)),
            trained=tuple({record.stage: record for record in (*self._trunk.records, *dense)}.values()),
            warnings=tuple(self._session.warnings),
            options=self._requested,
            trunk=self._load(network),
        )

    def _train_network_(self) -> tuple[Point, Point, bool]:
        """Train the network that will be pruned, and set the rule and the tolerance by its score or the reference.

        Returns the network before and after its training, and whether it has learned.
        """
        options, warn, untrained = self._options, self._session.warn, self._score_untrained()
        is_trained = options.start == "pretrained"
        unit_warning = checks.delta_warning(options.sign * untrained.score, options, is_trained=is_trained)
        warn(unit_warning)
        if options.trains_dense_first and options.may_train_reference:
            self._expect_reference()
        self._trunk.train_()
        checks.check_reference(self._curve())
        base = options.ranked(self._trunk.records[-1])
        has_learned = is_trained or base.score > untrained.score
        if not has_learned:
            warn(checks.nothing_learned_warning(options, [untrained], [base]))
        elif unit_warning is None:
            unit_warning = checks.delta_warning(options.sign * base.score, options)
            warn(unit_warning)
        if options.trains_dense_first:
            self._dense = self._trunk.records[-1]
        elif options.reference == "dense":
            self._dense = train_dense(self._session, options.budget)
        self._may_train_reference = options.may_train_reference and unit_warning is None
        self._set_tolerance(self._curve().reference or base)
        if has_learned and not is_trained and unit_warning is None:
            before, after = (options.sign * point.score for point in (untrained, base))
            warn(checks.large_delta_warning(before, after, self._rule.delta))
        if has_learned:
            self._train_reference_if_too_short_()
        return untrained, base, has_learned

    def _train_reference_if_too_short_(self) -> None:
        """Train a dense baseline if the training so far does not predict its score."""
        if self._may_train_reference and self._rule.is_too_short(self._curve()):
            self._expect_reference()
            self._dense = train_dense(self._session, self._options.budget)
            self._set_tolerance(self._options.ranked(self._dense))

    def _expect_reference(self) -> None:
        """Say why a dense baseline is trained, and plan with it."""
        self._session.warn(checks.too_short_warning(self._curve(), self._options))
        self._trunk.lengths.has_reference = True
        self._limit = self._options.highest_cost - 1

    def _set_tolerance(self, network: Point | Reference) -> None:
        """Set the tolerance of the rule; a relative one is a fraction of the score of this network."""
        delta = self._requested.with_absolute_delta(network.score).delta
        self._rule = ShrinkRule(delta=delta)
        self._options = replace(self._requested, delta=delta, delta_is_relative=False)

    @property
    def _pruned(self) -> list[Record]:
        later = self._trunk.records[self._trunk.num_trained :]
        return [record for record in later if record not in self._finished]

    def _curve(self) -> Curve:
        reference, options, ranked = None, self._options, self._options.ranked
        if self._dense is not None:
            reference = Reference(score=ranked(self._dense).score, kind="dense", epochs=self._dense.point.epochs)
        elif options.reference not in (None, "dense"):
            assert options.reference is not None
            reference = Reference(score=options.sign * float(options.reference), kind="given", epochs=options.budget)
        elif options.start == "pretrained":
            reference = Reference(score=ranked(self._trunk.records[0]).score, kind="pretrained")
        return Curve(
            rough=tuple(map(ranked, self._trunk.records[: self._trunk.num_trained])),
            probes=tuple(map(ranked, self._pruned)),
            finished=tuple(map(ranked, self._finished)),
            reference=reference,
            num_val=options.num_val,
            ceiling=options.max_density,
            full_epochs=options.budget,
        )

    def _next_candidates(self) -> list[NextRound]:
        """The next networks to finish within the cost limit, which does not count the dense baseline."""
        records, graph, finish, curve = (
            self._trunk.records,
            self._session.graph,
            self._trunk.lengths.finish,
            self._curve(),
        )
        # A `fit` may have been called again.
        trained = [(record.point.epochs - record.num_epochs, record.num_epochs) for record in self._finished]
        num_calls = max([1.0, *(epochs / finish(before) for before, epochs in trained)])
        samples_per_epoch = records[-1].num_samples / max(records[-1].num_epochs, 1)
        limit = self._limit * self._options.budget * samples_per_epoch * sample_training_flops(graph)
        # The FLOPs of other densities are between those of the networks that exist and of layers that stay dense.
        known = sorted(
            (one.point.density, sample_training_flops(graph, self._trunk.masks(k))) for k, one in enumerate(records)
        )
        known.insert(0, (0.0, sample_training_flops(graph, Masks.empty(self._session.scope))))
        densities, flops = [row[0] for row in known], np.maximum.accumulate([row[1] for row in known])

        def cost(density: float) -> float:
            start = self._rule.pruned_from(curve, min(density, curve.rough[-1].density)).start
            start_density = 1.0 if start == INITIAL else records[start].point.density
            before, after = np.interp((start_density, density), densities, flops)
            flops_per_sample = float(after + extra_cost(start) * (before - after))
            return num_calls * finish(self._trunk.epochs_before(start)) * samples_per_epoch * flops_per_sample

        spent = sum(record.flops for record in records if record is not self._dense)
        return self._rule.candidates(curve, cost=cost, left=limit - spent)

    def _returned(self, curve: Curve) -> Record:
        """The network to return: of two without pruning the better one, the baseline or one of shorter phases."""
        network = self._trunk.records[self._rule.select(curve).round]
        if self._dense is None or network.point.density < 1:
            return network
        return max(self._dense, network, key=lambda record: self._options.ranked(record).score)

    def _load(self, network: Record) -> Trunk:
        """Load the returned network into the user's model; other weights are no longer needed."""
        trunk = self._trunk
        if network is self._dense:
            trunk.finish_(*self._session.tensors(network.stage))
        else:
            trunk.go_to_(network.point.round)
            trunk.attached = fixed_network(self._session, trunk.attached)
        for number, record in enumerate(trunk.records):
            if record is not network:
                trunk.forget_weights(number)
        return trunk

    def _score_untrained(self) -> Point:
        """Evaluate the network before any training; stored like any stage."""
        session, attached = self._session, self._trunk.attached
        scores = session.stored(checks.UNTRAINED, lambda stage: checks.stored_scores(stage.metadata, 1))
        if scores is None:
            scores = [session.score(attached, checks.UNTRAINED).score]
            session.store.save(checks.UNTRAINED, {"scores": scores})
        return Point(round=0, density=attached.density, epochs=0, score=self._options.sign * scores[0])


def fixed_network(session: Session, attached: Attached) -> Attached:
    """Enforce the current masks of a network from now on."""
    masks = attached.masks.clone()
    attached.detach()
    return session.attach(attached.model, attached.optimizer, fixed(masks))
