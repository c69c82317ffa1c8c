"""The result of a discovery."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pathgrow.checkpoint import RunDir
from pathgrow.density.estimate import fit_band
from pathgrow.density.shrink import Check, ShrinkRule
from pathgrow.density.types import DENSE, Answer, Curve, Point, Reference, Rule
from pathgrow.distributed.comm import Communicator, held_by_rank0
from pathgrow.errors import UserError
from pathgrow.graph.flops import sample_training_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import GrowEachRound
from pathgrow.report.answer import answer_sentence, what_narrows
from pathgrow.report.formats import ScoreFormat, size_phrase
from pathgrow.report.networks import measured_check
from pathgrow.report.schema import (
    AnswerReport,
    CheckReport,
    CurveReport,
    FinisherReport,
    FitReport,
    LedgerReport,
    MethodReport,
    PointReport,
    ReferenceReport,
    RunReport,
    Score,
    load_report,
)
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record, ledger_report, timing_report, topology_reports, write_results
from pathgrow.runs.tolerances import absolute_delta, answer_within, read_off
from pathgrow.runs.trunk import DENSE_STAGE, Trunk, score_dense
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.tree import tensor_digest
from pathgrow.trainer.interface import Evaluate
from pathgrow.version import __version__


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Discovery:
    """The density a network needs, and that network, which is in the model that was passed to `discover`.

    If the model is trained further, the masks stay enforced until `attached.detach()`.
    """

    answer: Answer
    """The answer of the density rule."""
    reason: str
    """Why the search stopped: a reason code, or the sentence of a user-defined rule."""
    curve: Curve
    """All evaluated networks, with scores of which a higher one is better."""
    network: Record
    """The returned network."""
    probes: tuple[Record, ...]
    """Pruned networks of the rounds; in a static search, the probes."""
    dense: Record | None
    """The dense baseline, if it was trained."""
    untrained: tuple[Point, ...] = ()
    """The networks compared before their training, if training seemed to have no effect."""
    finished: tuple[Record, ...] = ()
    """Fully trained networks, if they are not the probes themselves."""
    check: Check | None = None
    """The returned network compared with the dense one; None without a dense score, or if nothing was learned.

    `.outcome` is "verified", "consistent", "missed" or "not verified", `.shortfall` is how far the score is below the
    dense one, and `.error` the standard error of that, 0 if it is unknown.
    """
    trained: tuple[Record, ...]
    """Every stage that was trained, in order."""
    finishers: tuple[FinisherReport, ...] = ()
    """If there were several finishers, what each found."""
    warnings: tuple[str, ...] = ()
    run_seconds: float | None = None
    """Wall-clock time of a call without a store; a store knows that of all calls."""
    options: DiscoverOptions
    trunk: Trunk

    def __repr__(self) -> str:
        curve = self._curve_report(fit=None)
        scores = ScoreFormat.of(curve, vars(self.options))
        answer = self._answer_report(None)
        sentence = answer_sentence(answer, curve, scores, self.options.budget).rstrip(".")
        is_pruned = self.options.prunes
        names = ("pruned", "finished") if is_pruned else ("rounds", "probes")
        numbers = (self.probes, self.finished) if is_pruned else (self.rounds, self.probes)
        counts = ", ".join(f"{len(records)} {name}" for records, name in zip(numbers, names, strict=True))
        checked = "not verified" if self.check is None else self.check.outcome
        length = scores.length(self.network.point.epochs)
        is_open = self.answer.status == "open" and not self.answer.details.get("too_short")
        advice = f"; {what_narrows(answer)} may narrow it down" if is_open else ""
        return (
            f"Discovery({sentence}{advice};\n"
            f"  returned model: density {size_phrase(self.density)}, {scores.name} {scores(self.score)} after {length}"
            f", {checked}; {counts})"
        )

    @property
    def cost(self) -> float | None:
        """What the whole call has cost, in dense trainings: all stages of the ledger, a dense baseline included.

        None if no training sample was counted.
        """
        return self.ledger.relative

    @property
    def by_finisher(self) -> dict[str, FinisherReport]:
        """Density, interval, score and cost of every finisher that was run."""
        return {found.name: found for found in self.finishers or (self.own_finisher,)}

    @property
    def own_finisher(self) -> FinisherReport:
        """What the finisher of this search found."""
        [name] = self.options.finishers
        spent = sum(record.flops for record in self.trained if record.stage != DENSE_STAGE)
        dense = self.ledger.dense_training_flops
        return FinisherReport(
            name=name,
            operating_density=self.answer.density,
            interval=self.answer.interval,
            status=self.answer.status,
            density=self.density,
            score=self.score,
            check=None if self.check is None else self.check.outcome,
            cost=spent / dense if dense else None,
            points=tuple(r.point_report() for r in (*self.probes, *self.finished) if r.point.round != DENSE),
        )

    @property
    def rule(self) -> Rule:
        options = replace(self.options, delta=self.answer.delta)
        return ShrinkRule(delta=options.delta) if options.prunes else options.density_rule()

    @property
    def attached(self) -> Attached:
        """The returned network with its masks."""
        return self.trunk.attached

    @property
    def rounds(self) -> tuple[Record, ...]:
        """The network after each stage of growth and training; round 0 is the seed network."""
        later = (*self.probes, *self.finished)
        return tuple(record for record in self.trunk.records if record not in later)

    @property
    def operating_density(self) -> float | None:
        """The smallest density whose network stays within delta of the reference; None if there is none."""
        return self.answer.density

    @property
    def gain_density(self) -> float | None:
        """The density at which the fitted curve reaches 95% of its gain."""
        return self.answer.gain_density

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% credible interval of the operating density; its lower end is 0 if that is below every probe."""
        return self.answer.interval

    @property
    def reference(self) -> Reference | None:
        """The score that the answer is relative to."""
        return self.answer.reference

    @property
    def density(self) -> float:
        """Density of the returned network, over its prunable weights."""
        return self.network.point.density

    @property
    def density_model(self) -> float:
        """Density of the returned network, over all parameters of the model."""
        return self.network.density_model

    @property
    def score(self) -> float:
        """Validation score of the returned network."""
        return self.network.point.score

    @property
    def masks(self) -> Masks:
        """Masks of the returned network."""
        return self.attached.masks

    def masks_at(self, round: int) -> Masks:
        """Return the masks of a visited round; 0 is the seed network, `DENSE` the dense network."""
        if round == DENSE:
            return Masks.full(self.attached.model, self.trunk.session.scope)
        return self.trunk.masks(round)

    def compared_with(self, dense: Reference, delta: float) -> Self:
        """The result with a check of the returned network against a dense score, passed or measured."""
        reference = ReferenceReport(**vars(dense))
        check = measured_check(self.score, reference, delta, mode=self.options.mode, num_val=self.options.num_val)
        return self if check is None else replace(self, check=Check(**vars(check)))

    def examine(self, evaluate: Evaluate) -> tuple[Score, Score | None]:
        """Evaluate the returned network, and the dense baseline if there is one, e.g. on the test split."""
        session = self.trunk.session
        network = session.score(self.attached, "test", evaluate=evaluate)
        return network, None if self.dense is None else score_dense(session, evaluate)

    def within(self, delta: float | str) -> float | None:
        """Return the operating density for another tolerance, from the same curve and without more training.

        "2%" is relative to the reference. None if there is none, or if even the sparsest network compared is within
        delta; `pathgrow show DIR --delta D` says which.
        """
        if "delta" not in getattr(self.rule, "__dataclass_fields__", {}):
            raise UserError(f"rule {self.rule.name!r} must be a dataclass with a field delta to answer for another one")
        if self.answer.status == "unlearned" or self.answer.details.get("too_short"):
            return None
        return answer_within(self.rule, self.curve, absolute_delta(delta, self.reference)).density

    @property
    def ledger(self) -> LedgerReport:
        """What the discovery cost, stage by stage."""
        session, dense = self.trunk.session, None
        samples, epochs = (sum(getattr(r, name) for r in self.trained) for name in ("num_samples", "num_epochs"))
        if samples and epochs:
            dense = round(self.options.budget * samples / epochs) * sample_training_flops(session.graph)
        ledger = ledger_report(
            self.trained,
            num_prunable=self.masks.num,
            num_parameters=session.num_parameters,
            dense_training_flops=dense,
        )
        ledger = replace(ledger, start_flops=self.trunk.start_flops)
        # The number of weights may change within a training.
        if self.finishers or self.options.finishing_method is not None or self.options.prunes:
            ledger = replace(ledger, epochs_times_parameters=None, epochs_times_prunable=None)
        return ledger

    def report(self, *, test: Score | None = None, dense_test: Score | None = None) -> RunReport:
        """Return the report; all but `timing` is identical if the discovery is repeated.

        `test` and `dense_test` are the scores that `examine` returned.
        """
        # Without learning, a curve fitted to the scores would show a rise that does not exist.
        band = None if self.answer.status == "unlearned" else fit_band(self.curve, self.answer)
        if band is not None and self.options.mode == "min":
            band = {name: values if name == "density" else [-v for v in values] for name, values in band.items()}
            band["low"], band["high"] = band["high"], band["low"]
        several = {"finish": list(self.by_finisher)} if self.finishers else {}
        return RunReport(
            command="discover",
            version=__version__,
            config={"seed": self.trunk.session.seed, **self.options.as_dict(), **several},
            method=self._method_report(),
            network=self.trunk.network_report(
                self.network,
                test,
                round=self.network.point.round if self._has_grown_masks else None,
                final=self.options.final if self._has_grown_masks else None,
            ),
            curve=self._curve_report(
                None if band is None else FitReport(**{name: tuple(column) for name, column in band.items()})
            ),
            ledger=self.ledger,
            answer=self._answer_report(dense_test),
            finishers=self.finishers,
            topology=topology_reports(self.rounds),
            masks_sha256=self.masks.digest(),
            weights_sha256=tensor_digest(self.attached.model.state_dict()),
            notes=self.warnings,
            timing=replace(timing_report(self.trained), run_seconds=self.run_seconds),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the network, its masks, the report and its figures to a new run directory, whose path is returned.

        `pathgrow show`, `compare` and `check` and `pathgrow.load_network` read it. A call with `store` set to a
        directory has written all of that already. In distributed training every rank calls it.
        """
        session = self.trunk.session
        with held_by_rank0(self._comm, lambda: self.options.open_run(path, session.seed, session.model)) as run_dir:
            self.write_to(run_dir, self.report())
        return Path(path)

    def write_to(self, run_dir: RunDir | None, report: RunReport, *, draws: bool = True) -> None:
        """Write network, masks, `report` and (`draws`) its figures; all ranks call it, and rank 0 has the directory."""
        is_finished = self._comm.broadcast_from_rank0(lambda: run_dir is not None and run_dir.finished)
        # On all ranks: the masks of a stage that was lost are computed again.
        masks = [] if is_finished else [self.masks_at(round) for round in range(len(self.trunk.records))]

        def write() -> None:
            if run_dir is None:
                return
            if is_finished:
                _check_same(report, run_dir)
            else:
                for round, grown in enumerate(masks):
                    run_dir.save_masks(round, grown)
                weights = run_dir.save_network(self.attached.model, self.masks)
                evaluated = {"rough": self.rounds, "probe": self.probes, "finished": self.finished}
                write_results(run_dir, replace(report, weights_sha256=weights), **evaluated)
            if draws:
                draw_figures(run_dir)

        self._comm.on_rank0(write)

    @property
    def _comm(self) -> Communicator:
        return self.trunk.session.comm

    def _repr_html_(self) -> str:
        """The answer and the curve, as notebooks show them."""
        from pathgrow.report.html import fragment  # matplotlib and jinja2 are needed here only

        return fragment(self.report())

    def _tolerances(self) -> tuple[Answer, ...]:
        if self.answer.status == "unlearned" or self.answer.details.get("too_short"):
            return ()
        curve = self._curve_report(fit=None)
        scores = ScoreFormat.of(curve, vars(self.options), is_accuracy=self.options.metric == "accuracy")
        return read_off(self.rule, self.curve, self.answer.delta, is_accuracy=scores.is_fraction)

    @property
    def _has_grown_masks(self) -> bool:
        return not self.options.prunes and self.options.finishing_method is None

    def _method_report(self) -> MethodReport:
        method, finisher = self.trunk.method, self.options.finishing_method
        gamma = method.schedule.gamma if isinstance(method.schedule, GrowEachRound) else None
        options = {"gamma": gamma, "start_density": method.start_density}
        if finisher is not None:
            method, options = finisher.at(self.density, num_steps=1), dict(finisher.options)
        return MethodReport(
            name=method.name,
            options=options,
            needs=tuple(sorted(method.needs)),
            cost=method.cost,
            clock=method.clock,
        )

    def _curve_report(self, fit: FitReport | None) -> CurveReport:
        return CurveReport(
            rounds=tuple(record.point_report() for record in self.rounds),
            probes=tuple(record.point_report() for record in self.probes),
            untrained=tuple(
                PointReport(round=point.round, density=point.density, score=point.score) for point in self.untrained
            ),
            finished=tuple(record.point_report() for record in self.finished),
            fit=fit,
            num_val=self.curve.num_val,
        )

    def _answer_report(self, dense_test: Score | None) -> AnswerReport:
        answer, reference, tolerances = self.answer, self.answer.reference, self._tolerances()
        return AnswerReport(
            operating_density=answer.density,
            interval=answer.interval,
            gain_density=answer.gain_density,
            gain_interval=answer.gain_interval,
            gain_level=answer.gain_level,
            delta=answer.delta,
            allowed=answer.delta if answer.allowed is None else answer.allowed,
            status=answer.status,
            rule=answer.rule,
            select_by=self.options.select_by,
            reason=answer.reason or self.reason,
            details=answer.details,
            reference=None
            if reference is None
            else ReferenceReport(score=reference.score, kind=reference.kind, epochs=reference.epochs),
            check=None
            if self.check is None
            else CheckReport(outcome=self.check.outcome, shortfall=self.check.shortfall, error=self.check.error),
            tolerances=tuple((other.delta, other.density, other.status) for other in tolerances),
            tolerance_intervals=tuple(other.interval for other in tolerances),
            dense=None if self.dense is None else self.dense.score,
            dense_test=dense_test,
        )


def draw_figures(run_dir: RunDir) -> None:
    """Draw the figure and the page of a finished discovery, unless they exist."""
    if not all((run_dir.path / name).exists() for name in ("curve.png", "report.html")):
        from pathgrow.report.html import write_all  # matplotlib and jinja2 are needed here only

        write_all(run_dir.path)


def _check_same(report: RunReport, run_dir: RunDir) -> None:
    """Refuse a directory that holds the result of another run with the same options."""
    found = load_report(run_dir.report(), str(run_dir.path / "report.json"))
    if (found.masks_sha256, found.network.val) != (report.masks_sha256, report.network.val):
        raise UserError(f"{run_dir.path} holds another network of a run with the same options: choose a new directory")
