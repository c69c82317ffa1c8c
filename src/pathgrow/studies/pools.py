"""Where workers run: processes of this machine, tasks of a Ray cluster, or jobs of SLURM.

A pool starts workers and says which have ended, and how; what they do is the business of `worker.work`.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathgrow.distributed.cpus import available_cpus
from pathgrow.distributed.interrupts import Interrupted, forget_inherited, signal_handlers
from pathgrow.errors import UserError, unknown_name

if TYPE_CHECKING:  # workers import torch, which takes as long as it takes this module to start them
    from pathgrow.studies.definition import Cell
    from pathgrow.studies.worker import Ending

_PRELOAD = "pathgrow.studies.preload"
_SLURM_POLL_SECONDS = 5.0
_CODES: dict[int, Ending] = {0: "done", 3: "out of memory", 4: "orphaned"}
"""Exit codes of local workers; any other one means that the worker died."""


class WorkerPool(ABC):
    """Workers for one study; `num` is how many run at once at most."""

    num: int

    @abstractmethod
    def start(self, out: Path, cells: Sequence[Cell], *, is_alone: bool) -> Any:
        """Start a worker and return its handle."""

    @abstractmethod
    def ended(self, workers: Sequence[Any], timeout: float) -> dict[Any, Ending | None]:
        """Wait for workers to end, and return those that have; None: the worker died."""

    @abstractmethod
    def stop(self, workers: Sequence[Any]) -> None:
        """End workers; finished stages of their cells are kept."""


class LocalPool(WorkerPool):
    """Processes of this machine: one per GPU, or fractions of one; without GPUs, one per CPU.

    A forked worker need not import torch, but must not inherit threads or CUDA. A process that has not imported torch
    yet imports it once for all and forks its workers at once, which wait for their work. Otherwise, and to replace
    workers, a server that has neither threads nor CUDA forks them; it imports while this process does.
    """

    def __init__(self, jobs: int | None = None, gpus: float | None = None) -> None:
        can_fork = sys.platform.startswith("linux")
        self._context: Any = multiprocessing.get_context("forkserver" if can_fork else "spawn")
        self._waiting: list[tuple[Any, Connection]] = []
        is_first = can_fork and "torch" not in sys.modules and not _is_cuda_built()
        if can_fork:
            self._context.set_forkserver_preload([_PRELOAD])
        if is_first:
            importlib.import_module(_PRELOAD)
        elif can_fork:
            forkserver.ensure_running()
        self._num_gpus, self._gpus = _visible_gpus(), 1.0 if gpus is None else gpus
        if self._gpus > 1:
            raise UserError(f"gpus must be <= 1, got {self._gpus:g}: a local cell uses one GPU (e.g. 0.5)")
        fitting = int(self._num_gpus / self._gpus) if self._gpus else 0
        self.num = jobs if jobs is not None else fitting or available_cpus()
        self._threads = max(1, available_cpus() // self.num)
        self._started = 0
        if is_first:
            atexit.register(self._dismiss)  # Python waits for them as it exits
            for _ in range(self.num):
                self._fork()

    def _fork(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        inherited = [ours, *(connection for _, connection in self._waiting)]
        worker = multiprocessing.get_context("fork").Process(target=_wait_for_work, args=(theirs, inherited))
        worker.start()
        theirs.close()
        self._waiting.append((worker, ours))

    def start(self, out: Path, cells: Sequence[Cell], *, is_alone: bool) -> Any:
        gpu = str(self._started % self._num_gpus) if self._num_gpus and self._gpus else None
        self._started += 1
        work = (out, cells, is_alone, self._threads, gpu)
        if self._waiting:
            worker, connection = self._waiting.pop(0)
            with suppress(BrokenPipeError), connection:  # one that was killed meanwhile has ended
                connection.send(work)
            return worker
        worker = self._context.Process(target=_process, args=work)
        worker.start()
        return worker

    def ended(self, workers: Sequence[Any], timeout: float) -> dict[Any, Ending | None]:
        wait([worker.sentinel for worker in workers], timeout)
        return {worker: _CODES.get(worker.exitcode) for worker in workers if worker.exitcode is not None}

    def stop(self, workers: Sequence[Any]) -> None:
        self._dismiss()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()

    def _dismiss(self) -> None:
        """Let workers go that are not needed."""
        while self._waiting:
            self._waiting.pop()[1].close()


def _wait_for_work(connection: Connection, inherited: Sequence[Connection]) -> None:
    """Wait for work, or for the parent to close the connection, of which no other process may hold an end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_inherited()
    for other in inherited:
        other.close()
    try:
        work = connection.recv()
    except EOFError:
        return
    connection.close()
    _process(*work)


