"""What a discovery costs and leaves behind, against the calls it really made: every stage once, at its own masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pathgrow.checkpoint.store import MemoryStore
from pathgrow.runs.result import Discovery
from tests.support.toy import Script, World

NUM = 8 * 16 + 16 * 16
"""Switchable weights of the world's network; in a network of linear layers a weight is a multiply-add."""
OUTPUT = 16 * 2
SAMPLES = 16
"""A step is an epoch there."""


def num_on(found: Discovery, stage: str) -> int:
    """Weights that are there in a stage, counted in its masks."""
    if stage.endswith("dense"):
        return NUM
    if stage == "final":
        return found.masks.num_on
    return found.masks_at(0 if stage == "seed" else int(stage.rpartition("-")[2])).num_on


@pytest.mark.parametrize(
    "options",
    [
        {},  # the network handed back was not probed
        {"rule": Script(probe=(0, 3), density=0.19)},  # it goes on from its probe
        {"rule": Script(probe=(0, 3), density=0.19), "warm_start": False},
        {"rule": Script(probe=(0, 3), density=0.19), "reference": 0.9},  # it is its probe
        {"reference": "dense"},
        {"final": "grown"},
        {"rule": Script(probe=(), last=1), "rough": "adaptive"},
        {"rule": Script(probe=(), last=1), "seed_epochs": None, "budget": 32},  # the seed goes on to its plateau
        {"target_density": 0.2},
    ],
    ids=["final", "head start", "anew", "probe", "dense", "grown", "adaptive", "plateau", "target"],
)
def test_the_ledger_counts_every_training_once_and_at_its_own_masks(options: dict[str, Any]) -> None:
    world = World()
    found = world.discover(**options)
    ledger, epochs = found.ledger, [call.epochs for call in world.fits]
    assert sum(phase.epochs for phase in ledger.phases) == sum(epochs)
    assert ledger.samples == SAMPLES * sum(epochs)
    assert len({phase.name for phase in ledger.phases}) == len(ledger.phases)
    flops = 0
    for phase in ledger.phases:
        # Forward, to the inputs and to the weights: each multiply-add three times, two FLOPs for it. Before each growth
        # the paths are read, forward and backward through all weights, missing ones too.
        expected = phase.epochs * SAMPLES * 3 * 2 * (num_on(found, phase.name) + OUTPUT)
        expected += 6 * (NUM + OUTPUT) if phase.name.startswith("round") else 0
        assert phase.training_flops == expected
        flops += expected
    dense = found.site.options.budget * SAMPLES * 6 * (NUM + OUTPUT)
    assert (ledger.training_flops, ledger.dense_training_flops) == (flops, dense)
    assert ledger.relative == pytest.approx(flops / dense)


def test_growth_by_gradients_pays_for_the_weights_that_are_there_before_it() -> None:
    inputs, targets = torch.randn(8, 8), torch.zeros(8, dtype=torch.long)
    found = World().discover(
        method="gradient_growth",
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        batches=[(inputs, targets)],
    )
    for before, record in zip(found.rounds, found.rounds[1:], strict=False):
        sparse = before.num_on + OUTPUT  # forward and to the inputs; to the weights all of them
        assert record.growth_flops == 8 * 2 * (2 * sparse + NUM + OUTPUT)


@pytest.mark.parametrize("final", ["fresh", "grown"])
def test_a_store_keeps_what_a_repetition_needs_and_no_other_tensors(final: str) -> None:
    """Masks of all rounds and the network handed back; weights of a round only while copies may begin from them."""
    store = MemoryStore()
    found = World().discover(store=store, final=final, rule=Script(probe=(0, 1), last=2))
    assert found.network.stage == "final"
    kept = {stage for stage in store._stages if store._stages[stage].tensors}
    rounds = {"seed", "round-001", "round-002"}
    weights = {"weights-002"} if final == "fresh" else {f"weights-{k:03d}" for k in range(3)}
    assert kept == {"start", *rounds, *weights, "final"}
    again = World()
    again.discover(store=store, final=final, rule=Script(probe=(0, 1), last=2))
    assert again.fits == []
