"""Data-parallel training of one network on torch.distributed.

Gradients are averaged by DistributedDataParallel (eager steps) or between the two graphs of a CUDA-graph step, over
NCCL on GPUs and gloo on CPUs. Decisions are broadcast over a separate gloo group, from the CPU: they never wait for a
device and never mix with messages of other code.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import PeerFailed, RunFailed, UserError, require

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

_TIMEOUT = "PATHGROW_TIMEOUT", 1800.0
"""Variable and default: how many seconds a rank waits for another, which may be writing or growing a network."""
_START_TIMEOUT = "PATHGROW_START_TIMEOUT", 50.0
"""The same until all ranks are connected."""
_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NUM_FAILED, _FAILURE = "pathgrow/num_failed", "pathgrow/failure"
_GRACE_SECONDS = 2.0
_MAX_SECONDS = 1e6
_GIL_SECONDS = 0.1
_BROKEN = "lost the connection to another rank; finished stages are kept, restart all processes to resume"
_SILENT = (
    "another rank did not answer within {0:g} s; finished stages are kept, restart all processes to resume, with "
    f"{_TIMEOUT[0]} set to more seconds if it was busy"
)


class ProcessGroupComm:
    """The ranks of the default process group; implements `Communicator`.

    Creating one is collective: all ranks must do it, in the same order.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        """Connect all ranks once more, within `timeout`."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=timeout or _seconds(*_TIMEOUT))

    def disconnect_(self) -> None:
        """Leave the process group; the communicator cannot be used any more.

        A gloo thread that is still sending when Python exits aborts the process. The threads of a group end with the
        last reference to it, which this is.
        """
        # Before torch 2.8 the group is destroyed without releasing the GIL, and hangs if a gloo thread needs it to free
        # the tensors of a finished operation: give it time to do so.
        time.sleep(_GIL_SECONDS)
        del self._group
        dist.destroy_process_group()

    def __repr__(self) -> str:
        return f"ProcessGroupComm(rank {self.rank} of {self.size})"

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        if self.rank != 0:
            received = self._sent_by_rank0()
            if isinstance(received, _Failure):
                raise (UserError if received.exit_code == 2 else RunFailed)(received.message)
            return cast("T", received)
        try:
            value = work()
        except Exception as error:
            # The other ranks wait for a result and get the error instead.
            self._sent_by_rank0(_Failure.of(error, self.rank))
            raise
        self._sent_by_rank0(value)
        return value

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        results: list[T] = []
        self.broadcast_from_rank0(lambda: results.append(work()))  # the result itself is not sent
        return results[0] if results else None

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with _connected():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            with _connected(), _contiguous(tensor) as plain:
                dist.all_reduce(plain)

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            with _connected(), _contiguous(tensor) as plain:
                dist.broadcast(plain.view(-1).view(torch.uint8), 0)  # as bytes: backends do not support every dtype

    def check_equal(self, what: str, digest: Callable[[], str]) -> None:
        digests = self.gather(digest())
        differing = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if differing:
            raise RunFailed(
                f"the {what} of rank {', '.join(map(str, differing))} differ from those of rank 0; "
                "average gradients over ranks (DistributedDataParallel), and use the same model, seed, options and "
                "kind of device on every rank"
            )

    def _sent_by_rank0(self, value: Any = None) -> Any:
        """Broadcast the value of rank 0 and return it on every rank; those of other ranks are ignored."""
        box = [value]
        with _connected():
            dist.broadcast_object_list(box, 0, group=self._group)
        return box[0]


@dataclass(frozen=True)
class _Failure:
    """An error as it is sent to other ranks."""

    rank: int
    exit_code: int
    message: str

    @classmethod
    def of(cls, error: BaseException, rank: int) -> _Failure:
        if isinstance(error, UserError):
            return cls(rank, 2, str(error))
        if isinstance(error, RunFailed):
            return cls(rank, 1, str(error))
        if isinstance(error, KeyboardInterrupt):
            return cls(rank, getattr(error, "exit_code", 130), "interrupted")
        return cls(rank, 1, f"{type(error).__name__}: {error}")


@contextmanager
def _contiguous(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensor in contiguous layout and write it back: the memory format may differ between ranks."""
    with torch.no_grad():
        plain = tensor.detach().contiguous()
        yield plain
        if plain.data_ptr() != tensor.data_ptr():
            tensor.copy_(plain)


@contextmanager
def _connected() -> Iterator[None]:
    """Turn a broken connection or a silent rank into a `RunFailed`."""
    try:
        yield
    except RuntimeError as error:  # includes torch's DistError
        raise RunFailed(_lost(error)) from error


def _lost(error: BaseException) -> str:
    """Which of two ways a rank was lost in, as a sentence."""
    is_silent = any(words in str(error).lower() for words in ("timed out", "timeout"))
    return _SILENT.format(_seconds(*_TIMEOUT).total_seconds()) if is_silent else _BROKEN


