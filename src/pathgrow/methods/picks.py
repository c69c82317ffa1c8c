"""Picks that several methods share, and scores for them."""

from typing import Literal

import torch
from torch import Tensor

from pathgrow.errors import unknown_name
from pathgrow.masks import Masks, sampling
from pathgrow.methods.method import ByScore, NetworkView, ScoreFunction
from pathgrow.walks.phew import masks_of_walks


def magnitudes(net: NetworkView) -> dict[str, Tensor]:
    """Score: |weight|."""
    return {name: weight.abs() for name, weight in net.weights().items()}


def smallness(net: NetworkView) -> dict[str, Tensor]:
    """Score: -|weight|, for picks that drop."""
    return {name: -weight.abs() for name, weight in net.weights().items()}


def lamp_smallness(net: NetworkView) -> dict[str, Tensor]:
    """Score: minus the LAMP score, weight^2 over the sum of all weight^2 in the layer that are at least as large.

    On the CPU, like the ranking over all layers: running sums on a GPU are not reproducible.
    """
    scores, weights = {}, net.weights()
    for name, on in net.masks.present().items():
        squares = torch.where(on, weights[name], 0).cpu().double().square().reshape(-1)
        order = squares.argsort(descending=True, stable=True)
        larger = squares[order].cumsum(0)
        shares = torch.where(larger > 0, squares[order] / larger, 0)
        scores[name] = torch.zeros_like(squares).index_copy_(0, order, -shares).view(on.shape)
    return scores


PruneScore = Literal["magnitude", "lamp"]
_PRUNE_SCORES: dict[str, ScoreFunction] = {"magnitude": smallness, "lamp": lamp_smallness}


def prune_by(score: PruneScore) -> ByScore:
    """Drop pick: the lowest scores over all layers."""
    if score not in _PRUNE_SCORES:
        raise unknown_name("score", score, _PRUNE_SCORES)
    return ByScore(_PRUNE_SCORES[score], sampling.top_k)


def at_random(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Sample uniformly."""
    return sampling.uniform(candidates, count, generator)


def all_candidates(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Take all candidates, for methods that start dense."""
    return candidates


def by_walks(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """PHEW masks: weights on random walks over the whole scope, each on a path from input to output."""
    return masks_of_walks(net.model, net.example_input, count / net.scope.num, net.scope, generator.initial_seed())
