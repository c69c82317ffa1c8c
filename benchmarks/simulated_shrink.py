"""Simulated discoveries of the default search (grow, train, shrink) with known answers, without any training.

    python -m benchmarks.simulated_shrink [--runs 200] [--held-out] [--jobs 1]

A score is a known function of density, of all epochs trained and of the length of the last phase, plus noise:

    score = top - loss * (epochs / budget)^-power - restart(phase) - gap(density) * (phase / last phase)^change

The learning curve of the dense network is a power law with a floor, whose exponent is between 0.3 (slow) and 5
(saturated early); a restarted learning rate costs or gains something, in part made up for by a longer phase; gaps to
dense shrink, stay or grow with the training after pruning (by a power of -0.4, 0 or 0.4). For each discovery the
learning curve, the cost of restarts and the exact power are drawn anew, and every second one knows its number of
validation examples. Gaps are scaled so that a network of the density in the table, finished once, is exactly delta
below the dense one; one that was finished twice may be sparser, and each answer is compared with the truth for networks
trained as long as the returned one.

`--training-noise 1.5`: the scores of two trainings of one network differ by 1.5 times the noise, too. A network that is
trained on for a quarter of the budget keeps a third of the luck of the one that it continues.

The second quarter of the training gains 0.2 to 1.5 deltas. In cells with the reference "late" it gains 5 to 15, so that
the search trains a dense baseline.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist, mean, median
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from pathgrow.density.shrink import INITIAL, Check, NextRound, ShrinkRule
from pathgrow.density.types import Answer, Curve, Point, Reference
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.shrinking import Lengths, extra_cost

DELTA = 0.01
BUDGET = 160
TOP = 0.95
ALWAYS_DENSE = 0.02
"""FLOPs of layers that are not pruned."""
RULE = ShrinkRule(delta=DELTA)

CHANGES = {"shrinking": -0.4, "constant": 0.0, "growing": 0.4}
NOISES = (0.1, 0.25, 0.4)
"""Noise of one score in units of delta."""
KNOWN = (0.05, 0.2, 0.6)
"""True answers: where the curve saturates."""

SHAPES: dict[str, Callable[[float], float]] = {
    "power law": lambda density: density**-0.5 - 1,
    "stretched": lambda density: math.exp(-((density / 0.05) ** 0.5)),
}
"""Gaps to dense, up to a factor; the rule was designed on these."""
HELD_OUT: dict[str, Callable[[float], float]] = {
    "steep": lambda density: density**-1.2 - 1,
    "logarithm": lambda density: -math.log(density) * (1 - 0.2 * math.log(density)),
}
"""Looked at only after the rule was fixed."""

ReferenceKind = Literal["dense", "none", "late"]
"""Late: none is asked for, but training gains so much that the search trains a dense baseline."""
REFERENCES: tuple[ReferenceKind, ...] = ("dense", "none", "late")


_LOWEST = 1e-6


def inverse(shape: Callable[[float], float], value: float) -> float:
    """The density at which a shape has a value."""
    return math.exp(brentq(lambda log: shape(math.exp(log)) - value, math.log(_LOWEST), 0.0))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One cell of the table."""

    shape: Callable[[float], float]
    known: float
    change: float
    noise: float
    """In units of delta."""
    reference: ReferenceKind
    training_noise: float = 0.0
    """Standard deviation of the true score over trainings, in units of the noise."""

    @property
    def options(self) -> DiscoverOptions:
        """Those of the search."""
        return DiscoverOptions(budget=BUDGET, delta=DELTA, reference="dense" if self.reference == "dense" else None)


