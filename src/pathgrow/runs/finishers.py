"""Several finishers: each searches from the same initial weights, and the sparsest network that does not miss is kept.

A finisher has stages of its own in the store of the run, named after it; a dense baseline is shared. To load the
returned network, its search is repeated: all its stages are stored, so nothing is trained again.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from pathgrow.checkpoint import Stage, Store
from pathgrow.density.types import Answer, Reference, Verdict
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Callback, Record
from pathgrow.runs.result import Discovery
from pathgrow.runs.session import Session
from pathgrow.runs.trunk import DENSE_STAGE
from pathgrow.sparse.training_state import CHECKPOINT_PREFIX

Search = Callable[[Session, DiscoverOptions], Discovery]


def search_by_each(session: Session, options: DiscoverOptions, search: Search) -> Discovery:
    """Run `search` with each finisher of the options, and load the best network into the model of the session."""
    found: dict[str, Discovery] = {}
    for finisher in options.finishers:
        found[finisher] = search(_session_for(finisher, session), replace(options, finish=finisher))
        found[finisher].trunk.restore_()
    best = select_finisher(found, options)
    without_callbacks = copy.copy(session)
    without_callbacks.callback = Callback()
    returned = search(_session_for(best, without_callbacks), replace(options, finish=best))
    trained = [_named(record, name) for name, result in found.items() for record in result.trained]
    dense = next((result.dense for result in found.values() if result.dense is not None), None)
    if returned.check is None and dense is not None:  # trained by another finisher
        reference = Reference(score=dense.score.score, kind="dense", epochs=dense.point.epochs)
        delta = options.with_absolute_delta(reference.score).delta
        returned = replace(returned, dense=dense).compared_with(reference, delta)
    return replace(
        returned,
        trained=tuple({record.stage: record for record in trained}.values()),  # a shared baseline counts once
        warnings=tuple(dict.fromkeys(warning for result in found.values() for warning in result.warnings)),
        finishers=tuple(result.own_finisher for result in found.values()),
    )


def select_finisher(found: Mapping[str, Discovery], options: DiscoverOptions) -> str:
    """The finisher with the sparsest network that does not miss; if all miss, the one with the best score."""
    checks = [result.check for result in found.values() if result.check is not None]
    error = max((check.error for check in checks), default=0.0)
    references = [result.reference for result in found.values()]
    dense = next((each for each in references if each is not None and each.kind != "densest"), None)
    hits = {name: result for name, result in found.items() if not _misses(result, options, dense, error)}
    if hits:
        return min(hits, key=lambda name: hits[name].density)
    return max(found, key=lambda name: options.sign * found[name].score)


def _misses(result: Discovery, options: DiscoverOptions, dense: Reference | None, error: float) -> bool:
    if result.check is not None and result.check.error:
        return result.check.outcome == "missed"
    shortfall = 0.0 if dense is None else options.sign * (dense.score - result.score)
    return shortfall > result.answer.delta + 2 * error


def _session_for(finisher: str, session: Session) -> Session:
    """A copy of the session for the stages of one finisher."""
    own = copy.copy(session)
    own.store = _FinisherStore(session.store, finisher)
    own.callback = _FinisherCallback(session.callback, finisher)
    own.checkpoints, own._producers, own.warnings = {}, {}, []
    return own


def _stage_of(finisher: str, stage: str) -> str:
    """The name of a stage of a finisher.

    >>> _stage_of("gmp:score=lamp", "probe-003"), _stage_of("set", "partial-final-0"), _stage_of("set", "dense")
    ('probe-003--gmp_score_lamp', 'partial-final--set-0', 'dense')
    """
    stage, dash, part = stage.rpartition("-") if stage.startswith(CHECKPOINT_PREFIX) else (stage, "", "")
    if stage.removeprefix(CHECKPOINT_PREFIX) != DENSE_STAGE:
        stage = f"{stage}--{re.sub('[^A-Za-z0-9]+', '_', finisher)}"
    return f"{stage}{dash}{part}"


def _named(record: Record, finisher: str) -> Record:
    return replace(record, stage=_stage_of(finisher, record.stage))


class _FinisherStore:
    """The stages of one finisher in the store of a run."""

    def __init__(self, store: Store, finisher: str) -> None:
        self._store, self._finisher = store, finisher

    def load(self, stage: str) -> Stage | None:
        return self._store.load(_stage_of(self._finisher, stage))

    def save(self, stage: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
        self._store.save(_stage_of(self._finisher, stage), metadata, tensors)

    def delete_tensors(self, stage: str) -> None:
        self._store.delete_tensors(_stage_of(self._finisher, stage))


class _FinisherCallback(Callback):
    """Passes the stages of one finisher on, under the names that they are stored with."""

    def __init__(self, callback: Callback, finisher: str) -> None:
        self._callback, self._finisher = callback, finisher

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._callback.on_stage_start(_stage_of(self._finisher, stage), epochs=epochs, density=density)

    def on_epoch(self, stage: str, done: int, epochs: int, loss: float | None = None) -> None:
        self._callback.on_epoch(_stage_of(self._finisher, stage), done, epochs, loss)

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        self._callback.on_stage_end(_named(record, self._finisher), resumed=resumed)

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        self._callback.on_decision(verdict, answer)
