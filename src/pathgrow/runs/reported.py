"""`pathgrow.discover`: the loop, and when it is over its report in the folder of its stages.

The loop itself knows no reports: pictures and pages are made of what it found, by whoever called it.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec

from pathgrow import report
from pathgrow.checkpoint import RunDir
from pathgrow.errors import RunFailed, UserError
from pathgrow.runs import discovery
from pathgrow.runs.result import Discovery
from pathgrow.sparse.partial import clear_partials

_Arguments = ParamSpec("_Arguments")
PICTURES = ("curve.png", "report.html")


def write_findings(folder: RunDir, found: Discovery, told: dict[str, Any]) -> None:
    """Write curve.csv and then, last of all, what is told of a discovery as report.json."""
    clear_partials(folder)
    observed = [("rough", found.rounds), ("probe", found.probes)]
    folder.write_curve([{"kind": kind, **record.row()} for kind, records in observed for record in records])
    told["timing"]["run_seconds"] = folder.seconds
    folder.write_report(told)


def draw(folder: RunDir) -> None:
    """Draw the pictures of a finished discovery, unless they are there."""
    if not all((folder.path / name).exists() for name in PICTURES):
        report.write_all(folder.path)


def leave_report(found: Discovery) -> None:
    """Write the report of a discovery into the folder it was given as a store; without a folder nothing is written."""
    options, comm = found.site.options, found.site.comm
    if not isinstance(options.store, str | os.PathLike):
        return

    def write() -> None:
        assert folder is not None
        if not folder.finished:
            write_findings(folder, found, found.report())
        draw(folder)

    try:
        with options.opened_folder(options.store, found.site.seed) as folder:
            comm.on_rank0(write)
    except (UserError, RunFailed, OSError) as error:
        # What took hours is not lost for a page.
        warnings.warn(f"the discovery is over, but its report could not be written: {error}", stacklevel=3)


def _reporting(discover: Callable[_Arguments, Discovery]) -> Callable[_Arguments, Discovery]:
    @functools.wraps(discover)
    def reporting(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Discovery:
        found = discover(*args, **kwargs)
        leave_report(found)
        return found

    return reporting


discover = _reporting(discovery.discover)
