"""What a discovery found, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathgrow.density import words
from pathgrow.density.estimate import allowed_gap, fit_band
from pathgrow.density.types import DENSE, Answer, Curve, Point, Reference, Rule
from pathgrow.errors import UserError
from pathgrow.graph.flops import inference_flops
from pathgrow.masks import Masks
from pathgrow.report.schema import (
    AnswerReport,
    CurveReport,
    FitReport,
    LedgerReport,
    MethodReport,
    NetworkReport,
    PointReport,
    ReferenceReport,
    RunReport,
    Score,
    TopologyReport,
)
from pathgrow.runs.probes import score_dense
from pathgrow.runs.records import Record, ledger_report, score_report, timing_report
from pathgrow.runs.site import Site
from pathgrow.sparse.attach import Attached
from pathgrow.sparse.snapshot import digest
from pathgrow.trainer.interface import Evaluate
from pathgrow.version import __version__


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Discovery:
    """How dense the network needs to be, and that network, which is in the model that was passed to `discover`.

    If the model is trained further, the masks stay enforced until `attached.detach()`.
    """

    answer: Answer
    """Everything the density rule says, in one value."""
    reason: str
    """Why the search stopped: a reason code, or the sentence of a user-defined rule."""
    curve: Curve
    """All observed points: the trunk after each round, and the probes."""
    rule: Rule
    attached: Attached
    network: Record
    """The network handed back, as it was trained and observed."""
    rounds: tuple[Record, ...]
    probes: tuple[Record, ...]
    dense: Record | None
    untrained: tuple[Point, ...] = ()
    """The networks compared as they were before training, where there was doubt that training made them better."""
    trained: tuple[Record, ...]
    """Every stage that was trained, in order."""
    site: Site

    def __repr__(self) -> str:
        answer = self.answer
        needed = f"no operating density ({answer.status})"
        if answer.density is not None:
            needed = f"operating density {words.density(answer.density)}"
            needed += f" (90% interval {words.span(answer.interval)})" if answer.interval else ""
        return (
            f"Discovery({needed};\n"
            f"  network of density {words.density(self.density)}, score {words.score(self.score)}, "
            f"{len(self.rounds)} rounds, {len(self.probes)} probes)"
        )

    @property
    def operating_density(self) -> float | None:
        """The smallest density whose network stays within delta of the reference; None where there is none to give."""
        return self.answer.density

    @property
    def gain_density(self) -> float | None:
        """Where the exponential fit over equally trained points reaches 95% of its gain."""
        return self.answer.gain_density

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% interval of the operating density; its lower end is 0 where that lies below everything trained out."""
        return self.answer.interval

    @property
    def words(self) -> str:
        """The answer in words: one sentence, then in lines of their own how sure it is and what it rests on."""
        first, *further = self.answer.words.splitlines() or [""]
        if self._was_not_asked:
            first = (
                f"{words.density(self.density)} of the switchable weights, the density asked for, score"
                f" {words.score(self.score)}."
            )
        elif self._is_too_short:
            told = f"Judged by trainings too short to tell: {first}"
            first = told if first else "The trainings were too short to tell."
        return words.lines(first, *self._beside(further))

    @property
    def notes(self) -> tuple[str, ...]:
        """The words that say more than the other fields do: what a report lists beside its table of those."""
        lines = self.answer.words.splitlines()
        return self._beside((lines[1:] or lines) if self.answer.notes is None else self.answer.notes)

    def _beside(self, further: Sequence[str]) -> tuple[str, ...]:
        """What the rule has to say further, and what there is to know of the lengths of the trainings."""
        answer, options = self.answer, self.site.options
        if self._was_not_asked:
            return ("How dense the network needs to be was not asked, so no copies were trained to compare.",)
        if self._is_too_short:
            length = words.counted(options.num_probe_epochs, "epoch")
            best, growing = (words.score(score) for score in self._best)
            return (
                f"The best network trained out ({best} after {length}) scores below the growing one ({growing}), so its"
                " training is too short to compare densities by.",
                "Give a larger budget, or a larger probe_fraction.",
                *further,
            )
        if answer.allowed is None or answer.status == "unlearned" or not self.probes:
            return tuple(further)
        middle, low, high = allowed_gap(answer.delta, options.num_probe_epochs, options.budget)
        length = f"{options.num_probe_epochs} of {words.counted(options.budget, 'epoch')}"
        return (
            *further,
            f"The networks compared were trained {length}. Gaps to dense shrink after that, so {middle:.2g}"
            f" ({low:.2g} to {high:.2g}) was allowed there for {answer.delta:.2g} in the end.",
            "A reference makes it surer.",
        )

    @property
    def _was_not_asked(self) -> bool:
        return self.site.options.target_density is not None and self.answer.status != "found"

    @property
    def _best(self) -> tuple[float, float]:
        """The best scores of a network trained out and of the growing one."""
        return max(record.point.score for record in self.probes), max(record.point.score for record in self.rounds)

    @property
    def _is_too_short(self) -> bool:
        """Whether no copy came to where the growing network had been, though both learned."""
        if not self.probes or self.answer.status == "unlearned":
            return False
        trained_out, growing = self._best
        return trained_out + self.answer.delta < growing

    @property
    def reference(self) -> Reference | None:
        """What the answer is read against."""
        return self.answer.reference

    @property
    def density(self) -> float:
        """Density of the network handed back, over the switchable weights."""
        return self.network.point.density

    @property
    def density_model(self) -> float:
        """Density of the network handed back, over all parameters of the model."""
        return self.network.density_model

    @property
    def score(self) -> float:
        """Score of the network handed back, on the user's validation data."""
        return self.network.point.score

    @property
    def masks(self) -> Masks:
        """Masks of the network handed back."""
        return self.attached.masks

    def masks_at(self, round: int) -> Masks:
        """Masks of the trunk in a visited round; 0 is the seed network, `DENSE` a dense copy."""
        if round == DENSE:
            return Masks.full(self.attached.model, self.site.scope)
        return self.site.masks_of(self.rounds[round])

    @property
    def topology(self) -> tuple[dict[str, Any], ...]:
        """Path measures of the trunk, round by round."""
        return tuple({"round": record.point.round, **(record.topology or {})} for record in self.rounds)

    def examine(self, evaluate: Evaluate) -> tuple[Score, Score | None]:
        """Score the network handed back, and the dense reference if there is one, by another evaluation: the test."""
        network = self.site.phases.score(self.attached, "test", evaluate=evaluate)
        return network, None if self.dense is None else score_dense(self.site, evaluate)

    def within(self, delta: float) -> float | None:
        """The operating density for another tolerance, read from the same curve without more training."""
        if "delta" not in getattr(self.rule, "__dataclass_fields__", {}):
            raise UserError(f"rule {self.rule.name!r} is no dataclass with a delta: it cannot be asked for another one")
        if self.answer.status == "unlearned":
            return None
        rule: Rule = replace(self.rule, delta=delta)  # type: ignore[type-var]
        return rule.answer(self.curve).density

    @property
    def ledger(self) -> LedgerReport:
        """What the discovery cost, stage by stage."""
        samples, epochs = (sum(getattr(r, name) for r in self.trained) for name in ("num_samples", "num_epochs"))
        dense = None
        if samples and epochs:
            dense = round(self.site.options.budget * samples / epochs) * self.site.dense_flops
        return ledger_report(
            self.trained,
            num_prunable=self.masks.num,
            num_parameters=self._num_parameters,
            dense_training_flops=dense,
        )

    @property
    def _num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.attached.model.parameters())

    def report(self, *, test: Score | None = None, dense_test: Score | None = None) -> RunReport:
        """The report of this discovery; all but `timing` is the same in every repetition.

        `test` and `dense_test` are the scores of `examine`.
        """
        answer, network, options = self.answer, self.network, self.site.options
        method, reference = self.site.method, self.answer.reference
        # Where nothing was learned, a curve through the scores would show a rise that is none.
        band = None if answer.status == "unlearned" else fit_band(self.curve, answer)
        return RunReport(
            command="discover",
            version=__version__,
            config={"seed": self.site.seed, **options.as_dict()},
            method=MethodReport(
                name=method.name,
                options={"gamma": options.gamma, "start_density": options.start_density},
                needs=tuple(sorted(method.needs)),
                cost=method.cost,
                clock=method.clock,
            ),
            network=NetworkReport(
                density=network.point.density,
                density_model=network.density_model,
                num_on=network.num_on,
                num=self.masks.num,
                num_parameters=self._num_parameters,
                round=network.point.round,
                epochs=network.point.epochs,
                final=options.final,
                inference_flops=inference_flops(self.site.graph, self.masks),
                dense_inference_flops=inference_flops(self.site.graph),
                val=score_report(network),
                test=test,
            ),
            curve=CurveReport(
                rounds=tuple(record.point_report() for record in self.rounds),
                probes=tuple(record.point_report() for record in self.probes),
                untrained=tuple(
                    PointReport(round=point.round, density=point.density, score=point.score) for point in self.untrained
                ),
                fit=None if band is None else FitReport(**{name: tuple(column) for name, column in band.items()}),
            ),
            ledger=self.ledger,
            answer=AnswerReport(
                operating_density=answer.density,
                interval=answer.interval,
                gain_density=answer.gain_density,
                gain_interval=answer.gain_interval,
                gain_level=answer.gain_level,
                delta=answer.delta,
                allowed=answer.delta if answer.allowed is None else answer.allowed,
                status=answer.status,
                rule=answer.rule,
                select_by=options.answer,
                reason=self.reason,
                details=answer.details,
                reference=None
                if reference is None
                else ReferenceReport(score=reference.score, kind=reference.kind, epochs=reference.epochs),
                dense=None if self.dense is None else score_report(self.dense),
                dense_test=dense_test,
            ),
            topology=tuple(TopologyReport(**measured) for measured in self.topology),
            masks_sha256=self.masks.digest(),
            weights_sha256=digest(self.attached.model.state_dict()),
            notes=self.notes,
            timing=timing_report(self.trained),
        )
