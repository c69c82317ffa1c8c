"""Accuracy and coverage of the static search on simulated discoveries with known answers.

    python -m benchmarks.simulated [--runs 200] [--shapes fast medium ...] [--noises 0.001 0.004]

The default search has its own simulation, `python -m benchmarks.simulated_shrink`.

A score is a known function of density, of the epochs trained and of a lag after each growth step, plus noise; gaps
between networks are larger after short training, by a power of its length that is drawn for each discovery. Printed for
each setting: the median of answer / known answer, the fraction of answers within 25%, coverage and width of the 90%
interval, the true gap of the returned network to the dense one in units of delta (mean and 90th percentile), how often
it had been probed (a head start for its final training), and the cost of the whole discovery relative to one dense
training, in FLOPs and in time: median and 90th percentile.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq

from pathgrow.density.probe import ProbeRule, select_network
from pathgrow.density.types import DENSE, Answer, Curve, Grow, Point, Probe, Reference, Rule, Stop

Shape = Callable[[float], float]
ReferenceKind = Literal["exact", "dense", "none"]


def exponential(rate: float, *, floor: float = 0.5, gain: float = 0.4) -> Shape:
    """The paper's curve, whose gain answer is ln(20) / rate."""
    return lambda density: floor + gain * (1.0 - math.exp(-rate * density))


def power_law(exponent: float, *, top: float = 0.95, loss: float = 0.02) -> Shape:
    """A curve that does not saturate."""
    return lambda density: top - loss * density**-exponent


def stretched(scale: float, bend: float, *, top: float = 0.95, gain: float = 0.4) -> Shape:
    """A curve between the two."""
    return lambda density: top - gain * math.exp(-((density / scale) ** bend))


def table(rows: Sequence[tuple[float, float]]) -> Shape:
    """Linear interpolation of measured points over the logarithm of density."""
    density, score = np.log([row[0] for row in rows]), [row[1] for row in rows]
    return lambda x: float(np.interp(math.log(x), density, score))


@dataclass(frozen=True)
class Setting:
    """A curve with its known answers."""

    shape: Shape
    """Score of a fully trained network."""
    delta: float = 0.01
    gain_density: float | None = None
    flops: Shape = lambda density: density + 0.02
    """FLOPs relative to the dense network: some layers stay dense."""

    def known(self, reference: float | None = None) -> float:
        """The smallest density within delta of the reference (None: of density 1)."""
        target = (self.shape(1.0) if reference is None else reference) - self.delta
        return math.exp(brentq(lambda log: self.shape(math.exp(log)) - target, math.log(1e-4), 0.0))


# Smoothed measurements: an MLP on digits with fresh probes, and a ResNet on CIFAR-10 with probes from grown weights.
DIGITS = [
    *[(0.01, 0.954), (0.02, 0.963), (0.031, 0.9685), (0.049, 0.9735), (0.076, 0.9775), (0.12, 0.98)],
    *[(0.19, 0.982), (0.29, 0.984), (0.45, 0.985), (0.71, 0.9858), (1.0, 0.986)],
]
CIFAR = [
    *[(0.01, 0.78), (0.02, 0.825), (0.031, 0.851), (0.049, 0.8713), (0.077, 0.8888), (0.12, 0.903)],
    *[(0.188, 0.9125), (0.293, 0.921), (0.458, 0.9275), (0.715, 0.9329), (1.0, 0.936)],
]

# ResNet-32 on CIFAR-10 from a fresh initialization, all trained equally: the error is that of the dense network times a
# power of the density (results/cifar10_resnet32.jsonl). Grown masks are denser in layers with large feature maps, so
# their FLOPs exceed their density.
EQUALLY_TRAINED = power_law(0.127, top=1.0, loss=0.07)
FLOPS = table(
    [
        *[(0.02, 0.065), (0.0488, 0.109), (0.0954, 0.177), (0.149, 0.256), (0.186, 0.309), (0.233, 0.373)],
        *[(0.291, 0.451), (0.364, 0.542), (0.455, 0.643), (0.568, 0.749), (0.71, 0.853), (0.888, 0.949), (1.0, 1.0)],
    ]
)

SETTINGS = {
    "fast": Setting(exponential(30.0), gain_density=math.log(20) / 30),
    "medium": Setting(exponential(10.0), gain_density=math.log(20) / 10),
    "slow": Setting(exponential(5.0), gain_density=math.log(20) / 5),
    "slow, low gain": Setting(exponential(5.0, floor=0.8, gain=0.1), gain_density=math.log(20) / 5),
    "power law": Setting(power_law(0.4)),
    "stretched": Setting(stretched(0.05, 0.5)),
    "digits-like": Setting(table(DIGITS)),
    "cifar-like": Setting(table(CIFAR), delta=0.005),
    "cifar, equal": Setting(EQUALLY_TRAINED, delta=0.005, flops=FLOPS),
    "cifar, equal, a point": Setting(EQUALLY_TRAINED, delta=0.01, flops=FLOPS),
}


