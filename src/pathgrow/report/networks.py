"""The networks of a run as a table, what a discovery did with them, and how the returned one compares with dense."""

from collections.abc import Sequence

from pathgrow.errors import printable
from pathgrow.report.answer import compares_too_few, density_of
from pathgrow.report.formats import ScoreFormat, percent, percent_range, plural, ratio, score_format
from pathgrow.report.schema import (
    CheckReport,
    CurveReport,
    FinisherReport,
    PointReport,
    ReferenceReport,
    RunReport,
)

Table = tuple[list[str], list[list[str]]]
"""Headings and rows of text."""


_WORDS = {2: "two"}
_LONGER = 1.1
"""How much longer than the dense network the returned one must have been trained for reports to say so at once."""


def trained(curve: CurveReport) -> tuple[PointReport, ...]:
    """The network that was pruned, after each phase of its training: all rounds of such a search that did not grow."""
    if curve.rounds and curve.rounds[0].density == 1:
        return curve.rounds
    if not curve.finished or not curve.rounds:
        return ()
    whole = [point for point in curve.rounds if point.density == curve.rounds[-1].density]
    return tuple(whole[1:] or whole)  # the first one ended the growth


def grown(curve: CurveReport) -> tuple[PointReport, ...]:
    """All other rounds, which are those of growth."""
    return curve.rounds[: len(curve.rounds) - len(trained(curve))]


def procedure(report: RunReport) -> list[str]:
    """What a discovery did, in order."""
    curve, rounds, probes, done = report.curve, grown(report.curve), report.curve.probes, list[str]()
    scores = score_format(report)
    if rounds:
        done.append(
            f"Grew from {percent(rounds[0].density)} to {percent(rounds[-1].density)} density in "
            f"{plural(len(rounds) - 1, 'round')}, with rough training after each. These scores rise with training as "
            "well as with density, so they only guide the growth."
        )
    if trained(curve):
        base, control = trained(curve)[-1], sum(p.density == trained(curve)[-1].density for p in curve.finished)
        network = "the dense network" if base.density == 1 else f"the network at {percent(base.density)} density"
        number = len(trained(curve))
        phases = f", in {_WORDS.get(number, number)} phases" if number > 1 else ""
        if base.epochs == 0:
            done.append("Evaluated the pretrained model.")
        elif not _is_baseline(base, report):
            done.append(f"Trained {network} for {scores.length(base.epochs)}{phases}.")
        if (reference := report.reference) is not None and reference.kind == "dense" and reference.epochs is not None:
            is_own = report.config.get("reference") != "dense"
            short = ": half of it does not predict the score"
            short = ", because the budget is too short to predict its score from half of it" if number == 1 else short
            done.append(f"Trained a dense baseline for {scores.length(reference.epochs)}{short if is_own else ''}.")
            network = "the first network" if base.density == 1 else network
        else:
            network = "it"
        if probes:
            pruned = f"{plural(len(probes), 'round')} ({_densities(_by_round(probes))} density)"
            done.append(f"Pruned {network} in {pruned}.")
        unpruned = ", one of them without pruning as a control" if control and len(curve.finished) > control else ""
        finished = f"{plural(len(curve.finished), 'network')} ({_densities(curve.finished)} density{unpruned})"
        if curve.finished:
            done.append(f"{_finished(report, finished)}{_read_from(report)}.")
    elif probes:
        densities, by = _densities(probes), f" by {name}" if (name := finishing_method(report)) else ""
        epochs = " to ".join(map(str, sorted({min(p.epochs for p in probes), max(p.epochs for p in probes)})))
        done.append(
            f"Trained {plural(len(probes), 'probe')}{by} ({densities} density) for {epochs} {scores.unit} each; the "
            "answer is estimated from these scores."
        )
    return done


def _is_baseline(network: PointReport, report: RunReport) -> bool:
    """Whether a network is the dense baseline, with which short searches start."""
    reference = report.reference
    found = None if reference is None or reference.kind != "dense" else (reference.score, reference.epochs)
    return network.density == 1 and found == (network.score, network.epochs)


def _finished(report: RunReport, networks: str) -> str:
    """How these networks were trained to the end."""
    finished, base = report.curve.finished, trained(report.curve)[-1]
    own = sum(phase.epochs for phase in report.ledger.phases if _is_of_finished(phase.phase))
    if report.curve.probes or base.epochs == 0 or own < sum(point.epochs for point in finished):
        return f"Finished {networks}"  # they continue from a network that was trained before
    length = score_format(report).length(max(point.epochs for point in finished))
    return f"Trained {networks} from the initial weights for {length}, with gradual pruning"


