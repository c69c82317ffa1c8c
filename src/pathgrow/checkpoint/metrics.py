"""The diary of a run: one JSON object a line, each tagged with its stage.

A row belongs to its stage: when a stage has to be done again, its rows are dropped. So the diary of a resumed run is
that of an undisturbed one, except for values under "time". Rows are therefore written before their stage is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathgrow import atomic
from pathgrow.checkpoint import strict_json


class Metrics:
    """Rows in a file that is only appended to, except when stages are done again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, stage: str, row: dict[str, Any]) -> None:
        """Add one row; numbers that are not finite become null. Survives a kill at once, a power cut after `sync`."""
        line = strict_json.dumps(strict_json.nulled({"stage": stage, **row})) + "\n"
        # One unbuffered write: a kill leaves whole lines, or one torn last line that `rows` drops.
        with atomic.writing(self.path), open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def rows(self) -> list[dict[str, Any]]:
        """All whole rows, oldest first."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [row for line in lines if (row := _parse(line)) is not None]

    def keep(self, belongs: Callable[[str], bool]) -> None:
        """Drop the rows of every stage for which `belongs` is false, and a torn last line."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if belongs(str(row["stage"]))]
        text = "".join(strict_json.dumps(row) + "\n" for row in kept)
        if text.encode() != self.path.read_bytes():
            atomic.write_text(self.path, text)

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
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
