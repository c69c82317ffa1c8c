"""Top-k and uniform choice within each of many tensors, on their device.

A mask update of a small network is bound by the host: every layer by itself takes a dozen operations, half of which
wait for the device. Here all layers are one flat vector, and the host waits once for all of them. Ties and uniform
choices draw from a CPU generator, over candidates in logical order, with the bits that `top_k_in` and `uniform_in` of
`sampling` would draw for one layer after the other.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import UserError

_MAX_TOGETHER = 1 << 24
"""Entries that are ranked at once, for some 300 MB of intermediate results; larger layers are ranked alone."""


@dataclass(frozen=True, eq=False)
class Ranked:
    """The candidates of one tensor with the `num` largest scores, up to the choice among ties at the border."""

    above: Tensor
    tied: Tensor
    num: int
    num_above: int
    num_tied: int

    @property
    def is_random(self) -> bool:
        """Whether `draw` takes numbers from its generator."""
        return self.num_tied > 1

    def draw(self, generator: torch.Generator) -> Tensor:
        """The chosen positions; ties at the border are broken uniformly at random."""
        drawn = torch.randperm(self.num_tied, generator=generator)[: self.num - self.num_above]
        if len(drawn) == self.num_tied:
            return self.above | self.tied
        chosen, positions = self.above.flatten(), self.tied.flatten().nonzero().squeeze(1)
        chosen[positions[drawn.to(chosen.device)]] = True
        return chosen.view(self.above.shape)


@torch.no_grad()
def top_k_by_layer(scores: Sequence[Tensor], candidates: Sequence[Tensor], nums: Sequence[int]) -> list[Ranked]:
    """Rank the candidates of each tensor by their scores.

    >>> [best] = top_k_by_layer([torch.tensor([3.0, 1.0, 2.0, 9.0])], [torch.tensor([True, True, True, False])], [2])
    >>> best.draw(torch.Generator()).tolist()
    [True, False, True, False]
    """
    found: list[Ranked] = []
    for part in _parts(candidates):
        found += _top_k_together(scores[part], candidates[part], nums[part])
    return found


def _top_k_together(scores: Sequence[Tensor], candidates: Sequence[Tensor], nums: Sequence[int]) -> list[Ranked]:
    sizes, is_candidate = [flags.numel() for flags in candidates], _flat(candidates)
    given = _flat(scores)
    values = torch.where(is_candidate, given, -math.inf)
    borders = [
        torch.topk(layer, num, sorted=False).values.min() if num else layer.new_full((), math.inf)
        for layer, num in zip(values.split(sizes), nums, strict=True)
    ]
    level = torch.cat([border.expand(size) for border, size in zip(borders, sizes, strict=True)])
    above, tied = values > level, values == level
    rows = _nums_true((above, tied, is_candidate, is_candidate & ~given.isfinite()), sizes)
    found = []
    layers = zip(candidates, nums, above.split(sizes), tied.split(sizes), *rows, strict=True)
    for flags, num, higher, equal, num_above, num_tied, num_candidates, num_not_finite in layers:
        assert 0 <= num <= num_candidates, "more than there are candidates"
        if num_not_finite:  # also where none is chosen: nothing else tells that this step has diverged
            raise UserError("scores of weights are not finite; training diverged, lower the learning rate")
        found.append(Ranked(higher.view(flags.shape), equal.view(flags.shape), num, num_above, num_tied))
    return found


@torch.no_grad()
def uniform_by_layer(candidates: Sequence[Tensor], nums: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Draw so many candidates of each tensor uniformly without replacement.

    >>> [drawn] = uniform_by_layer([torch.tensor([True, False, True])], [2], torch.Generator())
    >>> drawn.tolist()
    [True, False, True]
    """
    found: list[Tensor] = []
    for part in _parts(candidates):
        found += _uniform_together(candidates[part], nums[part], generator)
    return found


def _uniform_together(candidates: Sequence[Tensor], nums: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    sizes, is_candidate = [flags.numel() for flags in candidates], _flat(candidates)
    [counts] = _nums_true((is_candidate,), sizes)
    is_drawn = torch.zeros(sum(counts) + 1, dtype=torch.bool)  # one for each candidate, and one for all other positions
    start = 0
    for count, num in zip(counts, nums, strict=True):
        assert 0 <= num <= count, "more than there are candidates"
        is_drawn[start + torch.randperm(count, generator=generator)[:num]] = True
        start += count
    number = torch.where(is_candidate, is_candidate.cumsum(0) - 1, start)
    chosen = is_drawn.to(is_candidate.device, non_blocking=True)[number]
    return [part.view(flags.shape) for part, flags in zip(chosen.split(sizes), candidates, strict=True)]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries of all tensors in logical order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _nums_true(flat: Sequence[Tensor], sizes: list[int]) -> list[list[int]]:
    """For each of several flat vectors the number of True entries in every layer. Waits once for the device."""
    layers = torch.stack(list(flat)).split(sizes, 1)
    found: list[list[int]] = torch.stack([layer.count_nonzero(1) for layer in layers], 1).tolist()
    return found


def _parts(tensors: Sequence[Tensor]) -> Iterator[slice]:
    """Consecutive tensors that are small enough to be handled together."""
    start, size = 0, 0
    for number, tensor in enumerate(tensors):
        if number > start and size + tensor.numel() > _MAX_TOGETHER:
            yield slice(start, number)
            start, size = number, 0
        size += tensor.numel()
    if start < len(tensors):
        yield slice(start, len(tensors))
