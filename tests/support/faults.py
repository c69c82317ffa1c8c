"""Processes that die and disks that fail at a chosen operation."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pathgrow import atomic
from pathgrow.runs import stages
from pathgrow.sparse import enforce
from pathgrow.trainer.cuda_graph_step import CudaGraphStep
from pathgrow.trainer.eager_step import EagerStep
from tests.support.catalogue import Trials


class Killed(BaseException):
    """Not an `Exception`: handlers must not see it, as they do not see a SIGKILL."""


def raise_killed() -> None:
    raise Killed


def failing(number: int) -> Callable[[], None]:
    """A failure of a file operation, such as `errno.ENOSPC`."""

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FileSystem:
    """Dies at the n-th file operation that changes something: before it, after it, or with part of a write done."""

    def __init__(self, die_at: int | None, done: float, die: Callable[[], None] = raise_killed) -> None:
        self.die_at = die_at
        self.num = 0
        """Operations so far."""
        self.done = done
        self.die = die

    def patched(self) -> ExitStack:
        stack = ExitStack()
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
            stack.enter_context(replaced(owner, name, self._dying(getattr(owner, name))))
        stack.enter_context(replaced(atomic, "_fill", self._dying_write))
        stack.enter_context(replaced(atomic, "plain", self._dying_append(atomic.plain)))
        return stack

    def _is_last(self) -> bool:
        self.num += 1
        return self.num == self.die_at

    def _dying(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def operate(*args: Any, **options: Any) -> Any:
            if self._is_last():
                if self.done > 0.5:
                    operation(*args, **options)
                self.die()
            return operation(*args, **options)

        return operate

    def _dying_write(self, path: Path, data: bytes) -> None:
        is_last = self._is_last()
        path.write_bytes(data[: int(len(data) * self.done)] if is_last else data)
        if is_last:
            self.die()

    def _dying_append(self, plain: Callable[[str, int], int]) -> Callable[[str, int], int]:
        """Rows of metrics are appended; half of a row stands for part of one."""

        def opened(path: str, flags: int) -> int:
            descriptor = plain(path, flags)
            if flags & os.O_APPEND and self._is_last():
                if self.done:
                    os.write(descriptor, b'{"stage": "se')
                try:
                    self.die()
                finally:
                    os.close(descriptor)
            return descriptor

        return opened


class Kill:
    """SIGKILL at the n-th event of a kind in a training: a step, a change of masks, half done, or a file operation."""

    KINDS = ("step", "mask update", "save")

    def __init__(self, kind: str = "", at: int = 0, done: float = 0.0, *, saves_often: bool = True) -> None:
        self.kind, self.at = kind, at
        self.counts = dict.fromkeys(self.KINDS[:2], 0)
        self.files = FileSystem(at if kind == "save" else None, done, kill_this_process)
        self.saves_often = saves_often

    def patched(self) -> ExitStack:
        stack = self.files.patched()
        counted = ((EagerStep, "__call__", "step"), (CudaGraphStep, "__call__", "step"))
        for owner, name, kind in (*counted, (enforce, "set_keep_", "mask update")):
            stack.enter_context(replaced(owner, name, self._counted(getattr(owner, name), kind)))
        if self.saves_often:
            stack.enter_context(replaced(stages, "SECONDS_BETWEEN_SAVES", 0.0))
        return stack

    @property
    def num_events(self) -> dict[str, int]:
        """How often each kind of event has happened."""
        return {**self.counts, "save": self.files.num}

    def _counted(self, operation: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def operate(*args: Any, **options: Any) -> Any:
            self.counts[kind] += 1
            if self.kind == kind and self.counts[kind] == self.at:
                kill_this_process()
            return operation(*args, **options)

        return operate


def kill_and_resume(
    run: Callable[[Path], object], path: Path, events: dict[str, int], trials: Trials, num_kills: int
) -> None:
    """Kill a run up to `num_kills` times at random events, each time in a new process, and finish it."""
    for _ in range(num_kills):
        kind = trials.draw.choice([kind for kind, num in events.items() if num])
        at, often = trials.draw.randint(1, events[kind]), trials.draw.random() < 0.7
        kill = Kill(kind, at, trials.draw.random(), saves_often=often)
        if in_a_child(run, path, inside=kill.patched):
            trials.add(f"SIGKILLs in a {kind}")
        else:
            break  # less was left to do
    assert not in_a_child(run, path)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def in_a_child(
    work: Callable[..., object], *arguments: Any, inside: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> bool:
    """Run `work` in a fork of this process and return whether it was killed; an error in it is an AssertionError."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with inside():
                work(*arguments)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
        return False
    assert os.WTERMSIG(status) == signal.SIGKILL
    return True
