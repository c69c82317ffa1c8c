"""The report as one page that opens from disk, loads nothing and runs nothing.

Every value goes through the template's escaping, and the page's own policy forbids scripts, so whatever a config
contains stays text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pathgrow import atomic
from pathgrow.report import story, wording
from pathgrow.report.figure import curve_png
from pathgrow.report.picture import Picture, Spark
from pathgrow.report.reading import read_finished


def page(report: dict[str, Any]) -> str:
    """The whole page as text."""
    templates = Environment(
        loader=PackageLoader("pathgrow.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style = templates.get_template("report.css").render()
    curve = report["curve"]
    return templates.get_template("report.html.j2").render(
        report=report,
        subject=wording.subject(report),
        headline=wording.headline(report),
        findings=wording.findings(report),
        score_name=wording.Scores.of(report).name,
        cautious_line=wording.CAUTIOUS_LINE,
        trained_copies=wording.trained_copies(report),
        paragraphs=story.paragraphs(report),
        explanation=wording.explanation(report),
        picture=Picture.of(report) if curve["rough"] or curve["probes"] else None,
        cost_by_kind=story.cost_by_kind(report),
        cost_by_phase=story.cost_by_phase(report),
        rounds=story.rounds(report),
        chosen_round=str(report["network"].get("round")),
        layers=story.layer_densities(report),
        percent=wording.percent,
        sparks=[Spark.of(name, values) for name, values in story.topology_series(report)],
        config=story.config_rows(report.get("config") or {}),
        # The style sheet is our own file, and the policy below admits exactly these bytes.
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def write_all(path: str | os.PathLike[str]) -> list[Path]:
    """Write curve.png and report.html into the folder of a finished run; returns their paths."""
    report = read_finished(path)
    picture, text = Path(path) / "curve.png", Path(path) / "report.html"
    atomic.write_bytes(picture, curve_png(report))
    atomic.write_text(text, page(report))
    return [picture, text]
