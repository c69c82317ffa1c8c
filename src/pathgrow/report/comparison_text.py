"""A comparison of runs as people and programs read it: terminal, Markdown, CSV, JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pathgrow.errors import unknown_name
from pathgrow.report.comparison import Comparison, Row
from pathgrow.report.wording import duration, percent_column, printable
from pathgrow.runs import strict_json

FORMAT = 1


def write(comparison: Comparison, format: str) -> str:
    """The comparison as text in one of `FORMATS`, with a line break at its end."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    return FORMATS[format](comparison)


def as_table(rows: Sequence[Row]) -> Table:
    """A table for the terminal; a subject that all rows share is its title."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    headings, lines = _cells(rows)
    subjects = {row.subject for row in rows}
    if len(subjects) == 1:
        table.title, table.title_justify, table.title_style = printable(subjects.pop()), "left", "bold"
    for heading in headings:
        # Terminals are narrow: two words stand under each other, and so do settings.
        in_two_lines = heading.replace(" ", "\n") if " " in heading else f"\n{heading}"
        table.add_column(in_two_lines, justify="left" if heading in _WORDS else "right", no_wrap=True)
    for line in lines:
        cells = zip(headings, line, strict=True)
        table.add_row(*(Text(_folded(cell) if heading == "settings" else cell) for heading, cell in cells))
    if any(row.num_seeds > 1 for row in rows):
        table.caption, table.caption_justify = "± is half of a 90% interval of the mean over seeds", "left"
    return table


_WORDS = ("method", "runs on", "matched", "settings")


def _folded(settings: str, width: int = 24) -> str:
    """Settings in lines of about `width`, broken between two of them and never within one.

    >>> _folded("every 100, rate 0.3, lr 0.05", 20)
    'every 100, rate 0.3,\\nlr 0.05'
    """
    lines = [""]
    for setting in settings.split(", "):
        if lines[-1] and len(lines[-1]) + 2 + len(setting) > width:
            lines[-1] += ","
            lines.append("")
        lines[-1] += f", {setting}" if lines[-1] else setting
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    columns: dict[str, Callable[[Row], str]] = {"method": lambda row: printable(row.method)}
    if len({row.subject for row in rows}) > 1:
        columns["runs on"] = lambda row: printable(row.subject)
    if any(row.match != "none" for row in rows):
        columns["matched"] = lambda row: row.match
    if any(row.settings for row in rows):
        columns["settings"] = lambda row: printable(row.settings)
    if len({row.epochs for row in rows}) > 1:
        columns["epochs"] = lambda row: str(row.epochs)
    columns |= {
        "density": lambda row: percent_column(row.density),
        "of model": lambda row: percent_column(row.density_model),
        "val": lambda row: _score(row.val, row.val_interval),
        "test": lambda row: _score(row.test, row.test_interval),
        "train FLOPs": lambda row: _times(row.training_relative),
        "time": lambda row: duration(row.seconds) if row.wall_relative is None else _times(row.wall_relative),
        "infer FLOPs": lambda row: _times(row.inference_relative),
        "seeds": lambda row: str(row.num_seeds),
    }
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def _score(mean: float | None, interval: tuple[float, float] | None) -> str:
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}%" + ("" if interval is None else f" ±{50 * (interval[1] - interval[0]):.2f}")


def _times(share: float | None) -> str:
    """A cost relative to dense.

    >>> _times(0.2345), _times(4.361), _times(None)
    ('0.234x', '4.36x', '-')
    """
    return "-" if share is None else f"{share:.3g}x"


def _text(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(as_table(comparison.rows))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n") + "\n"


def _markdown(comparison: Comparison) -> str:
    headings, lines = _cells(comparison.rows)
    rule = [":--" if heading in _WORDS else "--:" for heading in headings]
    safe = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in [headings, rule, *safe])


def _csv(comparison: Comparison) -> str:
    """Plain numbers, an interval as two columns; an empty cell where there is no number."""
    text = io.StringIO()
    rows = [_flat(row) for row in comparison.rows]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(row: Row) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in dataclasses.asdict(row).items():
        if name.endswith("_interval"):
            flat[f"{name}_low"], flat[f"{name}_high"] = value if value is not None else (None, None)
        elif name == "runs":
            flat[name] = " ".join(value)
        else:
            flat[name] = value
    return flat


def _json(comparison: Comparison) -> str:
    rows = [
        {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(row).items()}
        for row in comparison.rows
    ]
    return strict_json.dumps({"format": FORMAT, "rows": rows, "notes": list(comparison.notes)}, indent=1) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "table": _text,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
