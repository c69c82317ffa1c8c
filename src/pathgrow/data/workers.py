"""Processes that fill arrays, one job after another; the results come back in the order of the jobs."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pathgrow.errors import RunFailed, UserError

Job = TypeVar("Job")
Pixels = NDArray[np.uint8]

DEPTH = 2
"""Arrays of a worker: it fills one while the other waits to be taken."""


def filled(
    fill: Callable[[Pixels, Job], None], jobs: Sequence[Job], shape: tuple[int, ...], workers: int
) -> Iterator[Pixels]:
    """An array of this shape for every job, filled by `fill`, valid until the next one is asked for.

    Workers start with the first array and end with the iterator, however it ends. With 0 of them the calling process
    does the work. A `UserError` of `fill` is raised here when its turn has come.
    """
    if workers == 0:
        array = np.empty(shape, dtype=np.uint8)
        for job in jobs:
            fill(array, job)
            yield array
        return
    context = multiprocessing.get_context()
    crew: list[_Worker] = []
    try:
        crew.extend(_Worker(context, fill, shape) for _ in range(min(workers, len(jobs))))
        ahead = DEPTH * len(crew)
        for number, job in enumerate(jobs[:ahead]):
            crew[number % len(crew)].send(job)
        for number in range(len(jobs)):
            worker = crew[number % len(crew)]
            yield worker.take()
            if number + ahead < len(jobs):
                worker.send(jobs[number + ahead])
    finally:
        for worker in crew:
            worker.end()


class _Worker:
    """One process and the memory it shares with this one."""

    def __init__(self, context: BaseContext, fill: Callable[[Pixels, Any], None], shape: tuple[int, ...]) -> None:
        # multiprocessing's own arrays: where /dev/shm is small (64 MB in many containers) they lie elsewhere.
        method_state = context.RawArray(ctypes.c_uint8, DEPTH * math.prod(shape))
        self._arrays = _arrays(method_state, shape)
        self._num_taken = 0
        self._connection, theirs = context.Pipe()
        # Processes differ by context in their types alone.
        self._process: Any = context.Process(  # type: ignore[attr-defined]
            target=_work, args=(theirs, self._connection, fill, method_state, shape), daemon=True
        )
        self._process.start()
        theirs.close()  # or the end of the process would not end the connection

    def send(self, job: object) -> None:
        try:
            self._connection.send(job)
        except OSError as fault:
            raise self._died() from fault

    def take(self) -> Pixels:
        try:
            fault: str | None = self._connection.recv()
        except (EOFError, OSError) as end:
            raise self._died() from end
        if fault is not None:
            raise UserError(fault)
        self._num_taken += 1
        array: Pixels = self._arrays[(self._num_taken - 1) % DEPTH]
        return array

    def end(self) -> None:
        self._connection.close()
        self._process.kill()  # it holds nothing that needs an orderly end
        self._process.join()

    def _died(self) -> RunFailed:
        self._process.join()
        code = self._process.exitcode
        if code < 0:
            how, advice = f"killed by {signal.Signals(-code).name}", "use fewer workers, or give them more memory"
        else:
            how, advice = f"exit code {code}", "its own error is printed above"
        return RunFailed(f"a process that decodes images has died ({how}): {advice}")


def _work(
    connection: Connection,
    far_end: Connection,
    fill: Callable[[Pixels, Any], None],
    method_state: Any,
    shape: tuple[int, ...],
) -> None:
    far_end.close()  # a fork's copy: the end of the main process must end the connection
    # Ctrl-C reaches the whole group of processes: the main one decides. Its handler of a termination is not ours.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    arrays = _arrays(method_state, shape)
    turn = 0
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionResetError):  # the main process is gone
            return
        fault = None
        try:
            fill(arrays[turn % DEPTH], job)
        except UserError as error:
            fault = str(error)
        try:
            connection.send(fault)
        except BrokenPipeError:
            return
        turn += 1


def _arrays(method_state: Any, shape: tuple[int, ...]) -> Pixels:
    return np.frombuffer(method_state, dtype=np.uint8).reshape(DEPTH, *shape)
