"""Picks that several methods share, and scores for them."""

import torch
from torch import Tensor

from pathgrow.masks import Masks, sampling
from pathgrow.methods.method import NetworkView
from pathgrow.walks.phew import phew


def magnitudes(net: NetworkView) -> dict[str, Tensor]:
    """Score: |weight|."""
    return {name: weight.abs() for name, weight in net.weights().items()}


def smallness(net: NetworkView) -> dict[str, Tensor]:
    """Score: -|weight|, for picks that drop."""
    return {name: -weight.abs() for name, weight in net.weights().items()}


def at_random(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Sample uniformly."""
    return sampling.uniform(candidates, count, generator)


def all_candidates(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Take all candidates, for methods that start dense."""
    return candidates


def by_walks(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """PHEW masks: weights on random walks over the whole scope, each on a path from input to output."""
    return phew(net.model, net.example_input, count / net.scope.num, scope=net.scope, seed=generator.initial_seed())
