"""Records of finished stages, the callbacks that are notified of them, and the cost ledger of a run."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from pathgrow.checkpoint import RunDir
from pathgrow.config import from_json, option, to_json
from pathgrow.density.types import Answer, Point, Verdict
from pathgrow.errors import UserError, require
from pathgrow.report.progress import ProgressBar
from pathgrow.report.schema import (
    LedgerReport,
    PhaseReport,
    PhaseTiming,
    PointReport,
    RunReport,
    Score,
    TimingReport,
    TopologyReport,
)
from pathgrow.sparse.training_state import delete_training_checkpoints


@dataclass(frozen=True, kw_only=True)
class Record:
    """A network that was trained and evaluated by one stage; JSON values only."""

    stage: str
    point: Point
    density_model: float = option(above=0, at_most=1)
    """Fraction of all parameters that are nonzero; `point.density` counts prunable weights only."""
    num_on: int = option(at_least=0)
    num_epochs: int = option(at_least=0)
    """Epochs of this stage; `point.epochs` counts all training that its network has had."""
    num_samples: int = option(at_least=0)
    training_flops: int = option(at_least=0)
    """Cost of the training samples of this stage."""
    update_flops: int = option(0, at_least=0)
    """Cost of choosing the masks that it trained."""
    topology: Mapping[str, Any] | None = None
    """Path measures, where the masks are new."""
    seconds: float = option(at_least=0)

    @property
    def flops(self) -> int:
        """Cost of the stage."""
        return self.training_flops + self.update_flops

    @property
    def score(self) -> Score:
        """Validation score."""
        return Score(score=self.point.score, loss=self.point.loss)

    def point_report(self) -> PointReport:
        """The evaluated network, for the report."""
        return PointReport(density_model=self.density_model, **dataclasses.asdict(self.point))

    def row(self) -> dict[str, Any]:
        """The evaluated network as a row of curve.csv and of the metrics."""
        row: dict[str, Any] = to_json(self.point_report())
        return row

    def metadata(self) -> dict[str, Any]:
        """Everything but the name of the stage, as JSON values."""
        values: dict[str, Any] = to_json(self)
        del values["stage"]
        return {**values.pop("point"), **values}

    @classmethod
    def from_metadata(cls, stage: str, metadata: Mapping[str, Any]) -> Self:
        """The record of a stage from its `metadata()`; values of a wrong type or out of range are a `UserError`."""
        names = {field.name for field in (*dataclasses.fields(Point), *dataclasses.fields(cls))} - {"stage", "point"}
        if missing := sorted(names - metadata.keys()):
            raise UserError(f"{missing[0]} is missing")
        point = {field.name: metadata[field.name] for field in dataclasses.fields(Point)}
        from_json(PointReport, point)  # has the allowed ranges
        rest = {name: metadata[name] for name in names - point.keys()}
        record = from_json(cls, {**rest, "stage": stage, "point": point})
        kind, _, number = ("round", "-", "0") if stage == "seed" else stage.partition("-")
        if kind in ("round", "probe") and number.isdecimal():
            require(record.point.round == int(number), "round", record.point.round, str(int(number)))
        if record.topology is not None:
            from_json(TopologyReport, {**record.topology, "round": record.point.round}, where="topology")
        return record


@dataclass(frozen=True)
class StageOutput:
    """What a stage produced: its record, and tensors (with JSON metadata of their own) for later stages."""

    record: Record
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def ledger_report(
    records: Sequence[Record],
    *,
    num_prunable: int,
    num_parameters: int,
    dense_training_flops: int | None,
    samples_per_epoch: int | None = None,
) -> LedgerReport:
    """Return what the stages of a run cost, for stages that train with constant masks.

    Counted are training FLOPs (a multiply and an add are two; a training sample costs three forward passes at the masks
    it was trained with) and choosing new masks, but not evaluation.

    Parameters
    ----------
    num_prunable, num_parameters
        Prunable weights and all parameters of the model.
    dense_training_flops
        Cost of the dense baseline; None if it is unknown.
    samples_per_epoch
        Used to count the epochs trained; None: every stage trained as many epochs as its schedule has.
    """
    phases = tuple(
        PhaseReport(
            phase=record.stage,
            epochs=record.num_epochs,
            epochs_trained=record.num_samples / samples_per_epoch if samples_per_epoch else float(record.num_epochs),
            samples=record.num_samples,
            density=record.point.density,
            training_flops=record.flops,
        )
        for record in records
    )
    flops, samples = sum(record.flops for record in records), sum(record.num_samples for record in records)
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


def timing_report(records: Sequence[Record]) -> TimingReport:
    """Return how long the stages of a run took."""
    phases = tuple(PhaseTiming(phase=record.stage, seconds=record.seconds) for record in records)
    return TimingReport(seconds=sum(phase.seconds for phase in phases), phases=phases)


def write_results(run_dir: RunDir, report: RunReport, **evaluated: Sequence[Record]) -> None:
    """Write curve.csv, with the kind of its rows, and last of all report.json: with a report, a run is finished."""
    delete_training_checkpoints(run_dir)
    run_dir.write_curve([{"kind": kind, **record.row()} for kind, records in evaluated.items() for record in records])
    timing = dataclasses.replace(report.timing, run_seconds=run_dir.seconds)
    run_dir.write_report(dataclasses.replace(report, timing=timing).as_json())


class Callback:
    """Base class of callbacks; override the methods of interest."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        """Called before a stage trains; `epochs` is None if its length is adaptive. Not called for resumed stages."""

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        """Called when a stage was trained and evaluated, before it is stored, or found in the store (`resumed`)."""

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        """Called with each verdict of the density rule and its estimate so far."""


class MetricsLogger(Callback):
    """Writes every new stage to the metrics of a run directory and to the progress display."""

    def __init__(self, run_dir: RunDir, progress: ProgressBar) -> None:
        self._run_dir = run_dir
        self._progress = progress
        self._num_open = 0
        """Stages that were started and have not ended; several if they train concurrently."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._run_dir.drop_rows(stage)  # of a damaged stage, which runs again
        self._run_dir.log(stage, event="begin", epochs=epochs, density=density)
        show = self._progress.beside if self._num_open else self._progress.stage
        show(stage, density, epochs)
        self._num_open += 1

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        if not resumed:
            self._num_open -= 1
            self._run_dir.log(record.stage, event="end", **record.row(), time={"seconds": record.seconds})
            self._progress.observed(record.point.round, record.point.density, record.point.score, record.stage)

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        self._progress.estimate(answer.density, answer.interval)