class Task:
    """The scores of one discovery."""

    def __init__(self, setting: Setting, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.lengths = Lengths(setting.options)
        self.lengths.has_reference |= setting.reference == "late"
        self._draw, self._setting = draw, setting
        self._luck_draw = np.random.default_rng([seed, 1])
        # Rounds of the default depth on the way to the density that is to be known.
        rounds = 1 + math.log(setting.known / (1 - RULE.first_prune_fraction)) / math.log(1 - RULE.prune_fraction)
        before = 2 * self.lengths.phases[0] + max(0.0, rounds) * self.lengths.round
        if setting.reference == "late":  # pruned networks start from the initial weights
            before = 0.0
        self._last_phase = self.lengths.finish(round(before))
        epochs = before + self._last_phase
        self._draw_learning_curve()
        while self._allowed(epochs) <= 0:  # no network would be within reach
            self._draw_learning_curve()
        self._scale = self._allowed(epochs) / (setting.shape(setting.known) - setting.shape(1.0))
        self.num_val = None
        if seed % 2:
            # As if evaluation made up half to all of the noise, and the choice of batches the rest.
            own = setting.noise * DELTA * draw.uniform(0.5, 1.0)
            self.num_val = round(self.dense * (1 - self.dense) / (3 * own**2))

    def _draw_learning_curve(self) -> None:
        draw = self._draw
        self._change = self._setting.change + draw.normal(0.0, 0.1)
        self._power = math.exp(draw.uniform(math.log(0.3), math.log(5.0)))
        lowest, highest = (5.0, 15.0) if self._setting.reference == "late" else (0.2, 1.5)
        second_quarter = DELTA * math.exp(draw.uniform(math.log(lowest), math.log(highest)))
        self._loss = second_quarter / (0.25**-self._power - 0.5**-self._power)
        # As measured on six tasks: a cost where training still gains much, otherwise either way.
        self._restart = DELTA * draw.uniform(-0.3, 0.3) + draw.uniform(0.0, 0.2) * second_quarter
        self._recovered = DELTA * draw.uniform(-0.25, 0.5)
        self.dense = self.score(1.0, BUDGET, BUDGET)

    def score(self, density: float, epochs: float, phase: float) -> float:
        """The true score of a network."""
        value = TOP - self._loss * (epochs / BUDGET) ** -self._power
        if epochs > phase:
            value -= self._restart + self._recovered * BUDGET / 20 / phase
        if density < 1:
            gap = self._scale * (self._setting.shape(density) - self._setting.shape(1.0))
            value -= gap * (phase / self._last_phase) ** self._change
        return value

    def known(self, epochs: float, phase: float) -> float:
        """The smallest density that is within delta of dense for networks of so many epochs, in the last phase too."""
        change = (phase / self._last_phase) ** self._change
        allowed = self._allowed(epochs, phase) / (self._scale * change) + self._setting.shape(1.0)
        if allowed <= self._setting.shape(1.0):
            return math.inf
        if allowed >= self._setting.shape(_LOWEST):
            return _LOWEST
        return inverse(self._setting.shape, allowed)

    def _allowed(self, epochs: float, phase: float | None = None) -> float:
        """How much a finished network may lose by pruning."""
        return self.score(1.0, epochs, self._last_phase if phase is None else phase) - self.dense + DELTA

    def observe(self, number: int, density: float, epochs: int, phase: int, luck: float = 0.0) -> Point:
        """The measured score of a network."""
        score = self.score(density, epochs, phase) + DELTA * self._setting.noise * self._draw.standard_normal()
        return Point(round=number, density=density, epochs=epochs, score=score + luck)

    def luck(self, phase: int, before: float | None = None) -> float:
        """By how much a training differs from the mean of such trainings, given that of the network it continues."""
        spread = DELTA * self._setting.noise * self._setting.training_noise
        kept = 0.0 if before is None else math.exp(-4 * phase / BUDGET)
        fresh = math.sqrt(1 - kept**2) * spread * float(self._luck_draw.standard_normal())
        return fresh + kept * (before or 0.0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished discovery."""

    curve: Curve
    answer: Answer
    check: Check | None
    known: float
    """The true answer for networks that are trained as long as the returned one."""
    density: float
    """Of the returned network."""
    lost: float
    """How far the returned network truly is below the dense one, in units of delta."""
    cost: float
    """In dense trainings, without that of a reference."""


def discover(setting: Setting, seed: int) -> Run:
    """Follow the rule, as `ShrinkSearch` does."""
    task, rule, cost_limit = Task(setting, seed), RULE, setting.options.cost_limit
    lengths = task.lengths
    points, phases, lucks = list[Point](), [lengths.phases[0], lengths.phases[0]], list[float]()
    for k, phase in enumerate(phases):
        lucks.append(task.luck(phase, lucks[-1] if lucks else None))
        points.append(task.observe(k, 1.0, (k + 1) * phase, phase, lucks[-1]))
    spent = 2 * lengths.phases[0] / BUDGET
    curve = Curve(rough=tuple(points), num_val=task.num_val, full_epochs=BUDGET)
    if setting.reference == "dense" or rule.is_too_short(curve):
        dense = task.observe(0, 1.0, BUDGET, BUDGET, task.luck(BUDGET))
        curve = replace(curve, reference=Reference(score=dense.score, kind="dense", epochs=BUDGET))
        if setting.reference != "dense":
            lengths.has_reference = True
            spent, cost_limit = spent + 1, setting.options.highest_cost

    def before(one: NextRound) -> tuple[float, int]:
        """Density and epochs of the network that another one starts from."""
        return (1.0, 0) if one.start == INITIAL else (points[one.start].density, points[one.start].epochs)

    def train(due: NextRound, phase: int, cost: float) -> Point:
        nonlocal spent
        lucks.append(task.luck(phase, None if due.start == INITIAL else lucks[due.start]))
        points.append(task.observe(len(points), due.density, before(due)[1] + phase, phase, lucks[-1]))
        phases.append(phase)
        spent += cost * phase / BUDGET
        return points[-1]

    while (pruned := rule.next_round(curve)) is not None:
        curve = replace(curve, probes=(*curve.probes, train(pruned, lengths.round, flops(pruned.density))))

    def finish_flops(one: NextRound) -> float:
        return flops(one.density) + extra_cost(one.start) * (flops(before(one)[0]) - flops(one.density))

    def finish_cost(density: float) -> float:
        one = rule.pruned_from(curve, density)
        return finish_flops(one) * lengths.finish(before(one)[1]) / BUDGET

    while due := rule.candidates(curve, cost=finish_cost, left=cost_limit - spent):
        new = [train(one, lengths.finish(before(one)[1]), finish_flops(one)) for one in due]
        curve = replace(curve, finished=(*curve.finished, *new))
    network = rule.select(curve)
    return Run(
        curve=curve,
        answer=rule.answer(curve),
        check=rule.check(curve, network),
        known=task.known(network.epochs, phases[network.round]),
        density=network.density,
        lost=(task.dense - task.score(network.density, network.epochs, phases[network.round]) - lucks[network.round])
        / DELTA,
        cost=spent,
    )


def flops(density: float) -> float:
    """FLOPs relative to the dense network: some layers stay dense."""
    return min(1.0, density + ALWAYS_DENSE)


@dataclass(frozen=True)
class Summary:
    """Many discoveries of one cell."""

    runs: Sequence[Run]

    @staticmethod
    def of(setting: Setting, num: int, first_seed: int = 0) -> Summary:
        """Run `num` discoveries, each with its own seed."""
        return Summary([discover(setting, first_seed + k) for k in range(num)])

    @property
    def errors(self) -> list[float]:
        """Of the answers that name a density, relative to the known one."""
        return [abs(run.answer.density / run.known - 1) for run in self.runs if run.answer.density is not None]

    @property
    def covered(self) -> list[bool]:
        """Whether the interval contains the known answer; no interval if the answer is open, and then no entry."""
        found = [(run.known, run.answer.interval) for run in self.runs if run.answer.status != "open"]
        return [interval is not None and interval[0] <= known <= interval[1] for known, interval in found]

    @property
    def within(self) -> float:
        """Share of the returned networks that truly are within delta."""
        return mean(run.lost <= 1 for run in self.runs)

    def false(self, *outcomes: str) -> str:
        """Among the returned networks with these outcomes, the share that is not truly so, and their number."""
        lost = [run.lost for run in self.runs if run.check is not None and run.check.outcome in outcomes]
        wrong = [(value <= 1) if outcomes == ("missed",) else (value > 1) for value in lost]
        return f"{mean(map(float, wrong)):.0%} of {len(lost)}" if lost else "-"

    def row(self) -> list[str]:
        """The columns of the table after those that name the cell."""
        answers, runs = [run.answer for run in self.runs], self.runs
        named = [run.answer.density / run.known for run in runs if run.answer.density is not None]
        widths = [
            a.interval[1] / max(a.interval[0], 0.005) for a in answers if a.status == "found" and a.interval is not None
        ]
        returned = [run.density / run.known for run in runs]
        lost = [run.lost for run in runs]
        return [
            f"{mean(map(float, self.covered)):.0%}" if self.covered else "-",
            f"{median(widths):.1f}" if widths else "-",
            f"{median(named):.2f}" if named else "-",
            f"{median(self.errors):.0%}" if named else "-",
            "/".join(f"{mean(a.status == status for a in answers):.0%}" for status in ("open", "flat", "unreached")),
            f"{median(returned):.2f}",
            f"{median(abs(ratio - 1) for ratio in returned):.0%}",
            f"{self.within:.0%}",
            f"{mean(lost):.2f} ({float(np.quantile(lost, 0.9)):.2f})",
            self.false("verified"),
            self.false("consistent"),
            self.false("missed"),
            f"{mean(len(run.curve.probes) for run in runs):.1f}",
            f"{mean(len(run.curve.finished) for run in runs):.1f}",
            f"{mean(run.cost for run in runs):.2f}",
        ]


COLUMNS = (
    *("gaps", "known", "noise", "reference", "covered", "width", "answer / known", "median error"),
    *("open/flat/unreached", "returned / known", "median error", "within delta", "lost / delta"),
    *("false: verified", "consistent", "missed", "rounds", "finished", "cost"),
)


def unavoidable_error(known: float, noise: float, shapes: Iterable[Callable[[float], float]]) -> float:
    """Median relative error of an answer that knows everything but the dense score, of which it has one noisy value.

    Mean over the shapes; noise in units of delta.
    """
    medians = []
    for shape in shapes:
        scale = 1 / (shape(known) - shape(1.0))
        errors = []
        for probability in np.linspace(0.0025, 0.9975, 200):
            allowed = max(1 + noise * NormalDist().inv_cdf(probability), 1e-3) / scale + shape(1.0)
            found = 0.0 if allowed >= shape(_LOWEST) else inverse(shape, allowed)  # 0: any density is within reach
            errors.append(abs(found / known - 1))
        medians.append(median(errors))
    return mean(medians)


def unavoidable_errors(shapes: Iterable[Callable[[float], float]]) -> str:
    """A table of the errors above."""
    lines = ["| known | " + " | ".join(f"noise {noise:g}" for noise in NOISES) + " |", "|" + "---|" * (len(NOISES) + 1)]
    for known in KNOWN:
        row = [f"{unavoidable_error(known, noise, shapes):.0%}" for noise in NOISES]
        lines.append(f"| {known:.0%} | " + " | ".join(row) + " |")
    return "\n".join(lines)


CELLS = tuple(itertools.product(REFERENCES, CHANGES, KNOWN, NOISES))
"""Reference, change of the gaps, true answer and noise."""


def cell(number: int, num: int, *, held_out: bool, training_noise: float) -> str:
    """The row of one cell; half of its discoveries have the one shape, half the other. No two cells share a seed."""
    reference, gaps, known, noise = CELLS[number]
    shapes = (HELD_OUT if held_out else SHAPES).values()
    runs: list[Run] = []
    for shape in shapes:
        setting = Setting(
            shape=shape,
            known=known,
            change=CHANGES[gaps],
            noise=noise,
            reference=reference,
            training_noise=training_noise,
        )
        runs += Summary.of(setting, num // len(shapes), number * num + len(runs)).runs
    return "| " + " | ".join([gaps, f"{known:.0%}", f"{noise:g}", reference, *Summary(runs).row()]) + " |"


def main() -> None:
    """Print one row per cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="discoveries per cell (default: 200)")
    parser.add_argument("--held-out", action="store_true", help="shapes that the rule was not designed on")
    parser.add_argument("--training-noise", type=float, default=0.0, help="between trainings, in units of the noise")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument(
        "--unavoidable", action="store_true", help="only the errors that the noise of one dense score makes by itself"
    )
    chosen = parser.parse_args()
    if chosen.unavoidable:
        print(unavoidable_errors((HELD_OUT if chosen.held_out else SHAPES).values()))
        return
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    with ProcessPoolExecutor(chosen.jobs) as pool:
        row_of = partial(cell, num=chosen.runs, held_out=chosen.held_out, training_noise=chosen.training_noise)
        for row in pool.map(row_of, range(len(CELLS))):
            print(row, flush=True)


if __name__ == "__main__":
    main()
