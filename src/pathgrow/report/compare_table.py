"""A comparison as text: terminal table, Markdown, CSV, JSON."""

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pathgrow.checkpoint import strict_json
from pathgrow.errors import printable, unknown_name
from pathgrow.report.compare import Baseline, Comparison, Row
from pathgrow.report.formats import ScoreFormat, duration, flops, length, number, percent, plural, ratio

TABLE_WIDTH = 120
"""Width of a table if that of the terminal is unknown."""
_JSON_FORMAT = 2


def render_comparison(comparison: Comparison, format: str, width: int = TABLE_WIDTH) -> str:
    """The comparison in one of `TABLE_FORMATS`; a terminal table folds to `width`."""
    if format not in TABLE_FORMATS:
        raise unknown_name("format", format, TABLE_FORMATS)
    return TABLE_FORMATS[format](comparison, width)


@dataclass(frozen=True)
class _Column:
    heading: str
    cell: Callable[[Row], str]
    is_text: bool = False
    shared: Callable[[Row], str] | None = None
    """How the title says it if all rows agree; None for columns that are always shown."""


def _score(row: Row, mean: float | None, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ScoreFormat(row.is_accuracy)(mean)
    half = (interval[1] - interval[0]) / 2
    return ScoreFormat(row.is_accuracy)(mean) + (f" ±{100 * half:.2f}" if row.is_accuracy else f" ±{number(half, 2)}")


def _length(row: Row) -> str:
    return length(row.epochs_trained, row.unit)


def _training(row: Row) -> str:
    return flops(row.training_flops) if row.training_relative is None else ratio(row.training_relative)


_COLUMNS = (
    _Column("method", lambda row: printable(row.method), is_text=True),
    _Column(
        "matched", lambda row: printable(row.match), is_text=True,
        shared=lambda row: "" if row.match == "none" else f"matched by {printable(row.match)}",
    ),
    _Column("settings", lambda row: printable(row.settings), is_text=True, shared=lambda row: printable(row.settings)),
    _Column(
        "epochs", lambda row: plural(row.epochs_trained, "").rstrip(" s"),
        shared=_length,
    ),
    _Column(
        "density", lambda row: percent(row.density),
        shared=lambda row: f"{percent(row.density)} of the prunable weights",
    ),
    _Column(
        "of model", lambda row: percent(row.density_model),
        shared=lambda row: f"{percent(row.density_model)} of all parameters",
    ),
    _Column("val", lambda row: _score(row, row.val, row.val_interval)),
    _Column("test", lambda row: _score(row, row.test, row.test_interval)),
    _Column("train FLOPs", _training),
    _Column("time", lambda row: ratio(row.wall_relative)),
    _Column("infer FLOPs", lambda row: ratio(row.inference_relative)),
    _Column("seeds", lambda row: str(row.num_seeds), shared=lambda row: f"{plural(row.num_seeds, 'seed')} each"),
)  # fmt: skip


def _columns(rows: Sequence[Row]) -> list[_Column]:
    """The columns of a table: those in which rows differ, with times in one unit."""
    # Lengths in one unit are numbers below its name, others are named one by one.
    is_one_unit = len({row.unit for row in rows}) == 1
    lengths = {"heading": rows[0].unit} if is_one_unit else {"heading": "length", "cell": _length}
    columns = [
        dataclasses.replace(column, **lengths) if column.heading == "epochs" else column
        for column in _COLUMNS
        if not _is_shared(column, rows)
    ]
    if _has_relative_times(rows):
        return columns
    seconds = _Column("time", lambda row: duration(row.seconds))
    return [seconds if column.heading == "time" else column for column in columns]


def _is_shared(column: _Column, rows: Sequence[Row]) -> bool:
    """Whether the title says it. A single row keeps its columns, except empty ones."""
    # A cell may leave out the unit of its number, which the title has.
    if column.shared is None or len({(column.cell(row), column.shared(row)) for row in rows}) > 1:
        return False
    return len(rows) > 1 or not column.shared(rows[0])


def _has_relative_times(rows: Sequence[Row]) -> bool:
    return all(row.wall_relative is not None for row in rows)


def _title(rows: Sequence[Row]) -> str:
    """Dataset and model, and what all rows share."""
    shared = [column.shared(rows[0]) for column in _COLUMNS if column.shared and _is_shared(column, rows)]
    return ": ".join(part for part in (printable(rows[0].subject), ", ".join(filter(None, shared))) if part)


def _legend(rows: Sequence[Row]) -> list[str]:
    """What costs are relative to, and why times are not."""
    baseline = rows[0].baseline
    lines = ["train FLOPs: absolute" if baseline is None else f"1x: {_baseline(baseline)}"]
    if not _has_relative_times(rows):
        hardware = dict.fromkeys("unknown" if row.hardware is None else printable(row.hardware) for row in rows)
        has_dense = baseline is not None and baseline.kind == "trained"
        why = f"hardware differs or is unknown ({', '.join(hardware)})" if has_dense else "no dense run"
        lines.append(f"time: absolute, {why}")
    lines.append("infer FLOPs: relative to the dense network")
    if rows[0].mode == "min":
        lines.append("val, test: lower is better")
    if any(row.num_seeds > 1 for row in rows):
        lines.append("±: half the 90% interval of the mean over seeds")
    return lines


def _baseline(baseline: Baseline) -> str:
    cost = f"{length(baseline.epochs, baseline.unit)}, {flops(baseline.training_flops)}"
    if baseline.kind == "computed":
        return f"dense training of {cost} (computed: no dense run)"
    name = f"dense ({printable(baseline.settings)})" if baseline.settings else "dense"
    where = "" if baseline.hardware is None else f" on {printable(baseline.hardware)}"
    time = "" if baseline.seconds is None else f", {duration(baseline.seconds)}{where}"
    mean = f", mean of {len(baseline.runs)} seeds" if len(baseline.runs) > 1 else ""
    return f"{name}, {cost}{time}{mean}"


def _terminal(comparison: Comparison, width: int) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    for rows in comparison.tables:
        columns = _columns(rows)
        cells = [[column.cell(row) for column in columns] for row in rows]
        console.print(Text(_title(rows)), _grid(columns, cells, width), *map(Text, _legend(rows)), "", sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _grid(columns: Sequence[_Column], cells: list[list[str]], width: int) -> RenderableType:
    """A table whose cells fold between words; a list of rows if the terminal is too narrow even for that."""
    contents = list(zip([column.heading for column in columns], *cells, strict=True))
    widths = [max(len(word) for cell in content for word in cell.split()) for content in contents]
    spare = width - sum(widths) - 2 * len(widths)
    if spare < 0:
        headings = [column.heading for column in columns]
        rows = (zip(headings[1:], row[1:], strict=True) for row in cells)
        lists = (", ".join(f"{heading} {cell}" for heading, cell in row if cell) for row in rows)
        return Text("\n".join(f"\n{row[0]}: {line}" for row, line in zip(cells, lists, strict=True)) + "\n")
    for index in reversed(range(len(widths))):  # numbers first
        extra = min(spare, max(0, max(map(len, contents[index][1:])) - widths[index]))
        widths[index], spare = widths[index] + extra, spare - extra
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column, cell_width in zip(columns, widths, strict=True):
        table.add_column(column.heading, justify="left" if column.is_text else "right", width=cell_width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _markdown(comparison: Comparison, width: int) -> str:
    parts = []
    for rows in comparison.tables:
        columns = _columns(rows)
        rule = [":--" if column.is_text else "--:" for column in columns]
        cells = [[column.cell(row).replace("|", "\\|") for column in columns] for row in rows]
        lines = [f"| {' | '.join(line)} |" for line in ([column.heading for column in columns], rule, *cells)]
        parts += [f"**{_title(rows)}**", "", *lines, "", *(f"- {line}" for line in _legend(rows)), ""]
    return "\n".join(parts)


def _csv(comparison: Comparison, width: int) -> str:
    """Plain numbers, intervals as two columns, empty cells for missing values."""
    text = io.StringIO()
    rows = [_flat(row) for row in comparison.rows]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(row: Row) -> dict[str, object]:
    flat = dataclasses.asdict(row)
    baseline = flat.pop("baseline") or dict.fromkeys(field.name for field in dataclasses.fields(Baseline))
    flat |= {f"baseline_{name}": value for name, value in baseline.items()}
    for name in ("val_interval", "test_interval"):
        flat[f"{name}_low"], flat[f"{name}_high"] = flat.pop(name) or (None, None)
    texts = {name: " ".join(value) if isinstance(value, tuple) else value for name, value in flat.items()}
    return {name: printable(value) if isinstance(value, str) else value for name, value in texts.items()}


def _json(comparison: Comparison, width: int) -> str:
    rows = strict_json.nulled([dataclasses.asdict(row) for row in comparison.rows])
    return strict_json.dumps({"format": _JSON_FORMAT, "rows": rows, "notes": list(comparison.notes)}, indent=1) + "\n"


TABLE_FORMATS: dict[str, Callable[[Comparison, int], str]] = {
    "table": _terminal,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
