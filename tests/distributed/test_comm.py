"""Collective operations of two ranks, and gradients averaged in flat buckets."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pathgrow.checkpoint import MemoryStore, RankZeroStore
from pathgrow.distributed.comm import Communicator, GradientBuckets, SingleProcess
from pathgrow.distributed.process_group import join_process_group
from pathgrow.errors import RunFailed, UserError
from tests.support.ranks import together

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def collective_results() -> dict[str, object]:
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
            "broadcast": comm.broadcast_from_rank0(lambda: {"rank": comm.rank}),
            "on_rank0": comm.on_rank0(lambda: comm.rank),
            "kept": own.load("seed") is not None,
            "held": comm.on_rank0(threading.Lock) is not None,  # cannot be pickled
            "gathered": comm.gather(comm.rank),
            "failed": [error_from_rank0(comm, error) for error in (UserError("no"), RunFailed("over"), KeyError("k"))],
            "total": total.tolist(),
            "tensors": (everybody.tolist(), everybody.is_contiguous(), flags.tolist(), count.item()),
            "stored": (missing, found.metadata, found.tensors["w"].tolist(), dict(forgotten.tensors)),
        }


def error_from_rank0(comm: Communicator, error: Exception) -> str:
    def work() -> None:
        raise error

    try:
        comm.broadcast_from_rank0(work)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return "nothing"


def test_rank_0_decides_and_all_ranks_take_part(tmp_path: Path) -> None:
    first, second = (rank.value for rank in together(tmp_path, collective_results))
    assert first.pop("failed") == ["UserError: no", "RunFailed: over", "KeyError: 'k'"]
    assert second.pop("failed") == ["UserError: no", "RunFailed: over", "RunFailed: KeyError: 'k'"]
    assert (first.pop("on_rank0"), second.pop("on_rank0")) == (0, None)
    assert (first.pop("held"), second.pop("held")) == (True, False)
    assert (first.pop("kept"), second.pop("kept")) == (True, False), "only rank 0 stores"
    assert first == second
    assert first["broadcast"] == {"rank": 0}
    assert first["gathered"] == [0, 1]
    assert first["total"] == [3.0, 30.0]
    assert first["tensors"] == ([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], False, [True, True], 7)
    assert first["stored"] == (None, {"score": 0.5}, [1.0, 1.0], {})


def differing_ranks() -> list[str]:
    """Return which ranks are named if one of three differs, whatever its digest."""
    with join_process_group("cpu") as comm:
        found = []
        for digests in ("bbb", "bba", "bab", "cbd"):
            try:
                comm.check_equal("masks", lambda digests=digests: digests[comm.rank])  # type: ignore[misc]
                found.append("")
            except RunFailed as error:
                found.append(str(error).partition(" differ")[0])
        return found


def test_every_differing_rank_is_named_on_all_ranks(tmp_path: Path) -> None:
    wanted = ["", "the masks of rank 2", "the masks of rank 1", "the masks of rank 1, 2"]
    assert [rank.value for rank in together(tmp_path, differing_ranks, num=3)] == [wanted] * 3


# Gradient buckets


def network() -> nn.Module:
    """A network with two layouts and two dtypes."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1, bias=False), nn.Flatten(), nn.Linear(27, 5)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model[3].double()
    model[2].register_forward_hook(lambda layer, given, found: found.double())
    return model


def batch(seed: int) -> Tensor:
    return torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(seed))


class TwoRanks(SingleProcess):
    """Two ranks with the same gradients, and the buffers that are reduced."""

    size = 2

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def all_reduce_(self, tensors: object) -> None:
        assert isinstance(tensors, list)
        for tensor in tensors:
            self.sent.append(tensor.clone())
            tensor.mul_(2)


def test_there_is_one_buffer_per_dtype_and_gradients_keep_their_layout() -> None:
    model, plain, comm = network(), network(), TwoRanks()
    buckets = GradientBuckets(model.parameters(), comm)
    for _ in range(2):  # the second time from zero again
        buckets.clear_()
        model(batch(1)).square().sum().backward()
    plain(batch(1)).square().sum().backward()
    buckets.average_()
    # One all-reduce per dtype; every gradient is aligned to 512 bytes.
    assert [tensor.numel() for tensor in comm.sent] == [128 + 128 + 128, 192 + 64]
    assert [tensor.dtype for tensor in comm.sent] == [torch.float32, torch.float64]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.grad.stride() == ours.stride()
        assert (ours.grad.storage_offset() * ours.grad.itemsize) % 512 == 0


def test_a_parameter_that_is_a_strided_view_gets_its_gradient() -> None:
    wide = torch.ones(4, 6)
    weight = nn.Parameter(wide[:, ::2])
    buckets = GradientBuckets([weight], TwoRanks())
    buckets.clear_()
    (weight * torch.arange(12.0).view(4, 3)).sum().backward()
    buckets.average_()
    assert weight.grad is not None
    assert weight.grad.tolist() == torch.arange(12.0).view(4, 3).tolist()


def test_large_half_precision_gradients_do_not_overflow() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float16))
    buckets = GradientBuckets([weight], TwoRanks())
    buckets.clear_()
    (weight * 60_000).sum().backward()
    buckets.average_()
    assert weight.grad is not None
    assert weight.grad.tolist() == [60_000.0] * 3


def different_layouts() -> str:
    with join_process_group("cpu") as comm:
        weight = nn.Parameter(torch.ones(4, 6).t().contiguous().t() if comm.rank else torch.ones(4, 6))
        with pytest.raises(RunFailed) as refused:
            GradientBuckets([weight], comm)
        return str(refused.value)


def test_different_layouts_are_refused(tmp_path: Path) -> None:
    for rank in together(tmp_path, different_layouts):
        assert rank.value.startswith("the layouts of the parameters of rank 1 differ from those of rank 0")


def buckets_and_ddp() -> list[tuple[Tensor, Tensor]]:
    """Return the gradients of this rank, averaged by buckets and by DistributedDataParallel."""
    with join_process_group("cpu") as comm:
        model, other = network(), network()
        buckets = GradientBuckets(model.parameters(), comm)
        buckets.clear_()
        model(batch(comm.rank)).square().mean().backward()
        buckets.average_()
        wrapper = DistributedDataParallel(other)
        wrapper(batch(comm.rank)).square().mean().backward()
        return [(a.grad.clone(), b.grad.clone()) for a, b in zip(model.parameters(), other.parameters(), strict=True)]


def test_averages_are_those_of_ddp(tmp_path: Path) -> None:
    first, second = together(tmp_path, buckets_and_ddp)
    assert (first.code, second.code) == (0, 0), first.output + second.output
    for (ours, theirs), (others, _) in zip(first.value, second.value, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours, others)
        assert ours.any()
