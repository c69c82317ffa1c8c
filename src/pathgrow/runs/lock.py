"""One process at a time in a run folder.

`flock` belongs to an open file, so the system releases it when the process dies, however it dies: there are no stale
locks to clear. The file itself stays; if it were removed, two processes could lock two files of one name.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import weakref
from pathlib import Path

from pathgrow.errors import UserError

if sys.platform != "win32":
    import fcntl

NAME = ".lock"


class Lock:
    """A held lock on a folder; `release` gives it back, and so does the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
        if not _lock_soon(self._descriptor):
            holder = _holder(self._descriptor)
            self.release()
            raise UserError(f"{folder} is in use by another process{holder}: wait for it, or choose another folder")
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        _held.add(self)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