class Run(NamedTuple):
    """A finished discovery."""

    curve: Curve
    verdict: Stop
    answer: Answer
    batches: tuple[int, ...]
    """Number of probes in each batch."""


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Cost of a discovery relative to one dense training; an epoch takes the same time at any density."""

    seed: float = 1 / 8
    """Length of the seed training, as a fraction of the budget."""
    rough: float = 1 / 160
    """Length of a round, as a fraction of the budget."""
    probe_fraction: float = 0.1
    """Length of a probe, as a fraction of the budget; with a reference it is the whole budget."""
    growing: float = 0.003
    """Time of a round beyond its training (0.44 s of 143 s were measured on CIFAR-10)."""
    concurrency: float = 1.8
    """Speed-up of a batch of concurrent probes, at most its size."""

    def of(self, run: Run, cost: Shape) -> tuple[float, float]:
        """FLOPs and time of everything but a dense reference, which counts as given."""
        curve = run.curve
        probe = self.probe_fraction if curve.reference is None else 1.0
        chosen = select_network(curve, run.answer)
        ahead = probe if was_probed(run) else 0.0

        def flops(epochs: float, points: Iterable[Point]) -> float:
            return sum(epochs * cost(point.density) for point in points)

        return (
            flops(self.seed, curve.rough[:1])
            + flops(self.rough, curve.rough[1:])
            + flops(probe, curve.probes)
            + flops(1.0 - ahead, [chosen]),
            self.seed
            + (self.rough + self.growing) * (len(curve.rough) - 1)
            + sum(probe * num / min(num, self.concurrency) for num in run.batches)
            + 1.0
            - ahead,
        )


def was_probed(run: Run) -> bool:
    """Whether the returned network was probed, which is the first part of its final training."""
    return select_network(run.curve, run.answer).round in {probe.round for probe in run.curve.probes}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One discovery without training."""

    setting: Setting
    noise: float
    reference: ReferenceKind
    seed: int
    start: float = 0.03
    gamma: float = 0.25
    num_seed_epochs: int = 20
    num_round_epochs: int = 1
    num_epochs: int = 160
    """Epochs of the returned network."""
    probe_fraction: float = 0.1
    """Length of a probe relative to `num_epochs`; 1 with a reference."""
    shrinking: tuple[float, float] = (0.2, 0.1)
    """Gaps shrink with this power of the epochs: mean and standard deviation over discoveries."""
    untrained: float = 0.05
    """Score that an untrained network lacks."""
    patience: float = 15.0
    """Epochs in which that shrinks by a factor of e."""
    lag: float = 0.5
    """Fraction of a growth step that is not yet effective after one round."""

    @property
    def num_probe_epochs(self) -> int:
        return round(self.num_epochs * (self.probe_fraction if self.reference == "none" else 1.0))

    def run(self, rule: Rule) -> Run:
        """Carry out the verdicts of a rule until it stops."""
        rng = np.random.default_rng(self.seed)
        shape = self.setting.shape
        shrinking = rng.normal(*self.shrinking)

        def observe(round: int, density: float, epochs: int, used: float) -> Point:
            gap = (shape(1.0) - shape(used)) * (self.num_epochs / epochs) ** shrinking
            late = self.untrained * math.exp(-epochs / self.patience)
            return Point(
                round=round,
                density=density,
                epochs=epochs,
                score=shape(1.0) - gap - late + rng.normal(0.0, self.noise),
            )

        reference = None
        if self.reference != "none":
            dense = observe(0, 1.0, self.num_epochs, 1.0).score
            reference = (
                Reference(score=dense, kind="dense", epochs=self.num_epochs)
                if self.reference == "dense"
                else Reference(score=shape(1.0), kind="given")
            )
        density, epochs = self.start, self.num_seed_epochs
        rough, probes, batches = [observe(0, density, epochs, density)], list[Point](), list[int]()
        while True:
            curve = Curve(
                rough=tuple(rough),
                probes=tuple(probes),
                reference=reference,
                full_epochs=self.num_epochs,
                can_probe_dense=self.num_probe_epochs < self.num_epochs,
                at_ceiling=rough[-1].density >= 1.0,
            )
            match rule.decide(curve):
                case Stop() as verdict:
                    return Run(curve, verdict, rule.answer(curve), tuple(batches))
                case Probe(rounds=rounds):
                    batches.append(len(rounds))
                    for round in rounds:
                        assert all(probe.round != round for probe in probes), "a round is probed at most once"
                        at = 1.0 if round == DENSE else rough[round].density
                        probes.append(observe(round, at, self.num_probe_epochs, at))
                case Grow(up_to=up_to):
                    assert rough[-1].density < 1.0, "a dense network cannot grow"
                    before, density = density, min(density * (1.0 + self.gamma), 1.0 if up_to is None else up_to)
                    epochs += self.num_round_epochs
                    used = density - self.lag * (density - before)
                    rough.append(observe(len(rough), density, epochs, used))


