"""Masks that somebody already has, kept as they are."""

from __future__ import annotations

import torch

from pathgrow.masks import Masks
from pathgrow.methods.method import Method, NetworkView


def fixed(masks: Masks) -> Method:
    """A method that enforces given masks and never changes them: for a found network that is trained on.

    Attach it with `scope=masks.scope`, unless that is the default scope of the model. It takes masks and no options, so
    it is not in the table of methods that are made by name.
    """
    kept = masks.clone()

    def start(net: NetworkView, candidates: Masks, count: int, generator: torch.Generator) -> Masks:
        return kept

    return Method(name="fixed", start=start, start_density=kept.density)
