"""Stages: pieces of work that are done once, stored, and found again when the discovery is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pathgrow.checkpoint.store import Store
from pathgrow.config import to_json
from pathgrow.density.types import Point
from pathgrow.report.schema import LedgerReport, PhaseReport, PhaseTiming, PointReport, Score, TimingReport
from pathgrow.runs.callback import Callback


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

    @property
    def training_flops(self) -> int:
        """Cost of the stage: its training samples, and the mask update before them."""
        return self.num_samples * self.sample_flops + self.growth_flops

    def point_report(self) -> PointReport:
        """The evaluated network as reports show it."""
        point = self.point
        return PointReport(
            round=point.round,
            density=point.density,
            density_model=self.density_model,
            epochs=point.epochs,
            score=point.score,
            loss=point.loss,
        )

    def row(self) -> dict[str, Any]:
        """The evaluated network as a row of curve.csv and of the metrics."""
        row: dict[str, Any] = to_json(self.point_report())
        return row

    def metadata(self) -> dict[str, Any]:
        """Everything but the name of the stage, as JSON values."""
        rest = {name: getattr(self, name) for name in _BESIDE_THE_POINT}
        return {**self.row(), **rest}

    @classmethod
    def from_facts(cls, stage: str, metadata: Mapping[str, Any]) -> Record:
        """The record with these `facts()`."""
        point = Point(**{name: metadata[name] for name in ("round", "density", "epochs", "score", "loss")})
        rest = {name: metadata[name] for name in _BESIDE_THE_POINT}
        return cls(stage=stage, point=point, density_model=metadata["density_model"], **rest)


_BESIDE_THE_POINT = ("num_on", "num_epochs", "num_samples", "sample_flops", "growth_flops", "topology", "seconds")


def ledger_report(
    records: Sequence[Record],
    *,
    num_prunable: int,
    num_parameters: int,
    dense_training_flops: int | None,
    samples_per_epoch: int | None = None,
) -> LedgerReport:
    """What the stages of a run cost, if the masks of each stayed as they are recorded.

    Counted are training FLOPs (a multiply and an add are two; a training sample costs three forward passes at the masks
    it was trained with) and choosing new masks, but not evaluation.

    Parameters
    ----------
    num_prunable, num_parameters
        Prunable weights and all parameters of the model.
    dense_training_flops
        Cost of the dense baseline; None if it is unknown.
    samples_per_epoch
        To count the epochs trained; None: every stage trained as many epochs as its schedule has.
    """
    phases = tuple(
        PhaseReport(
            phase=record.stage,
            epochs=record.num_epochs,
            epochs_trained=record.num_samples / samples_per_epoch if samples_per_epoch else float(record.num_epochs),
            samples=record.num_samples,
            density=record.point.density,
            training_flops=record.training_flops,
        )
        for record in records
    )
    flops, samples = sum(phase.training_flops for phase in phases), sum(phase.samples for phase in phases)
    num_epochs = sum(record.num_epochs for record in records)
    weight_epochs = sum(record.num_epochs * record.num_on for record in records)
    return LedgerReport(
        phases=phases,
        training_flops=flops,
        dense_training_flops=dense_training_flops,
        relative=flops / dense_training_flops if dense_training_flops else None,
        samples=samples,
        epochs_trained=samples / samples_per_epoch if samples_per_epoch else float(num_epochs),
        epochs_times_parameters=float(weight_epochs + num_epochs * (num_parameters - num_prunable)),
        epochs_times_prunable=float(weight_epochs),
    )


def score_report(record: Record) -> Score:
    """The validation score of a stage's network."""
    return Score(score=record.point.score, loss=record.point.loss)


def timing_report(records: Sequence[Record]) -> TimingReport:
    """How long the stages of a run took."""
    phases = tuple(PhaseTiming(phase=record.stage, seconds=record.seconds) for record in records)
    return TimingReport(seconds=sum(phase.seconds for phase in phases), phases=phases)


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
