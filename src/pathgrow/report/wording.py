"""Numbers and findings as people say them; the same words on the terminal, in the picture and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pathgrow.report.frame import allowed, ends, fit_reaches_goal

DENSE = -1
"""The round that a report gives to a copy that was not grown but has all its weights. Written again here, since reports
are read without the code that made them."""


_WITHOUT_DELTA = ("exponential",)
"""Rules that ask for a share of the gain and know no reference."""


def percent(density: float) -> str:
    """A density in percent, three digits.

    >>> percent(0.12345), percent(0.05), percent(1.0)
    ('12.3%', '5%', '100%')
    """
    return f"{100 * density:.3g}%"


def percent_range(interval: Sequence[float | None]) -> str:
    """Both ends of an interval of densities; one that begins at 0 has only an upper one.

    >>> percent_range([0.101, 0.1561]), percent_range([0.0, 0.05])
    ('10.1% to 15.6%', 'up to 5%')
    """
    both = ends(interval)
    assert both is not None
    low, high = both
    return f"{percent(low)} to {percent(high)}" if low > 0 else f"up to {percent(high)}"


def percent_column(density: float) -> str:
    """A density in percent with two decimals, for columns."""
    return f"{100 * density:.2f}%"


def count(number: float) -> str:
    """A large number with three digits and a prefix.

    >>> count(48_000), count(1.234e12), count(950), count(999_950)
    ('48.0 k', '1.23 T', '950', '1.00 M')
    """
    number = float(f"{number:.3g}")  # first: rounding may need the next prefix
    for size, prefix in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size:
            value = number / size
            return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}{prefix}"
    return f"{number:.3g}"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "epoch"), counted(1200, "epoch")
    ('1 epoch', '1,200 epochs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(8.25), duration(9.97), duration(59.7), duration(75), duration(3725)
    ('8.2 s', '10 s', '1 min 00 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 59.5:  # what rounds to 60 is a minute
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def in_round(round: int) -> str:
    """Where a network comes from; one that was not grown belongs to no round.

    >>> in_round(7), in_round(DENSE)
    ('round 7', 'dense copy')
    """
    return "dense copy" if round == DENSE else f"round {round}"


def printable(text: object) -> str:
    """Any value as one line that cannot steer a terminal.

    >>> printable("mlp\\x1b[31m")
    'mlp?[31m'
    """
    return "".join(character if character.isprintable() else "?" for character in str(text).replace("\n", " "))


def _rise(answer: dict[str, Any]) -> str:
    """What the gain answer stands for."""
    return f"{answer.get('gain_level', 0.95):.0%} of its rise"


@dataclass(frozen=True)
class Scores:
    """How the scores of one report are written: shares as percent and points, anything else as plain numbers."""

    are_shares: bool
    name: str = "score"

    @classmethod
    def of(cls, report: dict[str, Any]) -> Scores:
        """Scores all in [0, 1] are shares; those of our own trainer, which is told by its data, are accuracies."""
        curve = report["curve"]
        seen = [row["score"] for row in (*curve["rough"], *curve["probes"])]
        seen += [part["score"] for part in _parts(report) if part]
        config = report.get("config") or {}
        return cls(all(0 <= score <= 1 for score in seen), "accuracy" if "data" in config else "score")

    def __call__(self, score: float | None) -> str:
        """One score; `-` where there is none.

        >>> Scores(True)(0.9712), Scores(False)(-3.14159), Scores(True)(None)
        ('97.1%', '-3.142', '-')
        """
        if score is None:
            return "-"
        return f"{100 * score:.1f}%" if self.are_shares else f"{score:.4g}"

    def difference(self, delta: float) -> str:
        """A difference of scores.

        >>> Scores(True).difference(0.01), Scores(True).difference(0.005), Scores(False).difference(2.0)
        ('1 point', '0.5 points', '2')
        """
        if not self.are_shares:
            return f"{delta:.3g}"
        points = f"{100 * delta:.3g}"
        return f"{points} point{'' if points == '1' else 's'}"


def headline(report: dict[str, Any]) -> str:
    """The answer in one sentence."""
    answer, scores = report["answer"], Scores.of(report)
    if asked_for(report) is not None:
        network = report["network"]
        return (
            f"The density asked for, {percent(network['density'])} of the switchable weights, reaches a validation "
            f"{scores.name} of {scores(network['val']['score'])}."
        )
    if answer["status"] == "unlearned":
        return "How dense the network must be cannot be told: training made no network better."
    brief = judged_briefly(report)
    against = "the reference" if brief is None else "dense" if _dense_probe(report) else "the densest network grown"
    within = f"within {scores.difference(answer['delta'])} of {against}"
    judged = "" if brief is None else f", judged by trainings of {counted(brief, 'epoch')}"
    if too_short_to_compare(report):
        judged = f"{judged}, too short to tell" if judged else ", judged by trainings too short to tell"
    trained_out = [row["density"] for row in report["curve"]["probes"] if row["round"] != DENSE]
    seen, how = (
        (trained_out, "trained out") if trained_out else ([r["density"] for r in report["curve"]["rough"]], "grown")
    )
    if answer["status"] == "found" and answer["operating_density"] is not None:
        weights = f"{percent(answer['operating_density'])} of the switchable weights"
        if answer.get("rule") in _WITHOUT_DELTA:
            return f"{weights} should be enough: there the fitted curve has made {_rise(answer)}."
        is_seen = brief is None and report["curve"]["probes"]  # trained out in full, not forecast
        return f"{weights} {'keep' if is_seen else 'should keep'} the {scores.name} {within}{judged}."
    if answer["status"] == "flat" and seen:
        return f"Even {percent(min(seen))}, the least density {how}, lies {within} on the curve{judged}."
    if answer["status"] == "unreached" and seen:
        return f"No density {how}, up to {percent(max(seen))}, comes {within}{judged}."
    return f"Too little was observed to say how dense a network {within} must be."


def judged_briefly(report: dict[str, Any]) -> int | None:
    """The epochs of the networks compared, where one of them is the reference and the one handed back had more."""
    reference = report.get("reference") or {}
    if reference.get("kind") != "densest" or not report["curve"]["probes"]:
        return None
    epochs: int | None = reference.get("epochs")
    return epochs if epochs is not None and epochs < report["network"]["epochs"] else None


def too_short_to_compare(report: dict[str, Any]) -> bool:
    """Whether no copy came to where the growing network had been, as the words of the answer say in that case."""
    curve = report["curve"]
    if not curve["probes"] or not curve["rough"] or report["answer"]["status"] == "unlearned":
        return False
    best, growing = (max(row["score"] for row in rows) for rows in (curve["probes"], curve["rough"]))
    return bool(best + report["answer"]["delta"] < growing)


def dense_row(report: dict[str, Any]) -> dict[str, Any] | None:
    """The dense network that the others are compared with, as a row beside the rounds; None if none was trained."""
    if (probe := _dense_probe(report)) is not None:
        return probe
    trained, reference = report.get("dense"), report.get("reference") or {}
    if not trained or not trained.get("val"):
        return None
    whole = {"round": DENSE, "density": 1.0, "density_model": 1.0, "epochs": reference.get("epochs")}
    return {**whole, "score": trained["val"]["score"]}


def reference_score(report: dict[str, Any]) -> str:
    """The score that the goal is measured from; for one of the networks compared, the score of the fitted curve."""
    fitted = " (fitted)" if report["reference"]["kind"] == "densest" else ""
    return f"{Scores.of(report)(report['reference']['score'])}{fitted}"


def below_reference(report: dict[str, Any]) -> str:
    """How far below the reference the goal is drawn; after short trainings also what that stands for in the end."""
    scores, here, delta = Scores.of(report), allowed(report), report["answer"]["delta"]
    in_the_end = "" if here == delta else f" ({scores.difference(delta).split()[0]} after full training)"
    return f"goal: {scores.difference(here)} below{in_the_end}"


def answer_in_legend(report: dict[str, Any]) -> str:
    """What the mark of the answer stands for."""
    return "answer: two thirds of the fits reach the goal" if is_cautious(report) else "answer"


CAUTIOUS_LINE = "two thirds of the fits lie above"
"""What the line through the mark of a cautious answer is."""


def trained_copies(report: dict[str, Any]) -> str:
    """What the points of the curve are, for legends; short trainings are called by their length."""
    brief = judged_briefly(report)
    return "trained out" if brief is None else f"trained {counted(brief, 'epoch')}"


def explanation(report: dict[str, Any]) -> list[str]:
    """How sure the answer is and what it rests on: the words that neither the headline nor the findings say.

    Reports without such notes have words in lines, of which the first one is a headline, unless it is the only one.
    """
    lines = report["answer"]["words"].splitlines()
    notes = [printable(line) for line in report["answer"].get("notes", lines[1:] or lines)]
    return [*([_caution(report)] if is_cautious(report) else []), *notes]


def asked_for(report: dict[str, Any]) -> float | None:
    """The density that the user named instead of asking for the one needed."""
    target: float | None = (report.get("config") or {}).get("target_density")
    return target


def subject(report: dict[str, Any]) -> str:
    """What the run was about, as far as its config says: model, data, seed."""
    config = report.get("config") or {}
    model, data, seed = (_name(config.get(key)) for key in ("model", "data", "seed"))
    parts = [f"{model} on {data}" if model and data else model or data, f"seed {seed}" if seed else ""]
    return ", ".join(part for part in parts if part)


def findings(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What was found, as pairs of a label and a sentence."""
    answer, network, ledger = report["answer"], report["network"], report["ledger"]
    scores = Scores.of(report)
    found = []
    if answer["interval"]:
        doubt = ": the scores tell no densities apart" if answer["status"] == "unlearned" else ""
        found.append(("90% interval", f"{percent_range(answer['interval'])} of the switchable weights{doubt}"))
    found.append(
        (
            "network",
            f"{percent(network['density'])} of the switchable weights ({network['num_on']:,} of {network['num']:,}), "
            f"{percent(network['density_model'])} of the whole model, trained {counted(network['epochs'], 'epoch')}"
            + (f"; {_how_chosen(report)}" if is_cautious(report) else ""),
        )
    )
    found.append((scores.name, _tested(scores, network, report.get("dense"))))
    if report.get("reference"):
        found.append(("reference", _reference(report)))
    if answer["gain_density"] is not None and answer.get("rule") not in _WITHOUT_DELTA:  # there it is the answer
        spread = f" (90% interval {percent_range(answer['gain_interval'])})" if answer["gain_interval"] else ""
        found.append(
            (
                "gain answer",
                f"{percent(answer['gain_density'])}{spread}: where the fitted curve has made {_rise(answer)}",
            )
        )
    price = f"{count(ledger['training_flops'])}FLOP".replace("  ", " ")
    if ledger["relative"] is not None:
        price = f"{ledger['relative']:.2f} times a dense training ({price})"
    found.append(("price", price + (f"; {time}" if (time := timing(report)) else "")))
    return found


