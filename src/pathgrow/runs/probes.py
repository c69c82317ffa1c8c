"""Probes, the dense baseline and the final network: copies that are trained while the trunk waits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pathgrow.density.types import DENSE
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.report.schema import Score
from pathgrow.rng import derive
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record, StageOutput
from pathgrow.runs.session import Session
from pathgrow.runs.trunk import GrowingTrunk
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.training_state import pack_training, reinitialize_, unpack_training_
from pathgrow.trainer.interface import Evaluate

_DENSE = "dense"


def train_dense(session: Session, epochs: int) -> Record:
    """Train the dense baseline: the model with its initial weights."""

    def work() -> StageOutput:
        began = time.perf_counter()
        attached = _attach_dense(session)
        trained = session.train_(attached, _DENSE, epochs)
        attached.detach()
        seconds = time.perf_counter() - began
        record = session.record(_DENSE, attached, trained, round=0, epochs_before=0, seconds=seconds)
        return StageOutput(record, *pack_training(attached))

    return session.once(_DENSE, work)


def score_dense(session: Session, evaluate: Evaluate) -> Score:
    """Evaluate the stored dense baseline by another function."""
    attached = _attach_dense(session)
    found = session.tensors(_DENSE)
    assert found is not None
    unpack_training_(attached, *found)
    return session.score(attached, _DENSE, evaluate=evaluate)


def train_copies(
    trunk: GrowingTrunk,
    options: DiscoverOptions,
    stages: Mapping[str, int],
    total_epochs: int,
    *,
    probe: Record | None = None,
) -> list[Record]:
    """Train networks of visited rounds until each has had `total_epochs`, concurrently if possible.

    Grown weights come with the epochs of the trunk, and a warm start with those of the probe. If too few epochs are
    left, a network still gets as many as the seed had, because its learning rate has to be annealed; its point says how
    many it had in all.

    Parameters
    ----------
    stages
        For each stage the round whose masks it takes; `DENSE`: all weights.
    probe
        A probe of this very round to continue from, instead of a fresh initialization.
    """
    session = trunk.session

    def work(missing: Sequence[str]) -> list[StageOutput]:
        began = time.perf_counter()
        copies = [_copy(trunk, options, stages[stage], probe) for stage in missing]
        least = min(total_epochs, options.num_seed_epochs)
        epochs = [max(total_epochs - had, least) for _, had in copies]
        networks = [(attached, stage) for (attached, _), stage in zip(copies, missing, strict=True)]
        trained = session.train_together_(networks, epochs)
        seconds = (time.perf_counter() - began) / len(missing)
        results = []
        for stage, (attached, had), phase in zip(missing, copies, trained, strict=True):
            record = session.record(stage, attached, phase, round=stages[stage], epochs_before=had, seconds=seconds)
            attached.detach()
            results.append(StageOutput(record, *pack_training(attached)))
        return results

    return session.all_once(list(stages), work)


def initialized_copy(trunk: GrowingTrunk, round: int) -> Attached:
    """The network of a round with fresh initial weights; `DENSE`: with all weights."""
    session = trunk.session
    model, optimizer = session.untrained_copy()
    masks = Masks.full(model, session.scope) if round == DENSE else trunk.masks(round)
    reinitialize_(model, optimizer, session.initial, masks, derive(session.seed, "fresh", round), graph=session.graph)
    return session.attach(model, optimizer, fixed(masks))


def _attach_dense(session: Session) -> Attached:
    model, optimizer = session.untrained_copy()
    return session.attach(model, optimizer, fixed(Masks.full(model, session.scope)))


def _copy(trunk: GrowingTrunk, options: DiscoverOptions, round: int, probe: Record | None) -> tuple[Attached, int]:
    """The network of a round, ready to be trained, and the epochs it has had."""
    if options.final == "grown":
        model, optimizer = trunk.copy_at(round)
        return trunk.session.attach(model, optimizer, fixed(trunk.masks(round))), trunk.records[round].point.epochs
    attached = initialized_copy(trunk, round)
    if probe is None:
        return attached, 0
    found = trunk.session.tensors(probe.stage)
    assert found is not None
    unpack_training_(attached, *found)
    return attached, probe.point.epochs
