"""The answer of a discovery in words: its sentence, the tolerances read off the same curve, what would narrow it."""

from pathgrow.report.formats import ScoreFormat, percent, percent_range, score_format
from pathgrow.report.schema import AnswerReport, CurveReport, FinisherReport, Interval, RunReport


def answer_sentence(answer: AnswerReport, curve: CurveReport, scores: ScoreFormat, budget: object = None) -> str:
    """The answer of a discovery in one sentence; `budget` is the length of a dense training."""
    kind = None if answer.reference is None else answer.reference.kind
    within = f"within {scores.tolerance(answer.delta)} of {'the pretrained model' if kind == 'pretrained' else 'dense'}"
    compared = (*curve.probes, *curve.finished) or curve.rounds
    grown = [point.density for point in compared if not point.is_dense]
    if answer.status == "found" and answer.operating_density is not None:
        goal = "" if kind is None else f" ({within})"
        return f"Operating density{goal}: {percent(answer.operating_density)}{interval_phrase(answer.interval)}."
    if answer.status == "flat" and grown:
        above = interval_phrase(answer.interval) if is_above(answer.interval, min(grown)) else ""
        sparsest = f"{percent(min(grown))}, the sparsest network compared"
        return f"Operating density ({within}): probably below {sparsest}{above}."
    if answer.status == "unreached" and curve.finished:
        return f"No operating density: no pruned network is expected to be {within}."
    if answer.status == "unreached" and grown:
        return f"No operating density: no network up to {percent(max(grown))} density is {within}."
    if answer.status == "unlearned":
        return "No operating density: training did not improve any network."
    is_short = (curve.finished and not compares_too_few(answer, curve)) or answer.details.get("too_short")
    if is_short:
        length = f" ({scores.length(budget)})" if isinstance(budget, int) else ""
        return f"No operating density: the training{length} was too short or too noisy for an answer."
    return "No operating density: too few networks were evaluated."


def compares_too_few(answer: AnswerReport, curve: CurveReport) -> bool:
    """Whether a search that compares fully trained networks directly, without rounds, trained too few for an answer."""
    is_open = answer.status == "open" and answer.details.get("rounds") == 0 and answer.details.get("lowest") is None
    return is_open and bool(curve.rounds) and any(p.density < curve.rounds[-1].density for p in curve.finished)


def what_narrows(answer: AnswerReport) -> str:
    """What could narrow down an answer that the scores leave open: a reference only where there is none."""
    measured = ("given", "dense", "pretrained")
    has_reference = answer.reference is not None and answer.reference.kind in measured
    more = ["more training", "more validation examples", *([] if has_reference else ["a reference"])]
    return f"{', '.join(more[:-1])} or {more[-1]}"


def other_tolerances(report: RunReport) -> str | None:
    """The densities for other tolerances, with 90% intervals; None if the report has none.

    A larger tolerance never needs a higher density. So where even the sparsest network compared is within it, the
    densities for smaller tolerances are upper bounds too.
    """
    if report.answer is None or not report.answer.tolerances:
        return None
    scores, curve, tolerances = score_format(report), report.curve, report.answer.tolerances
    bounds = [point.density for point in (*curve.probes, *curve.finished)]
    intervals = report.answer.tolerance_intervals or (None,) * len(tolerances)
    # What a larger tolerance leaves open, a smaller one cannot settle.
    num_open = max((number for number, (_, _, status) in enumerate(tolerances, 1) if status == "open"), default=0)
    found = []
    if num_open:
        largest = scores.difference(tolerances[num_open - 1][0])
        found.append(f"{'up to ' if num_open > 1 else ''}{largest}: too short or too noisy for an answer")
    for (delta, density, status), interval in list(zip(tolerances, intervals, strict=False))[num_open:]:
        known, phrase = "" if interval is None else f" ({percent_range(interval)})", "none"
        if density is not None:
            bounds.append(density)
            phrase = f"{percent(density)}{known}"
        elif status == "flat" and bounds:
            phrase = f"below {percent(min(bounds))}{known if is_above(interval, min(bounds)) else ''}"
        found.append(f"{scores.difference(delta)}: {phrase}")
    return ", ".join(found)


def density_of(found: FinisherReport) -> str:
    """The operating density that a finisher found, or its upper bound; `-` if there is none."""
    if found.operating_density is not None:
        return percent(found.operating_density)
    if found.status == "flat" and found.points:
        return f"below {percent(min(point.density for point in found.points))}"
    return "-"


def probability(value: float) -> str:
    """A probability in percent.

    >>> probability(0.31), probability(0.0), probability(0.9999)
    ('31%', 'less than 1%', 'more than 99%')
    """
    if value < 0.005:
        return "less than 1%"
    return "more than 99%" if value > 0.995 else f"{value:.0%}"


def interval_phrase(interval: Interval | None) -> str:
    """A 90% interval in parentheses, after a density."""
    return f" (90% interval {percent_range(interval)})" if interval else ""


def is_above(interval: Interval | None, sparsest: float) -> bool:
    """Whether an interval goes clearly beyond a density, of which a sentence says "below"; an open one does."""
    return interval is not None and (interval[1] is None or interval[1] > 1.02 * sparsest)