def timing(report: dict[str, Any]) -> str:
    """How long the run took, and what that includes; empty where nobody measured it."""
    measured = report.get("timing") or {}
    told = []
    if measured.get("seconds"):
        told.append(f"{duration(measured['seconds'])} of {'' if 'kind' in report else 'growing, '}training and scoring")
    if measured.get("run_seconds"):
        told.append(f"{duration(measured['run_seconds'])} from beginning to end")
    return ", ".join(told)


def is_cautious(report: dict[str, Any]) -> bool:
    """Whether the answer leans to the dense side, as that of the default rule does."""
    answer = report["answer"]
    return answer.get("rule") == "probe" and answer["operating_density"] is not None and asked_for(report) is None


def _caution(report: dict[str, Any]) -> str:
    """Why such an answer stands where it does, and not where the fitted curve crosses the line of the goal."""
    middle = fit_reaches_goal(report)
    beside = "" if middle is None else f"; the fitted curve, their middle, reaches it at {percent(middle)}"
    return (
        "The answer is where two thirds of the curves that the points allow have reached the goal, to be on the safe "
        f"side{beside}."
    )


def _how_chosen(report: dict[str, Any]) -> str:
    """How far from the answer the network handed back may be."""
    if (report.get("config") or {}).get("answer") == "gain":
        return "chosen by the gain answer"
    if judged_briefly(report) is None:
        return "the sparsest grown one of at least the answer's density"
    return "a grown one near the answer, sparser by a tenth at most"


