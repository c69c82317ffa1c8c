"""Run folders as people see them: terminal, PNG, page, live progress. Reads folders, never trains.

Names are imported when they are used: matplotlib and jinja2 have no part in a run that only shows its progress.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathgrow.report.figure import curve_png
    from pathgrow.report.html import page, write_all
    from pathgrow.report.terminal import show, summary

__all__ = ["curve_png", "page", "show", "summary", "write_all"]
_HOMES = {"curve_png": "figure", "page": "html", "write_all": "html", "show": "terminal", "summary": "terminal"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
