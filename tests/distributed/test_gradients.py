"""One message makes gradients the means over all processes, as DistributedDataParallel does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pathgrow.distributed.comm import GradientBuckets, SingleProcess
from pathgrow.errors import RunFailed
from pathgrow.trainer.process_group import join_process_group
from tests.support.ranks import together

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def network() -> nn.Module:
    """Of two layouts and two types of numbers."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1, bias=False), nn.Flatten(), nn.Linear(27, 5)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model[3].double()
    model[2].register_forward_hook(lambda layer, given, found: found.double())
    return model


def batch(seed: int) -> Tensor:
    return torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(seed))


class Counting(SingleProcess):
    """Two processes with the same gradients; hears what is sent."""

    size = 2

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def all_reduce_(self, tensors: object) -> None:
        assert isinstance(tensors, list)
        for tensor in tensors:
            self.sent.append(tensor.clone())
            tensor.mul_(2)


def test_gradients_lie_in_one_piece_for_each_type_and_keep_their_layout() -> None:
    model, plain, comm = network(), network(), Counting()
    shared = GradientBuckets(model.parameters(), comm)
    for _ in range(2):  # the second time from zero again
        shared.clear_()
        model(batch(1)).square().sum().backward()
    plain(batch(1)).square().sum().backward()
    shared.average_()
    # One message for each type, in which every gradient begins at a multiple of 512 bytes.
    assert [tensor.numel() for tensor in comm.sent] == [128 + 128 + 128, 192 + 64]
    assert [tensor.dtype for tensor in comm.sent] == [torch.float32, torch.float64]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.grad.stride() == ours.stride()
        assert (ours.grad.storage_offset() * ours.grad.itemsize) % 512 == 0


def test_a_weight_that_is_a_view_with_gaps_has_its_gradient_too() -> None:
    wide = torch.ones(4, 6)
    weight = nn.Parameter(wide[:, ::2])
    shared = GradientBuckets([weight], Counting())
    shared.clear_()
    (weight * torch.arange(12.0).view(4, 3)).sum().backward()
    shared.average_()
    assert weight.grad is not None
    assert weight.grad.tolist() == torch.arange(12.0).view(4, 3).tolist()


def test_large_gradients_of_half_precision_are_no_infinity() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float16))
    shared = GradientBuckets([weight], Counting())
    shared.clear_()
    (weight * 60_000).sum().backward()
    shared.average_()
    assert weight.grad is not None
    assert weight.grad.tolist() == [60_000.0] * 3


def laid_out_otherwise() -> str:
    with join_process_group("cpu") as comm:
        weight = nn.Parameter(torch.ones(4, 6).t().contiguous().t() if comm.rank else torch.ones(4, 6))
        with pytest.raises(RunFailed) as refused:
            GradientBuckets([weight], comm)
        return str(refused.value)


def test_processes_whose_numbers_lie_in_another_order_end_with_a_sentence(tmp_path: Path) -> None:
    for rank in together(tmp_path, laid_out_otherwise):
        assert rank.value.startswith("the layouts of the parameters of rank 1 differ from those of rank 0")


def both_ways() -> list[tuple[Tensor, Tensor]]:
    """Gradients of this rank: shared, and by torch's own wrapper."""
    with join_process_group("cpu") as comm:
        model, other = network(), network()
        shared = GradientBuckets(model.parameters(), comm)
        shared.clear_()
        model(batch(comm.rank)).square().mean().backward()
        shared.average_()
        wrapper = DistributedDataParallel(other)
        wrapper(batch(comm.rank)).square().mean().backward()
        return [(a.grad.clone(), b.grad.clone()) for a, b in zip(model.parameters(), other.parameters(), strict=True)]


def test_they_are_the_means_that_torch_finds(tmp_path: Path) -> None:
    first, second = together(tmp_path, both_ways)
    assert (first.code, second.code) == (0, 0), first.said + second.said
    for (ours, theirs), (others, _) in zip(first.value, second.value, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours, others)
        assert ours.any()