def _reference(report: dict[str, Any]) -> str:
    """The score of the reference, what it is, and how long it was trained."""
    scores, reference = Scores.of(report), report["reference"]
    score, kind, epochs = scores(reference["score"]), reference["kind"], reference.get("epochs")
    trained = f" {counted(epochs, 'epoch')}" if epochs else ""
    if kind == "given":
        return f"{score}: given by the user"
    if kind == "dense":
        return f"{score}: the dense network, trained{trained} in this run"
    if kind != "densest" or not report["curve"]["probes"]:
        return f"{score}: {'the densest network grown' if kind == 'densest' else printable(kind)}"
    densest = max(report["curve"]["probes"], key=lambda row: float(row["density"]))
    name = "a dense copy" if densest["round"] == DENSE else "the densest network grown"
    longer = "" if judged_briefly(report) is None else f" (the network handed back: {report['network']['epochs']:,})"
    return (
        f"{score} fitted, {scores(densest['score'])} measured: {name}, trained{trained} like the other copies{longer}"
    )


def _dense_probe(report: dict[str, Any]) -> dict[str, Any] | None:
    return next((row for row in report["curve"]["probes"] if row["round"] == DENSE), None)


def _tested(scores: Scores, network: dict[str, Any], dense: dict[str, Any] | None) -> str:
    sentence = f"{scores(network['val']['score'])} validation"
    if network.get("test"):
        sentence += f", {scores(network['test']['score'])} test"
    if dense and dense.get("val"):
        sentence += f" (dense: {scores(dense['val']['score'])}"
        sentence += f", {scores(dense['test']['score'])} test)" if dense.get("test") else ")"
    return sentence


def _parts(report: dict[str, Any]) -> Iterable[dict[str, Any] | None]:
    yield report.get("reference")
    for network in (report["network"], report.get("dense")):
        if network:
            yield network.get("val")
            yield network.get("test")


def _name(value: Any) -> str:
    """A config entry that is a name, a number, or a table with a name."""
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value is None else printable(value)
