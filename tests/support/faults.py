"""Processes that die or get a signal, and disks that fail, at a chosen operation."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from pathgrow import atomic
from pathgrow.runs import stages
from pathgrow.runs.session import Session
from pathgrow.sparse import attach as attaching
from pathgrow.sparse import enforce
from pathgrow.sparse.attach import Attached
from pathgrow.trainer.cuda_graph_step import CudaGraphStep
from pathgrow.trainer.eager_step import EagerStep
from tests.support.catalogue import Trials

_PACKAGE = str(Path(atomic.__file__).parent)
_WARM_UP_STEPS = 3


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
    work: Callable[..., object],
    *arguments: Any,
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
    by: int = signal.SIGKILL,
) -> bool:
    """Run `work` in a fork of this process and return whether a signal ended it; an error is an AssertionError."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with inside():
                work(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
        return False
    assert os.WTERMSIG(status) == by
    return True


class Signalled:
    """A signal at the n-th call or return of a function of the package inside a phase of a run; also counts them."""

    PHASES: Mapping[str, Sequence[tuple[Any, str]]] = {
        "start": [(Session, "__init__")],
        "warm-up": [],  # the first steps
        "training": [(EagerStep, "__call__")],
        "evaluation": [(Session, "score")],
        "scoring": [(attaching, "start_masks")],
        "growth": [(Attached, "_update_masks_"), (Attached, "grow_")],
        "save": [(atomic, "replace")],
    }

    def __init__(self, phase: str = "", at: int = 0, signum: int = 0) -> None:
        self.phase, self.at, self.signum = phase, at, signum
        self.counts = dict.fromkeys(self.PHASES, 0)
        """Calls and returns in each phase."""
        self.num_steps = 0
        self._phases: list[str] = []

    @contextmanager
    def patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for phase, places in self.PHASES.items():
                for owner, name in places:
                    stack.enter_context(replaced(owner, name, self._noted(getattr(owner, name), phase)))
            before = sys.getprofile()
            sys.setprofile(self._count)
            try:
                yield
            finally:
                sys.setprofile(before)

    def _noted(self, operation: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def operate(*args: Any, **options: Any) -> Any:
            is_step = phase == "training"
            self.num_steps += is_step
            self._phases.append("warm-up" if is_step and args[0].attached.step < _WARM_UP_STEPS else phase)
            try:
                return operation(*args, **options)
            finally:
                self._phases.pop()

        return operate

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if not self._phases or event not in ("call", "return") or not frame.f_code.co_filename.startswith(_PACKAGE):
            return
        phase = self._phases[-1]
        self.counts[phase] += 1
        if phase == self.phase and self.counts[phase] == self.at:
            os.kill(os.getpid(), self.signum)