def _is_of_finished(phase: str) -> bool:
    return phase.partition("--")[0].startswith("final-")


def _read_from(report: RunReport) -> str:
    """What the answer of a pruning search is read from."""
    if report.curve.probes:
        return "; the answer is read from the scores of the pruned and the finished networks"
    known = {"dense": "the dense baseline", "pretrained": "the pretrained model", "given": "the reference"}
    dense = None if report.reference is None else known.get(report.reference.kind)
    base, finished = trained(report.curve)[-1], report.curve.finished
    if dense is None or report.answer is None or all(point.density >= base.density for point in finished):
        return ""
    if compares_too_few(report.answer, report.curve):
        return ""
    return f"; the answer is read from {'its score' if len(finished) == 1 else 'their scores'}, compared with {dense}"


def compared_with_dense(report: RunReport) -> tuple[str, str] | None:
    """How far the returned model is from dense, if that is known, and what this says; None without learning."""
    answer, scores = report.answer, score_format(report)
    if answer is None or answer.status == "unlearned":
        return None
    check = answer.check or _measured(report)
    if check is None or (reference := _compared(report)) is None:
        return "", "not verified"
    named = {"dense": "the dense baseline", "pretrained": "the pretrained model"}
    dense = named.get(reference.kind, f"dense ({printable(reference.kind)})")
    # Of a score of which the lower is better, "below" would leave open which one that is.
    sides = ("worse than", "better than") if report.mode == "min" else ("below", "above")
    side = sides[0] if check.shortfall >= 0 else sides[1]
    if check.outcome == "missed":
        by = _with_error(scores, check.shortfall - answer.delta, check.error)
        return f"{scores.difference(check.shortfall)} {side} {dense}", f"missed by {by}"
    return f"{_with_error(scores, abs(check.shortfall), check.error)} {side} {dense}", printable(check.outcome)


def _compared(report: RunReport) -> ReferenceReport | None:
    """The dense network of comparisons: the reference, or the baseline of another finisher."""
    reference, answer, budget = report.reference, report.answer, report.config.get("budget")
    if reference is None or reference.kind != "densest" or answer is None or answer.dense is None:
        return reference
    return ReferenceReport(
        score=answer.dense.score, kind="dense", epochs=budget if isinstance(budget, int) else reference.epochs
    )


def lengths_compared(report: RunReport) -> str | None:
    """How long the returned model was trained, and the dense one, if that was clearly shorter."""
    reference, budget = _compared(report), report.config.get("budget")
    if report.answer is None or reference is None or reference.kind == "pretrained":
        return None
    dense = reference.epochs or (budget if isinstance(budget, int) else None)
    if dense is None or report.network.epochs <= _LONGER * dense:
        return None
    return f"{score_format(report).length(report.network.epochs)}, dense {dense:,}"


def _with_error(scores: ScoreFormat, difference: float, error: float) -> str:
    return scores.difference_with_error(difference, error) if error else scores.difference(difference)


def measured_check(
    score: float, reference: ReferenceReport | None, delta: float, *, mode: str, num_val: int | None
) -> CheckReport | None:
    """A network compared with a measured dense score, given or trained, if no rule has compared them; None without one.

    The standard error is binomial, for scores that are fractions of `num_val` examples; without it 0, unknown.

    >>> dense = ReferenceReport(score=0.9, kind="given")
    >>> measured_check(0.88, dense, 0.01, mode="max", num_val=None).outcome
    'missed'
    >>> measured_check(0.88, dense, 0.01, mode="max", num_val=500).outcome
    'consistent'
    """
    if reference is None or reference.kind not in ("given", "dense"):
        return None
    shortfall = (reference.score - score) * (-1 if mode == "min" else 1)
    error = 0.0
    if num_val is not None:
        measured = (score, reference.score) if reference.kind == "dense" else (score,)
        error = (sum(max(0.0, value * (1 - value)) for value in measured) / num_val) ** 0.5
    outcome = "verified" if shortfall <= delta else "missed"
    if outcome == "missed" and shortfall - 2 * error <= delta:
        outcome = "consistent"
    return CheckReport(outcome=outcome, shortfall=shortfall, error=error)


def _measured(report: RunReport) -> CheckReport | None:
    """The same for a report that holds no comparison, as for a tolerance that was asked for later."""
    if report.answer is None:
        return None
    num_val = report.curve.num_val if score_format(report).is_fraction else None
    score, delta = report.network.val.score, report.answer.delta
    return measured_check(score, _compared(report), delta, mode=report.mode, num_val=num_val)


