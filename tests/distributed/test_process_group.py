"""Processes started by torchrun: how they join, what they refuse, and how an error on one rank ends all of them."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from pathgrow import attach, data, discover
from pathgrow.cli import main
from pathgrow.distributed.comm import SINGLE_PROCESS, SingleProcess
from pathgrow.distributed.process_group import current_communicator, join_process_group
from pathgrow.errors import PeerFailed, RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.methods import create
from pathgrow.trainer import EngineOptions
from pathgrow.trainer.device import plan_for
from pathgrow.trainer.recipes import check_batch_split
from tests.support.ranks import together

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Pair(SingleProcess):
    """A world of size 2, for checks that end before anything is sent."""

    size = 2


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


# Options


@pytest.mark.parametrize(("batch_size", "accumulate", "ranks"), [(33, 1, 2), (30, 4, 2), (8, 1, 16)])
def test_batches_that_cannot_be_split_evenly_are_refused(batch_size: int, accumulate: int, ranks: int) -> None:
    with pytest.raises(UserError, match=f"^batch_size must be a multiple of {accumulate * ranks}, got {batch_size}"):
        check_batch_split(batch_size, accumulate, ranks)


def test_several_processes_train_one_network_at_a_time_and_eagerly_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    here = EngineOptions(device="cpu", max_concurrent=5).resolve()
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: replace(here, cuda_graphs=self.step != "eager"))
    for step, graphs in (("auto", False), ("eager", False), ("cuda_graph", True)):
        assert plan_for(EngineOptions(step=step), Pair()) == replace(here, cuda_graphs=graphs, max_concurrent=1)
    assert plan_for(EngineOptions(), SINGLE_PROCESS) == replace(here, cuda_graphs=True)


def test_one_device_for_all_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineOptions, "resolve", lambda self: None)  # as if there were a GPU
    for kind in ("cuda", "cpu"):
        with pytest.raises(UserError, match=f"^device {kind}:0 cannot be shared by 2 processes; use device {kind}$"):
            plan_for(EngineOptions(device=f"{kind}:0"), Pair())


# Joining


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_sharded_weights_are_refused() -> None:
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
def test_a_group_of_one_is_a_single_process() -> None:
    assert current_communicator() is SINGLE_PROCESS


def test_without_torchrun_there_is_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join_process_group() as comm:
        assert comm is SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="MASTER_ADDR is not"), join_process_group():
        pass


def tampered() -> list[str]:
    """Change masks on rank 1 only, on a live model and in a state dict; return the errors."""
    errors = []
    with join_process_group("cpu") as comm:
        model = small_net()
        method = create("random_growth", start_density=0.2)
        optimizer = SGD(model.parameters(), lr=0.1)
        sparse = attach(model, optimizer, method, torch.zeros(1, 6), scope=Masks.full(model), comm=comm)
        state = sparse.state_dict()
        for masks, call in (
            (sparse.masks, lambda: sparse.grow_(3)),
            (state["masks"], lambda: sparse.load_state_dict(state)),
        ):
            if comm.rank == 1:
                masks["0.weight"].copy_(masks["0.weight"].flip(1))
            try:
                call()
                errors.append("")
            except RunFailed as error:
                errors.append(str(error))
            if comm.rank == 1:
                masks["0.weight"].copy_(masks["0.weight"].flip(1))
    return errors


def test_a_rank_with_different_masks_is_detected_and_named(tmp_path: Path) -> None:
    for rank in together(tmp_path, tampered):
        assert len(rank.value) == 2, rank.output
        assert all("masks of rank 1 differ from those of rank 0" in error for error in rank.value), rank.value


OWN_LOOP = {
    "snip": {},
    "gse": {"update_interval": 2, "density": 0.3},
    "set": {"update_interval": 2, "density": 0.3},
    "gradient_growth": {"start_density": 0.2},
    "gcg": {"start_density": 0.2},
}


def own_loop(name: str, in_ddp: bool = True) -> list[str]:
    """Masks after each step of a loop that knows nothing of ranks: other seeds, data and scores on each."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(6)]
    module = DistributedDataParallel(model) if in_ddp else model
    optimizer = SGD(model.parameters(), lr=0.1)

    def loss(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(module(batch[0]), batch[1])

    method = create(name, **OWN_LOOP[name])
    sparse = attach(
        model, optimizer, method, batches[0][0], scope=Masks.full(model), loss=loss, batches=batches, seed=rank
    )
    digests = [sparse.masks.digest()]
    for batch in batches:
        optimizer.zero_grad()
        loss(module, batch).backward()
        optimizer.step()
        if "growth" in name or name == "gcg":
            sparse.observe(0.5 + rank)
        digests.append(sparse.masks.digest())
    sparse.detach()
    return digests


def own_loops() -> dict[str, object]:
    dist.init_process_group("gloo")
    found: dict[str, object] = {name: own_loop(name) for name in OWN_LOOP}
    try:
        own_loop("set", in_ddp=False)
    except RunFailed as error:
        found["alone"] = str(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own_loop("snip")
        torch.manual_seed(dist.get_rank())
        attach(model := nn.Linear(6, 8), SGD(model.parameters(), lr=0.1), "random", scope=Masks.full(model))
    found["warned"] = [str(each.message) for each in caught]
    dist.destroy_process_group()
    return found


def test_an_own_loop_in_ddp_has_equal_masks_without_naming_its_ranks(tmp_path: Path) -> None:
    ranks = [rank.value for rank in together(tmp_path, own_loops)]
    assert None not in ranks
    for name in OWN_LOOP:
        assert ranks[0][name] == ranks[1][name], name
        assert len(set(ranks[0][name])) > (name != "snip"), "masks are updated"
    for rank in ranks:
        assert rank["alone"].startswith("the weights of rank 1 differ from those of rank 0; average gradients")
    assert [len(rank["warned"]) for rank in ranks] == [1, 0]
    assert "ranks have different weights, and all continue with those of rank 0" in ranks[0]["warned"][0]


# Failing


def outcome(work: Callable[..., str], *arguments: object) -> tuple[str, int | None, float]:
    """Return the result or the error of `work`, the exit code of a failed peer, and the seconds it took."""
    start = time.monotonic()
    try:
        return work(*arguments), None, time.monotonic() - start
    except (UserError, RunFailed) as error:
        code = error.exit_code if isinstance(error, PeerFailed) else None
        return f"{type(error).__name__}: {error}", code, time.monotonic() - start


def fail_on_rank_1(how: str) -> str:
    with join_process_group("cpu") as comm:
        comm.gather(None)
        if comm.rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise {"user": UserError("no data"), "bug": ZeroDivisionError("a bug"), "stop": KeyboardInterrupt()}[how]
        comm.gather("waiting for the others")
    return "nothing"


@pytest.mark.parametrize(
    ("how", "message", "exit_code", "codes"),
    [
        ("user", "PeerFailed: rank 1 failed: no data", 2, [0, 0]),
        ("bug", "PeerFailed: rank 1 failed: ZeroDivisionError: a bug", 1, [0, 1]),
        ("stop", "PeerFailed: rank 1 failed: interrupted", 130, [0, 1]),
        ("killed", "RunFailed: lost the connection to another rank", None, [0, -signal.SIGKILL]),
    ],
)
def test_an_error_on_one_rank_ends_all(
    how: str, message: str, exit_code: int | None, codes: list[int], tmp_path: Path
) -> None:
    ranks = together(tmp_path, outcome, fail_on_rank_1, how)
    assert [rank.code for rank in ranks] == codes
    found, code, seconds = ranks[0].value
    assert found.startswith(message)
    assert code == exit_code
    assert seconds < 20


def absent(how: str) -> str:
    """Rank 1 dies before it has connected, or stops answering."""
    os.environ |= {"PATHGROW_START_TIMEOUT": "1.5", "PATHGROW_TIMEOUT": "1.5"}
    if how == "killed" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    with join_process_group("cpu") as comm:
        if comm.rank == 1:
            time.sleep(3)
        comm.gather(None)
    return "nothing"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "killed",
            r"UserError: the ranks of this run could not connect within 1\.5 s .*; PATHGROW_START_TIMEOUT",
        ),
        ("silent", r"RunFailed: another rank did not answer within 1\.5 s; .* PATHGROW_TIMEOUT set to more seconds"),
    ],
)
def test_no_rank_waits_forever(how: str, message: str, tmp_path: Path) -> None:
    found, _, seconds = together(tmp_path, outcome, absent, how)[0].value
    assert re.match(message, found), found
    assert seconds < 10


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e300", "soon"])
def test_a_timeout_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATHGROW_START_TIMEOUT", text)
    with pytest.raises(UserError, match=r"^PATHGROW_START_TIMEOUT must be a number of seconds"), join_process_group():
        pass


