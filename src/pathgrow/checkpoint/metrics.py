"""Metrics of a run: one JSON object per line, tagged with the stage it belongs to.

When a stage has to run again, its rows are dropped. The metrics of a resumed run are therefore those of an
uninterrupted one, except for wall-clock values under "time". Rows are written before their stage is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathgrow import atomic
from pathgrow.checkpoint import strict_json


class Metrics:
    """Rows of a file that is append-only, except when stages run again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, stage: str, row: dict[str, Any]) -> None:
        """Append one row; non-finite numbers become null. Survives a kill immediately, a power cut after `sync`."""
        line = strict_json.dumps(strict_json.nulled({"stage": stage, **row})) + "\n"
        # One unbuffered write: a kill leaves complete lines, or one torn last line that `rows` drops.
        with atomic.writing(self.path), open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete rows, oldest first."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [row for line in lines if (row := _parse(line)) is not None]

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Drop the rows of every stage for which `is_kept` is false, and a torn last line."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if is_kept(str(row["stage"]))]
        text = "".join(strict_json.dumps(row) + "\n" for row in kept)
        if text.encode() != self.path.read_bytes():
            atomic.write_text(self.path, text)

    def sync(self) -> None:
        """Flush all rows to disk."""
        if self.path.exists():
            with atomic.writing(self.path):
                atomic.sync(self.path)
                atomic.sync_folder(self.path.parent)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = strict_json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "stage" in row else None
