"""The words of a table of runs: its columns, what stands in its title because all rows share it, what 1x means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pathgrow.report.comparison import Reference, Row
from pathgrow.report.training import in_epochs
from pathgrow.report.wording import count, counted, duration, percent_column, printable


@dataclass(frozen=True)
class Column:
    """A heading and what stands below it."""

    heading: str
    cell: Callable[[Row], str]
    is_text: bool = False
    shared: Callable[[Row], str] | None = None
    """How the title says it where all rows have the same; None for what is always a column."""


_COLUMNS = (
    Column("method", lambda row: printable(row.method), is_text=True),
    Column("matched", lambda row: row.match, is_text=True, shared=lambda row: _matched(row.match)),
    Column("settings", lambda row: printable(row.settings), is_text=True, shared=lambda row: printable(row.settings)),
    Column("epochs", lambda row: in_epochs(row.epochs_trained).split()[0], shared=lambda row: _trained(row)),
    Column("density", lambda row: percent_column(row.density), shared=lambda row: _density(row)),
    Column("of model", lambda row: percent_column(row.density_model), shared=lambda row: _of_model(row)),
    Column("val", lambda row: _score(row.val, row.val_interval)),
    Column("test", lambda row: _score(row.test, row.test_interval)),
    Column("train FLOPs", lambda row: _training(row)),
    Column("time", lambda row: duration(row.seconds) if row.wall_relative is None else _times(row.wall_relative)),
    Column("infer FLOPs", lambda row: _times(row.inference_relative)),
    Column("seeds", lambda row: str(row.num_seeds), shared=lambda row: f"{counted(row.num_seeds, 'seed')} each"),
)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """The columns of a table; what is the same in all rows has none, as the title says it."""
    return [_in_seconds(column, rows) for column in _COLUMNS if not _is_shared(column, rows)]


def title(rows: Sequence[Row]) -> str:
    """Data and model, and everything that all rows share."""
    shared = [column.shared(rows[0]) for column in _COLUMNS if column.shared and _is_shared(column, rows)]
    usual = f"{printable(rows[0].usual)} unless said otherwise" if rows[0].usual else ""
    told = ", ".join(each for each in (*shared, usual) if each)
    return f"{printable(rows[0].subject)}: {told}" if told else printable(rows[0].subject)


def legend(rows: Sequence[Row]) -> list[str]:
    """The lines below a table: what costs are relative to, and why times are not where they are not."""
    reference = rows[0].reference
    lines = [
        "train FLOPs are as counted: no run tells what training dense would take"
        if reference is None
        else f"1x: {_reference(reference)}"
    ]
    if _times_differ(rows):
        lines.append(f"time as measured: {_why_seconds(rows, reference)}")
    lines.append("infer FLOPs are relative to the dense network")
    if any(row.num_seeds > 1 for row in rows):
        lines.append("±: half of a 90% interval of the mean over seeds")
    return lines


def _is_shared(column: Column, rows: Sequence[Row]) -> bool:
    """Whether the title says it. A single row keeps its columns, but for those that would be empty."""
    if column.shared is None or len({column.cell(row) for row in rows}) > 1:
        return False
    return len(rows) > 1 or not column.shared(rows[0])


def _in_seconds(column: Column, rows: Sequence[Row]) -> Column:
    """One unit in a column: times in seconds if any of them can be told only so."""
    if column.heading == "time" and _times_differ(rows):
        return Column(column.heading, lambda row: duration(row.seconds))
    return column


def _times_differ(rows: Sequence[Row]) -> bool:
    return any(row.wall_relative is None for row in rows)


def _reference(reference: Reference) -> str:
    flops = f"{count(reference.training_flops)} training FLOPs"
    if reference.kind == "computed":
        return f"{flops}, computed for training dense for {in_epochs(reference.epochs)}, as no dense run is among these"
    name = f"dense ({printable(reference.settings)})" if reference.settings else "dense"
    where = "" if reference.hardware is None else f" on {printable(reference.hardware)}"
    time = "" if reference.seconds is None else f", {duration(reference.seconds)}{where}"
    mean = f", mean of {len(reference.runs)} seeds" if len(reference.runs) > 1 else ""
    return f"{name}, {in_epochs(reference.epochs)}, {flops}{time}{mean}"


def _why_seconds(rows: Sequence[Row], reference: Reference | None) -> str:
    if reference is None or reference.kind == "computed":
        return "no dense run is among these"
    if not reference.seconds:
        return "that of the dense run was not"
    seen = dict.fromkeys(row.hardware for row in rows)
    told = ", ".join("unknown or several" if each is None else printable(each) for each in seen)
    return f"not all runs are known to be of the same hardware ({told})"


def _matched(match: str) -> str:
    return "" if match == "none" else f"all matched by {printable(match)}"


def _trained(row: Row) -> str:
    return f"{in_epochs(row.epochs_trained)} each"


def _density(row: Row) -> str:
    return f"{percent_column(row.density)} of the switchable weights"


def _of_model(row: Row) -> str:
    return f"{percent_column(row.density_model)} of the model"


def _score(mean: float | None, interval: tuple[float, float] | None) -> str:
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}%" + ("" if interval is None else f" ±{50 * (interval[1] - interval[0]):.2f}")


def _training(row: Row) -> str:
    return count(row.training_flops) if row.training_relative is None else _times(row.training_relative)


def _times(share: float | None) -> str:
    """A cost relative to dense.

    >>> _times(0.2345), _times(4.361), _times(1234.5), _times(None)
    ('0.234x', '4.36x', '1234x', '-')
    """
    if share is None:
        return "-"
    return f"{share:.0f}x" if share >= 1000 else f"{share:.3g}x"
