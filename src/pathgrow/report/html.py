"""The report as one HTML page that opens from disk without network access or scripts.

Jinja2 escapes every value, and the content security policy of the page forbids scripts, so names in a config are text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pathgrow import atomic
from pathgrow.report import formats, tables, text
from pathgrow.report.figure import curve_png, curve_svg, topology_svg
from pathgrow.report.load import load_finished
from pathgrow.report.schema import RunReport, flat_config


def page(report: RunReport) -> str:
    """The page as text."""
    templates = Environment(
        loader=PackageLoader("pathgrow.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style = templates.get_template("report.css").render()
    has_points = report.curve.rounds or report.curve.probes
    return templates.get_template("report.html.j2").render(
        report=report,
        text=text,
        tables=tables,
        formats=formats,
        score_name=formats.score_format(report).name,
        config={formats.printable(key): formats.printable(value) for key, value in flat_config(report.config).items()},
        # The figures and the style sheet are made here; ElementTree has escaped the text of the figures.
        curve=Markup(curve_svg(report)) if has_points else None,
        topology=Markup(svg) if (svg := topology_svg(report)) is not None else None,
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def write_all(path: str | os.PathLike[str]) -> list[Path]:
    """Write curve.png and report.html into the directory of a finished run; return their paths."""
    report = load_finished(path)
    png, html = Path(path) / "curve.png", Path(path) / "report.html"
    atomic.write_bytes(png, curve_png(report))
    atomic.write_text(html, page(report))
    return [png, html]
