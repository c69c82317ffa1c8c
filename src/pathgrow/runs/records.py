"""Records of finished stages, the callbacks that are notified of them, and the cost ledger of a run."""

import dataclasses
import functools
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from pathgrow.checkpoint import RunDir, strict_json
from pathgrow.config import from_json, option, to_json
from pathgrow.density.types import Answer, Point, Verdict
from pathgrow.errors import UserError, require
from pathgrow.report.progress import LogProgress, ProgressBar
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
    """Return what the stages of a run cost.

    Epochs times weights are those of stages that train with constant masks.

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


def topology_reports(records: Sequence[Record]) -> tuple[TopologyReport, ...]:
    """Return the path measures of the stages that recorded them."""
    return tuple(TopologyReport(round=r.point.round, **r.topology) for r in records if r.topology is not None)


def write_results(run_dir: RunDir, report: RunReport, **evaluated: Sequence[Record]) -> None:
    """Write curve.csv, with the kind of its rows, and last of all report.json: with a report, a run is finished."""
    delete_training_checkpoints(run_dir)
    run_dir.write_curve([{"kind": kind, **record.row()} for kind, records in evaluated.items() for record in records])
    timing = report.timing
    if timing.run_seconds is None:  # otherwise the directory was opened only to save a finished run
        timing = dataclasses.replace(timing, run_seconds=run_dir.seconds)
    run_dir.write_report(dataclasses.replace(report, timing=timing).as_json())


_LAST = "final"
"""The kind of stages that no others follow."""


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """Stages of one kind that a search will probably have."""

    kind: str
    """Name of these stages without their number."""
    count: int
    epochs: int
    """Of each of them."""
    density: float
    """The mean of their networks."""
    sample_flops: float | None = None
    """FLOPs of a training sample, for methods that train more weights than their networks end with."""
    finisher: str | None = None
    """The one of several finishers whose search they belong to; None: there is one, or all share them."""


@dataclass(frozen=True, kw_only=True)
class SearchForecast:
    """What a search will probably train: the rule decides on the way, so that it may be more or less."""

    stages: tuple[PlannedStage, ...]
    budget: int
    """Epochs of one dense training."""
    dense_flops: int
    """FLOPs of a training sample of the dense network."""
    fixed_flops: int
    """Those of the weights that are always dense."""

    @property
    def num_stages(self) -> int:
        return sum(stage.count for stage in self.stages)

    @property
    def num_epochs(self) -> int:
        return sum(stage.count * stage.epochs for stage in self.stages)

    @property
    def cost(self) -> float:
        """Training FLOPs, in dense trainings."""
        return sum(map(self.cost_of, self.stages))

    def cost_of(self, stage: PlannedStage) -> float:
        """The same for one kind of stages, as if pruning took the same fraction of every layer."""
        flops = stage.sample_flops
        if flops is None:
            flops = self.fixed_flops + stage.density * (self.dense_flops - self.fixed_flops)
        return stage.count * stage.epochs * flops / (self.budget * self.dense_flops)

    def left(self, stages: Iterable[str]) -> tuple[int, int]:
        """How many stages and epochs will probably follow, given the names of those that were started.

        Several finishers search one after the other. What is left of a search is dropped when the next one starts.
        """
        names = [name.partition("--") for name in stages]
        finishers = list(dict.fromkeys(stage.finisher for stage in self.stages if stage.finisher is not None))
        # The names of stages have the finishers in another spelling, but in the same order.
        searches = dict(zip(dict.fromkeys(suffix for _, _, suffix in names if suffix), finishers, strict=False))
        kinds = {stage.kind for stage in self.stages}
        done = Counter(
            (searches.get(suffix), name if name in kinds else name.partition("-")[0]) for name, _, suffix in names
        )
        ended, finishing = list(searches.values())[:-1], {finisher for finisher, kind in done if kind == _LAST}
        num_stages = num_epochs = 0
        for stage in self.stages:
            if stage.finisher in ended or (stage.finisher in finishing and stage.kind != _LAST):
                continue
            count = max(0, stage.count - done[stage.finisher, stage.kind])
            done[stage.finisher, stage.kind] -= stage.count - count
            num_stages, num_epochs = num_stages + count, num_epochs + count * stage.epochs
        return num_stages, num_epochs

    def cost_of_record(self, record: Record) -> float | None:
        """What a stage cost, in dense trainings; None if `fit` did not run the model that it got."""
        if not record.num_samples:
            return None if record.num_epochs else 0.0
        return record.flops * record.num_epochs / (record.num_samples * self.budget * self.dense_flops)


class Callback:
    """Base class of callbacks; override the methods of interest."""

    def on_run_start(self, forecast: SearchForecast) -> None:
        """Called before the first stage of a discovery."""

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        """Called before a stage trains; `epochs` is None if its length is adaptive. Not called for resumed stages."""

    def on_epoch(self, stage: str, done: int, epochs: int, loss: float | None = None) -> None:
        """Called when `done` of the `epochs` of a stage are trained.

        With a user's `fit`, called from the second stage on: the first stage shows how many samples an epoch has.
        """

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        """Called when a stage was trained and evaluated, before it is stored, or found in the store (`resumed`)."""

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        """Called with each verdict of the density rule and its estimate so far."""


class CallbackList(Callback):
    """Calls several callbacks, in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)

    def on_run_start(self, forecast: SearchForecast) -> None:
        for callback in self._callbacks:
            callback.on_run_start(forecast)

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        for callback in self._callbacks:
            callback.on_stage_start(stage, epochs=epochs, density=density)

    def on_epoch(self, stage: str, done: int, epochs: int, loss: float | None = None) -> None:
        for callback in self._callbacks:
            callback.on_epoch(stage, done, epochs, loss)

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        for callback in self._callbacks:
            callback.on_stage_end(record, resumed=resumed)

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        for callback in self._callbacks:
            callback.on_decision(verdict, answer)


