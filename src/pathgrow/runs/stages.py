"""Stages of a run: each is run once and stored; one that is lost or damaged is run again.

A stage depends on its name, on earlier stages and on the seed alone, so running it again gives the same bits.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from pathgrow.checkpoint import MemoryStore, RankZeroStore, Stage, Store
from pathgrow.checkpoint.stage_files import DamagedStageWarning
from pathgrow.distributed.comm import Communicator
from pathgrow.errors import RunFailed, UserError
from pathgrow.runs.records import Callback, Record, StageOutput
from pathgrow.sparse.training_state import CHECKPOINT_PREFIX, TrainingCheckpoint, check_training

_Result = TypeVar("_Result")
Work = Callable[[Sequence[str]], Sequence[StageOutput]]
"""Runs the stages of these names together."""

SECONDS_BETWEEN_SAVES = 60.0
"""What a kill may cost, of all trainings that run at the same time."""


class Stages:
    """The stages of one run.

    Parameters
    ----------
    store
        Where finished stages are kept; None: in memory.
    callback
        Notified when a stage starts or ends.
    comm
        The ranks of the run; rank 0 stores.
    """

    def __init__(self, store: Store | None, callback: Callback | None, comm: Communicator) -> None:
        is_given = store is not None
        # Only rank 0 may have been given a store, and all ranks load together.
        self.is_kept: bool = comm.broadcast_from_rank0(lambda: is_given)
        """Whether finished stages outlive this run."""
        self.trains_together = True
        """Whether stages that are asked for together train concurrently; otherwise each is stored when it ends."""
        store = MemoryStore() if store is None else store
        self.store: Store = store if comm.size == 1 else RankZeroStore(comm, store)
        self.callback = callback or Callback()
        self.comm = comm
        self.checkpoints: dict[str, list[TrainingCheckpoint]] = {}
        """Checkpoints within unfinished stages, deleted when their stage is stored."""
        self.resumed: set[str] = set()
        """Stages that an earlier process has run."""
        self._producers: dict[str, Work] = {}
        """How each finished stage was run, to repeat it if its tensors are lost."""

    def once(self, stage: str, work: Callable[[], StageOutput]) -> Record:
        """Return the record of a stage from the store; a stage that is not stored is run and stored now."""
        return self.all_once([stage], lambda missing: [work()])[0]

    def all_once(self, stages: Sequence[str], work: Work) -> list[Record]:
        """Return the records of several stages; those that are not stored are run, together if they can be."""
        records: dict[str, Record] = {}
        for stage in stages:
            if (record := self._record(stage)) is not None:
                records[stage] = record
                self.resumed.add(stage)
                self.callback.on_stage_end(record, resumed=True)
        missing = [stage for stage in stages if stage not in records]
        for batch in [missing] if missing and self.trains_together else [[stage] for stage in missing]:
            for stage, done in zip(batch, work(batch), strict=True):
                # The callback first: what it writes about a stage must exist whenever the stage is stored.
                self.callback.on_stage_end(done.record, resumed=False)
                self._save(stage, done)
                records[stage] = done.record
        self._producers |= dict.fromkeys(stages, work)
        return [records[stage] for stage in stages]

    def tensors(self, stage: str) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return the tensors and metadata that a finished stage left for later ones; it runs again if they are lost."""
        if (found := self.stored(stage, _left)) is None or not found[0]:
            [done] = self._producers[stage]([stage])
            self._save(stage, done)
            found = self.stored(stage, _left)
        if found is None:
            raise RunFailed(f"stage {stage!r} was stored, but cannot be read back; check the disk and rerun to resume")
        return found

    def stored(self, stage: str, read: Callable[[Stage], _Result]) -> _Result | None:
        """Return what `read` finds in a stage; None if it is not stored, or if `read` raises a `UserError`: damaged."""
        if (found := self.store.load(stage)) is None:
            return None
        try:
            return read(found)
        except UserError as error:
            self._warn(f"stage {stage!r} is damaged ({error}); it runs again")
            return None

    def checkpoint(self, stage: str, part: int, num: int = 1) -> TrainingCheckpoint:
        """Where a training, one of `num` at the same time, keeps its state until its stage is stored."""
        name = f"{CHECKPOINT_PREFIX}{stage}-{part}"
        seconds = SECONDS_BETWEEN_SAVES / num
        self.checkpoints.setdefault(stage, []).append(
            TrainingCheckpoint(self.store, name, seconds=seconds, comm=self.comm)
        )
        return self.checkpoints[stage][-1]

    def announce(self, stage: str, epochs: int | None, density: float) -> None:
        """Notify the callback that a stage starts, unless it has ended before."""
        if stage in self._producers:
            self._warn(f"stage {stage!r} is trained again, because what it left for later stages is lost")
        else:
            self.callback.on_stage_start(stage, epochs=epochs, density=density)

    def _record(self, stage: str) -> Record | None:
        return self.stored(stage, lambda found: Record.from_metadata(stage, found.metadata))

    def _save(self, stage: str, done: StageOutput) -> None:
        self.store.save(stage, {**done.record.metadata(), "state": done.metadata}, done.tensors)
        for checkpoint in self.checkpoints.pop(stage, []):
            checkpoint.delete()

    def _warn(self, message: str) -> None:
        if self.comm.rank == 0:
            warnings.warn(message, DamagedStageWarning, stacklevel=3)


def _left(stage: Stage) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """The tensors and metadata that a stage left for later ones: nothing, masks, or a training."""
    state = stage.metadata.get("state")
    if stage.tensors and state != {}:
        check_training(stage.tensors, state)
    return stage.tensors, state or {}
