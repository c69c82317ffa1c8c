"""Stages: pieces of work that are done once, stored, and found again when the discovery is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pathgrow.checkpoint.store import Store
from pathgrow.density.types import Point
from pathgrow.runs.callback import Callback
from pathgrow.runs.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Record:
    """A network that was trained and scored, in JSON values only."""

    stage: str
    point: Point
    density_model: float
    """Share of all parameters of the model that are there; `point.density` counts the switchable ones."""
    num_on: int
    num_epochs: int
    """Epochs of this stage alone; `point.epochs` counts all that its network has had."""
    num_samples: int
    sample_flops: int
    """Cost of one training sample at these masks."""
    growth_flops: int = 0
    """Cost of reading the network before it grew."""
    topology: Mapping[str, Any] | None = None
    """Measured where the masks are new."""
    seconds: float

    def row(self) -> dict[str, Any]:
        """The point as reports show it."""
        point = self.point
        return {
            "round": point.round,
            "density": point.density,
            "density_model": self.density_model,
            "epochs": point.epochs,
            "score": point.score,
            "loss": point.loss,
        }

    def metadata(self) -> dict[str, Any]:
        """Everything but the name of the stage."""
        rest = {name: getattr(self, name) for name in _BESIDE_THE_POINT}
        return {**self.row(), **rest}

    def enter(self, ledger: Ledger) -> None:
        """Enter what this stage cost into a ledger."""
        ledger.add(
            self.stage,
            epochs=self.num_epochs,
            samples=self.num_samples,
            density=self.point.density,
            sample_flops=self.sample_flops,
            growth_flops=self.growth_flops,
            seconds=self.seconds,
        )

    @classmethod
    def from_facts(cls, stage: str, metadata: Mapping[str, Any]) -> Record:
        """The record with these `facts()`."""
        point = Point(**{name: metadata[name] for name in ("round", "density", "epochs", "score", "loss")})
        rest = {name: metadata[name] for name in _BESIDE_THE_POINT}
        return cls(stage=stage, point=point, density_model=metadata["density_model"], **rest)


_BESIDE_THE_POINT = ("num_on", "num_epochs", "num_samples", "sample_flops", "growth_flops", "topology", "seconds")


@dataclass(frozen=True)
class Work:
    """What a stage produced: its record, and tensors (with facts of their own) for later stages."""

    record: Record
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Stages:
    """Does each stage once, and finds it in the store from then on."""

    def __init__(self, store: Store, callback: Callback, on_stored: Callable[[str], None] = lambda stage: None) -> None:
        self.store = store
        self.callback = callback
        self._on_stored = on_stored

    def once(self, stage: str, work: Callable[[], Work]) -> Record:
        """The record of a stage, from the store if it is there; otherwise the work is done now and stored."""
        return self.all_once([stage], lambda missing: [work()])[0]

    def all_once(self, stages: Sequence[str], work: Callable[[Sequence[str]], Sequence[Work]]) -> list[Record]:
        """The records of several stages; the work of those that are missing is done together."""
        records: dict[str, Record] = {}
        for stage in stages:
            if (found := self.store.load(stage)) is not None:
                records[stage] = Record.from_facts(stage, found.metadata)
                self.callback.on_stage_end(records[stage], resumed=True)
        missing = [stage for stage in stages if stage not in records]
        for stage, done in zip(missing, work(missing) if missing else (), strict=True):
            # The observer is told first, so that what it writes about a stage is there whenever the stage is stored.
            self.callback.on_stage_end(done.record, resumed=False)
            self.store.save(stage, {**done.record.metadata(), "state": done.metadata}, done.tensors)
            self._on_stored(stage)
            records[stage] = done.record
        return [records[stage] for stage in stages]

    def tensors(self, stage: str) -> tuple[Mapping[str, Tensor], Mapping[str, Any]] | None:
        """The tensors and facts that a stage left for later ones, or None if they are not there (any more)."""
        found = self.store.load(stage)
        return None if found is None or not found.tensors else (found.tensors, found.metadata["state"])
