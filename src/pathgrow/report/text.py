"""Number formats, and every sentence about a run; terminal, page, figure and `repr` all use these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pathgrow.report.schema import AnswerReport, CurveReport, PointReport, RunReport

# Numbers


def percent(density: float) -> str:
    """A density in percent: one decimal, or two significant digits below 1%.

    >>> percent(0.3339), percent(0.05), percent(0.00123), percent(1.0)
    ('33.4%', '5.0%', '0.12%', '100%')
    """
    value = 100 * density
    if density == 1:
        return "100%"
    return f"{value:.1f}%" if value >= 0.995 else f"{value:.2g}%"


def percent_range(interval: Sequence[float | None]) -> str:
    """An interval of densities; a lower end of 0 and a missing upper end are open.

    >>> percent_range([0.067, 0.1042]), percent_range([0.0, 0.05]), percent_range([0.2, None])
    ('6.7-10.4%', 'up to 5.0%', '20.0-100%')
    """
    low, high = interval
    upper = percent(1.0 if high is None else high)
    return f"{percent(low)[:-1]}-{upper}" if low else f"up to {upper}"


def flops(number: float) -> str:
    """A number of FLOPs, three significant digits.

    >>> flops(48_000), flops(1.234e12), flops(950), flops(999_950)
    ('48.0 kFLOPs', '1.23 TFLOPs', '950 FLOPs', '1.00 MFLOPs')
    """
    number = float(f"{number:.3g}")  # first, because rounding may reach the next prefix
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {prefix}FLOPs"
    return f"{number:.3g} FLOPs"


def ratio(value: float | None) -> str:
    """A cost relative to another; `-` if it is unknown.

    >>> ratio(0.2345), ratio(4.361), ratio(1234.5), ratio(None)
    ('0.234x', '4.36x', '1234x', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 1000 else f"{value:.3g}x"


def plural(number: float, noun: str) -> str:
    """A number of things, at most one decimal.

    >>> plural(1, "epoch"), plural(1200, "epoch"), plural(43.571, "epoch")
    ('1 epoch', '1,200 epochs', '43.6 epochs')
    """
    rounded = round(number, 1)
    text = f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:,}"
    return f"{text} {noun}{'' if rounded == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(8.25), duration(9.97), duration(59.7), duration(75), duration(3725)
    ('8.2 s', '10 s', '1 min 00 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 59.5:  # anything longer rounds to a minute
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def printable(text: object) -> str:
    """Any value as one line without control characters.

    >>> printable("mlp\\x1b[31m")
    'mlp?[31m'
    """
    return "".join(character if character.isprintable() else "?" for character in str(text).replace("\n", " "))


@dataclass(frozen=True)
class ScoreFormat:
    """How the scores of one run are written: fractions as percentages, anything else as plain numbers."""

    is_fraction: bool
    name: str = "score"

    @classmethod
    def of(cls, curve: CurveReport, name: str = "score") -> ScoreFormat:
        """The format for a curve; scores that all lie in [0, 1] are fractions."""
        return cls(all(0 <= point.score <= 1 for point in (*curve.rounds, *curve.probes)), name)

    def __call__(self, score: float | None) -> str:
        """One score; `-` if there is none.

        >>> ScoreFormat(True)(0.9712), ScoreFormat(False)(-3.14159), ScoreFormat(True)(None)
        ('97.12%', '-3.1416', '-')
        """
        if score is None:
            return "-"
        return f"{100 * score:.2f}%" if self.is_fraction else f"{score:.5g}"

    def difference(self, delta: float) -> str:
        """A difference of scores, in percentage points if they are fractions.

        >>> ScoreFormat(True).difference(0.0138), ScoreFormat(False).difference(2.0)
        ('1.38 pp', '2')
        """
        return f"{100 * delta:.3g} pp" if self.is_fraction else f"{delta:.3g}"


def score_format(report: RunReport) -> ScoreFormat:
    """The format of the scores of a run; the built-in trainer measures accuracy."""
    return ScoreFormat.of(report.curve, "accuracy" if report.dataset is not None else "score")


# Stages


_STAGES = {"final": "final training", "dense": "dense baseline", "probe-dense": "dense probe", "level-000": "training"}


def stage_label(name: str, density: float | None = None) -> str:
    """The name of a stage for people.

    >>> stage_label("round-003"), stage_label("probe-007", 0.15), stage_label("level-000"), stage_label("level-002")
    ('round 3', 'probe at 15.0%', 'training', 'level 2')
    """
    kind, _, number = name.partition("-")
    if name in _STAGES:
        return _STAGES[name]
    if kind == "probe" and density is not None:
        return f"probe at {percent(density)}"
    if number.isdecimal():
        return f"{'probe of round' if kind == 'probe' else printable(kind)} {int(number)}"
    return printable(name)


def evaluation(stage: str, density: float, score: float) -> str:
    """One evaluated network in a line.

    >>> evaluation("round-003", 0.04, 0.91234), evaluation("probe-003", 0.04, 0.95)
    ('round 3: density 4.0%, score 0.9123', 'probe at 4.0%: score 0.95')
    """
    label = stage_label(stage, density)
    where = "" if label.endswith("%") else f"density {percent(density)}, "
    return f"{label}: {where}score {score:.4g}"


# Sentences


def answer_sentence(answer: AnswerReport, curve: CurveReport) -> str:
    """The answer of a discovery in one sentence."""
    within = f"within {ScoreFormat.of(curve).difference(answer.delta)} of the reference"
    grown = [point.density for point in (curve.probes or curve.rounds) if not point.is_dense]
    if answer.status == "found" and answer.operating_density is not None:
        interval = f" (90% interval {percent_range(answer.interval)})" if answer.interval else ""
        return f"Operating density: {percent(answer.operating_density)} of the prunable weights{interval}."
    if answer.status == "flat" and grown:
        sparsest = percent(min(grown))
        return f"Operating density: {sparsest} or less; even the sparsest network is {within}."
    if answer.status == "unreached" and grown:
        return f"No operating density: no network up to {percent(max(grown))} density is {within}."
    if answer.status == "unlearned":
        return "No operating density: training did not improve any network."
    return "No operating density: too few networks were evaluated."


def headline(report: RunReport) -> str:
    """The result of a run in one sentence."""
    if report.answer is not None:
        return answer_sentence(report.answer, report.curve)
    network, scores = report.network, score_format(report)
    measured, split = (network.val, "validation") if network.test is None else (network.test, "test")
    return (
        f"{printable(report.method.name)} at {percent(network.density)} density: "
        f"{scores(measured.score)} {split} {scores.name}."
    )


def subject(report: RunReport) -> str:
    """Model, dataset and seed, as far as the config names them."""
    model, dataset = (None if name is None else printable(name) for name in (report.model, report.dataset))
    named = f"{model} on {dataset}" if model and dataset else model or dataset
    return ", ".join(part for part in (named, f"seed {report.seed}" if report.seed is not None else None) if part)


def findings(report: RunReport) -> list[tuple[str, str]]:
    """The results of a run, as pairs of a label and a phrase."""
    found = [] if report.answer is not None else [("method", printable(report.method.name))]
    if report.answer is not None:
        found += _answer_findings(report, report.answer)
    found += [("model", _model(report)), (score_format(report).name, _scores(report)), ("trained", _trained(report))]
    found += [("training cost", _training_cost(report)), ("inference", _inference(report))]
    if time := timing(report):
        found.append(("time", time))
    return [*found, *(("note", printable(note)) for note in report.notes)]


def timing(report: RunReport) -> str:
    """How long the run took; empty if nothing was measured."""
    named = (("training", report.timing.seconds), ("wall clock", report.timing.run_seconds))
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in named if seconds)


