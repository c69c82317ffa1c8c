"""A discovery without training: does as a rule says on scores that are given, and refuses what no loop could do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Rule, Stop, Verdict

Scores = Callable[[int, float], float]
"""A score by round and density."""


@dataclass(frozen=True)
class Followed:
    """What a rule made of it: everything observed, everything it said, its answer."""

    curve: Curve
    verdicts: list[Verdict]
    answer: Answer

    @property
    def batches(self) -> list[tuple[int, ...]]:
        return [verdict.rounds for verdict in self.verdicts if isinstance(verdict, Probe)]


def follow(
    rule: Rule,
    rough: Scores,
    probe: Scores,
    *,
    start: float = 0.03,
    gamma: float = 0.25,
    num: int = 10_000,
    probe_epochs: int = 16,
    budget: int = 160,
    reference: Reference | None = None,
    num_val: int | None = None,
    select_by: str = "delta",
    ceiling: float = 1.0,
) -> Followed:
    """Grow a network of `num` weights and probe it as the rule says, until it stops; probes may be short."""
    num_on, most = round(start * num), round(ceiling * num)
    visited = [Point(round=0, density=num_on / num, epochs=20, score=rough(0, num_on / num))]
    probes: list[Point] = []
    verdicts: list[Verdict] = []
    can_probe_dense = reference is None and probe_epochs < budget
    while True:
        curve = Curve(
            rough=tuple(visited),
            probes=tuple(probes),
            reference=reference,
            num_val=num_val,
            full_epochs=budget,
            can_probe_dense=can_probe_dense,
            select_by=select_by,  # type: ignore[arg-type]
            ceiling=ceiling,
            at_ceiling=num_on == most,
        )
        verdict = rule.decide(curve)
        verdicts.append(verdict)
        assert len(verdicts) < 200, "the rule does not come to an end"
        match verdict:
            case Stop():
                return Followed(curve, verdicts, rule.answer(curve))
            case Probe(rounds=rounds):
                assert rounds
                assert len(set(rounds)) == len(rounds)
                assert not set(rounds) & {point.round for point in probes}
                assert set(rounds) <= {*range(len(visited)), *([DENSE] if can_probe_dense else [])}
                for k in rounds:
                    density = 1.0 if k == DENSE else visited[k].density
                    probes.append(Point(round=k, density=density, epochs=probe_epochs, score=probe(k, density)))
            case Grow(up_to=up_to):
                assert num_on < most, "growth cannot go on"
                whole = min(num_on + max(1, int(gamma * num_on)), most)
                num_on = whole if up_to is None else min(whole, max(num_on + 1, -int(-up_to * num // 1)))
                score = rough(len(visited), num_on / num)
                visited.append(Point(round=len(visited), density=num_on / num, epochs=20, score=score))
