"""A table of runs for the terminal: a line a run where that fits, else what belongs together under each other."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pathgrow.report.comparison import Row
from pathgrow.report.comparison_columns import Column, columns_of, legend, title

_UNLIMITED = 10_000
_SETTINGS = 24
"""Columns that settings take, about, where they have a column of their own."""
_BETWEEN_SETTINGS = re.compile(r", (?![^\[]*\])")
"""A comma that is not within a list."""
_FIRST = 20
"""The same where they stand below the method."""
_HEAD = 4
"""Lines of a table above its first row: an empty one, two of headings, a rule."""
_MARGIN = " "
"""Before every line, as `rich` has it in this kind of table."""


def drawn(rows: Sequence[Row], width: int) -> str:
    """Title, table and legend, in lines of at most `width` unless a number would be cut."""
    columns = columns_of(rows)
    layouts = (_in_lines, _stacked, _below_names)
    tables = (layout(columns, rows, width) for layout in layouts)
    table = next((lines for lines in tables if max(map(len, lines)) <= width), _below_names(columns, rows, width))
    above, below = _wrapped(title(rows), width), [line for entry in legend(rows) for line in _wrapped(entry, width)]
    return "\n".join([*above, *table, *below, ""])


def _in_lines(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[str]:
    """A column for everything; headings of two words and settings are folded."""
    table = _empty()
    for column in columns:
        table.add_column(_folded_heading(column.heading), justify="left" if column.is_text else "right", no_wrap=True)
    for row in rows:
        cells = ((column, column.cell(row)) for column in columns)
        table.add_row(
            *(Text(_folded(cell, _SETTINGS) if column.heading == "settings" else cell) for column, cell in cells)
        )
    return _rendered(table)


def _stacked(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[str]:
    """Everything that is no number below the method, and the second of two related numbers below the first."""
    headings, cells = _numbers(columns, rows)
    table = _empty()
    table.add_column("\nmethod", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, numbers in zip(rows, cells, strict=True):
        method, *rest = _names(columns, row)
        told = _folded(", ".join(rest), _FIRST)
        table.add_row(*map(Text, (f"{method}\n{told}" if told else method, *numbers)))
    return _rendered(table)


def _below_names(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[str]:
    """The same with lines of its own for everything that is no number."""
    headings, cells = _numbers(columns, rows)
    table = _empty()
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for numbers in cells:
        table.add_row(*map(Text, numbers))
    lines = _rendered(table)
    left = iter(lines[_HEAD:])
    told = lines[:_HEAD]
    for row, numbers in zip(rows, cells, strict=True):
        told += _wrapped(", ".join(_names(columns, row)), width)
        told += [next(left) for _ in range(max(number.count("\n") for number in numbers) + 1)]
    return [*told, *left]


def _names(columns: Sequence[Column], row: Row) -> list[str]:
    """The method, and what else is no number or a small one."""
    shown = {column.heading: column.cell(row) for column in columns}
    matched = f"matched {row.match}" if "matched" in shown and row.match != "none" else ""
    seeds = f"{row.num_seeds} seeds" if "seeds" in shown and row.num_seeds > 1 else ""
    return [shown["method"], *(name for name in (matched, shown.get("settings", ""), seeds) if name)]


def _numbers(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of all numbers, the share of the model below that of the switchable weights."""
    by_heading = {column.heading: column for column in columns}
    of_model = by_heading.get("of model") if "density" in by_heading else None
    kept = [column for column in columns if not column.is_text and column.heading != "seeds" and column is not of_model]
    headings = [
        f"density\n{of_model.heading}" if of_model and column.heading == "density" else _folded_heading(column.heading)
        for column in kept
    ]
    cells = [[column.cell(row).replace(" ±", "\n±") for column in kept] for row in rows]
    if of_model is not None:
        at = kept.index(by_heading["density"])
        for row, line in zip(rows, cells, strict=True):
            line[at] += f"\n{of_model.cell(row)}"
    return headings, cells


def _empty() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _folded_heading(heading: str) -> str:
    return heading.replace(" ", "\n") if " " in heading else f"\n{heading}"


def _folded(settings: str, width: int) -> str:
    """Settings in lines of about `width`, broken between two of them and never within one.

    >>> _folded("every 100, rate 0.3, lr 0.05", 20)
    'every 100, rate 0.3,\\nlr 0.05'
    """
    lines, parts = [""], _BETWEEN_SETTINGS.split(settings)
    for number, setting in enumerate(parts, start=1):
        comma = number < len(parts)
        if lines[-1] and len(lines[-1]) + 2 + len(setting) + comma > width:
            lines[-1] += ","
            lines.append("")
        lines[-1] += f", {setting}" if lines[-1] else setting
    return "\n".join(lines)


def _wrapped(sentence: str, width: int) -> list[str]:
    return textwrap.wrap(
        sentence, max(20, width), initial_indent=_MARGIN, subsequent_indent=3 * _MARGIN, break_on_hyphens=False
    )


def _rendered(table: Table) -> list[str]:
    """The lines of a table as wide as it needs to be."""
    text = io.StringIO()
    Console(file=text, width=_UNLIMITED, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
