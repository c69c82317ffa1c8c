"""Signals that end a run: a training in progress is saved first.

Nothing here has an effect unless handlers are installed (`signal_handlers`, `save_on_signal`). Between the steps of a
training, and while one is saved, a signal is only noted; anywhere else it raises `Interrupted` at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pathgrow.errors import RunFailed, UserError

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """A signal ends the command."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.exit_code = 128 + signum


@dataclass
class _State:
    is_active: bool = False
    received: int | None = None
    is_deferred: bool = False
    is_agreed: bool = False
    """Whether all ranks know of the signal."""
    unsaved: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Ended trainings whose stages are not stored yet, and how to save them."""


_state = _State()
_RETRY_SECONDS = 0.02


@contextmanager
def signal_handlers() -> Iterator[None]:
    """Handle signals inside the block. Those that are ignored (nohup) or have another handler stay so."""
    if threading.current_thread() is not threading.main_thread() or _state.is_active:
        yield
        return
    _state.__init__()  # type: ignore[misc]
    owner, before, show = os.getpid(), {}, sys.unraisablehook

    def handle(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker process
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        is_first, _state.received = _state.received is None, signum
        if not (is_first and _state.is_deferred):
            raise Interrupted(signum)

    def retry(unraisable: Any) -> None:
        """Send a signal again whose exception was lost: Python ignores those that are raised in a destructor."""
        if not isinstance(unraisable.exc_value, Interrupted):
            show(unraisable)
        elif not _state.is_deferred:
            signum, _state.received = _state.received, None
            timer = threading.Timer(_RETRY_SECONDS, os.kill, (owner, signum))
            timer.daemon = True
            timer.start()

    for signum in _SIGNALS:
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            before[signum] = signal.signal(signum, handle)
    sys.unraisablehook = retry
    _state.is_active = True
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        sys.unraisablehook = show
        _state.__init__()  # type: ignore[misc]


def forget_inherited() -> None:
    """Handle signals as a new process does, in one that was forked while its parent handled them."""
    if _state.is_active:
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)
        sys.unraisablehook = sys.__unraisablehook__
        _state.__init__()  # type: ignore[misc]


@contextmanager
def save_on_signal() -> Iterator[None]:
    """In the program of a user: save when a signal comes, then let it do what it would have done."""
    try:
        with signal_handlers(), save_if_interrupted():
            yield
    except Interrupted as error:
        if not _state.is_active and error.signum != signal.SIGINT:
            signal.raise_signal(error.signum)
        raise  # Ctrl-C is a `KeyboardInterrupt`


@contextmanager
def defer_signals(*, is_alone: bool) -> Iterator[Callable[[], bool]]:
    """Only note the first signal inside the block, which has to ask for it, and raise `Interrupted` at its end.

    Unless the process `is_alone`, all ranks have to know of the signal first (`agree`).
    """
    _state.is_deferred, _state.is_agreed = True, is_alone
    try:
        yield lambda: _state.received is not None and _state.is_agreed
    finally:
        _state.is_deferred = False
    if _state.received is not None:
        raise Interrupted(_state.received)


@contextmanager
def reraise_interrupt() -> Iterator[None]:
    """Raise `Interrupted` in place of the exception that C code replaced it by: an import of numpy that a signal ends
    fails with an ImportError."""
    try:
        yield
    except (UserError, RunFailed):
        raise
    except Exception as error:
        if _state.received is None:
            raise
        raise Interrupted(_state.received) from error


def received() -> int | None:
    """The signal that this process has received, if any."""
    return _state.received


def agree(signals: Iterable[int | None]) -> bool:
    """Whether a rank has received a signal, which then counts as received by all; given what each has `received`."""
    found = next((signum for signum in signals if signum is not None), None)
    if found is not None:
        _state.received, _state.is_agreed = found, True
    return found is not None


def save_later(name: str, save: Callable[[], None]) -> None:
    """Note an ended training that is saved only if a signal comes before its stage is stored."""
    if _state.is_active:  # it holds the network
        _state.unsaved[name] = save


def forget(name: str) -> None:
    """The training is saved or no longer needed."""
    _state.unsaved.pop(name, None)


@contextmanager
def save_if_interrupted() -> Iterator[None]:
    """Save what is unsaved if a signal ends the block: inside everything that puts other weights into the networks."""
    try:
        with reraise_interrupt():
            yield
    except Interrupted:
        _state.is_deferred, _state.received = True, None
        try:
            while _state.unsaved:
                _state.unsaved.popitem()[1]()
        finally:
            _state.is_deferred = False
        raise
