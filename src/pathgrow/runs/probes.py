"""Copies of the network that are trained out while the trunk stands still."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pathgrow.density.types import DENSE
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.report.schema import Score
from pathgrow.rng import derive
from pathgrow.runs.records import Record, Work
from pathgrow.runs.site import Site
from pathgrow.runs.trunk import Trunk
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.networks import fresh_
from pathgrow.sparse.snapshot import put_back_, take
from pathgrow.trainer.interface import Evaluate


def train_dense(site: Site) -> Record:
    """The dense reference: the model as it came, trained for the whole budget."""
    stage = "dense"

    def work() -> Work:
        began = time.perf_counter()
        model, optimizer = site.copy()
        attached = site.attach(model, optimizer, fixed(Masks.full(model, site.scope)))
        trained = site.train_(attached, stage, site.options.budget)
        attached.detach()
        seconds = time.perf_counter() - began
        return Work(site.record(stage, attached, trained, round=0, epochs_before=0, seconds=seconds), *take(attached))

    return site.stages.once(stage, work)


def score_dense(site: Site, evaluate: Evaluate) -> Score:
    """Score the stored dense reference by another evaluation."""
    model, optimizer = site.copy()
    attached = site.attach(model, optimizer, fixed(Masks.full(model, site.scope)))
    found = site.stages.tensors("dense")
    assert found is not None
    put_back_(attached, *found)
    return site.phases.score(attached, "dense", evaluate=evaluate)


def train_out(
    site: Site, trunk: Trunk, stages: Mapping[str, int], epochs_in_all: int, *, from_probe: Record | None = None
) -> list[Record]:
    """Train networks of visited rounds until each has had `epochs_in_all`, side by side where that is possible.

    Grown weights bring along the epochs of the trunk, and a network that goes on from its probe those of the probe.
    Where these leave too few, a copy still gets as many epochs as the seed had, because its training has to come to
    rest; its point says how many it had in all.

    Parameters
    ----------
    stages
        For each stage the round whose masks it takes; `DENSE`: all weights.
    from_probe
        A probe of this very round to go on from, instead of starting afresh.
    """

    def work(missing: Sequence[str]) -> list[Work]:
        began = time.perf_counter()
        copies = [_copy(site, trunk, stages[stage], from_probe) for stage in missing]
        least = min(epochs_in_all, site.options.num_seed_epochs)
        epochs = [max(epochs_in_all - had, least) for _, had in copies]
        networks = [(attached, stage) for (attached, _), stage in zip(copies, missing, strict=True)]
        trained = site.train_together_(networks, epochs)
        each = (time.perf_counter() - began) / len(missing)
        works = []
        for stage, (attached, had), phase in zip(missing, copies, trained, strict=True):
            record = site.record(stage, attached, phase, round=stages[stage], epochs_before=had, seconds=each)
            attached.detach()
            works.append(Work(record, *take(attached)))
        return works

    return site.stages.all_once(list(stages), work)


def untrained_copy(site: Site, trunk: Trunk, round: int) -> Attached:
    """The network of a round in its fresh initialisation; `DENSE`: with all weights."""
    model, optimizer = site.copy()
    masks = Masks.full(model, site.scope) if round == DENSE else trunk.masks(round)
    fresh_(model, optimizer, site.initial, masks, derive(site.seed, "fresh", round), graph=site.graph)
    return site.attach(model, optimizer, fixed(masks))


def _copy(site: Site, trunk: Trunk, round: int, from_probe: Record | None) -> tuple[Attached, int]:
    """The network of a round, ready to be trained, and the epochs it has had."""
    if site.options.final == "grown":
        model, optimizer = trunk.copy_at(round)
        return site.attach(model, optimizer, fixed(trunk.masks(round))), trunk.rounds[round].point.epochs
    attached = untrained_copy(site, trunk, round)
    if from_probe is None:
        return attached, 0
    found = site.stages.tensors(from_probe.stage)
    assert found is not None
    put_back_(attached, *found)
    return attached, from_probe.point.epochs
