"""Processes that agree: what they share, what they find out about each other, how they end together."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pathgrow import attach, data, discover
from pathgrow.checkpoint import MemoryStore, RankZeroStore
from pathgrow.cli import main
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator, SingleProcess
from pathgrow.errors import PeerFailed, RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.methods import random_growth
from pathgrow.trainer import EngineOptions
from pathgrow.trainer.process_group import check_batch_split, current_communicator, join_process_group, plan_for
from tests.support.ranks import together

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Pair(SingleProcess):
    """A team of two as far as size goes; for checks that end before anything is said."""

    size = 2


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


# What is refused


@pytest.mark.parametrize(("batch_size", "accumulate", "ranks"), [(33, 1, 2), (30, 4, 2), (8, 1, 16)])
def test_batches_that_cannot_be_shared_equally_are_refused(batch_size: int, accumulate: int, ranks: int) -> None:
    with pytest.raises(UserError, match=f"multiple of {accumulate * ranks}"):
        check_batch_split(batch_size, accumulate, ranks)


def test_several_processes_train_one_network_at_a_time_eagerly_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = EngineOptions(device="cpu", max_concurrent=5).resolve()
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: replace(here, cuda_graphs=self.step != "eager"))
    for step, captured in (("auto", False), ("eager", False), ("cuda_graph", True)):
        assert plan_for(EngineOptions(step=step), Pair()) == replace(here, cuda_graphs=captured, max_concurrent=1)
    assert plan_for(EngineOptions(), SINGLE_PROCESS) == replace(here, cuda_graphs=True)


def test_one_device_for_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: None)  # as if there were a GPU
    for kind in ("cuda", "cpu"):
        with pytest.raises(UserError, match=f"cannot be shared by 2 processes; use device {kind}$"):
            plan_for(EngineOptions(device=f"{kind}:0"), Pair())


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_sharded_weights_are_refused_in_one_sentence() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = small_net()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match=r"'0\.weight' is a DTensor"):
        attach(model, optimizer, "random_growth", torch.zeros(1, 6))
    with pytest.raises(UserError, match="DistributedDataParallel"):
        discover(model, optimizer, lambda m, o, e: None, lambda m: 0.0, torch.zeros(1, 6))


@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_is_alone() -> None:
    assert current_communicator() is SINGLE_PROCESS


def test_without_torchrun_one_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join_process_group() as comm:
        assert comm is SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="MASTER_ADDR is not"), join_process_group():
        pass


# What is shared


def shares() -> dict[str, object]:
    with join_process_group("cpu") as comm:
        mine = comm.rank + 1
        total, everybody = torch.tensor([float(mine), 10.0 * mine]), torch.arange(6.0).reshape(2, 3).t() * mine
        flags, count = torch.tensor([comm.rank == 0, True]), torch.tensor(7 * mine)
        comm.all_reduce_([total])
        comm.broadcast_([everybody, flags, count])
        own = MemoryStore()
        store = RankZeroStore(comm, own)
        missing = store.load("seed")
        store.save("seed", {"score": 0.5 * mine}, {"w": torch.full((2,), float(mine))})
        found = store.load("seed")
        assert found is not None
        store.delete_tensors("seed")
        forgotten = store.load("seed")
        assert forgotten is not None
        return {
            "from_first": comm.broadcast_from_rank0(lambda: {"rank": comm.rank}),
            "only_first": comm.on_rank0(lambda: comm.rank),
            "kept": own.load("seed") is not None,
            "held": comm.on_rank0(threading.Lock) is not None,  # which could not travel
            "gathered": comm.gather(comm.rank),
            "failed": [_failed_by_first(comm, fault) for fault in (UserError("no"), RunFailed("over"), KeyError("k"))],
            "total": total.tolist(),
            "spread": (everybody.tolist(), everybody.is_contiguous(), flags.tolist(), count.item()),
            "stored": (missing, found.metadata, found.tensors["w"].tolist(), dict(forgotten.tensors)),
        }


def _failed_by_first(comm: Communicator, fault: Exception) -> str:
    def work() -> None:
        raise fault

    try:
        comm.broadcast_from_rank0(work)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_the_first_decides_and_all_take_part(tmp_path: Path) -> None:
    first, second = (rank.value for rank in together(tmp_path, shares))
    assert first.pop("failed") == ["UserError: no", "RunFailed: over", "KeyError: 'k'"]
    assert second.pop("failed") == ["UserError: no", "RunFailed: over", "RunFailed: KeyError: 'k'"]
    assert (first.pop("only_first"), second.pop("only_first")) == (0, None)
    assert (first.pop("held"), second.pop("held")) == (True, False)
    assert (first.pop("kept"), second.pop("kept")) == (True, False), "the first alone stores"
    assert first == second
    assert first["from_first"] == {"rank": 0}
    assert first["gathered"] == [0, 1]
    assert first["total"] == [3.0, 30.0]
    assert first["spread"] == ([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], False, [True, True], 7)
    assert first["stored"] == (None, {"score": 0.5}, [1.0, 1.0], {})


# What is found out


def tampered(where: str) -> tuple[str, str]:
    """Rank 1 comes to other masks behind everybody's back."""
    with join_process_group("cpu") as comm:
        model = small_net()
        optimizer = SGD(model.parameters(), lr=0.1)
        method = random_growth(start_density=0.2)
        sparse = attach(model, optimizer, method, torch.zeros(1, 6), scope=Masks.full(model), comm=comm)
        state = sparse.state_dict()
        if comm.rank == 1:
            masks = sparse.masks if where == "masks" else state["masks"]
            masks["0.weight"].logical_not_()
        try:
            if where == "masks":
                sparse.grow_(3)
            else:
                sparse.load_state_dict(state)
        except RunFailed as error:
            return "found", str(error)
        return "not found", ""


