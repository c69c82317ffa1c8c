"""A table of runs for the terminal: a line a run where that fits, else what belongs together under each other."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Literal

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
_MARGIN = " "
"""Before every line, as `rich` has it in this kind of table."""


def drawn(rows: Sequence[Row], width: int) -> str:
    """Title, table and legend, in lines of at most `width` unless a number would be cut."""
    columns = columns_of(rows)
    table = _rendered(_in_lines(columns, rows), _UNLIMITED)
    if max(map(len, table)) > width:
        table = _rendered(_stacked(columns, rows), width)
    heading, *below = (textwrap.wrap(line, max(20, width - 1)) for line in (title(rows), *legend(rows)))
    legends = [line for entry in below for line in (entry[0], *(f"  {rest}" for rest in entry[1:]))]
    return "\n".join([*(f"{_MARGIN}{line}" for line in heading), *table, *(f"{_MARGIN}{line}" for line in legends), ""])


def _in_lines(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """A column for everything; headings of two words and settings are folded."""
    table = _empty()
    for column in columns:
        table.add_column(_folded_heading(column.heading), justify=_side(column), no_wrap=True)
    for row in rows:
        cells = ((column, column.cell(row)) for column in columns)
        table.add_row(
            *(Text(_folded(cell, _SETTINGS) if column.heading == "settings" else cell) for column, cell in cells)
        )
    return table


def _stacked(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Everything that is no number below the method, and the second of two related numbers below the first."""
    by_heading = {column.heading: column for column in columns}
    below_method: dict[str, Callable[[Column, Row], str]] = {
        "matched": lambda column, row: "" if row.match == "none" else f"matched {column.cell(row)}",
        "settings": lambda column, row: column.cell(row),
        "seeds": lambda column, row: "" if row.num_seeds == 1 else f"{column.cell(row)} seeds",
    }
    numbers = [column for column in columns if not column.is_text and column.heading not in ("seeds", "of model")]
    table = _empty()
    table.add_column("\nmethod")
    of_model = by_heading.get("of model")
    for column in numbers:
        both = column.heading == "density" and of_model is not None
        heading = "density\nof model" if both else _folded_heading(column.heading)
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        parts = [say(by_heading[name], row) for name, say in below_method.items() if name in by_heading]
        told = _folded(", ".join(part for part in parts if part), _FIRST)
        cells = [f"{by_heading['method'].cell(row)}\n{told}" if told else by_heading["method"].cell(row)]
        for column in numbers:
            cell = column.cell(row).replace(" ±", "\n±")
            cells.append(f"{cell}\n{of_model.cell(row)}" if column.heading == "density" and of_model else cell)
        table.add_row(*map(Text, cells))
    return table


def _empty() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _side(column: Column) -> Literal["left", "right"]:
    return "left" if column.is_text else "right"


def _folded_heading(heading: str) -> str:
    return heading.replace(" ", "\n") if " " in heading else f"\n{heading}"


def _folded(settings: str, width: int) -> str:
    """Settings in lines of about `width`, broken between two of them and never within one.

    >>> _folded("every 100, rate 0.3, lr 0.05", 20)
    'every 100, rate 0.3,\\nlr 0.05'
    """
    lines = [""]
    for setting in _BETWEEN_SETTINGS.split(settings):
        if lines[-1] and len(lines[-1]) + 2 + len(setting) > width:
            lines[-1] += ","
            lines.append("")
        lines[-1] += f", {setting}" if lines[-1] else setting
    return "\n".join(lines)


def _rendered(table: Table, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
