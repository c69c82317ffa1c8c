"""Several processes that train one network together, on PyTorch's own distributed engine.

Gradients travel between the two graphs of a captured step, or by DistributedDataParallel where steps are eager (NCCL on
GPUs, gloo on CPUs). Decisions travel beside them over a gloo group of our own, from the CPU: they never wait for a
device, and never mix with messages of anybody else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.errors import PeerFailed, RunFailed, UserError
from pathgrow.trainer.device import EngineOptions, ExecutionPlan

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

_PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others: the first may be writing, or growing a large network."""
_START_PATIENCE = timedelta(minutes=10)
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST = 0
_NUM_FAILED, _FAULT = "pathgrow/num_failed", "pathgrow/fault"
_LINGER_SECONDS = 2.0
_BROKEN = "another process of this run ended or fell silent: finished stages are kept, start all of them again"


class ProcessGroupComm:
    """The processes of the default process group; implements `Team`.

    To make one is a collective act: every process of the group does so, in the same order.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def disconnect_(self) -> None:
        """Part from the others; the team cannot talk any more.

        A thread of gloo that still puts its last message away when Python ends aborts the process. The threads of a
        group end with the last reference to it, and this is ours.
        """
        del self._group
        dist.destroy_process_group()

    def __repr__(self) -> str:
        return f"ProcessTeam(rank {self.rank} of {self.size})"

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        if self.rank != _FIRST:
            value: T = self._hear().opened()
            return value
        value = self._done_by_first(work)
        self._say(_Parcel(value))
        return value

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        if self.rank != _FIRST:
            self._hear().opened()
            return None
        value = self._done_by_first(work)
        self._say(_Parcel(None))
        return value

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with _talking():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            with _talking(), _in_plain_order(tensor) as plain:
                dist.all_reduce(plain)

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            with _talking(), _in_plain_order(tensor) as plain:
                dist.broadcast(plain.view(-1).view(torch.uint8), _FIRST)  # as bytes: of any type of number

    def check_equal(self, what: str, digest: Callable[[], str]) -> None:
        digests = self.gather(digest())
        odd = [rank for rank, other in enumerate(digests) if other != digests[_FIRST]]
        if odd:
            raise RunFailed(
                f"the {what} of rank {', '.join(map(str, odd))} are not those of rank 0, but all ranks must have the "
                "same: give every rank the same model, seed and options, on devices of one kind"
            )

    def _done_by_first(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except Exception as error:
            # Not handled here: the others wait for an answer, and get this one.
            self._say(_Parcel(fault=_Fault.of(error, self.rank)))
            raise

    def _say(self, parcel: _Parcel) -> None:
        with _talking():
            dist.broadcast_object_list([parcel], _FIRST, group=self._group)

    def _hear(self) -> _Parcel:
        box: list[Any] = [None]
        with _talking():
            dist.broadcast_object_list(box, _FIRST, group=self._group)
        return cast("_Parcel", box[0])


@dataclass(frozen=True)
class _Fault:
    """An error as it travels: which rank had it, its sentence, and the exit code it stands for."""

    rank: int
    code: int
    sentence: str

    @classmethod
    def of(cls, error: BaseException, rank: int) -> _Fault:
        if isinstance(error, UserError):
            return cls(rank, 2, str(error))
        if isinstance(error, RunFailed):
            return cls(rank, 1, str(error))
        if isinstance(error, KeyboardInterrupt):
            return cls(rank, 130, "interrupted")
        return cls(rank, 1, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Parcel:
    """What the first sends: a value, or why there is none."""

    value: Any = None
    fault: _Fault | None = None

    def opened(self) -> Any:
        if self.fault is not None:
            kind = UserError if self.fault.code == 2 else RunFailed
            raise kind(self.fault.sentence)
        return self.value


@contextmanager
def _in_plain_order(tensor: Tensor) -> Iterator[Tensor]:
    """The numbers in the order of their indices, whatever the layout here: that of another process may differ."""
    with torch.no_grad():
        plain = tensor.detach().contiguous()
        yield plain
        if plain.data_ptr() != tensor.data_ptr():
            tensor.copy_(plain)


@contextmanager
def _talking() -> Iterator[None]:
    """A conversation that breaks off is a failed run, in words."""
    try:
        yield
    except RuntimeError as error:  # of which torch's own DistError is one
        raise RunFailed(_BROKEN) from error


def current_communicator() -> Communicator:
    """The processes of the default process group, where there is one; otherwise this process alone.

    Where there is one, all of its processes have to call this.
    """
    if not is_initialized() or dist.get_world_size() == 1:
        return SINGLE_PROCESS
    return ProcessGroupComm()


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[Communicator]:
    """Join the other processes that `torchrun` started; without it, or in a group of one's own, nothing changes.

    An error in one process ends all of them, with the exit code it stands for: the process that fails first raises its
    own error, every other a `PeerFailed` that repeats it.

    Parameters
    ----------
    device
        What will be trained on: with GPUs each process takes the one of its local rank.
    """
    if is_initialized():
        yield current_communicator()
        return
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1" or "RANK" not in os.environ:
        yield SINGLE_PROCESS
        return
    store = _connect(_backend(device))
    comm = ProcessGroupComm()
    try:
        yield comm
    except BaseException as error:
        _leave_failed(store, comm, error)
        raise
    else:
        comm.gather(None)  # nobody goes before the last is done
        comm.disconnect_()


def is_initialized() -> bool:
    """Whether a process group is still there, as a failed `joined` leaves it."""
    return dist.is_available() and dist.is_initialized()


def _connect(backend: str) -> Store:
    """Initialise the default group by the variables that `torchrun` sets; the store that its processes share."""
    if wanting := [name for name in _NEEDED if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE is set and {wanting[0]} is not, but processes find each other by both: start with torchrun"
        )
    from torch.distributed.rendezvous import rendezvous  # here: builds of torch without distributed lack it

    store: Store
    try:
        store, rank, size = next(rendezvous("env://", timeout=_START_PATIENCE))
        store.set_timeout(_START_PATIENCE)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the processes of this run did not find each other ({_first_line(error)}): "
            "check MASTER_ADDR, MASTER_PORT and that all of them were started"
        ) from error
    return store


def _backend(device: str) -> str:
    if device == "cpu" or not torch.cuda.is_available():
        return "gloo"
    local_rank, num_devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= num_devices:
        raise UserError(
            f"process {local_rank + 1} on this machine has no GPU of its own, torch sees {num_devices}: "
            f"start at most {num_devices} processes a machine, or give device cpu"
        )
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"


def _leave_failed(store: Store, comm: ProcessGroupComm, error: BaseException) -> None:
    """Tell the others why this process goes, or learn from them why it has to.

    The groups are left as they are: to take a group of NCCL apart while others wait in it can wait itself.
    """
    try:
        first = _first_fault(store, _Fault.of(error, comm.rank))
        _linger(store, comm)
    except RuntimeError:
        first = None  # the process that kept the store is gone, and with it the word of who failed first
    if first is not None and first.rank != comm.rank:
        raise PeerFailed(first.sentence, rank=first.rank, exit_code=first.code) from error
    if not isinstance(error, UserError | RunFailed) and _is_link_fault(error):
        raise RunFailed(_BROKEN) from error


def _first_fault(store: Store, mine: _Fault) -> _Fault:
    """Whoever is first has failed by itself; those who fail because of it come later."""
    if store.add(_NUM_FAILED, 1) == 1:
        store.set(_FAULT, json.dumps(asdict(mine)))
        return mine
    return _Fault(**json.loads(store.get(_FAULT)))


def _linger(store: Store, comm: ProcessGroupComm) -> None:
    """Without torchrun the first process keeps the store: it stays a moment, for others to read what it says."""
    if comm.rank != _FIRST or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    end = time.monotonic() + _LINGER_SECONDS
    while store.add(_NUM_FAILED, 0) < comm.size and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)  # the last has counted itself and reads now


def _is_link_fault(error: BaseException) -> bool:
    """Whether a reduction of gradients failed because a peer is gone: gloo has no error class of its own."""
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text or "Connection closed" in text)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def wrapped(model: nn.Module, comm: Communicator) -> nn.Module:
    """The model as it is called in training: its gradients become the means over all processes."""
    if comm.size == 1:
        return model
    return _Shared(model, gradient_as_bucket_view=True)


class _Shared(DistributedDataParallel):
    """Says by which change of their model, and not of this wrapper, people can mend what torch complains about."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as fault:
            if "finished reduction" not in str(fault):
                raise
            raise UserError(
                "some parameters of this model take no part in its loss, and processes that train together wait for "
                "the gradients of all: leave them out of the model, or freeze them with requires_grad_(False)"
            ) from fault