def explanations(report: RunReport) -> list[str]:
    """How the answer of a discovery was derived and how far to trust it, a sentence or two each."""
    answer = report.answer
    if answer is None:
        return []
    if answer.status == "unlearned":
        return [_not_learned(report)]
    lines = [_too_short(report)] if report.probes_too_short else []
    if is_conservative(answer):
        median = report.median_density
        beside = "" if median is None else f"; the median is {percent(median)}"
        lines.append(f"The operating density is the 67th percentile of the posterior (conservative){beside}.")
    if answer.allowed is not None and answer.allowed != answer.delta and not report.probes_too_short:
        lines.append(_short_probes(report, answer))
    return [*lines, f"Search stopped: {printable(answer.reason).rstrip('.')}."]


def paragraphs(report: RunReport) -> list[str]:
    """What a discovery did, in order."""
    rounds, probes = report.curve.rounds, report.curve.probes
    if report.answer is None:
        return []
    done = []
    if rounds:
        start = (
            f"Started from a PHEW mask at {percent(rounds[0].density)} density, trained for "
            f"{plural(rounds[0].epochs, 'epoch')}."
        )
        grown = (
            f"Grew in {plural(len(rounds) - 1, 'round')} to {percent(rounds[-1].density)}, with rough training after "
            "each round. These scores rise with training as well as with density, so they guide the growth only."
        )
        done.append(f"{start} {grown}" if len(rounds) > 1 else f"{start} It did not grow.")
    if probes:
        done.append(_probes(probes))
    return done


