"""Processes that prepare the same files take turns; the last ones find the work done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def turn(lock: Path) -> Iterator[bool]:
    """Wait for the sole right that this file stands for; False where there is none to be had.

    There is none in a read-only folder, on a file system without locks, and on Windows. The file stays: removing it
    would let two processes lock two files of one name.
    """
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield False
        return
    try:
        yield _wait(descriptor)
    finally:
        os.close(descriptor)  # gives the right back, as does the death of the process


def _wait(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
