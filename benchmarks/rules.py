"""Replay every density rule on recorded runs and compare with the ground truth.

    python -m benchmarks.rules [FILE]

The runs are ResNet-32 on CIFAR-10, grown from 3% to 72% in steps of 25% with rounds of 2, 4 or 8 epochs or two halves
of 2 or 4, with half-cosine annealing in every phase. The ground truth is copies of three trunks trained for 60 more
epochs at seven densities, and dense networks of 60 epochs. FILE has one JSON object per line with `kind` (`obs`,
`truth`, `dense`), `mode`, `seed`, `round`, `half`, `epochs`, `rho` and `val_acc`; the default is the extract used by
the tests.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np

from pathgrow.density import rules
from pathgrow.density.saturation import fit_saturation
from pathgrow.density.types import Answer, Curve, Grow, Point, Probe, Reference, Rule, Stop

EXTRACT = Path(__file__).resolve().parents[1] / "tests" / "recorded" / "cifar10_resnet32.jsonl"
DELTA = 0.005
"""Half a percentage point: one point is reached within the first third of the recorded densities."""


@dataclass(frozen=True)
class Trunk:
    """One grown network: its rounds, and its probes by round (empty for most trunks)."""

    mode: str
    seed: int
    rough: tuple[Point, ...]
    probes: dict[int, Point]


@dataclass(frozen=True)
class Recorded:
    """All runs of a file."""

    trunks: tuple[Trunk, ...]
    dense: dict[int, Reference]
    """By seed."""

    @staticmethod
    def read(path: Path) -> Recorded:
        """Parse a file; a trunk of two halves was evaluated at the end of the second."""
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        observed: dict[tuple[str, int], list[Point]] = {}
        truth: dict[tuple[str, int], dict[int, Point]] = {}
        for row in rows:
            if row["kind"] == "obs" and (row["round"] == 0 or row["half"] == int("+" in row["mode"])):
                observed.setdefault((row["mode"], row["seed"]), []).append(_point(row, row["epochs"]))
            elif row["kind"] == "truth":
                # `epochs` counts those of the probe only; the seed network and the rounds came before.
                total = 20 + int(row["mode"]) * row["round"] + row["epochs"]
                truth.setdefault((row["mode"], row["seed"]), {})[row["round"]] = _point(row, total)
        return Recorded(
            trunks=tuple(
                Trunk(mode, seed, tuple(sorted(points, key=lambda point: point.round)), truth.get((mode, seed), {}))
                for (mode, seed), points in observed.items()
            ),
            dense={
                row["seed"]: Reference(score=row["val_acc"], kind="dense", epochs=row["epochs"])
                for row in rows
                if row["kind"] == "dense"
            },
        )

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Density and score of the probes, averaged over trunks."""
        probed = [trunk.probes for trunk in self.trunks if trunk.probes]
        return [
            (mean(run[round].density for run in probed), mean(run[round].score for run in probed))
            for round in sorted(probed[0])
        ]

    def truth(self) -> dict[str, float]:
        """The smallest density within delta, by linear interpolation over log density, and the gain answer."""
        densities, scores = zip(*self.curve, strict=True)

        def reach(target: float) -> float:
            return math.exp(float(np.interp(target, scores, np.log(densities))))

        return {
            "dense": reach(mean(dense.score for dense in self.dense.values()) - DELTA),
            "densest": reach(max(scores) - DELTA),
            "gain": fit_saturation(densities, scores).operating_density(),
        }


def replay(rule: Rule, trunk: Trunk, reference: Reference | None) -> tuple[Curve, Stop, Answer]:
    """Show a trunk to a rule round by round, as if it were growing.

    A rule that probes sees only the rounds that were probed, which it may ask for.
    """
    probing = rule.name == "probe"
    visited = [point for point in trunk.rough if not probing or point.round in trunk.probes]
    probes: list[Point] = []
    num_seen = 1
    while True:
        curve = Curve(
            rough=tuple(visited[:num_seen]),
            probes=tuple(probes),
            reference=reference,
            ceiling=visited[-1].density,
            can_probe=probing,
            at_ceiling=num_seen == len(visited),
        )
        match rule.decide(curve):
            case Stop() as verdict:
                return curve, verdict, rule.answer(curve)
            case Probe(rounds=rounds):
                probes.extend(trunk.probes[round] for round in rounds)
            case Grow():
                num_seen += 1


def lines(recorded: Recorded) -> Iterable[str]:
    """The table in Markdown."""
    truth = recorded.truth()
    yield (
        f"Truth for delta {DELTA:g}: {truth['dense']:.2f} against dense, {truth['densest']:.2f} against the densest"
        f" network grown; 95% of the gain: {truth['gain']:.2f}."
    )
    yield ""
    yield (
        "| rule | reference | trunks | delta answer: median (all) | truth | covered"
        " | gain answer: median (all) | truth | covered | grew to |"
    )
    yield "|" + "---|" * 10
    for name in rules.names():
        rule = rules.create(name, delta=DELTA)
        probing = name == "probe"
        trunks = [trunk for trunk in recorded.trunks if trunk.probes or not probing]
        for against_dense in [True, False] if probing else [False]:
            results = [replay(rule, trunk, recorded.dense[trunk.seed] if against_dense else None) for trunk in trunks]
            answers = [answer for _, _, answer in results]
            # The literal rule reports the gain answer only.
            literal = name == "exponential"
            known = truth["dense" if against_dense else "gain" if literal else "densest"]
            cells = [
                name,
                "dense" if against_dense else "own fit" if literal else "densest",
                str(len(trunks)),
                _spread([answer.density for answer in answers]),
                f"{known:.2f}",
                _covered([answer.interval for answer in answers], known),
                _spread([answer.gain_density for answer in answers]),
                f"{truth['gain']:.2f}",
                _covered([answer.gain_interval for answer in answers], truth["gain"]),
                f"{median(curve.rough[-1].density for curve, _, _ in results):.0%}",
            ]
            yield f"| {' | '.join(cells)} |"


def _point(row: dict[str, float], epochs: int) -> Point:
    return Point(round=int(row["round"]), density=row["rho"], epochs=epochs, score=row["val_acc"])


def _spread(values: Sequence[float | None]) -> str:
    found = sorted(value for value in values if value is not None)
    none = f", {len(values) - len(found)} without" if len(found) < len(values) else ""
    return f"{median(found):.2f} ({found[0]:.2f}-{found[-1]:.2f}{none})" if found else "none"


def _covered(intervals: Sequence[tuple[float, float] | None], truth: float) -> str:
    return f"{sum(pair is not None and pair[0] <= truth <= pair[1] for pair in intervals)} of {len(intervals)}"


def main() -> None:
    """Print the table for a file, or for the extract."""
    for line in lines(Recorded.read(Path(sys.argv[1]) if len(sys.argv) > 1 else EXTRACT)):
        print(line)


if __name__ == "__main__":
    main()
