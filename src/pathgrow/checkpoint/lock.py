"""One process at a time in a run folder.

`flock` belongs to an open file, so the system releases it when the process dies, however it dies: there are no stale
locks to clear. Only who made the file removes it, and only while holding the lock. A process that was waiting then
holds the lock of a file without a name; it notices, and begins again.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

from pathgrow.errors import UserError

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
_MOST_ATTEMPTS = 50
"""Each but the last is a file or folder that another process removed in between."""


class Lock:
    """A held lock on a folder, which is made if need be; `release` gives it back, and so does the end of the process.

    An `OSError` tells why there can be no such folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._made: list[Path] = []
        descriptor = self._take(folder)
        self._descriptor: int | None = descriptor
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        _held.add(self)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def undo(self) -> None:
        """Give the lock back; its file and its folders are removed if they were made for it and hold nothing else."""
        if self._descriptor is not None:
            with suppress(OSError):  # something else is in the folder, or open files cannot be removed (Windows)
                for path in reversed(self._made):
                    path.unlink() if path == self._path else path.rmdir()
        self.release()

    def _take(self, folder: Path) -> int:
        """The descriptor of the locked file."""
        for attempts_left in reversed(range(_MOST_ATTEMPTS)):
            try:
                self._make(folder)
                descriptor = self._opened()
            except FileNotFoundError:
                if not attempts_left:
                    raise
                continue
            try:
                if not _lock_soon(descriptor):
                    raise UserError(
                        f"{folder} is in use by another process{_holder(descriptor)}: wait for it, or choose another "
                        "folder"
                    )
                if _is_at(descriptor, self._path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise UserError(f"{folder} is being removed again and again by other processes: choose another folder")

    def _make(self, folder: Path) -> None:
        """Make the folder and those above it, one by one: what others made in the meantime is not ours to remove."""
        missing = []
        for path in (folder, *folder.parents):
            if path.exists():
                break
            missing.append(path)
        for path in reversed(missing):
            with suppress(FileExistsError):
                path.mkdir()
                self._made.append(path)

    def _opened(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self._path, os.O_RDWR)
        self._made.append(self._path)
        return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def holder(folder: Path) -> str | None:
    """Who works in the folder now ("another process (pid 4711)"), or None."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if _try_lock(descriptor, shared=True) else f"another process{_holder(descriptor)}"
    finally:
        os.close(descriptor)


def _lock_soon(descriptor: int) -> bool:
    """Try to take the lock, a few times over: a reader that asks who works here holds it for an instant."""
    for _ in range(4):
        if _try_lock(descriptor):
            return True
        time.sleep(0.02)
    return _try_lock(descriptor)


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    if sys.platform == "win32":
        return True
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks; a run there is worth more than the guard.
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
    return True


def _holder(descriptor: int) -> str:
    text = os.read(descriptor, 20).decode("ascii", "replace").strip()
    return f" (pid {text})" if text.isdecimal() else ""


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    # A forked data-loading worker would share the open file and keep the folder locked after its parent was killed.
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
