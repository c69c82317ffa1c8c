"""Copies of the network that are trained out while the trunk stands still."""

from __future__ import annotations

import time

from pathgrow.discovery.phases import Evaluate, Score
from pathgrow.discovery.site import Site
from pathgrow.discovery.snapshot import put_back_, take
from pathgrow.discovery.stages import Record, Work
from pathgrow.discovery.trunk import Trunk
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.networks import fresh_
from pathgrow.rng import derive


def train_dense(site: Site) -> Record:
    """The dense reference: the model as it came, trained for the whole budget."""
    stage = "dense"

    def work() -> Work:
        began = time.perf_counter()
        model, optimizer = site.copy()
        attached = site.attach(model, optimizer, fixed(Masks.full(model, site.scope)))
        trained = site.train_(attached, stage, site.options.budget)
        attached.detach()
        return Work(site.record(stage, attached, trained, round=0, epochs_before=0, began=began), *take(attached))

    return site.stages.once(stage, work)


def score_dense(site: Site, evaluate: Evaluate) -> Score:
    """Score the stored dense reference by another evaluation."""
    model, optimizer = site.copy()
    attached = site.attach(model, optimizer, fixed(Masks.full(model, site.scope)))
    found = site.stages.tensors("dense")
    assert found is not None
    put_back_(attached, *found)
    return site.phases.score(attached, "dense", evaluate=evaluate)


def train_out(site: Site, trunk: Trunk, stage: str, round: int, epochs_in_all: int) -> Record:
    """The network of a visited round, trained until it has had `epochs_in_all`; it is kept if that is the budget.

    Grown weights bring the epochs of the trunk along. Where those leave too few, a copy gets as many as the seed had,
    because its training has to come to rest; its point says what it had in all.
    """
    grown = site.options.final == "grown"

    def work() -> Work:
        began = time.perf_counter()
        masks = trunk.masks(round)
        if grown:
            model, optimizer = trunk.copy_at(round)
            had = trunk.rounds[round].point.epochs
        else:
            model, optimizer = site.copy()
            fresh_(model, optimizer, site.initial, masks, derive(site.seed, "fresh", round), wiring=site.wiring)
            had = 0
        attached = site.attach(model, optimizer, fixed(masks))
        epochs = max(epochs_in_all - had, min(epochs_in_all, site.options.num_seed_epochs))
        trained = site.train_(attached, stage, epochs)
        record = site.record(stage, attached, trained, round=round, epochs_before=had, began=began)
        attached.detach()
        return Work(record, *take(attached)) if epochs_in_all >= site.options.budget else Work(record)

    return site.stages.once(stage, work)
