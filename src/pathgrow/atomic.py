"""Atomic file writes: after a kill or a power cut, a file is either complete or unchanged.

Data are written to a temporary file in the same directory, which is synced to disk before the rename; the directory is
synced after it. Without the first sync a power cut can leave the new name with no content, without the second the old
file.

Files are opened by `plain`, which refuses symbolic links, pipes and devices: a directory that somebody else made must
not lead a run to files outside it, or make it wait.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pathgrow.errors import RunFailed, UserError, short

_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def plain(path: str, flags: int) -> int:
    """Open a regular file, as the `opener` of `open`; anything else is an `OSError`.

    A file to be changed in place must have no second hard link, whose content would change as well.
    """
    try:
        descriptor = os.open(path, flags & ~os.O_TRUNC | _OPEN, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a symbolic link", path) from error
        if error.errno == errno.ENXIO:  # nobody reads this pipe
            raise OSError(errno.EINVAL, "it is not a regular file", path) from error
        raise
    about = os.fstat(descriptor)
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    if not stat.S_ISREG(about.st_mode) or (writes and about.st_nlink > 1):
        os.close(descriptor)
        fault = "it has another hard link" if stat.S_ISREG(about.st_mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, fault, path)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def checked_path(path: object, name: str = "path") -> Path:
    """Return a path that a caller passed; what can be none is a `UserError`."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UserError(f"{name} must be the path of a file or directory, got {short(path)}")
    return Path(text)


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; anything else is an `OSError`."""
    with open(path, "rb", opener=plain) as file:
        return file.read()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write into a `RunFailed`: a full disk ends a run, but loses nothing."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunFailed(
            f"cannot write {path} ({error.strerror}): its directory was removed or renamed; put it back and rerun the "
            "same command to resume, or rerun it to start over"
        ) from error
    except OSError as error:
        raise RunFailed(
            f"cannot write {path} ({error.strerror or error}); everything written before is intact: "
            "free space or fix the permissions, then rerun the same command to resume"
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically; raise `RunFailed` if that is impossible."""
    with writing(path):
        replace(path, data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def make_folder(path: Path) -> None:
    """Create a directory in an existing one, unless it exists; raise `RunFailed` if it is a link or cannot be made."""
    with writing(path):
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link")
        path.mkdir(exist_ok=True)


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
    with open(path, "r+b", opener=plain) as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the names in a directory to disk (Windows has no such call)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(path: Path) -> None:
    """Remove a file that nothing refers to; a failure does no harm, and `sweep` tries again."""
    with suppress(OSError):
        path.unlink()


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed writers, and no other file."""
    for temporary in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(temporary.name):
            discard(temporary)


def _fill(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=plain) as file:
        file.write(data)