def finishing_method(report: RunReport) -> str | None:
    """The method that trained the probes and the returned model; None if they have grown masks or were pruned."""
    is_named = report.answer is not None and not report.curve.finished and report.network.round is None
    return printable(report.method.name) if is_named else None


def finishers(report: RunReport) -> Table:
    """What each of several finishers found."""
    scores = score_format(report)
    rows = [
        [
            f"{'>' if found == returned_finisher(report) else ''}{printable(found.name)}",
            density_of(found),
            "-" if found.interval is None else percent_range(found.interval),
            percent(found.density),
            scores(found.score),
            printable(found.check or "-"),
            ratio(found.cost),
        ]
        for found in report.finishers
    ]
    return ["finisher", "answer", "90% interval", "network", scores.name, "check", "cost"], rows


def returned_finisher(report: RunReport) -> FinisherReport | None:
    """The finisher that trained the returned model."""
    key = (report.network.density, report.network.val.score)
    return next((found for found in report.finishers if (found.density, found.score) == key), None)


def other_finishers(report: RunReport) -> list[FinisherReport]:
    """All finishers but that of the returned model, to be drawn beside it."""
    return [found for found in report.finishers if found != returned_finisher(report)]


def table(report: RunReport) -> Table:
    """Every network: those of a pruning search by phase, otherwise each round beside the probe of its mask.

    The dense network, if any, comes last.
    """
    headings, rows = _columns(report)
    if score_format(report).name != "loss":
        return headings, rows
    return headings[:5] + headings[6:], [row[:5] + row[6:] for row in rows]  # the loss is the score


def _columns(report: RunReport) -> Table:
    scores = score_format(report)
    headings = ["density", "of model", scores.unit, scores.name, "loss"]
    if networks := _by_phase(report):
        rows = [[phase, *_cells(point, scores)] for phase, point in networks]
        is_listed = any(_is_baseline(point, report) for _, point in networks)
        if report.answer is not None and (dense := report.answer.dense) is not None and not is_listed:
            loss = "-" if dense.loss is None else f"{dense.loss:.3f}"
            rows.append(["dense", "100%", "100%", str(report.epochs), scores(dense.score), loss])
        return ["phase", *headings], rows
    probes = {point.round: [scores(point.score), str(point.epochs)] for point in report.curve.probes}
    if -1 not in probes and report.answer is not None and report.answer.dense is not None:
        epochs = None if report.reference is None else report.reference.epochs
        probes[-1] = [scores(report.answer.dense.score), "" if epochs is None else str(epochs)]
    rows = [
        [str(point.round), *_cells(point, scores), *probes.get(point.round, ["", ""])] for point in report.curve.rounds
    ]
    if -1 in probes:
        rows.append(["dense", "100%", "100%", "", "", "", *probes[-1]])
    headings = ["round", *headings]
    return ([*headings, "probe", scores.unit], rows) if probes else (headings, [row[:-2] for row in rows])


def returned_row(report: RunReport) -> int | None:
    """The row of `table` that has the returned model, or its mask; None if it has none."""
    network = report.network
    if networks := _by_phase(report):
        key = (network.density, network.epochs, network.val.score)
        rows = [(point.density, point.epochs, point.score) == key for _, point in networks]
    elif finishing_method(report) is not None:
        rows = [point.density == network.density for point in report.curve.rounds]
    else:
        rows = [row[0] == str(network.round) for row in table(report)[1]]
    return rows.index(True) if True in rows else None


def _by_phase(report: RunReport) -> list[tuple[str, PointReport]]:
    """The networks of a search that prunes; empty for other searches."""
    curve = report.curve
    if not curve.finished and not trained(curve):
        return []
    whole = trained(curve)[-1].density if trained(curve) else None

    def phase(point: PointReport) -> str:
        known = "trained" if point.epochs else "pretrained"
        return "dense" if _is_baseline(point, report) else known

    return [
        *((f"round {point.round}", point) for point in grown(curve)),
        *((phase(point), point) for point in trained(curve)),
        *(("pruned", point) for point in _by_round(curve.probes)),
        *(("control" if point.density == whole else "finished", point) for point in curve.finished),
    ]


def _by_round(points: Sequence[PointReport]) -> list[PointReport]:
    return sorted(points, key=lambda point: point.round)


def _densities(points: Sequence[PointReport]) -> str:
    return ", ".join(percent(point.density) for point in points)


def _cells(point: PointReport, scores: ScoreFormat) -> list[str]:
    of_model = "-" if point.density_model is None else percent(point.density_model)
    loss = "-" if point.loss is None else f"{point.loss:.3f}"
    return [percent(point.density), of_model, str(point.epochs), scores(point.score), loss]
