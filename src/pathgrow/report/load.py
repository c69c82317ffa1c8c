"""Reading a run directory: the report of a finished run, or the progress of an unfinished one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.formats import plural
from pathgrow.report.schema import RunReport, load_report


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The network that a finished stage evaluated."""

    stage: str
    density: float
    score: float


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A run without a report."""

    current: str | None
    """The stage that was started last and has not finished."""
    worker: str | None
    """The process that works on it now."""
    results: tuple[StageResult, ...]
    """Networks evaluated so far, oldest first."""
    is_store: bool = False
    """Whether it belongs to a call of `discover` rather than to a command."""


def load_run(path: str | os.PathLike[str]) -> RunReport | Unfinished:
    """Return the report of a run, or its progress if it is unfinished; any other directory is a `UserError`."""
    run_dir = RunDir(path)
    if not run_dir.path.is_dir():
        raise UserError(f"{run_dir.path} is not a directory (expected a run directory, see --out)")
    if run_dir.finished:
        return load_report(run_dir.report(), str(run_dir.path / "report.json"))
    if run_dir.config is None:
        raise UserError(f"{run_dir.path} is not a run directory: it has no config.json")
    return unfinished(run_dir)


def load_finished(path: str | os.PathLike[str]) -> RunReport:
    """Return the report of a finished run; an unfinished one is a `UserError`."""
    found = load_run(path)
    if isinstance(found, Unfinished):
        raise UserError(
            f"{os.fspath(path)} is unfinished ({plural(len(found.results), 'stage')} done); rerun it to resume"
        )
    return found


def unfinished(run_dir: RunDir) -> Unfinished:
    """Return the progress of a run directory."""
    stages = run_dir.stages.names()
    started = [str(row["stage"]) for row in run_dir.metrics]
    results = []
    for stage in stages:
        metadata = run_dir.stages.metadata(stage) or {}
        density, score = metadata.get("density"), metadata.get("score")
        if isinstance(density, float) and isinstance(score, float):
            results.append(StageResult(stage=stage, density=density, score=score))
    return Unfinished(
        current=started[-1] if started and started[-1] not in stages else None,
        worker=run_dir.worker,
        results=tuple(results),
        is_store=run_dir.is_store,
    )
