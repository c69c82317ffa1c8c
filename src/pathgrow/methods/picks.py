"""Picks, the parts that methods are made of: exactly `count` positions out of `candidates`; and scores for them."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgrow.masks import Masks, sampling
from pathgrow.methods.method import NetworkView
from pathgrow.walks.phew import phew


def magnitudes(net: NetworkView) -> dict[str, Tensor]:
    """A score: |weight|."""
    return {name: weight.abs() for name, weight in net.weights().items()}


def smallness(net: NetworkView) -> dict[str, Tensor]:
    """A score that is higher the smaller |weight| is, for picks that drop."""
    return {name: -weight.abs() for name, weight in net.weights().items()}


def at_random(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Every candidate alike."""
    return sampling.uniform(candidates, count, generator)


def everything(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """All candidates, for methods that start dense."""
    return candidates


def by_walks(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """The PHEW seed: weights met by random walks over the whole scope, each on a path from input to output."""
    return phew(net.model, net.example_input, count / net.scope.num, scope=net.scope, seed=generator.initial_seed())
