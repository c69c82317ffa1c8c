"""A comparison of runs as people and programs read it: terminal, Markdown, CSV, JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable

from pathgrow.checkpoint import strict_json
from pathgrow.errors import unknown_name
from pathgrow.report.comparison import Comparison, Reference, Row
from pathgrow.report.comparison_columns import columns_of, legend, title
from pathgrow.report.comparison_table import drawn

FORMAT = 1
WIDTH = 120
"""Columns of a table that is written where nobody knows how wide a line may be."""


def write(comparison: Comparison, format: str, width: int = WIDTH) -> str:
    """The comparison as text in one of `FORMATS`, with a line break at its end; tables fit `width` if they can."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    return FORMATS[format](comparison, width)


def _table(comparison: Comparison, width: int) -> str:
    return "\n".join(drawn(rows, width) for rows in comparison.tables)


def _markdown(comparison: Comparison, width: int) -> str:
    return "\n".join(_markdown_table(rows) for rows in comparison.tables)


def _markdown_table(rows: list[Row]) -> str:
    columns = columns_of(rows)
    rule = [":--" if column.is_text else "--:" for column in columns]
    cells = [[column.cell(row).replace("|", "\\|") for column in columns] for row in rows]
    lines = [f"| {' | '.join(line)} |" for line in ([column.heading for column in columns], rule, *cells)]
    below = [f"- {line}" for line in legend(rows)]
    return "\n".join([f"**{title(rows)}**", "", *lines, "", *below, ""])


def _csv(comparison: Comparison, width: int) -> str:
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
        elif name == "reference":
            parts = [field.name for field in dataclasses.fields(Reference)]
            flat |= {f"{name}_{part}": _joined(value[part] if value is not None else None) for part in parts}
        else:
            flat[name] = _joined(value)
    return flat


def _joined(value: object) -> object:
    return " ".join(value) if isinstance(value, tuple) else value


def _json(comparison: Comparison, width: int) -> str:
    rows = strict_json.nulled([dataclasses.asdict(row) for row in comparison.rows])
    return strict_json.dumps({"format": FORMAT, "rows": rows, "notes": list(comparison.notes)}, indent=1) + "\n"


FORMATS: dict[str, Callable[[Comparison, int], str]] = {
    "table": _table,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
