"""Stores of finished stages: a stage that is stored is not run again, so rerunning resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # torch takes seconds to import, which reading reports should not
    from torch import Tensor

    from pathgrow.distributed.comm import Communicator

Metadata = Mapping[str, Any]
"""JSON values only: they are written as they are and must load back equal."""


@dataclass(frozen=True)
class Stage:
    """Checkpoint of one finished stage."""

    metadata: Metadata
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class Store(Protocol):
    """Where finished stages are stored, each completely or not at all."""

    def load(self, stage: str) -> Stage | None:
        """Return the stage as it was saved, or None if it never finished."""

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store a finished stage atomically."""

    def delete_tensors(self, stage: str) -> None:
        """Delete the tensors of a stage that no later stage needs; its metadata stay."""


class MemoryStore:
    """Stages in memory, for runs without a run directory."""

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}

    def load(self, stage: str) -> Stage | None:
        return self._stages.get(stage)

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        copies = {name: tensor.detach().clone() for name, tensor in (tensors or {}).items()}
        self._stages[stage] = Stage(dict(metadata), copies)

    def delete_tensors(self, stage: str) -> None:
        if stage in self._stages:
            self._stages[stage] = Stage(self._stages[stage].metadata)


class RankZeroStore:
    """The store of rank 0, shared by all ranks, which need no common file system.

    Parameters
    ----------
    store
        Where rank 0 stores stages; the stores of the other ranks are never used.
    """

    def __init__(self, comm: Communicator, store: Store) -> None:
        self._comm = comm
        self._store = store

    def load(self, stage: str) -> Stage | None:
        """Load on rank 0 and broadcast, so that a damaged stage is missing on every rank."""

        def load_to_cpu() -> Stage | None:
            found = self._store.load(stage)
            if found is None:
                return None
            # The other ranks do not have the device of rank 0.
            return Stage(dict(found.metadata), {name: tensor.cpu() for name, tensor in found.tensors.items()})

        return self._comm.broadcast_from_rank0(load_to_cpu)

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Save on rank 0; every rank waits until the stage is stored."""
        self._comm.on_rank0(lambda: self._store.save(stage, metadata, tensors))

    def delete_tensors(self, stage: str) -> None:
        self._comm.on_rank0(lambda: self._store.delete_tensors(stage))