def _process(out: Path, cells: Sequence[Cell], is_alone: bool, num_threads: int, gpu: str | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(gpu)] if visible != [""] else gpu
    from pathgrow.studies.worker import work

    try:
        with signal_handlers():
            ending = work(out, cells, is_alone=is_alone, num_threads=num_threads)
    except Interrupted as error:
        sys.exit(error.exit_code)
    sys.exit(next(code for code, name in _CODES.items() if name == ending))


def _is_cuda_built() -> bool:
    """Whether torch can use GPUs, without importing it."""
    package = find_spec("torch")
    folder = Path((package and package.origin) or "").parent / "lib"
    return any(folder.glob("*torch_cuda*")) or any(folder.glob("*torch_hip*"))


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class RayPool(WorkerPool):
    """Tasks of the Ray cluster that `ray.init` finds, or of a new one on this machine; GPUs may be fractions."""

    def __init__(self, jobs: int | None = None, gpus: float | None = None) -> None:
        from pathgrow.studies.worker import work

        self._ray = _optional("ray", "ray")
        if not self._ray.is_initialized():
            with suppress(ConnectionError):
                self._ray.init(address="auto", log_to_driver=False)
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False)
        has = self._ray.cluster_resources()
        gpus = (1.0 if has.get("GPU") else 0.0) if gpus is None else gpus
        fitting = int(has.get("GPU", 0) / gpus if gpus else has.get("CPU", 1))
        self.num = jobs if jobs is not None else max(1, fitting)
        # A worker that dies is replaced by the runner, like everywhere else.
        self._task = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(work)

    def start(self, out: Path, cells: Sequence[Cell], *, is_alone: bool) -> Any:
        return self._task.remote(out.resolve(), cells, is_alone=is_alone, num_threads=1)

    def ended(self, workers: Sequence[Any], timeout: float) -> dict[Any, Ending | None]:
        done, _ = self._ray.wait(list(workers), num_returns=1, timeout=timeout)
        return {worker: self._ending(worker) for worker in done}

    def _ending(self, worker: Any) -> Ending | None:
        try:
            return self._ray.get(worker)  # type: ignore[no-any-return]
        except self._ray.exceptions.RayTaskError as error:  # a fault of the worker itself, not of its machine
            raise error.as_instanceof_cause() from error
        except self._ray.exceptions.RayError:
            return None

    def stop(self, workers: Sequence[Any]) -> None:
        for worker in workers:
            self._ray.cancel(worker, force=True)


class SlurmPool(WorkerPool):
    """Jobs of SLURM through submitit; each works through cells until none is left."""

    def __init__(
        self, jobs: int | None = None, gpus: float | None = None, *, folder: Path, options: Mapping[str, Any]
    ) -> None:
        submitit = _optional("submitit", "slurm")
        self.num = 4 if jobs is None else jobs
        cluster = options.get("cluster", "slurm")
        self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        given = {key: value for key, value in options.items() if key != "cluster"}
        self._executor.update_parameters(**{"name": "pathgrow", "gpus_per_node": int(gpus or 0), **given})
        self._poll = _SLURM_POLL_SECONDS if cluster == "slurm" else 0.2

    def start(self, out: Path, cells: Sequence[Cell], *, is_alone: bool) -> Any:
        from pathgrow.studies.worker import work

        return self._executor.submit(work, out.resolve(), cells, is_alone=is_alone)

    def ended(self, workers: Sequence[Any], timeout: float) -> dict[Any, Ending | None]:
        time.sleep(min(timeout, self._poll))
        return {worker: self._ending(worker) for worker in workers if worker.done()}

    def _ending(self, worker: Any) -> Ending | None:
        # A killed job leaves no result, and one that raised leaves its traceback.
        return worker.result() if worker.state in ("COMPLETED", "FINISHED") else None

    def stop(self, workers: Sequence[Any]) -> None:
        for worker in workers:
            worker.cancel()


def create_pool(
    name: str, jobs: int | None = None, gpus: float | None = None, *, folder: Path, options: Mapping[str, Any]
) -> WorkerPool:
    """Create a pool by name: local, ray or slurm; `folder` and `options` are for SLURM."""
    slurm = partial(SlurmPool, folder=folder, options=options)
    kinds: dict[str, Callable[..., WorkerPool]] = {"local": LocalPool, "ray": RayPool, "slurm": slurm}
    if name not in kinds:
        raise unknown_name("place to run (--on)", name, kinds)
    return kinds[name](jobs, gpus)


def _optional(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"--on {extra} requires {name}: pip install 'pathgrow[{extra}]' ({error})") from error
