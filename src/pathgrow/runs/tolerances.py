"""Answers of a finished discovery for other tolerances, read off the same curve without training."""

from collections.abc import Sequence
from dataclasses import replace

from pathgrow.density import rules
from pathgrow.density.shrink import ShrinkRule
from pathgrow.density.types import Answer, Curve, Point, Reference, Rule, check_delta, relative_delta
from pathgrow.errors import UserError, printable
from pathgrow.report.schema import AnswerReport, CheckReport, PointReport, ReferenceReport, RunReport

_POINT = 0.01
_FACTORS = (0.25, 0.5, 1.0, 2.0)
_SCORES = {"end_score": "end_score", "unmatched_reference": "unmatched_reference"}
for _name in ("dense", "before", "after"):
    _SCORES |= {f"{_name}_low": f"{_name}_high", f"{_name}_high": f"{_name}_low"}


def absolute_delta(delta: float | str, reference: Reference | ReferenceReport | None) -> float:
    """A tolerance in the unit of the scores; "2%" is relative to the reference.

    >>> absolute_delta("2%", Reference(score=-5.0, kind="given"))
    0.1
    """
    if not isinstance(delta, str):
        return delta
    fraction = relative_delta(delta)
    if reference is None:
        raise UserError(f"delta={delta!r} is relative to a dense score, and there is none: pass a number")
    return fraction * abs(reference.score)


def within(report: RunReport, delta: float | str) -> RunReport:
    """Return the report with the answer for another delta; `check` compares the same returned model with it.

    "2%" is relative to the reference. The config of the returned report has what was asked for.
    A curve that does not reproduce the answer of the report is a `UserError`: a rule with other options, or a report
    without the number of validation examples.
    """
    asked, delta = delta, absolute_delta(delta, report.reference)
    check_delta(delta)
    own = report.answer
    if own is None:
        raise UserError("a training has no accuracy-density curve to read for another delta")
    if own.status == "unlearned":
        raise UserError("training did not improve any network, so no delta has an answer")
    if own.details.get("too_short"):
        raise UserError(
            "the training was too short or too noisy for an answer, whatever the delta: rerun with more epochs"
        )
    curve = _curve(report)
    if not _agree(own, _answer(report, curve, own.delta)):
        raise UserError(
            f"this report does not suffice to ask rule {printable(own.rule)!r} again; "
            f"in Python, use found.within({delta:g})"
        )
    answer, check = _answer(report, curve, delta), None
    assert answer is not None
    sign = -1 if report.mode == "min" else 1
    if report.curve.finished:
        score = sign * report.network.val.score
        network = Point(round=0, density=report.network.density, epochs=report.network.epochs, score=score)
        found = ShrinkRule(delta=own.delta).check(curve, network, within=delta)
        check = None if found is None else CheckReport(**vars(found))
    answer = in_user_sign(answer, report.mode)
    reference = answer.reference
    changed = replace(
        own,
        operating_density=answer.density,
        interval=answer.interval,
        delta=delta,
        allowed=delta if answer.allowed is None else answer.allowed,
        status=answer.status,
        reason=answer.reason,
        details=answer.details,
        reference=None if reference is None else ReferenceReport(**vars(reference)),
        check=check,
    )
    config = {"delta": relative_delta(asked) if isinstance(asked, str) else asked}
    config["delta_is_relative"] = isinstance(asked, str)
    return replace(report, answer=changed, config={**report.config, **config})


def read_off(rule: Rule, curve: Curve, delta: float, *, is_accuracy: bool) -> tuple[Answer, ...]:
    """The answers of a rule for a quarter of delta to twice delta; for accuracies, for 0.25 to 2 percentage points.

    Empty for a rule without a field `delta`.
    """
    if "delta" not in getattr(rule, "__dataclass_fields__", {}):
        return ()
    deltas = [factor * (_POINT if is_accuracy else delta) for factor in _FACTORS]
    return tuple(answer_within(rule, curve, value) for value in deltas)


def answer_within(rule: Rule, curve: Curve, delta: float) -> Answer:
    """The answer of a rule, a dataclass with a field `delta`, for another tolerance."""
    check_delta(delta)
    if isinstance(rule, ShrinkRule):
        return rule.answer(curve, within=delta)
    other: Rule = replace(rule, delta=delta)  # type: ignore[type-var]
    return other.answer(curve)


def in_user_sign(answer: Answer, mode: str) -> Answer:
    """The answer of a rule, which takes the higher score for the better, in the sign of the user's scores."""
    return with_negated_scores(answer) if mode == "min" else answer


def with_negated_scores(answer: Answer) -> Answer:
    """The answer of a rule in the sign of scores of which the lower is better."""
    details = dict(answer.details)
    for name, other in _SCORES.items():
        if isinstance(value := answer.details.get(name), float):
            details[other] = -value
    reference = answer.reference
    reference = None if reference is None else replace(reference, score=-reference.score)
    return replace(answer, details=details, reference=reference)


def _answer(report: RunReport, curve: Curve, delta: float) -> Answer | None:
    """The answer of the report's rule; None if it has another name than those that are known."""
    assert report.answer is not None
    name = report.answer.rule
    if not report.curve.finished and name not in rules.names():
        return None
    own = report.answer.delta
    rule: Rule = ShrinkRule(delta=own) if report.curve.finished else rules.create(name, delta=own)
    return answer_within(rule, curve, delta)


def _agree(own: AnswerReport, again: Answer | None) -> bool:
    if again is None or (own.operating_density is None) != (again.density is None):
        return False
    is_close = own.operating_density is None or abs(again.density / own.operating_density - 1) < 1e-6  # type: ignore[operator]
    # Whether growth had ended makes the difference between these two, and a report does not say.
    ends = {"open", "unreached"}
    return is_close and (own.status == again.status or {own.status, again.status} <= ends)


def _curve(report: RunReport) -> Curve:
    curve, reference = report.curve, report.reference
    sign = -1 if report.mode == "min" else 1
    if reference is not None and reference.kind not in ("given", "pretrained", "dense"):
        reference = None  # it was read from the curve
    budget = report.config.get("budget")
    return Curve(
        rough=_points(curve.rounds, sign),
        probes=_points(curve.probes, sign),
        finished=_points(curve.finished, sign),
        reference=None if reference is None else Reference(**{**vars(reference), "score": sign * reference.score}),
        num_val=curve.num_val,
        full_epochs=budget if isinstance(budget, int) else None,
        can_probe=bool(curve.probes),
        at_ceiling=report.answer is not None and report.answer.status == "unreached",
    )


def _points(points: Sequence[PointReport], sign: int) -> tuple[Point, ...]:
    return tuple(
        Point(round=point.round, density=point.density, epochs=point.epochs, score=sign * point.score, loss=point.loss)
        for point in points
    )
