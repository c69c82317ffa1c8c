"""Files that are there in full or not at all, whatever kills the process or the machine.

The bytes go to a temporary file in the same folder, which is synced to the disk before the rename; the folder is synced
after it. Without the first sync a power cut can leave the new name without its content, without the second the old
file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pathgrow.errors import RunFailed


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write into a sentence: a full disk ends a run, but loses nothing."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write {path} ({error.strerror or error}); what was written before is intact: "
            "free space or mend the folder, then give the same command again to resume"
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Put `data` at `path` atomically; if that fails, what stood there before still stands."""
    # Only one process writes at a time, so what a killed one left is simply overwritten.
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _fill(temporary, data)
            install(temporary, path)
        except OSError:
            discard(temporary)  # a half-written file takes up space
            raise


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def install(temporary: Path, path: Path) -> None:
    """Move a file that was written in full, in the same folder, to its place at `path`."""
    sync(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    _sync(path, os.O_RDWR)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk (Windows cannot be asked to)."""
    if os.name != "nt":
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(path: Path) -> None:
    """Remove a file that nothing refers to; if that fails it does no harm, and `sweep` tries again."""
    with suppress(OSError):
        path.unlink()


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers left behind."""
    for left_over in folder.glob(".*.tmp"):
        discard(left_over)


def _fill(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
