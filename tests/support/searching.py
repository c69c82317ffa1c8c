"""A discovery without training: carries out the verdicts of a rule on given scores, and rejects impossible verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Rule, Stop, Verdict

Shape = Callable[[float], float]
"""A score by density."""
Scores = Callable[[int, float], float]
"""A score by round and density."""

WIGGLE = [0.3, -0.8, 0.5, 0.9, -0.4, -0.6, 0.7, -0.2, 0.1, -0.9, 0.8, -0.3, 0.2, -0.5, 0.6, -0.7, 0.4, -0.1]
"""Deterministic noise."""


def saturating(rate: float) -> Shape:
    return lambda density: 0.5 + 0.4 * (1 - math.exp(-rate * density))


def ladder(start: float = 0.03, gamma: float = 0.25) -> list[float]:
    """Densities from `start` to 1 by growth steps of `gamma`."""
    densities = [start]
    while densities[-1] < 1.0:
        densities.append(min(densities[-1] * (1 + gamma), 1.0))
    return densities


def points(densities: Sequence[float], shape: Shape, epochs: int = 80, wiggle: float = 0.0) -> tuple[Point, ...]:
    """Networks of these densities, one per round."""
    return tuple(
        Point(round=k, density=x, epochs=epochs, score=shape(x) + wiggle * WIGGLE[k % len(WIGGLE)])
        for k, x in enumerate(densities)
    )


@dataclass(frozen=True)
class Search:
    """A finished search: everything observed, every verdict, and the answer."""

    curve: Curve
    verdicts: list[Verdict]
    answer: Answer

    @property
    def batches(self) -> list[tuple[int, ...]]:
        """Probed rounds, batch by batch."""
        return [verdict.rounds for verdict in self.verdicts if isinstance(verdict, Probe)]


def search(
    rule: Rule,
    shape: Shape,
    *,
    trunk: Shape | None = None,
    wiggle: float = 5e-4,
    **options: object,
) -> Search:
    """Search with probes on `shape` and the growing network on `trunk`, both with a little deterministic noise."""

    def near(curve: Shape, shift: int) -> Scores:
        return lambda round, density: curve(density) + wiggle * WIGGLE[(round + shift) % len(WIGGLE)]

    return search_scores(rule, near(trunk or shape, 0), near(shape, 5), **options)  # type: ignore[arg-type]


def search_scores(
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
    can_probe: bool = True,
) -> Search:
    """Grow a network of `num` weights and probe it as the rule decides, until it stops."""
    num_on, most = round(start * num), round(ceiling * num)
    visited = [Point(round=0, density=num_on / num, epochs=20, score=rough(0, num_on / num))]
    probes: list[Point] = []
    verdicts: list[Verdict] = []
    can_probe_dense = can_probe and reference is None and probe_epochs < budget
    while True:
        curve = Curve(
            rough=tuple(visited),
            probes=tuple(probes),
            reference=reference,
            num_val=num_val,
            full_epochs=budget,
            can_probe=can_probe,
            can_probe_dense=can_probe_dense,
            select_by=select_by,  # type: ignore[arg-type]
            ceiling=ceiling,
            at_ceiling=num_on == most,
        )
        verdict = rule.decide(curve)
        verdicts.append(verdict)
        assert len(verdicts) < 200, "the rule does not terminate"
        match verdict:
            case Stop():
                return Search(curve, verdicts, rule.answer(curve))
            case Probe(rounds=rounds):
                assert can_probe
                assert rounds
                assert len(set(rounds)) == len(rounds)
                assert not set(rounds) & {point.round for point in probes}
                assert set(rounds) <= {*range(len(visited)), *([DENSE] if can_probe_dense else [])}
                for k in rounds:
                    density = 1.0 if k == DENSE else visited[k].density
                    probes.append(Point(round=k, density=density, epochs=probe_epochs, score=probe(k, density)))
            case Grow(up_to=up_to):
                assert num_on < most, "growth cannot continue"
                whole = min(num_on + max(1, int(gamma * num_on)), most)
                num_on = whole if up_to is None else min(whole, max(num_on + 1, -int(-up_to * num // 1)))
                score = rough(len(visited), num_on / num)
                visited.append(Point(round=len(visited), density=num_on / num, epochs=20, score=score))
