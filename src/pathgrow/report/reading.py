"""What a run folder says: a finished report, checked; or how far an unfinished run has come."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.wanted import DISCOVERY, TRAINING

FORMAT = 1


@dataclass(frozen=True)
class Unfinished:
    """A run that has not come to its end."""

    stages: tuple[str, ...]
    """All that is stored, oldest first: what stages observed, and what is only kept to go on from."""
    current: str | None
    """The stage it is in, as far as its metrics tell."""
    worker: str | None
    """The process that works on it now."""
    points: tuple[dict[str, Any], ...]
    """What the finished stages observed: rows with stage, round, density and score."""
    is_store: bool = False
    """Whether it was kept by a call of `discover`."""


def read(path: str | os.PathLike[str]) -> dict[str, Any] | Unfinished:
    """The report of a finished run, or how far an unfinished one is; a folder that holds no run is a `UserError`."""
    folder = RunDir(path)
    if not folder.path.is_dir():
        raise UserError(f"{folder.path} is no folder: give the folder of a run, the one named by --out")
    if folder.finished:
        return checked(folder.report(), str(folder.path / "report.json"))
    if folder.config is None:
        raise UserError(f"{folder.path} holds no run (no config.json): give the folder named by --out")
    return progress_of(folder)


def read_finished(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The report of a finished run; an unfinished one is a `UserError`."""
    found = read(path)
    if isinstance(found, Unfinished):
        raise UserError(
            f"{os.fspath(path)} holds an unfinished run: give its command again to finish it, then report it"
        )
    return found


def is_training(report: Mapping[str, Any]) -> bool:
    """Whether a report is of one training at a chosen density, and not of a discovery."""
    return report.get("kind") == "train"


def checked(report: dict[str, Any], where: str) -> dict[str, Any]:
    """The report itself, if everything that is shown is in it and of the kind that it has to be."""
    if "format" not in report:
        raise UserError(f"{where} names no format, so it is no report of pathgrow: restore it, or run again")
    if report["format"] != FORMAT:
        writer = f" ({report['pathgrow']})" if report.get("pathgrow") else ""
        raise UserError(
            f"{where} has format {report['format']!r}, wanted {FORMAT}: show it with the version of pathgrow "
            f"that wrote it{writer}"
        )
    wanted = TRAINING if is_training(report) else DISCOVERY
    if (fault := wanted(report, "")) is not None:
        raise UserError(f"{where} {fault}: it is damaged; restore it, or run again")
    return report


def progress_of(folder: RunDir) -> Unfinished:
    """How far the run in a folder has come."""
    stages = tuple(folder.stages)
    begun = [str(row["stage"]) for row in folder.metrics]
    points = []
    for stage in stages:
        metadata = folder.metadata(stage) or {}
        if isinstance(metadata.get("score"), float) and isinstance(metadata.get("density"), float):
            points.append({"stage": stage, **{key: metadata.get(key) for key in ("round", "density", "score")}})
    return Unfinished(
        stages=stages,
        current=begun[-1] if begun and begun[-1] not in stages else None,
        worker=folder.worker,
        points=tuple(points),
        is_store=folder.is_store,
    )
