"""Tables of a report as headings and rows of text, for the page and the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pathgrow.report.formats import duration, flops, percent, printable, score_format, stage_label
from pathgrow.report.schema import PhaseReport, PointReport, RunReport

Cells = tuple[list[str], list[list[str]]]
"""Headings and rows."""

_MEASURES = {
    "log10_total": "path weight (log10)",
    "tau_core_size": "tau-core (units)",
    "mean_tau_core_ratio": "mean tau-core ratio of layers",
    "num_dead": "dead units",
    "num_isolated": "isolated units",
}
"""Topology measures that are shown per round, and their names."""


def cost_by_kind(report: RunReport) -> Cells:
    """The ledger, summed over phases of one kind."""
    kinds: dict[str, list[PhaseReport]] = {}
    for phase in report.ledger.phases:
        kinds.setdefault(re.sub(r"[-_ ]*\d+$", "", phase.phase), []).append(phase)
    kinds["total"] = list(report.ledger.phases)
    rows = [[stage_label(kind), str(len(phases)), *_cost(report, phases)] for kind, phases in kinds.items()]
    return ["phase", "count", "epochs", "samples", "compute", "vs dense training", "time"], rows


def cost_by_phase(report: RunReport) -> Cells:
    """The ledger, phase by phase."""
    rows = [
        [stage_label(phase.phase, phase.density), percent(phase.density), *_cost(report, [phase])]
        for phase in report.ledger.phases
    ]
    return ["phase", "density", "epochs", "samples", "compute", "vs dense training", "time"], rows


def _cost(report: RunReport, phases: Sequence[PhaseReport]) -> list[str]:
    names = {phase.phase for phase in phases}
    seconds = sum(phase.seconds for phase in report.timing.phases if phase.phase in names)
    cost, dense = sum(phase.training_flops for phase in phases), report.ledger.dense_training_flops
    return [
        f"{sum(phase.epochs for phase in phases):,}",
        f"{sum(phase.samples for phase in phases):,}",
        flops(cost),
        f"{100 * cost / dense:.1f}%" if dense else "-",
        duration(seconds) if seconds else "-",
    ]


def rounds(report: RunReport) -> Cells:
    """The growing network after each round beside the probe of its mask; the dense network, if any, comes last."""
    scores = score_format(report)
    probes = {point.round: point for point in report.curve.probes}
    rows = []
    for point in report.curve.rounds:
        probe = probes.get(point.round)
        rows.append([
            str(point.round), percent(point.density), _of_model(point), str(point.epochs), scores(point.score),
            "-" if point.loss is None else f"{point.loss:.3f}",
            *(["", ""] if probe is None else [scores(probe.score), str(probe.epochs)]),
        ])  # fmt: skip
    if dense := _dense(report):
        rows.append(["dense", "100%", "100%", "", "", "", scores(dense[0]), "" if dense[1] is None else str(dense[1])])
    headings = ["round", "density", "of model", "epochs", scores.name, "loss", "probe", "epochs"]
    if report.curve.probes or dense:
        return headings, rows
    return headings[:-2], [row[:-2] for row in rows]


def _of_model(point: PointReport) -> str:
    return "-" if point.density_model is None else percent(point.density_model)


def _dense(report: RunReport) -> tuple[float, int | None] | None:
    """Score and epochs of the dense network of this run, if one was trained."""
    probe = next((point for point in report.curve.probes if point.is_dense), None)
    if probe is not None:
        return probe.score, probe.epochs
    if report.answer is None or report.answer.dense is None:
        return None
    return report.answer.dense.score, None if report.reference is None else report.reference.epochs


def layer_densities(report: RunReport) -> list[tuple[str, float]]:
    """Densities of the layers of the returned model, if the topology of its round was recorded."""
    found = next((row for row in report.topology if row.round == report.network.round), None)
    return [] if found is None else [(printable(name), value) for name, value in found.layer_densities.items()]


def topology_series(report: RunReport) -> list[tuple[str, list[float]]]:
    """Topology measures over the rounds, where they were recorded at least twice."""
    series = {
        label: [value for row in report.topology if (value := getattr(row, name)) is not None]
        for name, label in _MEASURES.items()
    }
    return [(label, values) for label, values in series.items() if len(values) > 1]
