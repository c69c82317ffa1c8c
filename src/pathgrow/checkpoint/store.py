"""Where finished stages are kept: the loop asks before it works, so re-running is resuming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

Metadata = Mapping[str, Any]
"""JSON values only: they are written as they are and must come back equal."""


@dataclass(frozen=True)
class Stage:
    """What one finished stage left behind."""

    metadata: Metadata
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class Store(Protocol):
    """Where finished stages are kept. A stage is there in full or not at all."""

    def load(self, stage: str) -> Stage | None:
        """The stage as it was saved, or None if it never finished."""

    def save(self, stage: str, metadata: Metadata, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Remember a finished stage, atomically."""

    def delete_tensors(self, stage: str) -> None:
        """Free the tensors of a stage that no later stage needs; its facts stay."""


class MemoryStore:
    """Keeps stages in memory only, for runs without a folder."""

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