def reference_label(report: RunReport) -> str:
    """The score of the reference for legends; for a network of this run it is read from the fitted curve."""
    assert report.reference is not None
    fitted = " (fitted)" if report.reference.kind == "densest" else ""
    return f"reference {score_format(report)(report.reference.score)}{fitted}"


def goal_label(report: RunReport) -> str:
    """How far below the reference the target is, for legends; after short training also what that stands for."""
    answer, scores = report.answer, score_format(report)
    assert answer is not None
    gap = answer.delta if answer.allowed is None else answer.allowed
    finally_ = "" if gap == answer.delta else f" ({scores.difference(answer.delta)} after full training)"
    return f"target: {scores.difference(gap)} below{finally_}"


def probes_label(report: RunReport) -> str:
    """What the probes are, for legends."""
    epochs = report.short_probe_epochs
    return "probes" if epochs is None else f"probes ({plural(epochs, 'epoch')})"


def is_conservative(answer: AnswerReport) -> bool:
    """Whether the answer is an upper quantile of the posterior, as that of the default rule is."""
    return answer.rule == "probe" and answer.operating_density is not None


def _answer_findings(report: RunReport, answer: AnswerReport) -> list[tuple[str, str]]:
    scores, found = score_format(report), []
    if report.reference is not None:
        found.append(("criterion", f"{scores.name} within {scores.difference(answer.delta)} of the reference"))
        found.append(("reference", _reference(report)))
    if answer.status != "found" and answer.interval:
        found.append(("90% interval", f"{percent_range(answer.interval)} of the prunable weights"))
    if answer.gain_density is not None:
        interval = f" (90% interval {percent_range(answer.gain_interval)})" if answer.gain_interval else ""
        gain = f"where the fitted curve reaches {answer.gain_level:.0%} of its gain"
        found.append(("gain density", f"{percent(answer.gain_density)}{interval}, {gain}"))
    return found


def _model(report: RunReport) -> str:
    network = report.network
    size = (
        f"{percent(network.density)} of the prunable weights ({network.num_on:,} of {network.num:,}), "
        f"{percent(network.density_model)} of all parameters"
    )
    answer = report.answer
    if answer is None or not is_conservative(answer):
        return size
    if answer.select_by == "gain":
        return f"{size}; selected by the gain density"
    if report.short_probe_epochs is None:
        return f"{size}; the sparsest visited mask at or above the operating density"
    return f"{size}; a visited mask near the operating density, at most a tenth sparser"


def _scores(report: RunReport) -> str:
    scores, network, answer = score_format(report), report.network, report.answer
    text = f"{scores(network.val.score)} validation"
    if network.test is not None:
        text += f", {scores(network.test.score)} test"
    if answer is not None and answer.dense is not None:
        test = f", {scores(answer.dense_test.score)} test" if answer.dense_test is not None else ""
        text += f" (dense: {scores(answer.dense.score)} validation{test})"
    return text


def _trained(report: RunReport) -> str:
    if report.answer is not None:
        return plural(report.network.epochs, "epoch")
    ledger, match = report.ledger, report.ledger.match
    trained = report.network.epochs if ledger.epochs_trained is None else ledger.epochs_trained
    text = plural(trained, "epoch") + (f" in {len(ledger.phases)} phases" if len(ledger.phases) > 1 else "")
    if match is None or match.budget is None:
        return text
    return f"{text}, matched to a budget of {match_unit(match.kind)}{_off_budget(match.relative_error)}"


