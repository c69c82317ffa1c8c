"""One store for several processes: that of the first, with which the others need no disk in common."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pathgrow.checkpoint.store import Metadata, Stage, Store
from pathgrow.distributed.comm import Communicator


class RankZeroStore:
    """What the first of a team stores, and all of them find; implements `Store`.

    Parameters
    ----------
    store
        Where the first keeps stages; the stores of the others are never used.
    """

    def __init__(self, comm: Communicator, store: Store) -> None:
        self._comm = comm
        self._store = store

    def load(self, stage: str) -> Stage | None:
        """Read by the first, sent to all, so that one missing or damaged stage is missing for everybody."""

        def read() -> Stage | None:
            found = self._store.load(stage)
            if found is None:
                return None
            # Sent from the CPU: the others do not have the first one's device.
            return Stage(dict(found.metadata), {name: tensor.cpu() for name, tensor in found.tensors.items()})

        return self._comm.broadcast_from_rank0(read)

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Written by the first; nobody goes on before it is there."""
        self._comm.on_rank0(lambda: self._store.save(stage, metadata, tensors))

    def delete_tensors(self, stage: str) -> None:
        self._comm.on_rank0(lambda: self._store.delete_tensors(stage))
