"""Atomic file writes: after a kill or a power cut, a file is either complete or unchanged.

Data are written to a temporary file in the same directory, which is synced to disk before the rename; the directory is
synced after it. Without the first sync a power cut can leave the new name with no content, without the second the old
file.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pathgrow.errors import RunFailed


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write into a `RunFailed`: a full disk ends a run, but loses nothing."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write {path} ({error.strerror or error}); everything written before is intact: "
            "free space or fix the permissions, then rerun the same command to resume"
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, creating its directory; raise `RunFailed` if that is impossible."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically; an `OSError` leaves the previous content in place."""
    # Several processes may write the same file at once, so each uses its own temporary name.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        _fill(temporary, data)
        install(temporary, path)
    except OSError:
        discard(temporary)  # a half-written file takes up space
        raise


def install(temporary: Path, path: Path) -> None:
    """Move a complete file to `path`, in the same directory."""
    sync(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync(path: Path) -> None:
    """Flush the content of a file to disk."""
    _sync(path, os.O_RDWR)


def sync_folder(path: Path) -> None:
    """Flush the names in a directory to disk (Windows has no such call)."""
    if os.name != "nt":
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(path: Path) -> None:
    """Remove a file that nothing refers to; a failure does no harm, and `sweep` tries again."""
    with suppress(OSError):
        path.unlink()


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed writers."""
    for temporary in folder.glob(".*.tmp"):
        discard(temporary)


def _fill(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