@dataclass(frozen=True)
class Outcome:
    """Results of many simulated discoveries of one setting."""

    num: int
    ratios: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    gain_ratios: list[float] = field(default_factory=list)
    gain_covered: list[bool] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    probed: list[bool] = field(default_factory=list)
    num_probes: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    densest: list[float] = field(default_factory=list)

    @staticmethod
    def of(
        setting: Setting,
        noise: float,
        reference: ReferenceKind,
        num: int,
        *,
        cost: CostModel | None = None,
        shrinking: tuple[float, float] = Simulation.shrinking,
        **options: Any,
    ) -> Outcome:
        """Run `num` discoveries. Without a reference the known answer is relative to the densest probe."""
        cost = cost or CostModel()
        rule = ProbeRule(delta=setting.delta, **options)
        result = Outcome(num)
        for seed in range(num):
            run = Simulation(
                setting=setting,
                noise=noise,
                reference=reference,
                seed=seed,
                probe_fraction=cost.probe_fraction,
                shrinking=shrinking,
            ).run(rule)
            curve, answer = run.curve, run.answer
            top = max(probe.density for probe in curve.probes)
            known = setting.known(setting.shape(top) if reference == "none" else None)
            flops, time = cost.of(run, setting.flops)
            result.flops.append(flops)
            result.times.append(time)
            result.lost.append(
                (setting.shape(1.0) - setting.shape(select_network(curve, answer).density)) / setting.delta
            )
            result.probed.append(was_probed(run))
            result.num_probes.append(len(curve.probes))
            result.densest.append(top)
            if answer.density is not None:
                result.ratios.append(answer.density / known)
            if answer.interval is not None:
                low, high = answer.interval
                result.covered.append(low <= known <= high)
                result.widths.append(high / max(low, curve.rough[0].density))
            if (
                setting.gain_density is not None
                and answer.gain_density is not None
                and answer.gain_interval is not None
            ):
                low, high = answer.gain_interval
                result.gain_ratios.append(answer.gain_density / setting.gain_density)
                result.gain_covered.append(low <= setting.gain_density <= high)
        return result

    def row(self) -> str:
        """One row of the table, without its first columns."""
        gain = ["", "", ""]
        if self.gain_ratios:
            gain = [f"{median(self.gain_ratios):.2f}", _share(map(_near, self.gain_ratios)), _share(self.gain_covered)]
        cells = [
            f"{median(self.ratios):.2f}",
            _share(map(_near, self.ratios)),
            _share(self.covered),
            f"{median(self.widths):.2f}",
            *gain,
            f"{self.num - len(self.ratios)}",
            f"{mean(self.densest):.0%}",
            f"{mean(self.num_probes):.1f}",
            _summary(mean(self.lost), self.lost),
            _share(self.probed),
            _summary(median(self.flops), self.flops),
            _summary(median(self.times), self.times),
        ]
        return " | ".join(cells)


def _near(ratio: float) -> bool:
    return abs(ratio - 1.0) <= 0.25


def _share(values: Iterable[bool]) -> str:
    return f"{mean(map(float, values)):.0%}"


def _summary(middle: float, values: Sequence[float]) -> str:
    return f"{middle:.2f} ({float(np.quantile(values, 0.9)):.2f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--shapes", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--noises", nargs="+", type=float, default=[0.001, 0.004])
    parser.add_argument("--references", nargs="+", choices=["exact", "dense", "none"], default=["dense", "none"])
    parser.add_argument("--max-probes", type=int, help="default: that of the rule")
    parser.add_argument("--probe-fraction", type=float, default=CostModel.probe_fraction, help="length of a probe")
    parser.add_argument("--rough", type=float, default=CostModel.rough, help="length of a round")
    parser.add_argument("--seed", type=float, default=CostModel.seed, help="length of the seed training")
    parser.add_argument(
        "--shrinking", type=float, nargs=2, default=Simulation.shrinking, help="mean and std of the power"
    )
    parser.add_argument(
        "--concurrency", type=float, default=CostModel.concurrency, help="speed-up of a batch of probes"
    )
    chosen = parser.parse_args()
    cost = CostModel(
        seed=chosen.seed,
        rough=chosen.rough,
        probe_fraction=chosen.probe_fraction,
        concurrency=chosen.concurrency,
    )
    options = {} if chosen.max_probes is None else {"max_probes": chosen.max_probes}
    print(
        "| curve | known | noise | reference | answer / known | within 25% | covered | width"
        " | gain / known | within 25% | covered | no answer | densest | probes | lost / delta"
        " | head start | FLOPs | time |"
    )
    print("|" + "---|" * 18)
    for name in chosen.shapes:
        for noise in chosen.noises:
            for reference in chosen.references:
                outcome = Outcome.of(
                    SETTINGS[name],
                    noise,
                    reference,
                    chosen.runs,
                    cost=cost,
                    shrinking=tuple(chosen.shrinking),
                    **options,
                )
                head = f"| {name} | {SETTINGS[name].known():.3f} | {100 * noise:.2g} | {reference} "
                print(f"{head}| {outcome.row()} |", flush=True)


if __name__ == "__main__":
    main()
