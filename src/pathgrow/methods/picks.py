"""Picks, the parts that methods are made of: exactly `count` positions out of `candidates`; and scores for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgrow.masks import Masks, sampling
from pathgrow.methods.view import NetworkView
from pathgrow.walks.phew import phew

Score = Callable[[NetworkView], Mapping[str, Tensor]]
"""A number for every position, present or missing; higher is more worth having."""
Sampler = Callable[[Mapping[str, Tensor], Masks, int, torch.Generator], Masks]


def magnitudes(net: NetworkView) -> dict[str, Tensor]:
    """A score: |weight|."""
    return {name: weight.abs() for name, weight in net.weights().items()}


def smallness(net: NetworkView) -> dict[str, Tensor]:
    """A score that is higher the smaller |weight| is, for picks that drop."""
    return {name: -weight.abs() for name, weight in net.weights().items()}


@dataclass(frozen=True)
class ByScore:
    """Score every position, then sample among the candidates."""

    score: Score
    sampler: Sampler

    def __call__(self, net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
        with warnings.catch_warnings():
            # Near full density the last missing weights belong to units that no path reaches yet: nothing to tell.
            warnings.simplefilter("ignore", sampling.ZeroScores)
            return self.sampler(self.score(net), candidates, count, generator)


def at_random(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """Every candidate alike."""
    return sampling.uniform(candidates, count, generator)


def everything(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """All candidates, for methods that start dense."""
    return candidates


def by_walks(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
    """The PHEW seed: weights met by random walks over the whole scope, each on a path from input to output."""
    return phew(net.model, net.example_input, count / net.scope.num, scope=net.scope, seed=generator.initial_seed())
