"""How a density is shared out among layers: equal, uniform but for the first, Erdos-Renyi (ER), ER with kernels (ERK).

The laws say what share of each tensor is kept; numbers of weights are then rounded so that they sum exactly to what the
density stands for. Selections with given numbers per tensor, at random or by score, stand here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pathgrow.errors import unknown_name
from pathgrow.masks import Masks, sampling
from pathgrow.methods.method import NetworkView, count_at, require_density

Law = Literal["equal", "uniform", "er", "er_matrix", "erk"]
LAWS: dict[Law, str] = {
    "equal": "every layer at the density",
    "uniform": "the same but for a dense first layer, unless that costs the others more than half of their weights",
    "er": "in proportion to (n_in + n_out) / (n_in n_out), in channels",
    "er_matrix": "the same, where every tap of a kernel counts as an input",
    "erk": "in proportion to the sum of all dimensions over their product, those of kernels among them",
}
"""What share of its weights a layer keeps, in words."""


def allocated(scope: Masks, density: float, law: str) -> dict[str, int]:
    """How many weights each tensor of a scope keeps at a density of the whole; they sum to it exactly.

    Parameters
    ----------
    scope : Masks
        True where a weight may be switched; only these are counted.
    density : float
        Kept share of all of them.
    law : "equal", "uniform", "er", "er_matrix" or "erk"
        equal: every tensor at the density. uniform: the same but for the first, which stays dense as in RigL; where
        that would cost the others more than half of their share, all alike. er: in proportion to (n_in + n_out) / (n_in
        n_out), in channels. er_matrix: the same where every tap of a kernel counts as an input. erk: in proportion to
        the sum of all dimensions over their product, kernels among them. Under these three, tensors that would keep
        more than they have are dense and the others share what is left.

    Examples
    --------
    >>> scope = Masks({"conv": torch.ones(8, 4, 3, 3, dtype=torch.bool), "fc": torch.ones(10, 32, dtype=torch.bool)})
    >>> allocated(scope, 0.1, "erk")
    {'conv': 18, 'fc': 43}
    >>> allocated(scope, 0.1, "er")
    {'conv': 44, 'fc': 17}
    """
    require_density("density", density)
    return allocated_count(scope, count_at(density, scope.num_on), law)


def allocated_count(scope: Masks, count: int, law: str) -> dict[str, int]:
    """As `allocated`, for a number of weights in place of a density."""
    if law not in LAWS:
        raise unknown_name("allocation", law, LAWS)
    sizes = np.array([int(torch.count_nonzero(inside)) for inside in scope.values()])
    assert 0 < count <= sizes.sum(), "more weights than there are"
    if law == "equal":
        quotas = _equal_quotas(sizes, count)
    elif law == "uniform":
        quotas = _uniform_quotas(sizes, count)
    else:
        dimensions = [_dimensions(inside.shape, law) for inside in scope.values()]
        quotas = _quotas(sizes, np.array([sum(lengths) / math.prod(lengths) for lengths in dimensions]), count)
    return dict(zip(scope, _rounded(quotas, sizes, count).tolist(), strict=True))


def random_in_layers(candidates: Masks, counts: Mapping[str, int], draw: torch.Generator) -> Masks:
    """So many candidates of each tensor, drawn uniformly."""
    return _in_layers(candidates, counts, lambda layer, count: sampling.uniform(layer, count, draw))


def top_k_in_layers(
    scores: Mapping[str, Tensor], candidates: Masks, counts: Mapping[str, int], draw: torch.Generator
) -> Masks:
    """So many candidates of each tensor, those with the largest scores; ties are drawn."""
    return _in_layers(candidates, counts, lambda layer, count: sampling.top_k(scores, layer, count, draw))


@dataclass(frozen=True)
class RandomByLaw:
    """A start pick: random weights, exactly as many in each layer as a law gives it."""

    law: str

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise unknown_name("allocation", self.law, LAWS)

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        return random_in_layers(candidates, allocated_count(candidates, count, self.law), draw)


def _in_layers(candidates: Masks, counts: Mapping[str, int], pick: Callable[[Masks, int], Masks]) -> Masks:
    scope = candidates.scope
    picked = {}
    for name, chosen in candidates.items():
        layer = Masks.select({name: chosen & scope[name]}, {name: scope[name]})
        picked[name] = pick(layer, counts[name])[name]
    return Masks.select(picked, scope)


def _equal_quotas(sizes: sampling.Array, count: int) -> sampling.Array:
    quotas: sampling.Array = sizes * (count / sizes.sum())
    return quotas


def _uniform_quotas(sizes: sampling.Array, count: int) -> sampling.Array:
    equal = _equal_quotas(sizes, count)
    rest = sizes.sum() - sizes[0]
    if (count - sizes[0]) < equal[1:].sum() / 2 or rest == 0:
        return equal
    quotas: sampling.Array = sizes * ((count - sizes[0]) / rest)
    quotas[0] = sizes[0]
    return quotas


def _dimensions(shape: Sequence[int], law: str) -> Sequence[int]:
    """Those that ER is about."""
    match law:
        case "er":
            return shape[:2]
        case "er_matrix":
            return shape[0], math.prod(shape[1:])
    return shape


def _quotas(sizes: sampling.Array, raw: sampling.Array, count: int) -> sampling.Array:
    """Real-valued shares eps * raw * size, with the tensors dense that would come out above one."""
    dense = np.zeros(len(sizes), dtype=np.bool_)
    while True:
        free = ~dense & (sizes > 0)
        if not free.any():
            return sizes.astype(np.float64)
        epsilon = (count - sizes[dense].sum()) / (raw * sizes)[free].sum()
        # What does not fit into the densest goes to the others, so that one more of them may be above then.
        highest = raw[free].max()
        if epsilon * highest <= 1:
            quotas: sampling.Array = np.where(dense, sizes, epsilon * raw * sizes)
            return quotas
        dense |= free & (raw == highest)


def _rounded(quotas: sampling.Array, sizes: sampling.Array, count: int) -> sampling.Array:
    """Whole numbers near the quotas that sum to `count`: none above its size, none zero as long as there is enough."""
    lowest = np.minimum(sizes, 1 if count >= np.count_nonzero(sizes) else 0)
    counts = np.clip(np.floor(quotas), lowest, sizes).astype(np.int64)
    while (missing := count - counts.sum()) != 0:
        if missing > 0:
            counts[np.argmax(np.where(counts < sizes, quotas - counts, -np.inf))] += 1
        else:
            counts[np.argmin(np.where(counts > lowest, quotas - counts, np.inf))] -= 1
    return counts
