"""A run on the terminal: the answer in words, the curve, the rounds."""

from __future__ import annotations

import os
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pathgrow.report import story, wording
from pathgrow.report.chart import curve_chart
from pathgrow.report.reading import Unfinished, is_training, read
from pathgrow.report.training import training_summary
from pathgrow.report.wording import counted, percent, printable


def show(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Print the run in a folder, finished or not; a folder that holds no run is a `UserError`."""
    console = console or Console()
    found = read(path)
    if isinstance(found, Unfinished):
        console.print(_unfinished(found, path))
    elif is_training(found):
        console.print(training_summary(found))
    else:
        console.print(summary(found, console.width))


def summary(report: dict[str, Any], width: int = 80) -> RenderableType:
    """The whole report as one renderable; every string in it is text, never markup."""
    found = report["answer"]["status"] == "found" and not wording.too_short_to_compare(report)
    answered = found or wording.asked_for(report) is not None
    title = Text("pathgrow", "bold").append(f"  {wording.subject(report)}", "not bold dim")
    parts: list[RenderableType] = [
        title,
        Text(),
        Text(wording.headline(report), "bold green" if answered else "bold yellow"),
        Text(),
        _findings(report),
        Text(),
    ]
    if because := wording.explanation(report):
        parts += [Text("How the answer was found", "bold"), _listed(because), Text()]
    if report["curve"]["rough"] or report["curve"]["probes"]:
        parts += [curve_chart(report, width=min(width, 100) - 2), Text()]
    parts.append(_rounds(report))
    return Padding(Group(*parts), (0, 1))


def _listed(lines: list[str]) -> Table:
    """Sentences one under the other, each set off from the next by its dash."""
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text("-", "dim"), Text(line))
    return table


def _findings(report: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, sentence in wording.findings(report):
        table.add_row(Text(label), Text(sentence))
    return table


def _rounds(report: dict[str, Any]) -> Table:
    """The rounds as on the page, with a mark at the network handed back."""
    headings, rows = story.rounds(report)
    chosen = report["network"].get("round")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title, table.title_justify, table.title_style = "Rounds", "left", "bold"
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for round, *cells in rows:
        table.add_row(f"{'>' if round == str(chosen) else ''}{round}", *cells)
    if chosen is not None:
        table.caption, table.caption_justify = "> the network handed back", "left"
    return table


def _unfinished(run: Unfinished, path: str | os.PathLike[str]) -> RenderableType:
    again = "the same call goes on from there" if run.is_store else "give its command again to resume it"
    state = f"being worked on by {run.worker}" if run.worker else f"not running; {again}"
    where = f"in stage {run.current}" if run.current else "between stages" if run.stages else "before its first stage"
    kind = "an unfinished call of discover" if run.is_store else f"an unfinished run, {where}"
    lines = [
        Text(f"{printable(os.fspath(path))}: {kind}.", "bold"),
        Text(f"{counted(len(run.points), 'stage')} finished; {state}."),
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("stage", "density", "score"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for point in run.points:
        table.add_row(Text(point["stage"]), percent(point["density"]), f"{point['score']:.4g}")
    return Padding(Group(*lines, *([table] if run.points else [])), (0, 1))
