"""Synthetic reports of a discovery and of a training, for tests of everything that reads reports."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pathgrow.density.shrink import ShrinkRule
from pathgrow.density.types import Curve, Point, Reference
from pathgrow.report.schema import (
    AnswerReport,
    CheckReport,
    CurveReport,
    FitReport,
    LedgerReport,
    MethodReport,
    NetworkReport,
    PhaseReport,
    PhaseTiming,
    PointReport,
    ReferenceReport,
    RunReport,
    Score,
    TimingReport,
    TopologyReport,
)
from pathgrow.runs.tolerances import read_off

_WIDTHS = {"layers.0.weight": (64, 128), "layers.1.weight": (128, 128), "layers.2.weight": (128, 128)}
_NUM = sum(a * b for a, b in _WIDTHS.values())
_OTHER = 128 * 10 + 3 * 128 + 10
_DENSE_FLOPS = 245_000


def _of_model(density: float) -> float:
    return (density * _NUM + _OTHER) / (_NUM + _OTHER)


def _score(density: float) -> float:
    return 0.976 - 0.11 * math.exp(-density / 0.035)


def _noise(number: int) -> float:
    """Deterministic noise."""
    return 0.0035 * math.sin(12.9898 * (number + 1)) * (1 if number % 2 else -1)


def point(round: int, density: float, epochs: int, score: float) -> PointReport:
    """An evaluated network; its loss follows from its score."""
    return PointReport(
        round=round, density=density, density_model=1.0 if round < 0 else _of_model(density), epochs=epochs,
        score=score, loss=2.6 * (1 - score) + 0.02,
    )  # fmt: skip


def phase(name: str, epochs: int, density: float) -> PhaseReport:
    """A phase of the ledger with 900 samples per epoch."""
    samples = 900 * epochs
    cost = int(samples * (7680 + _DENSE_FLOPS * density))
    return PhaseReport(
        phase=name, epochs=epochs, epochs_trained=epochs, samples=samples, density=density, training_flops=cost
    )


def _topology(round: int, density: float) -> TopologyReport:
    ratios = {name: min(1.0, density * factor) for name, factor in zip(_WIDTHS, (1.7, 0.8, 0.85), strict=True)}
    return TopologyReport(
        round=round, density=density, num_on=int(density * _NUM), total=3e5,
        log10_total=5.4 + 1.2 * math.log2(density / 0.02), tau=0.9,
        tau_core_size=int(30 + 200 * density) if round else None, tau_core_sizes=dict.fromkeys(_WIDTHS, 50),
        tau_core_ratios=ratios, mean_tau_core_ratio=0.25 + 0.4 * math.sqrt(density), num_dead=max(0, 9 - 2 * round),
        dead=dict.fromkeys(_WIDTHS, 0), num_isolated=0, num_hidden=384, layer_densities=ratios,
    )  # fmt: skip


def ledger(phases: list[PhaseReport]) -> LedgerReport:
    """The ledger of some phases, beside a dense training of 80 epochs."""
    total, dense = sum(phase.training_flops for phase in phases), 72_000 * _DENSE_FLOPS
    return LedgerReport(
        phases=tuple(phases), training_flops=total, dense_training_flops=dense, relative=total / dense,
        samples=sum(phase.samples for phase in phases), epochs_trained=sum(phase.epochs for phase in phases),
    )  # fmt: skip


def discovery_report() -> RunReport:
    """A 64-128-128-128-10 perceptron grown from 2% to 36%, probed five times; operating density 8.5%."""
    densities = [0.02 * 1.25**round for round in range(14)]
    rounds = [
        point(round, density, 10 + 2 * round, _score(density) - 0.09 * math.exp(-round / 2.5) - 0.008 + _noise(round))
        for round, density in enumerate(densities)
    ]
    probes = [
        point(round, densities[round], 80, _score(densities[round]) + _noise(round)) for round in (1, 4, 7, 9, 13)
    ]
    grid = tuple(0.02 * (0.4 / 0.02) ** (i / 40) for i in range(41))
    phases = [phase("seed", 10, 0.02)]
    phases += [phase(f"round-{round:03d}", 2, densities[round]) for round in range(1, 14)]
    phases += [phase(f"probe-{probe.round:03d}", 80, probe.density) for probe in probes]
    num_on = int(densities[7] * _NUM)
    return RunReport(
        command="discover",
        version="0.0.0-synthetic",
        config={
            "data": "digits", "model": "mlp", "model_options": {"widths": [128, 128, 128]},
            "recipe": {"lr": 0.1, "momentum": 0.9, "batch_size": 64}, "seed": 0, "budget": 80, "delta": 0.01,
            "reference": None,
        },
        method=MethodReport(name="gcg", needs=("paths",), cost="sparse", clock="round"),
        network=NetworkReport(
            density=densities[7], density_model=_of_model(densities[7]), num_on=num_on, num=_NUM,
            num_parameters=_NUM + _OTHER, round=7, epochs=80, final="fresh", inference_flops=2 * (num_on + 1280),
            dense_inference_flops=2 * (_NUM + 1280), val=Score(score=probes[2].score, loss=0.131),
            test=Score(score=0.9655, loss=0.142),
        ),
        curve=CurveReport(
            rounds=tuple(rounds),
            probes=tuple(probes),
            fit=FitReport(
                density=grid,
                score=tuple(_score(density) for density in grid),
                low=tuple(_score(density) - 0.003 - 0.0002 / density for density in grid),
                high=tuple(_score(density) + 0.003 + 0.0002 / density for density in grid),
                cautious=tuple(_score(density) - 0.001 - 0.0001 / density for density in grid),
            ),
        ),
        ledger=ledger(phases),
        answer=AnswerReport(
            operating_density=0.0848, interval=(0.0671, 0.1042), gain_density=0.1049, gain_interval=(0.081, 0.139),
            delta=0.01, allowed=0.01, status="found", rule="probe", reason="answer_probed",
            details={"at_density": densities[7], "quantile": 0.67, "median_density": 0.0803},
            reference=ReferenceReport(score=probes[-1].score, kind="densest", epochs=80),
        ),
        topology=tuple(_topology(round, density) for round, density in enumerate(densities)),
        masks_sha256="0" * 64,
        weights_sha256="1" * 64,
        timing=TimingReport(
            seconds=48.2, run_seconds=75.0,
            phases=tuple(PhaseTiming(phase=phase.phase, seconds=2.0) for phase in phases),
        ),
    )  # fmt: skip


def training_report(**changes: Any) -> RunReport:
    """A RigL training in which no two numbers are equal; `changes` replace config values."""
    config = {"data": "digits", "model": "mlp", "method": "rigl", "epochs": 40, "seed": 3, "match": "none", **changes}
    cost = 4_560_000_000
    return RunReport(
        command="train",
        version="0.0.0-synthetic",
        config=config,
        method=MethodReport(name=config["method"], density=0.1234, cost="sparse", clock="step"),
        network=NetworkReport(
            density=0.1234, density_model=0.2345, num_on=1_234, num=10_000, num_parameters=11_111, epochs=57,
            inference_flops=345, dense_inference_flops=1000, val=Score(score=0.9111, loss=0.3),
            test=Score(score=0.8222, loss=0.4),
        ),
        curve=CurveReport(
            rounds=(PointReport(round=0, density=0.1234, density_model=0.2345, epochs=57, score=0.9111, loss=0.3),)
        ),
        ledger=LedgerReport(
            phases=(PhaseReport(phase="training", epochs=57, samples=570, density=0.1234, training_flops=cost),),
            training_flops=cost, dense_training_flops=6_726_000_000, relative=0.678, samples=570, epochs_trained=57.0,
        ),
        masks_sha256="0" * 64,
        weights_sha256="1" * 64,
        timing=TimingReport(seconds=83.0, phases=(PhaseTiming(phase="training", seconds=83.0),), run_seconds=96.0),
    )  # fmt: skip


def short_probe_report() -> RunReport:
    """The discovery with probes of 16 epochs, one of them dense; a gap of 1.38 pp stands for 1 pp after 80 epochs."""
    report = discovery_report()
    answer, probes = report.answer, [dataclasses.replace(probe, epochs=16) for probe in report.curve.probes]
    assert answer is not None
    dense = dataclasses.replace(point(-1, 1.0, 16, 0.976), loss=0.08)
    details = {"probe_epochs": 16, "full_epochs": 80, "allowed_low": 0.011, "allowed_high": 0.0167}
    return dataclasses.replace(
        report,
        curve=dataclasses.replace(report.curve, probes=(*probes, dense)),
        ledger=ledger([*report.ledger.phases, phase("probe-dense", 16, 1.0)]),
        answer=dataclasses.replace(
            answer,
            reference=ReferenceReport(score=0.974, kind="densest", epochs=16),
            allowed=0.0138,
            details={**answer.details, **details},
        ),
    )


def shrunk_report(
    *,
    delta: float = 0.01,
    noise: float = 0.1,
    lowest: float = 0.015,
    reference: Reference | None = None,
    grown: int = 0,
) -> RunReport:
    """A network trained for 40 epochs, pruned in rounds and finished at 9.5%; the answer is that of the rule.

    `grown` rounds of growth up to 50% come before the training.
    """
    top = 0.5 if grown else 1.0
    rounds = [point(k, top * 0.5 ** (grown - 1 - k), 5 + k, 0.95 + 0.005 * k) for k in range(grown)]
    rounds += [point(grown, top, 20, 0.973), point(grown + 1, top, 40, 0.976)]
    pruned, density = list[PointReport](), 0.4 * top
    while density > lowest:
        number = grown + 2 + len(pruned)
        pruned.append(point(number, density, 44 + 4 * len(pruned), _score(density) + noise * _noise(number)))
        density *= 0.63
    finished = (point(grown + 2 + len(pruned), 0.02 * 1.25**7, 76, 0.969),)
    rough, probes, final = (
        tuple(
            Point(round=p.round, density=p.density, epochs=p.epochs, score=p.score, loss=p.loss)
            for p in points
        )
        for points in (rounds, pruned, finished)
    )  # fmt: skip
    curve = Curve(rough=rough, probes=probes, finished=final, reference=reference, num_val=5000, full_epochs=80)
    rule = ShrinkRule(delta=delta)
    answer, check, report = rule.answer(curve), rule.check(curve, final[0]), discovery_report()
    others = read_off(rule, curve, delta, is_accuracy=True)
    phases = [phase("train-1", 20, top), phase("train-2", 20, top)]
    phases += [phase(f"shrink-{number}", 4, p.density) for number, p in enumerate(pruned, 1)]
    phases += [phase("final-1", 20, finished[0].density)]
    return dataclasses.replace(
        report,
        config={**report.config, "delta": delta},
        method=MethodReport(name="gts", cost="sparse", clock="round"),
        network=dataclasses.replace(
            report.network, round=None, final=None, epochs=76, val=Score(score=finished[0].score, loss=0.1)
        ),
        curve=CurveReport(
            rounds=tuple(rounds), probes=tuple(reversed(pruned)), finished=finished, fit=report.curve.fit, num_val=5000
        ),
        ledger=ledger(phases),
        answer=AnswerReport(
            operating_density=answer.density,
            interval=answer.interval,
            delta=delta,
            allowed=delta,
            status=answer.status,
            rule=answer.rule,
            reason=answer.reason,
            details=answer.details,
            reference=None if answer.reference is None else ReferenceReport(**vars(answer.reference)),
            check=None if check is None else CheckReport(**vars(check)),
            tolerances=tuple((other.delta, other.density, other.status) for other in others),
            tolerance_intervals=tuple(other.interval for other in others),
        ),
        topology=(),
    )


def with_answer(report: RunReport, **changes: Any) -> RunReport:
    """The report with other values in its answer."""
    assert report.answer is not None
    return dataclasses.replace(report, answer=dataclasses.replace(report.answer, **changes))


def with_curve(report: RunReport, **changes: Any) -> RunReport:
    """The report with other values in its curve."""
    return dataclasses.replace(report, curve=dataclasses.replace(report.curve, **changes))
