"""How a density is distributed over layers: equal, uniform with a dense first layer, Erdos-Renyi (ER), ER-Kernel (ERK).

A distribution gives the fraction that each tensor keeps; counts are then rounded so that their sum is exact.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pathgrow.errors import check_name
from pathgrow.masks import Masks, sampling
from pathgrow.methods.method import NetworkView, count_at, require_density

Distribution = Literal["equal", "uniform", "er", "er_matrix", "erk"]
DISTRIBUTIONS: dict[Distribution, str] = {
    "equal": "every layer at the same density",
    "uniform": "the same, but the first layer is dense, unless that takes more than half of the others' weights",
    "er": "proportional to (n_in + n_out) / (n_in n_out), in channels",
    "er_matrix": "the same, with every kernel position counted as an input",
    "erk": "proportional to the sum of all dimensions over their product, kernel dimensions included",
}
"""What fraction of its weights a layer keeps, in words."""


def allocate(scope: Masks, density: float, distribution: str) -> dict[str, int]:
    """How many weights each tensor of a scope keeps at an overall density; the sum is exact.

    Parameters
    ----------
    scope : Masks
        True where a weight is prunable; only these are counted.
    density : float
        Overall fraction of weights to keep.
    distribution : "equal", "uniform", "er", "er_matrix" or "erk"
        equal: every tensor at the density. uniform: the same, but the first tensor is dense as in RigL; if that would
        take more than half of the others' weights, all are equal. er: proportional to (n_in + n_out) / (n_in n_out), in
        channels. er_matrix: the same with every kernel position counted as an input. erk: proportional to the sum of
        all dimensions over their product, kernel dimensions included. The last three see only the prunable block of a
        partly prunable tensor, such as V in a fused QKV projection; tensors that would keep more than they have are
        dense and the others share the rest.

    Examples
    --------
    >>> scope = Masks({"conv": torch.ones(8, 4, 3, 3, dtype=torch.bool), "fc": torch.ones(10, 32, dtype=torch.bool)})
    >>> allocate(scope, 0.1, "erk")
    {'conv': 18, 'fc': 43}
    >>> allocate(scope, 0.1, "er")
    {'conv': 44, 'fc': 17}
    """
    require_density("density", density)
    return allocate_count(scope, count_at(density, scope.num_on), distribution)


def allocate_count(scope: Masks, count: int, distribution: str) -> dict[str, int]:
    """As `allocate`, for a number of weights instead of a density."""
    check_distribution(distribution)
    sizes = np.array([int(torch.count_nonzero(inside)) for inside in scope.values()])
    assert 0 < count <= sizes.sum(), "more weights than there are"
    if distribution == "equal":
        quotas = _equal_quotas(sizes, count)
    elif distribution == "uniform":
        quotas = _uniform_quotas(sizes, count)
    else:
        dimensions = [_dimensions(_block(inside), distribution) for inside in scope.values()]
        quotas = _er_quotas(sizes, np.array([sum(lengths) / math.prod(lengths) for lengths in dimensions]), count)
    return dict(zip(scope, _rounded(quotas, sizes, count).tolist(), strict=True))


def uniform_in_layers(candidates: Masks, counts: Mapping[str, int], draw: torch.Generator) -> Masks:
    """Sample a given number of candidates in each tensor, uniformly."""
    scope, picked = candidates.scope, {}
    for name, chosen in candidates.items():
        layer = Masks.select({name: chosen & scope[name]}, {name: scope[name]})
        picked[name] = sampling.uniform(layer, counts[name], draw)[name]
    return Masks.select(picked, scope)


@dataclass(frozen=True)
class RandomInLayers:
    """Start pick: random weights, with the layer densities of a distribution."""

    distribution: str

    def __post_init__(self) -> None:
        check_distribution(self.distribution)

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        return uniform_in_layers(candidates, allocate_count(candidates, count, self.distribution), draw)


def check_distribution(distribution: str) -> None:
    """Raise a `UserError` for an unknown distribution."""
    check_name("allocation", distribution, DISTRIBUTIONS)


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


def _block(inside: Tensor) -> Sequence[int]:
    """The shape of the smallest block of rows, columns, ... that holds all prunable positions; at least 1 each."""
    if bool(inside.all()):
        return inside.shape
    places = inside.nonzero()
    return [max(1, len(places[:, dim].unique())) for dim in range(inside.dim())]


def _dimensions(shape: Sequence[int], distribution: str) -> Sequence[int]:
    """The dimensions that an ER distribution uses."""
    match distribution:
        case "er":
            return shape[:2]
        case "er_matrix":
            return shape[0], math.prod(shape[1:])
    return shape


def _er_quotas(sizes: sampling.Array, raw: sampling.Array, count: int) -> sampling.Array:
    """Real-valued counts eps * raw * size; tensors that would exceed their size are dense."""
    dense = np.zeros(len(sizes), dtype=np.bool_)
    while True:
        free = ~dense & (sizes > 0)
        if not free.any():
            return sizes.astype(np.float64)
        epsilon = (count - sizes[dense].sum()) / (raw * sizes)[free].sum()
        # What the densest cannot take goes to the others, one more of which may then be full.
        highest = raw[free].max()
        if epsilon * highest <= 1:
            quotas: sampling.Array = np.where(dense, sizes, epsilon * raw * sizes)
            return quotas
        dense |= free & (raw == highest)


def _rounded(quotas: sampling.Array, sizes: sampling.Array, count: int) -> sampling.Array:
    """Integers near the quotas with sum `count`: none above its size, none zero as long as there are enough."""
    lowest = np.minimum(sizes, 1 if count >= np.count_nonzero(sizes) else 0)
    counts = np.clip(np.floor(quotas), lowest, sizes).astype(np.int64)
    while (missing := count - counts.sum()) != 0:
        if missing > 0:
            counts[np.argmax(np.where(counts < sizes, quotas - counts, -np.inf))] += 1
        else:
            counts[np.argmin(np.where(counts > lowest, quotas - counts, np.inf))] -= 1
    return counts
