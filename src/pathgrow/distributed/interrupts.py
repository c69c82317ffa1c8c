"""Signals that end a command: a training in progress is saved first.

Nothing here has an effect unless the command line has installed the handlers (`handled`). Between the steps of a
training, and while one is saved, a signal is only noted; anywhere else it raises `Interrupted` at once.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """A signal ends the command."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@dataclass
class _State:
    is_active: bool = False
    received: int | None = None
    is_deferred: bool = False
    unsaved: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Ended trainings whose stages are not stored yet, and how to save them."""


_state = _State()


@contextmanager
def handled() -> Iterator[None]:
    """Handle signals inside the block. Those that are ignored stay so, as with nohup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.__init__()  # type: ignore[misc]
    owner, before = os.getpid(), {}

    def handle(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker process
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        is_first, _state.received = _state.received is None, signum
        if not (is_first and _state.is_deferred):
            raise Interrupted(signum)

    for signum in _SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, handle)
    _state.is_active = True
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        _state.__init__()  # type: ignore[misc]


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Only note the first signal inside the block, which has to ask for it, and raise `Interrupted` at its end."""
    _state.is_deferred = True
    try:
        yield lambda: _state.received is not None
    finally:
        _state.is_deferred = False
    if _state.received is not None:
        raise Interrupted(_state.received)


def save_later(name: str, save: Callable[[], None]) -> None:
    """Note an ended training that is saved only if a signal comes before its stage is stored."""
    if _state.is_active:  # it holds the network
        _state.unsaved[name] = save


def forget(name: str) -> None:
    """The training is saved or no longer needed."""
    _state.unsaved.pop(name, None)


@contextmanager
def saving() -> Iterator[None]:
    """Save what is unsaved if a signal ends the block."""
    try:
        yield
    except Interrupted:
        _state.is_deferred, _state.received = True, None
        for save in list(_state.unsaved.values()):
            save()
        raise
    finally:
        _state.unsaved.clear()
        _state.is_deferred = False
