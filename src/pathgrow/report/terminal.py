"""A run on the terminal: result, curve and rounds, or the progress of an unfinished run."""

from __future__ import annotations

import os

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pathgrow.report import formats, tables, text
from pathgrow.report.chart import curve_chart
from pathgrow.report.load import Unfinished, load_run
from pathgrow.report.schema import RunReport


def print_run(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Print the run in a directory, finished or not; any other directory is a `UserError`."""
    console = console or Console()
    found = load_run(path)
    console.print(_unfinished(found, path) if isinstance(found, Unfinished) else summary(found, console.width))


def summary(report: RunReport, width: int = 80) -> RenderableType:
    """The report as one renderable; strings of the report are plain text, never markup."""
    answer = report.answer
    is_sure = answer is None or (answer.status == "found" and not report.probes_too_short)
    parts: list[RenderableType] = [
        Text("pathgrow", "bold").append(f"  {text.subject(report)}", "not bold dim"),
        Text(),
        Text(text.headline(report), "bold green" if is_sure else "bold yellow"),
        Text(),
        _findings(report),
    ]
    if answer is not None:
        parts += [Text(), Text("How the answer was found", "bold"), _bullets(text.explanations(report))]
        if report.curve.rounds or report.curve.probes:
            parts += [Text(), curve_chart(report, width=min(width, 100) - 2), Text(), _rounds(report)]
    return Padding(Group(*parts), (0, 1))


def _bullets(lines: list[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text("-", "dim"), Text(line))
    return table


def _findings(report: RunReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, phrase in text.findings(report):
        table.add_row(Text(label), Text(phrase))
    return table


def _rounds(report: RunReport) -> Table:
    """The rounds as on the page, with a mark at the returned model."""
    headings, rows = tables.rounds(report)
    returned = report.network.round
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title, table.title_justify, table.title_style = "Rounds", "left", "bold"
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for round, *cells in rows:
        table.add_row(f"{'>' if round == str(returned) else ''}{round}", *cells)
    if returned is not None:
        table.caption, table.caption_justify = "> mask of the returned model", "left"
    return table


def _unfinished(run: Unfinished, path: str | os.PathLike[str]) -> RenderableType:
    again = "the call" if run.is_store else "the command"
    state = f"in use by {run.worker}" if run.worker else f"not running; repeat {again} to resume"
    where = f", in stage {formats.stage_label(run.current)}" if run.current else ""
    kind = "unfinished call of discover" if run.is_store else "unfinished run"
    lines = [
        Text(f"{formats.printable(os.fspath(path))}: {kind}{where}", "bold"),
        Text(f"{formats.plural(len(run.results), 'stage')} finished; {state}."),
        *(Text(f"  {formats.evaluation(result.stage, result.density, result.score)}") for result in run.results),
    ]
    return Padding(Group(*lines), (0, 1))
