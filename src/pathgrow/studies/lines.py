"""What the cells of a study say, one line of JSON each: their place in the grid with metrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pathgrow.checkpoint import RunDir, strict_json
from pathgrow.report.formats import score_format
from pathgrow.report.loading import load_finished
from pathgrow.report.schema import RunReport
from pathgrow.runs.records import Record, topology_reports
from pathgrow.studies.definition import Cell, Points, Study

_Point = Mapping[str, Any]


def load_lines(study: Study, scale: str | None, out: Path) -> list[dict[str, Any]]:
    """Return what each finished cell says: the study, the name of the cell, and its points.

    Levels of iterative pruning and the topology of growth rounds count as soon as they are stored; line and points are
    then marked as `unfinished`.
    """
    lines = []
    for cell in study.cells(scale):
        run_dir = RunDir(out / cell.name)
        if found := _finished(cell, run_dir) if run_dir.finished else _unfinished(cell, run_dir):
            environment, hardware = run_dir.environment, found.pop("hardware")
            line = {
                "study": study.name, "scale": scale or next(iter(study.scale), None), "cell": cell.name, **found,
                "commit": environment.get("commit"), "hardware": hardware, "torch": environment.get("torch"),
            }  # fmt: skip
            lines.append(strict_json.nulled(line))
    return lines


def _finished(cell: Cell, run_dir: RunDir) -> dict[str, Any]:
    report = load_finished(run_dir.path)
    return {
        "epochs": report.epochs, "is_fraction": score_format(report).is_fraction, "points": points_of(cell, report),
        "version": report.version, "hardware": report.hardware(run_dir.environment),
    }  # fmt: skip


def _unfinished(cell: Cell, run_dir: RunDir) -> dict[str, Any] | None:
    """The levels of iterative pruning that are stored, or the topology of growth rounds; None if there are none yet."""
    config = run_dir.config if cell.command == "train" else None
    stored = _STORED.get(cell.points)
    if config is None or stored is None or not (points := list(stored(run_dir))):
        return None
    place, environment = {name: config[name] for name in ("method", "data", "model")}, run_dir.environment
    return {
        "unfinished": True, "epochs": config["epochs"], "is_fraction": config.get("mode", "max") == "max",
        "points": [{**place, **cell.axes, **point, "unfinished": True} for point in points],
        "version": environment.get("pathgrow"),
        "hardware": environment.get("device_name") or environment.get("device"),
    }  # fmt: skip


def _stored_levels(run_dir: RunDir) -> Iterator[_Point]:
    if not (levels := _records(run_dir, (f"level-{number}" for number in itertools.count(1)))):
        return iter(())
    first = levels[0]
    # The first level is a whole training, and dense unless the method starts sparse.
    dense = first.training_flops if first.point.density == 1 else None
    epochs = first.num_epochs / first.num_samples
    return _cumulative(((each.point, each.flops, each.seconds, each.num_samples * epochs) for each in levels), dense)


def _stored_topology(run_dir: RunDir) -> Iterator[_Point]:
    rounds = _records(run_dir, itertools.chain(["seed"], (f"round-{number:03d}" for number in itertools.count(1))))
    return (vars(row) for row in topology_reports(rounds))


def _records(run_dir: RunDir, stages: Iterable[str]) -> list[Record]:
    """The records of stages up to the first that is not stored."""
    found = itertools.takewhile(lambda pair: pair[1] is not None, ((s, run_dir.stages.metadata(s)) for s in stages))
    return [Record.from_metadata(stage, metadata or {}) for stage, metadata in found]


_STORED: dict[Points, Callable[[RunDir], Iterator[_Point]]] = {"rounds": _stored_levels, "topology": _stored_topology}
"""What is read from unfinished runs, by what a cell contributes."""


def points_of(cell: Cell, report: RunReport) -> list[_Point]:
    """The points that a finished cell contributes: its place in the grid with metrics."""
    place = {"method": report.method.name, "data": report.dataset, "model": report.model, **cell.axes}
    network, ledger = report.network, report.ledger
    test = {} if network.test is None else {"test": network.test.score, "test_loss": network.test.loss}
    whole = {
        "density": network.density, "val": network.val.score, "val_loss": network.val.loss, **test,
        "epochs": ledger.total_epochs, "flops": ledger.relative, "seconds": report.timing.seconds,
    }  # fmt: skip
    if cell.points == "rounds":
        return [{**place, **point} for point in _rounds(report)]
    if cell.points == "topology":
        return [{**place, **vars(row)} for row in report.topology]
    if cell.points == "answer" and report.answer is not None:
        low, high = report.answer.interval or (None, None)
        answer = {"answer": report.answer.operating_density, "low": low, "high": high, "delta": report.answer.delta}
        return [{**place, **whole, **answer}]
    grown = [point.score for point in report.curve.rounds[:-1] if point.density == network.density]
    return [{**whole, **({"val_rough": grown[-1]} if grown else {}), **place}]


def _rounds(report: RunReport) -> Iterator[_Point]:
    """The network after each level or round; only the last one was tested."""
    times = {phase.phase: phase.seconds for phase in report.timing.phases}
    return _cumulative(
        (
            (point, phase.training_flops, times.get(phase.phase, 0.0), phase.epochs_trained or phase.epochs)
            for point, phase in zip(report.curve.rounds, report.ledger.phases, strict=False)
        ),
        report.ledger.dense_training_flops,
    )


def _cumulative(rounds: Iterable[tuple[Any, int, float, float]], dense: int | None) -> Iterator[_Point]:
    """Networks, given with FLOPs, seconds and epochs of their own, with those of everything up to them."""
    spent, seconds, epochs = 0, 0.0, 0.0
    for point, own_flops, own_seconds, own_epochs in rounds:
        spent, seconds, epochs = spent + own_flops, seconds + own_seconds, epochs + own_epochs
        cost = {"flops": spent / dense if dense else None, "seconds": seconds, "epochs": epochs}
        yield {"density": point.density, "val": point.score, "val_loss": point.loss, **cost}
