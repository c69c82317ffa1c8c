"""What the present rule reads from the curves of recorded searches: `python -m benchmarks.replayed_searches FILE ...`.

Prints, for every search with a whole curve, the networks that would be finished first, the estimated dense score, the
answer and the density that would be returned. Nothing is trained.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pathgrow.density.shrink import ShrinkRule
from pathgrow.density.types import Curve, Point

NUM_VAL = 5_000
"""Validation images of CIFAR."""
LEFT = 0.44
"""What a usual search may still spend after its rounds, in dense trainings."""


def triples(networks: Iterable[Any]) -> list[tuple[float, int, float]]:
    """Density, epochs and score of recorded networks; older lines have nothing else of them."""
    return [
        tuple(one[key] for key in ("density", "epochs", "score")) if isinstance(one, dict) else tuple(one)
        for one in networks
    ]


def points(rows: Iterable[tuple[float, int, float]], first: int) -> tuple[Point, ...]:
    """Recorded rows (density, epochs, score) as points of a curve."""
    return tuple(
        Point(round=first + k, density=density, epochs=epochs, score=score)
        for k, (density, epochs, score) in enumerate(rows)
    )


def main() -> None:
    for line in (line for path in sys.argv[1:] for line in Path(path).read_text().splitlines()):
        row = json.loads(line)
        if (row.get("answer") or {}).get("rule") != ShrinkRule.name or len(row["curve"]["probes"]) < 3:
            continue
        recorded = {part: triples(row["curve"][part]) for part in ("rounds", "probes", "finished")}
        rule, rounds = ShrinkRule(delta=row["delta"]), points(recorded["rounds"], 0)
        probes = points(sorted(recorded["probes"], reverse=True), len(rounds))
        curve = Curve(rough=rounds, probes=probes, num_val=NUM_VAL, full_epochs=row["budget"])
        first = rule.candidates(curve, cost=lambda density: density / 4, left=LEFT)
        curve = replace(curve, finished=points(recorded["finished"], 50))
        answer = rule.answer(curve)
        assert answer.reference is not None
        returned_for = answer.details["returned_for"]
        assert isinstance(returned_for, float)
        print(
            row["data"], "seed", row["seed"], "max_density", row.get("max_density", 1.0),
            "first", [round(one.density, 3) for one in first], f"dense {answer.reference.score:.4f}", answer.status,
            answer.density, answer.interval, f"returned for {returned_for:.3f}",
        )  # fmt: skip


if __name__ == "__main__":
    main()
