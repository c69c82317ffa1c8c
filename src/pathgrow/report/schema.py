"""The report of a run (`report.json`, format 2): the only place where its JSON keys are written.

`pathgrow train` and `pathgrow discover` write the same `RunReport`; a discovery adds an `answer`, a reference and a
fitted curve. Everything but `timing` is identical when a run is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pathgrow.config import from_json, option, to_json
from pathgrow.errors import UserError

FORMAT = 2

Interval = tuple[float, float]
Command = Literal["discover", "train"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """One evaluation; a higher score is better."""

    score: float
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class MethodReport:
    """The sparse-training method of the run."""

    name: str
    density: float | None = None
    """Requested final density; None for a discovery and for methods that take none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    cost: str
    clock: str


@dataclass(frozen=True, kw_only=True)
class NetworkReport:
    """The returned model."""

    density: float = option(above=0, at_most=1)
    """Fraction of the prunable weights that are nonzero."""
    density_model: float = option(above=0, at_most=1)
    """Fraction of all parameters that are nonzero."""
    num_on: int = option(at_least=0)
    num: int = option(at_least=1)
    """Prunable weights."""
    num_parameters: int = option(at_least=1)
    """All parameters of the model."""
    round: int | None = None
    """Growth round whose mask it has; -1 is the dense network, None a run without rounds."""
    epochs: int = option(at_least=0)
    """Epochs it was trained in total."""
    final: str | None = None
    """Weights its final training started from: "fresh" or "grown"; None for `train`."""
    inference_flops: int = option(at_least=0)
    """FLOPs of one forward pass of one sample."""
    dense_inference_flops: int = option(at_least=0)
    """The same for the dense network."""
    val: Score
    test: Score | None = None

    @property
    def inference_relative(self) -> float:
        """Inference FLOPs as a fraction of the dense network's."""
        return self.inference_flops / self.dense_inference_flops


@dataclass(frozen=True, kw_only=True)
class PointReport:
    """A network that was trained and evaluated."""

    round: int
    density: float = option(above=0, at_most=1)
    density_model: float | None = option(None, above=0, at_most=1)
    epochs: int = option(0, at_least=0)
    score: float
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """The fitted accuracy-density curve with its 90% band, as columns of equal length."""

    density: tuple[float, ...]
    score: tuple[float, ...]
    """Posterior median."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    cautious: tuple[float, ...] | None = None
    """The quantile that the answer is read from."""

    def __post_init__(self) -> None:
        columns = [self.density, self.score, self.low, self.high]
        lengths = {len(column) for column in [*columns, *([self.cautious] if self.cautious is not None else [])]}
        if len(lengths) != 1 or min(lengths) < 2:
            raise UserError("the columns of curve.fit have unequal lengths or fewer than two points")


@dataclass(frozen=True, kw_only=True)
class CurveReport:
    """Every network that was evaluated, in order of density."""

    rounds: tuple[PointReport, ...] = ()
    """`discover`: the growing network after each round; `train`: the network after each training phase."""
    probes: tuple[PointReport, ...] = ()
    """Networks trained from a visited mask to one common number of epochs."""
    untrained: tuple[PointReport, ...] = ()
    """The probed networks before training, evaluated only if training seems to have had no effect."""
    fit: FitReport | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseReport:
    """One training phase in the cost ledger."""

    phase: str
    epochs: int = option(at_least=0)
    """Length of its schedule."""
    epochs_trained: float | None = option(None, at_least=0)
    """Epochs actually trained; fewer than `epochs` after rewinding. None: samples per epoch are unknown."""
    samples: int = option(at_least=0)
    density: float = option(at_least=0, at_most=1)
    training_flops: int = option(at_least=0)


@dataclass(frozen=True, kw_only=True)
class MatchReport:
    """A run whose length was chosen to spend a given budget."""

    kind: str
    epochs: int
    budget: float | None = None
    planned: float | None = None
    spent: float | None = None
    relative_error: float | None = None
    """`spent / budget - 1`."""


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """What the run cost."""

    phases: tuple[PhaseReport, ...]
    training_flops: int = option(at_least=0)
    dense_training_flops: int | None = option(None, at_least=0)
    """Cost of the dense baseline training; None if nothing was trained."""
    relative: float | None = option(None, at_least=0)
    """`training_flops / dense_training_flops`."""
    samples: int = option(at_least=0)
    epochs_trained: float | None = option(None, at_least=0)
    start_flops: int = option(0, at_least=0)
    """Cost of choosing the initial masks; included in the first phase."""
    epochs_times_parameters: float | None = option(None, at_least=0)
    epochs_times_prunable: float | None = option(None, at_least=0)
    match: MatchReport | None = None


@dataclass(frozen=True, kw_only=True)
class ReferenceReport:
    """The dense score that the answer is relative to."""

    score: float
    kind: str
    """"given" by the user, "dense": trained in this run, "densest": fitted for the densest network compared."""
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerReport:
    """How dense the network must be."""

    operating_density: float | None = option(None, above=0, at_most=1)
    interval: Interval | None = None
    gain_density: float | None = option(None, above=0, at_most=1)
    gain_interval: Interval | None = None
    gain_level: float = 0.95
    delta: float = option(at_least=0)
    allowed: float | None = None
    """The gap at the length of the probes that stands for `delta` after full training."""
    status: str
    rule: str
    select_by: str = "delta"
    """The criterion that selected the returned model."""
    reason: str
    """Why the search stopped: a reason code, or the sentence of a user-defined rule."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind `reason`."""
    reference: ReferenceReport | None = None
    dense: Score | None = None
    """Validation score of the dense baseline, where it was trained."""
    dense_test: Score | None = None


