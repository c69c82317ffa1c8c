"""The report as one HTML page that opens from disk without network access or scripts.

Jinja2 escapes every value, and the content security policy of the page forbids scripts, so names in a config are text.
"""

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pathgrow import atomic
from pathgrow.errors import printable
from pathgrow.report import networks, text
from pathgrow.report.figure import curve_png, curve_svg, topology_svg
from pathgrow.report.formats import duration, flops, percent, plural, ratio, score_format, stage_label
from pathgrow.report.loading import load_finished
from pathgrow.report.networks import Table
from pathgrow.report.schema import PhaseReport, RunReport, flat_config


def page(report: RunReport) -> str:
    """The page as text."""
    templates = Environment(
        loader=PackageLoader("pathgrow.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style = files("pathgrow.report").joinpath("templates", "report.css").read_text(encoding="utf-8").rstrip()
    has_points = report.curve.rounds or report.curve.probes
    return templates.get_template("report.html.j2").render(
        report=report,
        text=text,
        networks=networks,
        score_name=score_format(report).name,
        costs=cost_by_kind(report),
        phases=cost_by_phase(report),
        layers=layer_densities(report),
        percent=percent,
        config={printable(key): printable(value) for key, value in flat_config(report.config).items()},
        # The figures and the style sheet are made here; matplotlib escapes the text of the figures.
        curve=Markup(curve_svg(report)) if has_points else None,
        topology=Markup(svg) if (svg := topology_svg(report)) is not None else None,
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def fragment(report: RunReport) -> str:
    """The answer, the curve and all other findings as one element for a notebook."""
    (first, *others), pairs = text.closing(report)
    row = Markup('<tr><td style="text-align:left;opacity:.7">{}</td><td style="text-align:left">{}</td></tr>')
    lines = Markup("<br>").join([Markup("<b>{}</b>").format(first), *others])
    has_points = report.curve.rounds or report.curve.probes
    # In the color and font of the notebook, which may be dark; matplotlib escapes the text of the figure.
    figure = Markup('<div style="max-width:520px">{}</div>').format(Markup(curve_svg(report))) if has_points else ""
    more = Markup("<details><summary>{}</summary><table>{}</table></details>")
    table = more.format("More about this run", Markup("").join(row.format(*pair) for pair in pairs))
    name = text.subject(report)
    whole = Markup('<div><div style="opacity:.7">pathgrow {}</div><div>{}</div>{}{}</div>')
    return str(whole.format(name, lines, figure, table))


def write_all(path: str | os.PathLike[str]) -> list[Path]:
    """Write curve.png and report.html into the directory of a finished run; return their paths."""
    report = load_finished(path)
    png, html = Path(path) / "curve.png", Path(path) / "report.html"
    atomic.write_bytes(png, curve_png(report))
    atomic.write_text(html, page(report))
    return [png, html]


def cost_by_kind(report: RunReport) -> Table:
    """The ledger, summed over phases of one kind."""
    kinds: dict[str, list[PhaseReport]] = {}
    for phase in report.ledger.phases:
        kind = re.sub(r"[-_ ]*\d+(?=$|--)", "", re.sub(r"^seed(?=$|--)", "round", phase.phase))
        kinds.setdefault(kind, []).append(phase)
    kinds["total"] = list(report.ledger.phases)
    rows = [[stage_label(kind), str(len(phases)), *_cost(report, phases)] for kind, phases in kinds.items()]
    return ["phase", "count", score_format(report).unit, "samples", "compute", "vs dense", "time"], rows


def cost_by_phase(report: RunReport) -> Table:
    """The ledger, phase by phase."""
    rows = [
        [stage_label(phase.phase, phase.density), percent(phase.density), *_cost(report, [phase])]
        for phase in report.ledger.phases
    ]
    return ["phase", "density", score_format(report).unit, "samples", "compute", "vs dense", "time"], rows


def _cost(report: RunReport, phases: Sequence[PhaseReport]) -> list[str]:
    names = {phase.phase for phase in phases}
    seconds = sum(phase.seconds for phase in report.timing.phases if phase.phase in names)
    cost, dense = sum(phase.training_flops for phase in phases), report.ledger.dense_training_flops
    return [
        plural(sum(phase.epochs if (n := phase.epochs_trained) is None else n for phase in phases), "").strip(" s"),
        f"{sum(phase.samples for phase in phases):,}",
        flops(cost),
        ratio(cost / dense if dense else None),
        duration(seconds) if seconds else "-",
    ]


def layer_densities(report: RunReport) -> list[tuple[str, float]]:
    """Densities of the layers of the returned model, if the topology of its round was recorded."""
    found = next((row for row in report.topology if row.round == report.network.round), None)
    return [] if found is None else [(printable(name), value) for name, value in found.layer_densities.items()]
