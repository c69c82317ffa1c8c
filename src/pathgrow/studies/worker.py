"""A worker: take the next free cell of a study, run it, repeat. Any number of workers may share a directory.

The lock of a run directory makes sure that a cell has one owner; a cell whose owner died is free again and resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from pathgrow import atomic
from pathgrow.checkpoint import strict_json
from pathgrow.checkpoint.run_dir import RunDir, RunInUse
from pathgrow.errors import OUT_OF_MEMORY, RunFailed, UserError, printable
from pathgrow.runs.config import DiscoverConfig, TrainConfig
from pathgrow.runs.discovery import run_discovery
from pathgrow.runs.training import train
from pathgrow.studies.definition import Cell

State = Literal["finished", "failed", "busy", "blocked", "free"]
Ending = Literal["done", "out of memory", "orphaned"]
MAX_ATTEMPTS = 5
"""Attempts after which a cell whose workers keep dying counts as failed."""
_FOLDER = ".study"
_IDLE_SECONDS = 0.5
"""How long a worker waits if all remaining cells are being worked on."""


def work(out: Path, cells: Sequence[Cell], *, is_alone: bool = False, num_threads: int | None = None) -> Ending:
    """Run cells until each is finished or has failed, here or in another worker.

    A worker that runs out of memory returns, so that fewer run at once; if it `is_alone`, the cell has failed.
    """
    if num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # the default number of threads of a run follows from it
    warnings.simplefilter("ignore")  # reports keep them
    remaining = list(cells)
    while remaining:
        states = ((cell, state(out, cell)) for cell in list(remaining))
        for cell, found in states:
            if found == "free" and (attempt := _run(out, cell, is_alone)) != "taken":
                if attempt == "out of memory":
                    return "out of memory"
                break  # others may have become free or finished meanwhile
            if found in ("finished", "failed"):
                remaining.remove(cell)
        else:
            time.sleep(_IDLE_SECONDS if remaining else 0)
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            return "orphaned"
    return "done"


def state(out: Path, cell: Cell) -> State:
    """What can be done about a cell now."""
    if is_finished(out, cell):
        return "finished"
    if failure(out, cell) is not None:
        return "failed"
    if cell.needs is not None and not RunDir(out / cell.needs).finished:
        if not _file(out, cell.needs, "failed").exists():
            return "blocked"
        _fail(out, cell, f"it needs {cell.needs}, which failed")
        return "failed"
    if RunDir(out / cell.name).worker is not None:
        return "busy"
    if _num_attempts(out, cell) >= MAX_ATTEMPTS:
        _fail(out, cell, f"its worker died {MAX_ATTEMPTS} times")
        return "failed"
    return "free"


def is_finished(out: Path, cell: Cell) -> bool:
    """Whether nothing is left to do: not even the manifest, before which a worker may have been killed."""
    run_dir = RunDir(out / cell.name)
    # Where it cannot be written, the result counts without it.
    return run_dir.finished and (run_dir.has_manifest or _num_attempts(out, cell) >= MAX_ATTEMPTS)


def failure(out: Path, cell: Cell) -> str | None:
    """Why a cell failed; None if it did not."""
    try:
        return printable(atomic.read_bytes(_file(out, cell.name, "failed")).decode(errors="replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise strict_json.unreadable(_file(out, cell.name, "failed"), error) from error


def failed_names(out: Path) -> set[str]:
    """The names of the cells that have a `failure`."""
    return {path.stem for path in (out / _FOLDER).glob("*.failed")}


def forget_failures(out: Path, cells: Sequence[Cell]) -> None:
    """Allow cells that failed before to be tried again."""
    out.mkdir(parents=True, exist_ok=True)
    atomic.make_folder(out / _FOLDER)  # not if it is a link, to a directory whose files would be removed
    for cell in cells:
        for kind in ("failed", "attempts"):
            _file(out, cell.name, kind).unlink(missing_ok=True)


def _run(out: Path, cell: Cell, is_alone: bool) -> str | None:
    """Run a cell, or return "taken" if another worker was faster: only the one that runs it counts an attempt.

    The directory of the run is locked seconds later, when data and model are loaded.
    """
    try:
        with FileLock(_file(out, cell.name, "claim"), timeout=0):
            return _attempt(out, cell, is_alone)
    except Timeout:
        return "taken"
    except OSError as error:  # a link or a directory in place of one of the files: the other cells can run
        _fail(out, cell, f"cannot access {error.filename} ({error.strerror or error})")
        return None


def _attempt(out: Path, cell: Cell, is_alone: bool) -> str | None:
    attempts = _file(out, cell.name, "attempts")
    with open(attempts, "ab", opener=atomic.plain) as file:
        file.write(b".")
    try:
        config = cell.config(out)
        if isinstance(config, TrainConfig):
            train(config, out / cell.name)
        elif isinstance(config, DiscoverConfig):
            run_discovery(config, out / cell.name)
    except RunInUse:
        _forget_attempt(out, cell)
    except KeyboardInterrupt:  # a signal to this worker, not a fault of the cell
        _forget_attempt(out, cell)
        raise
    except (UserError, RunFailed, OSError) as error:
        _fail(out, cell, str(error))
    except Exception as error:  # a fault of one cell must not stop the others
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            if not is_alone:
                return "out of memory"
            _fail(out, cell, f"out of memory ({str(error).partition(chr(10))[0] or 'MemoryError'})")
        else:
            _fail(out, cell, f"{type(error).__name__}: {error}")
    else:
        if RunDir(out / cell.name).has_manifest:  # otherwise it could not be written
            attempts.unlink(missing_ok=True)
    return None


def _num_attempts(out: Path, cell: Cell) -> int:
    try:
        return _file(out, cell.name, "attempts").stat().st_size
    except FileNotFoundError:
        return 0


def _forget_attempt(out: Path, cell: Cell) -> None:
    os.truncate(_file(out, cell.name, "attempts"), max(0, _num_attempts(out, cell) - 1))


def _fail(out: Path, cell: Cell, reason: str) -> None:
    atomic.write_text(_file(out, cell.name, "failed"), reason)


def _file(out: Path, name: str, kind: str) -> Path:
    return out / _FOLDER / f"{name}.{kind}"
