"""Runs read back from their directories: the report of a finished one, the progress of an unfinished one."""

import os
from dataclasses import dataclass
from pathlib import Path

from pathgrow.checkpoint import RunDir
from pathgrow.checkpoint.manifest import check_hash
from pathgrow.errors import UserError
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


def load_run(path: str | os.PathLike[str], *, is_brief: bool = False) -> RunReport | Unfinished:
    """Return the report of a run, or its progress if it is unfinished; any other directory is a `UserError`."""
    run_dir = RunDir(path)
    if run_dir.finished:
        values = run_dir.report()
        if is_brief and isinstance(values.get("curve"), dict):
            values |= {"topology": [], "curve": values["curve"] | {"fit": None}}
        return load_report(values, str(run_dir.path / "report.json"))
    if run_dir.config is None:
        if not run_dir.path.is_dir():
            raise UserError(f"{run_dir.path} is not a directory (expected a run directory, see --out)")
        raise UserError(f"{run_dir.path} is not a run directory: it has no config.json")
    return unfinished(run_dir)


def load_finished(path: str | os.PathLike[str], *, is_brief: bool = False) -> RunReport:
    """Return the report of a finished run; an unfinished one, or one that does not match its hash, is a `UserError`.

    A brief report lacks the topology and the fitted curve, and loads in a third of the time.
    """
    found = load_run(path, is_brief=is_brief)
    if isinstance(found, Unfinished):
        raise UserError(f"{os.fspath(path)} is unfinished (stages done: {len(found.results)}); rerun it to resume")
    check_hash(Path(path), "report.json")
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