def match_unit(kind: str) -> str:
    """What a matched budget is counted in.

    >>> match_unit("parameters")
    'epochs times parameters'
    """
    units = {"parameters": "epochs times parameters", "prunable": "epochs times prunable weights", "flops": "FLOPs"}
    return units.get(kind, printable(kind))


def _off_budget(relative_error: float | None) -> str:
    if relative_error is None or abs(relative_error) < 0.0005:
        return ""
    return f" ({abs(relative_error):.1%} {'over' if relative_error > 0 else 'under'}: epochs are whole)"


def _training_cost(report: RunReport) -> str:
    ledger = report.ledger
    relative = f"{ratio(ledger.relative)} a dense training" if ledger.relative is not None else ""
    return f"{relative} ({flops(ledger.training_flops)})" if relative else flops(ledger.training_flops)


def _inference(report: RunReport) -> str:
    return f"{ratio(report.network.inference_relative)} the FLOPs of the dense model"


def _reference(report: RunReport) -> str:
    scores, reference, probes = score_format(report), report.reference, report.curve.probes
    assert reference is not None
    score = scores(reference.score)
    trained = f", trained for {plural(reference.epochs, 'epoch')}" if reference.epochs else ""
    if reference.kind == "given":
        return f"{score}, given"
    if reference.kind == "dense":
        return f"{score}, dense baseline of this run{trained}"
    if reference.kind != "densest" or not probes:
        return f"{score}, {'densest network grown' if reference.kind == 'densest' else printable(reference.kind)}"
    densest = max(probes, key=lambda point: point.density)
    name = "dense probe" if densest.is_dense else "densest probe"
    longer = "" if report.short_probe_epochs is None else f" (returned model: {report.network.epochs:,})"
    return f"{score} fitted, {scores(densest.score)} measured: {name}{trained}{longer}"


def _probes(probes: Sequence[PointReport]) -> str:
    lengths = sorted({point.epochs for point in probes})
    length = plural(lengths[-1], "epoch") if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} epochs"
    grown = [point.density for point in probes if not point.is_dense]
    if not grown:
        return f"Trained a dense probe for {length}."
    count = "one probe" if len(grown) == 1 else f"{len(grown)} probes"
    span = percent(min(grown)) if len(grown) == 1 else f"densities from {percent(min(grown))} to {percent(max(grown))}"
    dense = " and a dense one" if len(grown) < len(probes) else ""
    return f"Trained {count} at {span}{dense} for {length} each; the answer is estimated from these."


def _not_learned(report: RunReport) -> str:
    scores = score_format(report)

    def span(points: Sequence[PointReport]) -> str:
        low, high = (scores(value(point.score for point in points)) for value in (min, max))
        return low if low == high else f"{low} to {high}"

    before, after = report.curve.untrained, report.curve.probes or report.curve.rounds
    measured = f"The networks scored {span(before)} before training and {span(after)} after it. " if before else ""
    return (
        f"{measured}Check the learning rate, that fit trains the model and optimizer it receives, and that evaluate "
        "scores that model."
    )


def _too_short(report: RunReport) -> str:
    scores, curve = score_format(report), report.curve
    best, growing = (max(point.score for point in points) for points in (curve.probes, curve.rounds))
    length = plural(max(point.epochs for point in curve.probes), "epoch")
    return (
        f"Low confidence: the best probe ({scores(best)} after {length}) is below the growing network "
        f"({scores(growing)}), so the probes are too short to compare densities. Increase budget or probe_fraction."
    )


def _short_probes(report: RunReport, answer: AnswerReport) -> str:
    assert answer.allowed is not None
    scores, num = score_format(report), report.short_probe_epochs or report.curve.probes[-1].epochs
    spread = ""
    if answer.allowed_interval is not None:
        low, high = (scores.difference(end) for end in answer.allowed_interval)
        spread = f" (90%: {low.split()[0]}-{high.split()[0]})"
    return (
        f"Probes were trained for {num} of {plural(report.network.epochs, 'epoch')}. Gaps to the dense network shrink "
        f"with training, so a gap of {scores.difference(answer.allowed)}{spread} at {plural(num, 'epoch')} is treated "
        f"as {scores.difference(answer.delta)} at {report.network.epochs}. A reference tightens the interval."
    )
