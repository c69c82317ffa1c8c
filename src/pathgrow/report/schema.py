"""The report of a run (`report.json`, format 2): the only place where its JSON keys are written.

`pathgrow train` and `pathgrow discover` write the same `RunReport`; a discovery adds an `answer`, a reference and a
fitted curve. Everything but `timing` is identical when a run is repeated. `pathgrow.report.loading` reads it
back from a run directory.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pathgrow.config import T, from_json, option, to_json
from pathgrow.errors import UserError

REPORT_FORMAT = 2
_MAX_FLOPS = 1e30
"""Of a forward pass; a larger number is damage, and dividing it might overflow."""

Interval = tuple[float | None, float | None]
"""Lower and upper end; None is an open end, because JSON has no infinity."""
Tolerance = tuple[float, float | None, str]
"""Another delta, the operating density for it, and the status of that answer."""
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
    """Weights its final training started from: "fresh" or "grown"; None for methods that do not grow."""
    inference_flops: int = option(at_least=0, at_most=_MAX_FLOPS)
    """FLOPs of one forward pass of one sample."""
    dense_inference_flops: int = option(at_least=1, at_most=_MAX_FLOPS)
    """The same for the dense network."""
    inference_relative: float = option(0.0, at_least=0)
    """`inference_flops / dense_inference_flops`, computed."""
    val: Score
    test: Score | None = None

    def __post_init__(self) -> None:
        if self.num_on > self.num:
            raise UserError(f"network.num_on must be <= network.num ({self.num}), got {self.num_on}")
        object.__setattr__(self, "inference_relative", self.inference_flops / self.dense_inference_flops)


@dataclass(frozen=True, kw_only=True)
class PointReport:
    """A network that was trained and evaluated."""

    round: int
    density: float = option(above=0, at_most=1)
    density_model: float | None = option(None, above=0, at_most=1)
    epochs: int = option(0, at_least=0)
    """Length of the schedules it was trained with; rewinding skips the first steps of one (`PhaseReport`)."""
    score: float
    loss: float | None = None

    @property
    def is_dense(self) -> bool:
        """Whether it is a dense network, which belongs to no growth round."""
        return self.round < 0


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
        columns = (self.density, self.score, self.low, self.high, self.cautious)
        lengths = {len(column) for column in columns if column is not None}
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
    finished: tuple[PointReport, ...] = ()
    """Fully trained networks, if they are not the probes themselves."""
    fit: FitReport | None = None
    num_val: int | None = option(None, at_least=1)
    """Number of validation examples, if the rule used it."""


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
    """A run whose length was chosen to spend a certain budget."""

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

    @property
    def total_epochs(self) -> float:
        """Epochs trained, or those of all schedules if that is unknown."""
        return sum(phase.epochs for phase in self.phases) if self.epochs_trained is None else self.epochs_trained

    def spent(self, match: str) -> float | None:
        """What the run cost in the unit of `match`: "flops", "parameters" or "prunable"; None if that is unknown."""
        if match == "flops":
            return float(self.training_flops)
        return self.epochs_times_parameters if match == "parameters" else self.epochs_times_prunable


@dataclass(frozen=True, kw_only=True)
class ReferenceReport:
    """The dense score that the answer is relative to."""

    score: float
    kind: str
    """"given" by the user, "pretrained": the model that was passed, evaluated as it is, "dense": trained
    in this run, "densest": fitted for the densest network compared, "estimated": for a full dense
    training, from the first half of one and finished networks."""
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The returned model compared with the dense one."""

    outcome: str
    """"verified", "consistent", "missed" or "not verified", see `pathgrow.density.shrink.Outcome`."""
    shortfall: float
    """Score of the dense network, which may be an estimate, minus that of the returned one."""
    error: float = option(at_least=0)
    """Standard error of `shortfall`."""


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
    """The numbers behind `reason` and the answer."""
    reference: ReferenceReport | None = None
    check: CheckReport | None = None
    tolerances: tuple[Tolerance, ...] = ()
    tolerance_intervals: tuple[Interval | None, ...] = ()
    """90% intervals of these densities; empty in older reports."""
    dense: Score | None = None
    """Validation score of the dense baseline, where it was trained."""
    dense_test: Score | None = None