@pytest.mark.parametrize("where", ["masks", "state"])
def test_a_rank_with_other_masks_is_found_and_named(where: str, tmp_path: Path) -> None:
    ranks = together(tmp_path, tampered, where)
    assert [rank.value[0] for rank in ranks] == ["found", "found"]
    assert all("masks of rank 1 differ from those of rank 0" in rank.value[1] for rank in ranks)


def odd_ones() -> list[str]:
    """What is said where one of three differs, whatever its digest is."""
    with join_process_group("cpu") as comm:
        found = []
        for digests in ("bbb", "bba", "bab", "cbd"):
            try:
                comm.check_equal("masks", lambda digests=digests: digests[comm.rank])  # type: ignore[misc]
                found.append("")
            except RunFailed as error:
                found.append(str(error).partition(" differ")[0])
        return found


def test_every_odd_rank_is_named_in_all_of_them(tmp_path: Path) -> None:
    wanted = ["", "the masks of rank 2", "the masks of rank 1", "the masks of rank 1, 2"]
    assert [rank.value for rank in together(tmp_path, odd_ones, num=3)] == [wanted] * 3


# How it ends


def fails(how: str) -> tuple[str, int | None, float]:
    """What this rank is told, the exit code that it is to end with where it is another's, and how long that took."""
    began = time.monotonic()
    try:
        return _waits(how), None, time.monotonic() - began
    except (UserError, RunFailed) as error:
        code = error.exit_code if isinstance(error, PeerFailed) else None
        return f"{type(error).__name__}: {error}", code, time.monotonic() - began


def _waits(how: str) -> str:
    with join_process_group("cpu") as comm:
        comm.gather(None)
        _fail(how, comm.rank)
        comm.gather("waiting for the others")
    return "nothing"


def _fail(how: str, rank: int) -> None:
    if how == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "wrong" and rank == 1:
        raise UserError("there are no data here: put them there")
    if how == "fault" and rank == 1:
        raise ZeroDivisionError("an accident")
    if how == "stopped" and rank == 1:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("how", "first_told", "exit_code", "codes"),
    [
        ("wrong", "PeerFailed: rank 1 failed: there are no data here: put them there", 2, [0, 0]),
        ("fault", "PeerFailed: rank 1 failed: ZeroDivisionError: an accident", 1, [0, 1]),
        ("stopped", "PeerFailed: rank 1 failed: interrupted", 130, [0, 1]),
        ("killed", "RunFailed: lost the connection to another rank", None, [0, -signal.SIGKILL]),
    ],
)
def test_one_that_fails_ends_all(
    how: str, first_told: str, exit_code: int | None, codes: list[int], tmp_path: Path
) -> None:
    ranks = together(tmp_path, fails, how)
    assert [rank.code for rank in ranks] == codes
    told, code, seconds = ranks[0].value
    assert told.startswith(first_told)
    assert code == exit_code
    assert seconds < 20


def first_fails(port: int) -> str:
    # As without torchrun: the first rank keeps the store, and takes it along when it goes.
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port)}
    with join_process_group("cpu") as comm:

        def work() -> None:
            raise UserError("the first cannot")

        comm.on_rank0(work)
    return "nothing"


def test_what_fails_for_the_first_fails_for_all_and_is_known_to_all(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first, second = together(tmp_path, told, first_fails, port)
    kinds = sorted(rank.value.partition(":")[0] for rank in (first, second))
    assert kinds == ["PeerFailed", "UserError"]
    assert all(rank.value.endswith("the first cannot") for rank in (first, second))


def told(work: Callable[..., str], *arguments: object) -> str:
    try:
        return work(*arguments)
    except (UserError, RunFailed) as error:
        return f"{type(error).__name__}: {error}"


def command(break_data_of: int | None, *arguments: str) -> None:
    """The command line in each rank; on one of them the data are missing when it comes to load them for the work."""
    if os.environ["RANK"] == str(break_data_of):

        def missing(*arguments: object) -> None:
            raise UserError("the folder that holds digits is wanted: give it")

        data.load = missing  # type: ignore[assignment]
    main.main(["discover", *arguments])


@pytest.mark.parametrize("broken", [0, 1])
def test_the_command_ends_with_one_sentence_and_code_2_everywhere(broken: int, tmp_path: Path) -> None:
    ranks = together(tmp_path / "said", command, broken, "--budget", "4", "--quiet", "--out", str(tmp_path / "run"))
    assert [rank.code for rank in ranks] == [2, 2]
    assert "".join(rank.said for rank in ranks) == "pathgrow: the folder that holds digits is wanted: give it\n"


def test_peer_failures_are_failures() -> None:
    error = PeerFailed("no data here", rank=3, exit_code=2)
    assert isinstance(error, RunFailed)
    assert str(error) == "rank 3 failed: no data here"
