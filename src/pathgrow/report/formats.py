"""Formats of numbers, scores and stage names; every density in a report has the same one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pathgrow.errors import printable
from pathgrow.report.schema import CurveReport, RunReport


def percent(density: float) -> str:
    """A density in percent: one decimal, or two significant digits below 1%.

    >>> percent(0.3339), percent(0.05), percent(0.00123), percent(1.0)
    ('33.4%', '5.0%', '0.12%', '100%')
    """
    value = 100 * density
    if density == 1:
        return "100%"
    return f"{value:.1f}%" if value >= 0.995 else f"{value:.2g}%"


def size_phrase(density: float) -> str:
    """The density of a returned model, and that it is the dense one.

    >>> size_phrase(0.0951), size_phrase(1.0)
    ('9.5%', '100%, not pruned')
    """
    return percent(density) + (", not pruned" if density == 1 else "")


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


def size(number: float) -> str:
    """A number of bytes, in powers of 1000.

    >>> size(950), size(48_200), size(1.25e9)
    ('950 B', '48.2 kB', '1.25 GB')
    """
    return flops(number).replace("FLOPs", "B")


def ratio(value: float | None) -> str:
    """A cost relative to another, three significant digits; `-` if it is unknown.

    >>> ratio(0.26), ratio(4.361), ratio(99.97), ratio(1234.5), ratio(None)
    ('0.260x', '4.36x', '100x', '1234x', '-')
    """
    if value is None:
        return "-"
    # What rounds to 100 has no decimals either: as "#.3g" it would end with a point.
    return f"{value:.0f}x" if value >= 99.95 else f"{value:#.3g}x"


def number(value: float, digits: int = 4) -> str:
    """A number with this many significant digits; large ones are rounded to integers, not written with exponents.

    >>> number(0.123456), number(11018.3), number(156.2, 2), number(999.9, 3), number(1e-7), number(1e20)
    ('0.1235', '11,018', '156', '1,000', '1e-07', '1e+20')
    """
    text = f"{value:.{digits}g}"
    is_large = abs(value) >= 9999.5 or "e+" in text
    return f"{value:,.0f}" if is_large and abs(value) < 1e15 else text


def plural(number: float, noun: str) -> str:
    """A number of things, at most one decimal.

    >>> plural(1, "epoch"), plural(1200, "epoch"), plural(43.571, "epoch")
    ('1 epoch', '1,200 epochs', '43.6 epochs')
    """
    rounded = round(number, 1)
    text = f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:,}"
    return f"{text} {noun}{'' if rounded == 1 else 's'}"


def length(number: float, unit: str) -> str:
    """The length of a training, in a unit whose name is a plural.

    >>> length(1, "epochs"), length(4000, "steps")
    ('1 epoch', '4,000 steps')
    """
    return plural(number, unit.removesuffix("s"))


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(8.25), duration(9.97), duration(59.7), duration(75), duration(3725)
    ('8.2 s', '10 s', '1 min 00 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 59.5:  # anything longer rounds to a minute
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


@dataclass(frozen=True)
class ScoreFormat:
    """How scores and lengths of one run are written: accuracies in [0, 1] as percentages, others as plain numbers."""

    is_fraction: bool
    name: str = "score"
    unit: str = "epochs"
    """What the lengths of trainings are counted in."""
    asked: float | None = None
    """The tolerance that was asked for, as a fraction of the dense score; None: in the unit of the scores."""

    @classmethod
    def of(cls, curve: CurveReport, options: Mapping[str, Any], *, is_accuracy: bool = False) -> Self:
        """The format for a curve; an R2 or F1 score may lie in [0, 1] too, but is not a percentage."""
        is_accuracy = is_accuracy or bool(options.get("num_val"))
        in_range = all(0 <= point.score <= 1 for point in (*curve.rounds, *curve.probes))
        name = ("error rate" if options.get("mode") == "min" else "accuracy") if is_accuracy else "score"
        named, unit = (printable(options.get(key) or value) for key, value in (("metric", name), ("unit", "epochs")))
        return cls(is_accuracy and in_range, named, unit, relative_tolerance(options))

    def length(self, number: float) -> str:
        """The length of a training.

        >>> ScoreFormat(True).length(1), ScoreFormat(True, unit="steps").length(4000)
        ('1 epoch', '4,000 steps')
        """
        return length(number, self.unit)

    def __call__(self, score: float | None) -> str:
        """One score; `-` if there is none.

        >>> ScoreFormat(True)(0.9712), ScoreFormat(False)(-3.1416), ScoreFormat(False)(11018.3), ScoreFormat(True)(None)
        ('97.12%', '-3.1416', '11,018', '-')
        """
        if score is None:
            return "-"
        return f"{100 * score:.2f}%" if self.is_fraction else number(score, 5)

    def tick(self, score: float) -> str:
        """A round score on an axis.

        >>> ScoreFormat(True).tick(0.95), ScoreFormat(False).tick(-3.5)
        ('95%', '-3.5')
        """
        return f"{100 * score:g}%" if self.is_fraction else number(score, 6)

    def difference(self, delta: float) -> str:
        """A difference of scores, in percentage points if they are fractions.

        >>> ScoreFormat(True).difference(0.0138), ScoreFormat(False).difference(2.0)
        ('1.38 pp', '2')
        """
        return f"{100 * delta:.3g} pp" if self.is_fraction else number(delta, 3)

    def tolerance(self, delta: float) -> str:
        """The tolerance of the run: as it was asked for, and in the unit of the scores.

        >>> ScoreFormat(True).tolerance(0.0138), ScoreFormat(False, asked=0.02).tolerance(0.0508)
        ('1.38 pp', '2% (0.0508)')
        """
        absolute = self.difference(delta)
        return absolute if self.asked is None else f"{100 * self.asked:.6g}% ({absolute})"

    def difference_with_error(self, delta: float, error: float) -> str:
        """A difference of scores and its standard error, with two digits of the error.

        >>> ScoreFormat(True).difference_with_error(0.0042, 0.003), ScoreFormat(False).difference_with_error(2.0, 0.31)
        ('0.42 ± 0.30 pp', '2.00 ± 0.31')
        >>> ScoreFormat(False).difference_with_error(1455.2, 160.7), ScoreFormat(False).difference_with_error(0.3, 0.0)
        ('1,455 ± 161', '0.3 ± 0')
        """
        if self.is_fraction:
            return f"{100 * delta:.2f} ± {100 * error:.2f} pp"
        if not 1e-9 < error < 1e15:
            return f"{number(delta, 3)} ± {number(error, 2)}"
        decimals = max(0, 1 - math.floor(math.log10(error)))
        return f"{delta:,.{decimals}f} ± {error:,.{decimals}f}"


def relative_tolerance(options: Mapping[str, Any]) -> float | None:
    """The tolerance of a discovery with these options, if it is a fraction of the dense score.

    >>> relative_tolerance({"delta": 0.02, "delta_is_relative": True}), relative_tolerance({"delta": 0.02})
    (0.02, None)
    """
    delta = options.get("delta")
    return delta if isinstance(delta, float) and options.get("delta_is_relative") else None


def score_format(report: RunReport) -> ScoreFormat:
    """The format of a run's scores: losses of a text, accuracies of the built-in trainer or with `num_val`."""
    if report.dataset and report.mode == "min":
        return ScoreFormat(False, "loss", asked=relative_tolerance(report.config))
    return ScoreFormat.of(report.curve, {**report.config, "mode": report.mode}, is_accuracy=bool(report.dataset))


