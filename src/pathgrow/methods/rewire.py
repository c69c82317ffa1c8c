"""What methods that rewire have in common: keep the largest of a layer, put others in place of the rest.

Ranking happens where the weights are, one layer at a time: a rewiring every hundred steps must not bring all gradients
of a network to the CPU. Only ties and random picks draw, from the CPU generator that is passed, over candidates in
logical order; equal scores give equal masks on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, NetworkView, Progress, Score, floor_of

Rate = Callable[[int], float]
"""Share of the present weights to drop at a step."""


@dataclass(frozen=True, kw_only=True)
class RewireLayers:
    """Within each layer, drop the share `rate` of what is on by magnitude and grow as many; layer densities stay.

    Everything that was not kept can be grown, what was dropped a moment ago too: it then was never off.
    """

    rate: Rate
    score: Score | None
    """The largest grow; None: any, by chance."""
    by_sign: bool = False
    """Drop the share from the positive and from the negative weights, each by itself; zeros go first."""

    def __call__(self, net: NetworkView, change: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        return with_present(net, self.rewired(net, present(net), progress.step, draw))

    def rewired(
        self, net: NetworkView, on: Mapping[str, Tensor], step: int, draw: torch.Generator
    ) -> dict[str, Tensor]:
        """What is on afterwards, where `on` is now."""
        share, weights, inside = self.rate(step), net.weights(), net.masks.scope
        scores = None if self.score is None else self.score(net)
        result = {}
        for name, here in on.items():
            kept = self._kept(weights[name], here, share, draw)
            num_grow = count(here) - count(kept)
            free = inside[name] & ~kept
            grown = any_of(free, num_grow, draw) if scores is None else largest(scores[name], free, num_grow, draw)
            result[name] = kept | grown
        return result

    def _kept(self, weight: Tensor, on: Tensor, share: float, draw: torch.Generator) -> Tensor:
        if not self.by_sign:
            return largest_but(share, weight.abs(), on, draw)
        up, down = (largest_but(share, side, on & (side > 0), draw) for side in (weight, -weight))
        return up | down


def present(net: NetworkView) -> dict[str, Tensor]:
    """What is on among the switchable weights, by layer."""
    return dict(net.masks.present())


def with_present(net: NetworkView, on: Mapping[str, Tensor]) -> Masks:
    """Masks in which exactly these switchable weights are on."""
    scope = net.masks.scope
    return Masks.empty(scope) | Masks.select(on, scope)


def count(flags: Tensor) -> int:
    """How many are True. Waits for the device."""
    return int(torch.count_nonzero(flags))


def largest_but(share: float, scores: Tensor, candidates: Tensor, draw: torch.Generator) -> Tensor:
    """All candidates but the share of them that has the smallest scores."""
    num = count(candidates)
    return largest(scores, candidates, num - floor_of(share * num), draw)


def largest(scores: Tensor, candidates: Tensor, num: int, draw: torch.Generator) -> Tensor:
    """The `num` candidates of one tensor with the largest scores; equal ones at the border are drawn.

    >>> scores, candidates = torch.tensor([3.0, 1.0, 2.0, 9.0]), torch.tensor([True, True, True, False])
    >>> largest(scores, candidates, 2, torch.Generator()).tolist()
    [True, False, True, False]
    """
    places = candidates.reshape(-1).nonzero().squeeze(1)
    assert 0 <= num <= len(places), "more were asked for than there are"
    if num == 0:
        return torch.zeros(candidates.shape, dtype=torch.bool, device=candidates.device)
    values = scores.detach().reshape(-1)[places]
    if not bool(values.isfinite().all()):
        raise UserError(
            "scores of weights hold numbers that are not finite: training has diverged, lower the learning rate"
        )
    border = torch.topk(values, num, sorted=False).values.min()
    chosen = values > border
    tied = (values == border).nonzero().squeeze(1)
    drawn = torch.randperm(len(tied), generator=draw)[: num - count(chosen)]
    chosen[tied[drawn.to(tied.device)]] = True
    return _flags(candidates, places[chosen])


def any_of(candidates: Tensor, num: int, draw: torch.Generator) -> Tensor:
    """So many candidates of one tensor, every set of them equally likely."""
    places = candidates.reshape(-1).nonzero().squeeze(1)
    assert 0 <= num <= len(places), "more were asked for than there are"
    drawn = torch.randperm(len(places), generator=draw)[:num]
    return _flags(candidates, places[drawn.to(places.device)])


def apportioned(num: int, shares: Mapping[str, float], room: Mapping[str, int]) -> dict[str, int]:
    """Whole numbers that sum to `num`, in proportion to `shares`, none above its room.

    What does not fit into one place goes to the others in their proportion; fractions go to the largest remainders.
    Where no share is left, the room itself is the share.

    >>> apportioned(10, {"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 2, "b": 9, "c": 9})
    {'a': 2, 'b': 4, 'c': 4}
    """
    assert 0 <= num <= sum(room.values()), "more were asked for than there is room"
    quotas = dict.fromkeys(shares, 0.0)
    free, left = list(shares), num  # in order: sums of floats must not depend on it
    while free and left:
        parts: Mapping[str, float] = shares if sum(shares[name] for name in free) > 0 else room
        total = sum(parts[name] for name in free)
        fair = {name: left * parts[name] / total for name in free}
        full = [name for name in free if fair[name] >= room[name]]
        if not full:
            quotas |= fair
            break
        quotas |= {name: float(room[name]) for name in full}
        left -= sum(room[name] for name in full)
        free = [name for name in free if name not in full]
    counts = {name: min(floor_of(quota), room[name]) for name, quota in quotas.items()}
    remainders = sorted((name for name in counts if counts[name] < room[name]), key=lambda n: counts[n] - quotas[n])
    for name in remainders[: num - sum(counts.values())]:
        counts[name] += 1
    return counts


def _flags(like: Tensor, places: Tensor) -> Tensor:
    flags = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    flags[places] = True
    return flags.view(like.shape)
