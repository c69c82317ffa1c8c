"""A run on the terminal: curve, rounds and result, or the progress of an unfinished run."""

from __future__ import annotations

import os

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pathgrow.report import formats, text
from pathgrow.report.chart import curve_chart
from pathgrow.report.load import Unfinished, load_run
from pathgrow.report.schema import RunReport


def print_run(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Print the run in a directory, finished or not; any other directory is a `UserError`."""
    console = console or Console()
    found = load_run(path)
    console.print(_unfinished(found, path) if isinstance(found, Unfinished) else summary(found, console.width))


def summary(report: RunReport, width: int = 80) -> RenderableType:
    """The report as one renderable that ends with the result; strings of the report are never markup."""
    answer = report.answer
    is_sure = answer is None or (answer.status == "found" and not report.probes_too_short)
    parts: list[RenderableType] = [Text("pathgrow", "bold").append(f"  {text.subject(report)}", "not bold dim"), Text()]
    if answer is not None:
        if report.curve.rounds or report.curve.probes:
            parts += [curve_chart(report, width=min(width, 100) - 2), _rounds(report), Text()]
        reasons = ((Text("-", "dim"), Text(line)) for line in text.explanations(report))
        parts += [Text("How the answer was found", "bold"), _grid(1, *reasons), Text()]
    findings = ((Text(label, "dim"), Text(phrase)) for label, phrase in text.findings(report))
    parts += [Text(text.headline(report), "bold green" if is_sure else "bold yellow"), Text(), _grid(2, *findings)]
    return Padding(Group(*parts), (0, 1))


def _grid(gap: int, *rows: tuple[Text, Text]) -> Table:
    table = Table.grid(padding=(0, gap))
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _rounds(report: RunReport) -> Table:
    """The rounds as on the page, with a mark at the returned model."""
    headings, rows = text.rounds(report)
    returned = report.network.round
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for round, *cells in rows:
        table.add_row(f"{'>' if round == str(returned) else ''}{round}", *cells)
    if returned is not None:
        table.caption, table.caption_justify = "> mask of the returned model", "left"
    return table


def _unfinished(run: Unfinished, path: str | os.PathLike[str]) -> RenderableType:
    kind, again = ("unfinished call of discover", "call") if run.is_store else ("unfinished run", "command")
    state = f"in use by {run.worker}" if run.worker else f"not running; repeat the {again} to resume"
    where = f", in stage {formats.stage_label(run.current)}" if run.current else ""
    lines = [
        Text(f"{formats.printable(os.fspath(path))}: {kind}{where}", "bold"),
        Text(f"{formats.plural(len(run.results), 'stage')} finished; {state}."),
        *(Text(f"  {formats.evaluation(result.stage, result.density, result.score)}") for result in run.results),
    ]
    return Padding(Group(*lines), (0, 1))
