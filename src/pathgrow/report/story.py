"""How an answer was found, what it cost and what was built, as paragraphs and tables for the page."""

from __future__ import annotations

import json
import re
from typing import Any

from pathgrow.report.wording import (
    DENSE,
    Scores,
    asked_for,
    count,
    counted,
    dense_row,
    duration,
    explanation,
    percent,
    percent_column,
    printable,
)

Table = tuple[list[str], list[list[str]]]
"""Headings and rows."""

_SERIES = {
    "log10_total": "path weight (log10)",
    "tau_core_size": "tau-core (units)",
    "mean_tau_core_ratio": "mean tau-core ratio of layers",
    "num_dead": "dead units",
    "num_isolated": "isolated units",
}
"""What is shown of the topology round by round, and how it is called."""


def paragraphs(report: dict[str, Any]) -> list[str]:
    """The run told in the order it happened."""
    curve, answer = report["curve"], report["answer"]
    told = []
    if rough := curve["rough"]:
        planted = (
            f"A network of {percent(rough[0]['density'])} of the switchable weights was planted and trained for "
            f"{counted(rough[0]['epochs'], 'epoch')}."
        )
        grown = (
            f"It then grew in {counted(len(rough) - 1, 'round')} to {percent(rough[-1]['density'])}, with a little "
            "training after each. Such scores keep rising with training alone, so they steer the growth but do not "
            "give the answer."
        )
        told.append(f"{planted} {grown}" if len(rough) > 1 else f"{planted} It did not grow.")
    if probes := curve["probes"]:
        told.append(f"{_copies(probes)}{'' if answer['status'] == 'unlearned' else ' The answer is read from these.'}")
    reason = printable(answer["reason"] or "").rstrip(".")
    if asked_for(report) is None and answer["status"] != "unlearned" and not _is_told(reason, explanation(report)):
        told.append(f"Growth ended because {reason}.")
    return told


def _is_told(reason: str, lines: list[str]) -> bool:
    """Whether the reason to stop is among the words of the answer; some rules give both together to the loop."""
    endings = [line.removeprefix("Stopped: ").rstrip(".") for line in lines if line.startswith("Stopped: ")]
    return any(reason in line for line in lines) or any(reason.startswith(ending) for ending in endings)


def _copies(probes: list[dict[str, Any]]) -> str:
    """Which copies were trained out, and for how long."""
    epochs = sorted({row["epochs"] for row in probes})
    length = f"{epochs[0]} to {epochs[-1]} epochs" if len(epochs) > 1 else counted(epochs[0], "epoch")
    grown = [row["density"] for row in probes if row["round"] != DENSE]
    if not grown:
        return f"A dense copy was trained for {length}."
    taken = (
        f"{len(grown)} {'copy was' if len(grown) == 1 else 'copies were'} taken along the way, at densities from "
        f"{percent(min(grown))} to {percent(max(grown))}, and trained out to {length} each"
    )
    return f"{taken}." if len(grown) == len(probes) else f"{taken}; one more of the same length was dense."


def cost_by_kind(report: dict[str, Any]) -> Table:
    """The ledger, phases of one kind together."""
    ledger, timing = report["ledger"], _seconds(report)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for phase in ledger["phases"]:
        kinds.setdefault(re.sub(r"[-_ ]*\d+$", "", printable(phase["phase"])), []).append(phase)
    rows = [[kind, str(len(phases)), *_cost(phases, ledger, timing)] for kind, phases in kinds.items()]
    rows.append(["all", str(len(ledger["phases"])), *_cost(ledger["phases"], ledger, timing)])
    return ["kind", "phases", "epochs", "samples", "FLOPs", "of dense training", "time"], rows


def cost_by_phase(report: dict[str, Any]) -> Table:
    """The ledger, phase by phase."""
    ledger, timing = report["ledger"], _seconds(report)
    rows = [
        [printable(phase["phase"]), percent_column(phase["density"]), *_cost([phase], ledger, timing)]
        for phase in ledger["phases"]
    ]
    return ["phase", "density", "epochs", "samples", "FLOPs", "of dense training", "time"], rows


def rounds(report: dict[str, Any]) -> Table:
    """The trunk round by round, and the copies trained out; the dense one, which is of no round, comes last."""
    scores = Scores.of(report)
    probes = {row["round"]: row for row in report["curve"]["probes"]}
    rows = []
    for row in report["curve"]["rough"]:
        probe = probes.get(row["round"])
        rows.append(
            [
                str(row["round"]),
                percent_column(row["density"]),
                percent_column(row["density_model"]),
                str(row["epochs"]),
                scores(row["score"]),
                "-" if row.get("loss") is None else f"{row['loss']:.3f}",
                scores(probe["score"]) if probe else "",
                str(probe["epochs"]) if probe else "",
            ]
        )
    if dense := dense_row(report):
        of_dense = [percent_column(dense["density"]), percent_column(dense["density_model"])]
        rows.append(["dense", *of_dense, "", "", "", scores(dense["score"]), str(dense["epochs"] or "")])
    return ["round", "density", "of model", "epochs", scores.name, "loss", "trained out", "epochs"], rows


def layer_densities(report: dict[str, Any]) -> list[tuple[str, float]]:
    """Densities of the layers of the network handed back, if the topology of its round was recorded."""
    at = report["network"].get("round")
    rows: list[dict[str, Any]] = report.get("topology") or []
    found = next((row.get("layer_densities") for row in rows if row.get("round") == at), None)
    if not isinstance(found, dict):
        return []
    return [(printable(name), float(value)) for name, value in found.items() if isinstance(value, int | float)]


def topology_series(report: dict[str, Any]) -> list[tuple[str, list[float]]]:
    """The topology over the rounds, one series a measure; rounds in which it was not taken are left out."""
    rows = report.get("topology") or []
    found = {label: [row[name] for row in rows if row.get(name) is not None] for name, label in _SERIES.items()}
    return [(label, values) for label, values in found.items() if len(values) > 1]


def config_rows(config: Any, key: str = "") -> list[tuple[str, str]]:
    """A config as flat pairs of a dotted key and a value.

    >>> config_rows({"model": {"name": "mlp", "widths": [64, 10]}, "seed": 0})
    [('model.name', 'mlp'), ('model.widths', '[64, 10]'), ('seed', '0')]
    """
    if isinstance(config, dict) and config:
        inside = [config_rows(value, f"{key}.{name}" if key else str(name)) for name, value in config.items()]
        return [pair for pairs in inside for pair in pairs]
    return [(printable(key), printable(config if isinstance(config, str) else json.dumps(config)))] if key else []


def _cost(phases: list[dict[str, Any]], ledger: dict[str, Any], seconds: dict[str, float]) -> list[str]:
    flops = sum(phase["training_flops"] for phase in phases)
    dense = ledger.get("dense_training_flops")
    time = sum(seconds.get(phase["phase"], 0.0) for phase in phases)
    return [
        f"{sum(phase['epochs'] for phase in phases):,}",
        f"{sum(phase['samples'] for phase in phases):,}",
        count(flops),
        f"{100 * flops / dense:.1f}%" if dense else "-",
        duration(time) if time else "-",
    ]


def _seconds(report: dict[str, Any]) -> dict[str, float]:
    return {row["phase"]: row["seconds"] for row in (report.get("timing") or {}).get("phases", [])}