def fail_on_rank_0(port: int) -> str:
    # As without torchrun: rank 0 hosts the store, which ends with it.
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port)}
    with join_process_group("cpu") as comm:

        def work() -> None:
            raise UserError("rank 0 cannot")

        comm.on_rank0(work)
    return "nothing"


def test_an_error_on_rank_0_is_known_to_all_ranks(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    messages = [rank.value[0] for rank in together(tmp_path, outcome, fail_on_rank_0, port)]
    assert sorted(message.partition(":")[0] for message in messages) == ["PeerFailed", "UserError"]
    assert all(message.endswith("rank 0 cannot") for message in messages)


def command(rank_without_data: int, *arguments: str) -> None:
    """Run the command line on each rank; on one of them loading the data fails."""
    if os.environ["RANK"] == str(rank_without_data):

        def missing(*arguments: object) -> None:
            raise UserError("no digits here")

        data.load = missing  # type: ignore[assignment]
    main.main(["discover", *arguments])


@pytest.mark.parametrize("broken", [0, 1])
def test_a_command_ends_with_one_message_and_exit_code_2_on_all_ranks(broken: int, tmp_path: Path) -> None:
    ranks = together(tmp_path / "output", command, broken, "--budget", "4", "--quiet", "--out", str(tmp_path / "run"))
    assert [rank.code for rank in ranks] == [2, 2]
    assert "".join(rank.output for rank in ranks) == "pathgrow: no digits here\n"