@dataclass(frozen=True, kw_only=True)
class TopologyReport:
    """Path measures of the growing network after one round."""

    round: int
    density: float
    num_on: int
    total: float | None
    log10_total: float | None
    tau: float
    tau_core_size: int | None
    tau_core_sizes: Mapping[str, int]
    tau_core_ratios: Mapping[str, float]
    mean_tau_core_ratio: float | None
    num_dead: int
    dead: Mapping[str, int]
    num_isolated: int
    num_hidden: int
    layer_densities: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PhaseTiming:
    phase: str
    seconds: float = option(at_least=0)


@dataclass(frozen=True, kw_only=True)
class TimingReport:
    """Wall-clock time; the only part of a report that differs between repetitions."""

    seconds: float = option(0.0, at_least=0)
    """Sum over all phases."""
    phases: tuple[PhaseTiming, ...] = ()
    run_seconds: float | None = option(None, at_least=0)
    """From start to end of the run, over all its processes and restarts."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The report of a finished run."""

    format: int = FORMAT
    command: Command
    version: str
    """Version of pathgrow that wrote it."""
    config: Mapping[str, Any]
    method: MethodReport
    network: NetworkReport
    curve: CurveReport
    ledger: LedgerReport
    answer: AnswerReport | None = None
    """None for `train`."""
    topology: tuple[TopologyReport, ...] = ()
    masks_sha256: str
    weights_sha256: str
    notes: tuple[str, ...] = ()
    """Warnings about the run."""
    timing: TimingReport = field(default_factory=TimingReport)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return to_json(self)  # type: ignore[no-any-return]


def load_report(values: Mapping[str, Any], path: str) -> RunReport:
    """The report in `values`, the content of the file `path`; a damaged or older one is a `UserError`."""
    if "format" not in values:
        raise UserError(f"{path} is not a pathgrow report (no 'format' key)")
    if values["format"] != FORMAT:
        version = values.get("version") or values.get("pathgrow")
        writer = f" (version {version})" if version else ""
        raise UserError(
            f"{path} has report format {values['format']!r}, this version reads format {FORMAT}; "
            f"use the version of pathgrow that wrote it{writer}, or run it again"
        )
    try:
        return from_json(RunReport, values)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}; restore it or run again") from error
