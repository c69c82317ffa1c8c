"""Reports of runs: the schema, and what shows them on a terminal, as a figure, as a page and in comparisons.

Names are imported on first use: a run that only shows its progress needs neither matplotlib nor jinja2.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathgrow.report.figure import curve_png
    from pathgrow.report.html import page, write_all
    from pathgrow.report.terminal import print_run, summary

__all__ = ["curve_png", "page", "print_run", "summary", "write_all"]
_MODULES = {"curve_png": "figure", "page": "html", "write_all": "html", "print_run": "terminal", "summary": "terminal"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