def _seconds(variable: str, default: float) -> timedelta:
    """A duration that an environment variable may change."""
    text = os.environ.get(variable, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = 0.0
    require(
        0 < seconds <= _MAX_SECONDS, variable, text, f"a number of seconds in (0, {_MAX_SECONDS:g}]", f"{default:g}"
    )
    return timedelta(seconds=seconds)


_found: list[tuple[object, ProcessGroupComm]] = []
"""The communicator that was made last, and its default process group."""


def current_communicator() -> Communicator:
    """Return the communicator of the default process group, or that of a single process if there is none.

    Collective at its first call with a process group.
    """
    if not is_initialized() or dist.get_world_size() == 1:
        return SINGLE_PROCESS
    if not _found or _found[0][0] is not dist.group.WORLD:
        with _connected():
            _found[:] = [(dist.group.WORLD, ProcessGroupComm())]
    return _found[0][1]


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[Communicator]:
    """Join the processes started by `torchrun`; without torchrun, or in an existing process group, change nothing.

    An error on one rank ends all ranks with its exit code: the first rank that fails raises its own error, all others
    raise a `PeerFailed` that repeats it.

    Parameters
    ----------
    device
        Device to train on; each process takes the GPU of its local rank.
    """
    if is_initialized():
        yield current_communicator()
        return
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1" or "RANK" not in os.environ:
        yield SINGLE_PROCESS
        return
    store, comm = _connect(_backend(device))
    try:
        yield comm
    except BaseException as error:
        _leave_failed(store, comm, error)
        raise
    else:
        comm.gather(None)  # no rank leaves before all are done
        comm.disconnect_()


def is_initialized() -> bool:
    """Return whether there is a process group; a failed `join_process_group` leaves it in place."""
    return dist.is_available() and dist.is_initialized()


def _connect(backend: str) -> tuple[Store, ProcessGroupComm]:
    """Initialize the default process group from the variables of `torchrun`; also return the store its ranks share."""
    if missing := [name for name in _REQUIRED if not os.environ.get(name)]:
        raise UserError(f"WORLD_SIZE is set but {missing[0]} is not; start the processes with torchrun")
    from torch.distributed.rendezvous import rendezvous  # here: builds of torch without distributed lack it

    timeout, start_timeout = _seconds(*_TIMEOUT), _seconds(*_START_TIMEOUT)
    store: Store
    try:
        store, rank, size = next(rendezvous("env://", timeout=start_timeout))
        store.set_timeout(start_timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=start_timeout)
        comm = ProcessGroupComm(start_timeout)
        # Only now: a rank that dies before would be waited for as long as a busy one.
        for group in (None, comm._group):
            dist.distributed_c10d._set_pg_timeout(timeout, group)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(
            f"the ranks of this run could not connect within {start_timeout.total_seconds():g} s ({reason}): check "
            f"MASTER_ADDR and MASTER_PORT, and that all processes were started; {_START_TIMEOUT[0]} sets the seconds"
        ) from error
    return store, comm


def _backend(device: str) -> str:
    if device == "cpu" or not torch.cuda.is_available():
        return "gloo"
    local_rank, num_devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= num_devices:
        raise UserError(
            f"local rank {local_rank} has no GPU, torch sees {num_devices}: "
            f"start at most {num_devices} processes per machine, or use device cpu"
        )
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"


def _leave_failed(store: Store, comm: ProcessGroupComm, error: BaseException) -> None:
    """Publish why this rank fails, or raise the failure of the rank that failed first.

    The groups are not destroyed: destroying an NCCL group that other ranks wait in can hang.
    """
    store.set_timeout(timedelta(seconds=_GRACE_SECONDS))  # a rank may die between counting itself and its message
    try:
        first = _first_failure(store, _Failure.of(error, comm.rank))
        _wait_for_readers(store, comm)
    except RuntimeError:
        first = None  # the process that hosts the store is gone, so which rank failed first is unknown
    if first is not None and first.rank != comm.rank:
        raise PeerFailed(first.message, rank=first.rank, exit_code=first.exit_code) from error
    # An all-reduce failed because a peer is gone: gloo has no error class for that.
    is_broken = any(words in str(error) for words in ("gloo", "NCCL", "Connection closed"))
    if is_broken and isinstance(error, RuntimeError) and not isinstance(error, RunFailed):
        raise RunFailed(_lost(error)) from error


def _first_failure(store: Store, mine: _Failure) -> _Failure:
    """Return the failure published first, which caused the later ones; publish `mine` if there is none."""
    if store.add(_NUM_FAILED, 1) == 1:
        store.set(_FAILURE, json.dumps(asdict(mine)))
        return mine
    return _Failure(**json.loads(store.get(_FAILURE)))


def _wait_for_readers(store: Store, comm: ProcessGroupComm) -> None:
    """Keep rank 0 alive until the others have read the failure: without torchrun it hosts the store."""
    if comm.rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    end = time.monotonic() + _GRACE_SECONDS
    while store.add(_NUM_FAILED, 0) < comm.size and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)  # the last rank has counted itself and is reading now
