"""DPaI: search for masks with many paths through many units, before there are data or weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.errors import UserError
from pathgrow.graph import guess_example_input, trace
from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocated_count
from pathgrow.methods.method import Method, NetworkView, require_density
from pathgrow.methods.path_counts import PathCounts

_LEAK = 2.0**-20
"""What a missing weight lets through while no path is whole. Paths that lack fewest then carry nearly everything ..."""
_NEARLY = 2.0**-10
"""... and only weights on these, by their share of the largest in the layer, are moved."""


def dpai(
    *,
    density: float = 0.1,
    alpha: float = 0.99,
    beta: float = 0.5,
    num_search_steps: int = 300,
    search_rate: float = 0.05,
) -> Method:
    """DPaI (Xiang et al., Differentiable Pruning at Initialization with Node-Path Balance Principle, 2025).

    Rule: every weight has a score, at first |normal noise|; the mask is the top of each layer, with ERK layer
    densities. Adam moves the scores up the gradient of log(number of paths), taken straight through the choice: all of
    it with factor 1 - `alpha`, the part in units that are on no path with alpha (1 - `beta`), the part in kernels that
    are on none with alpha beta. No data and no weights are looked at.

    Differences: paths are counted on the wiring, once for all positions of a feature map; the authors' code divides one
    branch of a residual sum by its maximum and not the other, and counts something else. Their script takes 3000 steps
    of 0.005, which reach as far as the 300 of 0.05 here; both are options. Their schedule for that rate is made and
    never stepped, so there is none here. They draw new weights after the search; here the model's own stay.

    Parameters
    ----------
    density : float
        Of all switchable weights, exact to one weight.
    alpha, beta : float
        How much units and kernels count beside paths, and kernels beside units.
    num_search_steps, search_rate
        Steps of Adam and its learning rate.
    """
    require_density("density", density)
    for name, share in (("alpha", alpha), ("beta", beta)):
        if not 0 <= share <= 1:
            raise UserError(f"{name} {share!r} was given, a share in [0, 1] is wanted: give for example 0.5")
    if num_search_steps < 0 or not 0 < search_rate < float("inf"):
        raise UserError(
            f"num_search_steps {num_search_steps!r} and search_rate {search_rate!r} were given, a number from 0 up and "
            "a positive rate are wanted: give for example 300 and 0.05"
        )
    start = ByNodePathBalance(alpha, beta, num_search_steps, search_rate)
    return Method(name="dpai", start=start, start_density=density, needs=frozenset({"paths"}))


@dataclass(frozen=True)
class ByNodePathBalance:
    """The start pick of DPaI."""

    alpha: float
    beta: float
    num_steps: int
    rate: float

    def __call__(self, net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        numbers = allocated_count(candidates, count, "erk")
        scores = {
            name: torch.randn(chosen.shape, generator=draw, dtype=torch.float64).abs().to(chosen.device)
            for name, chosen in candidates.items()
        }
        example = guess_example_input(net.model) if net.example_input is None else net.example_input
        paths = PathCounts(trace(net.model, example), next(iter(scores.values())).device)
        adam = torch.optim.Adam(scores.values(), lr=self.rate)
        outside = {name: ~inside for name, inside in candidates.scope.items()}
        chosen = {name: _top(score, candidates[name], numbers[name]) for name, score in scores.items()}
        net.charge(path_passes=self.num_steps)
        for _ in range(self.num_steps):
            kept = {name: chosen[name] | outside[name] for name in chosen}
            for name, gradient in self.ascent(paths, kept).items():
                scores[name].grad = -gradient
            adam.step()
            chosen = {name: _top(score, candidates[name], numbers[name]) for name, score in scores.items()}
        return Masks.select(chosen, candidates.scope)

    def ascent(self, paths: PathCounts, kept: dict[str, Tensor]) -> dict[str, Tensor]:
        """Which way the scores are to move, by parameter."""
        masks = {name: mask.double() for name, mask in kept.items()}
        counted = paths(masks)
        whole = float(counted.log_total) > -float("inf")
        if not whole:
            masks = {name: mask.clamp_min(_LEAK) for name, mask in masks.items()}
            counted = paths(masks)
        found = {name: mask.new_zeros(mask.shape) for name, mask in masks.items()}
        for layer, gradient in zip(paths.graph.layers, counted.gradients, strict=True):
            if layer.name in found:
                share = layer.pick(masks[layer.name]) * gradient
                factor = self._factor(share > 0) if whole else share > _NEARLY * share.max()
                layer.lay_(gradient * factor, found[layer.name])
        return found

    def _factor(self, used: Tensor) -> Tensor:
        """By weight, from which of them are kept and on a path."""
        unit, kernel = (used.flatten(dims).any(-1) for dims in (1, 2)) if used.dim() > 2 else (used.any(1), used)
        without_unit, without_kernel = (
            (~flags).double().view(*flags.shape, *[1] * (used.dim() - flags.dim())) for flags in (unit, kernel)
        )
        return (1 - self.alpha) + self.alpha * ((1 - self.beta) * without_unit + self.beta * without_kernel)


def _top(scores: Tensor, candidates: Tensor, count: int) -> Tensor:
    places = torch.topk(scores.masked_fill(~candidates, -torch.inf).flatten(), count).indices
    flags = torch.zeros(candidates.numel(), dtype=torch.bool, device=candidates.device)
    return flags.index_fill_(0, places, True).view(candidates.shape)