class MetricsLogger(Callback):
    """Writes every new stage to the metrics of a run directory, and those of stored stages that are lost or damaged."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir

    @functools.cached_property
    def _stored(self) -> dict[str, dict[str, Any]]:
        """The last row of each stage, as it was found."""
        return {row["stage"]: row for row in self._run_dir.metrics}

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._run_dir.drop_rows(stage)  # of a damaged stage, which runs again
        self._run_dir.log(stage, event="begin", epochs=epochs, density=density)

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        row = {"event": "end", **record.row(), "time": {"seconds": record.seconds}}
        if resumed:
            if strict_json.nulled({"stage": record.stage, **row}) == self._stored.get(record.stage):
                return
            warnings.warn(
                f"metrics of stage {record.stage!r} were lost or damaged, and are written again", stacklevel=2
            )
            self.on_stage_start(record.stage, epochs=record.num_epochs, density=record.point.density)
        self._run_dir.log(record.stage, **row)


class ProgressCallback(Callback):
    """Shows the stages of a run on a progress display."""

    def __init__(self, progress: ProgressBar) -> None:
        self._progress = progress
        self._forecast: SearchForecast | None = None
        self._num_expected = 0
        """The lowest estimate so far of all stages of the run."""
        self._lengths: dict[str, int] = {}
        """Epochs of all stages so far."""
        self._open: set[str] = set()
        """Stages that were started and have not ended; several if they train concurrently."""
        self._ended: set[str] = set()

    def on_run_start(self, forecast: SearchForecast) -> None:
        self._forecast, self._num_expected = forecast, forecast.num_stages
        self._lengths, self._open, self._ended = {}, set(), set()

    def on_stage_start(self, stage: str, *, epochs: int | None, density: float) -> None:
        self._expect(stage, epochs or 0)
        show = self._progress.concurrent_stage if self._open else self._progress.stage
        show(stage, density, epochs)
        self._open.add(stage)

    def on_epoch(self, stage: str, done: int, epochs: int, loss: float | None = None) -> None:
        self._progress.epoch(done, epochs, loss)

    def on_stage_end(self, record: Record, *, resumed: bool) -> None:
        if record.stage in self._ended:
            return  # a dense baseline that another finisher has trained
        self._ended.add(record.stage)
        cost = None if self._forecast is None else self._forecast.cost_of_record(record)
        self._open.discard(record.stage)
        self._expect(record.stage, record.num_epochs)
        if resumed:
            self._progress.stored(record.num_epochs, cost)
        else:
            point = record.point
            self._progress.observed(record.stage, point.density, point.score, epochs=record.num_epochs, cost=cost)

    def on_decision(self, verdict: Verdict, answer: Answer) -> None:
        self._progress.estimate(answer.density, answer.interval)

    def _expect(self, stage: str, epochs: int) -> None:
        self._lengths[stage] = epochs
        if self._forecast is None:
            return
        left, epochs_left = self._forecast.left(self._lengths)
        num_stages = left + len(self._lengths)
        # More than was expected: how many more is up to the rule, and a number that grows along would say nothing.
        is_longer, self._num_expected = num_stages > self._num_expected, min(self._num_expected, num_stages)
        self._progress.expects(0 if is_longer else num_stages, epochs_left + sum(self._lengths.values()))


class LoggingCallback(ProgressCallback):
    """Writes a line about every stage, and one per minute of a long one, to a logger of the `logging` module.

    >>> import sys
    >>> logger = logging.Logger("mine")
    >>> logger.addHandler(logging.StreamHandler(sys.stdout))
    >>> LoggingCallback(logger).on_stage_start("train-1", epochs=40, density=1.0)
    training phase 1 starts: density 100%, 40 epochs
    """

    def __init__(self, logger: logging.Logger | str = "pathgrow", level: int = logging.INFO) -> None:
        self._logger, self._level = logging.getLogger(logger) if isinstance(logger, str) else logger, level
        super().__init__(self._new_progress())

    def on_run_start(self, forecast: SearchForecast) -> None:
        self._progress = self._new_progress()  # of another run, if the object is used again
        super().on_run_start(forecast)

    def _new_progress(self) -> LogProgress:
        return LogProgress(lambda line: self._logger.log(self._level, line), is_stamped=False)