_STAGES = {
    "seed": "round 0", "final": "final training", "dense": "dense baseline", "probe-dense": "dense probe",
    "level": "levels", "grow": "growth rounds", "train": "training", "shrink": "pruning rounds",
    "given": "pretrained model", "untrained": "before training",
}  # fmt: skip
_NUMBERED = {"grow": "growth round", "train": "training phase", "shrink": "pruning round", "final": "finished network"}


def stage_label(name: str, density: float | None = None) -> str:
    """The name of a stage for people.

    >>> stage_label("round-003"), stage_label("probe-007", 0.15), stage_label("training"), stage_label("shrink-2")
    ('round 3', 'probe at 15.0%', 'training', 'pruning round 2')
    >>> stage_label("probe-003--set"), stage_label("final-2", 0.2), stage_label("final-1", 1.0)
    ('probe of round 3 (set)', 'finished network 2', 'control')
    """
    name, several, finisher = name.partition("--")
    if several:
        return f"{stage_label(name, density)} ({printable(finisher)})"
    kind, _, number = name.partition("-")
    if name in _STAGES:
        return _STAGES[name]
    number = number if len(number) < 10 else ""
    if kind == "probe" and number.isdecimal():
        return f"probe of round {int(number)}" if density is None else f"probe at {percent(density)}"
    if kind == "final" and density == 1 and number.isdecimal():
        return "control"  # the network that was trained, finished without pruning
    return f"{_NUMBERED.get(kind) or printable(kind)} {int(number)}" if number.isdecimal() else printable(name)


def evaluation(stage: str, density: float, score: float, scores: ScoreFormat | None = None) -> str:
    """One evaluated network in a line; without a format the score is a plain number.

    >>> evaluation("round-003", 0.04, 0.91234), evaluation("probe-003", 0.04, 0.95)
    ('round 3: density 4.0%, score 0.9123', 'probe at 4.0%: score 0.95')
    >>> evaluation("shrink-1", 0.3, 0.9756, ScoreFormat(True, "accuracy"))
    'pruning round 1: density 30.0%, accuracy 97.56%'
    """
    label = stage_label(stage, density)
    where = "" if label.endswith("%") else f"density {percent(density)}, "
    if scores is None or (scores.is_fraction and not 0 <= score <= 1):
        return f"{label}: {where}score {number(score)}"
    return f"{label}: {where}{scores.name} {scores(score)}"
