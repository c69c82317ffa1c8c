"""Gradual Capacity Growth: a seed network, rounds of growth, probes, and the final network.

Every stage depends only on stored earlier stages and on generators named after it, so the loop has no code for
resuming: it goes through all stages, and a stored stage is not run again.
"""

import dataclasses
import math

from pathgrow.density.probe import select_network
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Rule, Stop
from pathgrow.errors import RunFailed
from pathgrow.methods.method import never
from pathgrow.runs import checks
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record
from pathgrow.runs.result import Discovery
from pathgrow.runs.shrinking import fixed_network
from pathgrow.runs.tolerances import in_user_sign
from pathgrow.runs.trunk import GrowingTrunk, train_copies, train_dense


class StaticSearch:
    """The search of the paper: grow in rounds, train probes of the grown masks, train the chosen network."""

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
        checked, untrained = self._check_learning(curve, checks.answer_unless_probes_too_short(curve, answer))
        if checked.status == "unlearned":
            answer = checked  # equal scores look flat, of which the sparsest network would be returned
        network, new = self._finish(select_network(curve, answer, by=self._options.select_by).round)
        return Discovery(
            answer=in_user_sign(checked, self._options.mode),
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
        return self._options.with_absolute_delta((curve.reference or densest).score).density_rule()

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
            answer = in_user_sign(self._rule.answer(curve), self._options.mode)
            self._session.callback.on_decision(verdict, answer)
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
        """The answer, unless nothing was learned; and the scores before training, if they were needed for that."""
        if not checks.may_not_have_learned(curve):
            return answer, ()
        measured, after = checks.scores_before_training(self._trunk, curve), checks.compared_points(curve)
        before = [dataclasses.replace(point, score=self._options.sign * point.score) for point in measured]
        if checks.has_learned(before, after):
            return answer, measured
        self._session.warn(checks.nothing_learned_warning(self._options, before, after))
        return checks.unlearned_answer(answer, before, after), measured

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