def plan_for(options: EngineOptions, comm: Communicator) -> ExecutionPlan:
    """The engine's choices for one of several processes."""
    plan = options.resolve()
    if comm.size == 1:
        return plan
    if ":" in options.device:
        raise UserError(
            f"device {options.device} was asked for in {comm.size} processes, each of which needs its own: "
            f"give {options.device.partition(':')[0]}"
        )
    # Captured steps of several processes have to be asked for: over NCCL, on a GPU each, nobody has run them yet.
    captured = plan.cuda_graphs and options.step == "cuda_graph"
    # Messages of several networks would have to come in one order everywhere.
    return replace(plan, cuda_graphs=captured, max_concurrent=1)


def check_batch_split(batch_size: int, accumulate: int, num_ranks: int) -> None:
    """Every process computes equally many rows of a batch: only then is the mean of their means the mean of the batch.

    >>> check_batch_split(128, 2, 4)
    >>> check_batch_split(100, 1, 8)
    Traceback (most recent call last):
    pathgrow.errors.UserError: a batch of 100 cannot be shared by 8 processes...
    """
    if batch_size % (num_ranks * accumulate):
        parts = f" in {accumulate} parts" if accumulate > 1 else ""
        raise UserError(
            f"a batch of {batch_size} cannot be shared by {num_ranks} processes{parts}: "
            f"choose a batch size that is a multiple of {num_ranks * accumulate}"
        )