@dataclass(frozen=True, kw_only=True)
class FinisherReport:
    """What one of several finishers found, and its cost."""

    name: str
    operating_density: float | None = option(None, above=0, at_most=1)
    interval: Interval | None = None
    status: str
    density: float = option(above=0, at_most=1)
    """Density of the network that it trained fully."""
    score: float
    """Validation score of that network."""
    check: str | None = None
    """Outcome of the comparison of that network with dense, if there was one."""
    cost: float | None = option(None, at_least=0)
    """Training FLOPs of its search, in dense trainings and without a dense baseline."""
    points: tuple[PointReport, ...] = ()
    """The networks that its answer was read from."""


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

    format: int = REPORT_FORMAT
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
    finishers: tuple[FinisherReport, ...] = ()
    """If there were several finishers, what each found; the rest of the report is about the one that was best."""
    topology: tuple[TopologyReport, ...] = ()
    masks_sha256: str
    weights_sha256: str
    notes: tuple[str, ...] = ()
    """Warnings about the run."""
    timing: TimingReport = field(default_factory=TimingReport)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return to_json(self)  # type: ignore[no-any-return]

    @property
    def dataset(self) -> str | None:
        """Name of the dataset; None for a call of `discover`, which knows no names."""
        return self._setting("data", str)

    @property
    def model(self) -> str | None:
        """Name of the model; None for a call of `discover`."""
        return self._setting("model", str)

    @property
    def name(self) -> str | None:
        """Name of a call of `discover`; None for a command, whose run has the name of its directory."""
        return self._setting("name", str)

    @property
    def seed(self) -> int | None:
        return self._setting("seed", int)

    @property
    def epochs(self) -> int:
        """Length of the dense training that the run is compared with, or of each level of a pruning method."""
        length = self._setting("budget" if self.command == "discover" else "epochs", int)
        return self.network.epochs if length is None else length

    @property
    def task(self) -> dict[str, str]:
        """What the run was trained on; runs of equal tasks have the same dense network."""
        if self.dataset is not None:
            return flat_config({key: self.config.get(key) for key in ("data", "fold", "model", "model_options")})
        flops = self.network.dense_inference_flops
        return flat_config({"prunable": self.network.num, "dense_inference_flops": flops, "mode": self.mode})

    @property
    def settings(self) -> dict[str, str]:
        """The config without what repetitions of one experiment may differ in."""
        ignored = {"seed", "data_root", "threads", "ranks", "engine"}
        if self.config.get("match_like") is not None:
            # Each seed is matched to the run of its own seed: only the hash of the matched configuration counts.
            ignored |= {"match_run", "match_budget"}
        return flat_config({"scope": "auto", **{k: v for k, v in self.config.items() if k not in ignored}})

    def hardware(self, environment: Mapping[str, Any]) -> str | None:
        """What the run was timed on, by the content of its env.json; None if unknown."""
        device = environment.get("device_name") or environment.get("device")
        threads, ranks = self._setting("threads", int), self._setting("ranks", int) or 1
        if not isinstance(device, str):
            return None
        if environment.get("device") == "cpu" and threads is not None:
            device = f"{device} ({threads} thread{'' if threads == 1 else 's'})"
        return f"{ranks} x {device}" if ranks > 1 else device

    @property
    def reference(self) -> ReferenceReport | None:
        return None if self.answer is None else self.answer.reference

    @property
    def mode(self) -> str:
        """ "max" if a higher score is better, otherwise "min"."""
        return self._setting("mode", str) or "max"

    @property
    def target_score(self) -> float | None:
        """The score that the operating density must reach: the reference but for the allowed gap."""
        answer = self.answer
        if answer is None or answer.reference is None:
            return None
        gap = answer.delta if answer.allowed is None else answer.allowed
        return answer.reference.score + (gap if self.mode == "min" else -gap)

    @property
    def short_probe_epochs(self) -> int | None:
        """Length of the probes if the reference is one of them and the returned model was trained for longer."""
        reference = self.reference
        if reference is None or reference.kind != "densest" or not self.curve.probes:
            return None
        return reference.epochs if reference.epochs is not None and reference.epochs < self.network.epochs else None

    @property
    def probes_too_short(self) -> bool:
        """Whether no probe comes within delta of the growing network, although both learned."""
        probes, rounds, answer = self.curve.probes, self.curve.rounds, self.answer
        if answer is None or answer.status == "unlearned" or not probes or not rounds or self.curve.finished:
            return False
        sign = -1 if self.mode == "min" else 1
        best, growing = (max(sign * point.score for point in points) for points in (probes, rounds))
        return best + answer.delta < growing

    def _setting(self, key: str, kind: type[T]) -> T | None:
        value = self.config.get(key)
        return value if isinstance(value, kind) else None


def flat_config(config: Any, key: str = "") -> dict[str, str]:
    """A config as dotted keys and values in JSON, strings without quotes.

    >>> flat_config({"model": {"name": "mlp", "widths": [64, 10]}, "seed": 0})
    {'model.name': 'mlp', 'model.widths': '[64, 10]', 'seed': '0'}
    """
    if isinstance(config, Mapping) and config:
        inside = (flat_config(value, f"{key}.{name}" if key else str(name)) for name, value in config.items())
        return {name: value for part in inside for name, value in part.items()}
    return {key: config if isinstance(config, str) else json.dumps(config)} if key else {}


def load_report(values: Mapping[str, Any], path: str) -> RunReport:
    """The report in `values`, the content of the file `path`; a damaged or older one is a `UserError`."""
    if "format" not in values:
        raise UserError(f"{path} is not a pathgrow report (no 'format' key)")
    if values["format"] != REPORT_FORMAT:
        version = values.get("version") or values.get("pathgrow")
        writer = f" (version {version})" if version else ""
        raise UserError(
            f"{path} has report format {values['format']!r}, this version reads format {REPORT_FORMAT}; "
            f"use the version of pathgrow that wrote it{writer}, or run it again"
        )
    try:
        return from_json(RunReport, values)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}; restore it or run again") from error
