"""Comparison of finished runs: one table per dataset and model, one row per configuration, averaged over seeds.

All costs in a table are relative to the same dense baseline.
"""

import itertools
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.formats import plural, score_format
from pathgrow.report.loading import load_finished
from pathgrow.report.schema import RunReport
from pathgrow.report.text import match_unit

_MATCHED_WITHIN = 0.01
"""Relative deviation from a matched budget above which a run is mentioned in the notes."""
_IN_COLUMNS = {"density", "match", "match_run", "match_budget", "match_like"}
"""Config keys that the columns of a table show."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The dense training that the costs of a table are relative to: its 1x."""

    kind: str
    """ "trained": dense runs of the table; "computed": no run is dense, and this is what dense training would cost."""
    settings: str
    """What distinguishes it from other dense runs of the table."""
    epochs: float
    unit: str = "epochs"
    """What these are counted in."""
    training_flops: float
    seconds: float | None
    """None if it is computed."""
    hardware: str | None
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Runs that differ in their seed only."""

    method: str
    is_accuracy: bool = True
    """Whether `val` and `test` are accuracies in [0, 1], which tables show as percentages."""
    mode: str = "max"
    """Whether a higher ("max") or a lower ("min") score is better."""
    subject: str
    """Dataset and model, and what else distinguishes this table from others."""
    match: str
    settings: str = ""
    """What distinguishes this row from others that would look the same."""
    epochs: int
    """As configured: of the dense training that a budget is taken from, or of each level."""
    epochs_trained: float
    """Epochs trained in all phases together."""
    unit: str = "epochs"
    """What these two are counted in."""
    density: float
    density_model: float
    val: float
    val_interval: tuple[float, float] | None
    """90% interval of the mean over seeds; None for a single seed."""
    test: float | None
    test_interval: tuple[float, float] | None
    training_flops: float
    training_relative: float | None = None
    """Relative to the baseline; None if there is none."""
    seconds: float
    wall_relative: float | None = None
    """Relative to the baseline; None unless that was trained on the same hardware."""
    hardware: str | None
    """None if it is unknown or differs between seeds."""
    inference_relative: float
    """Relative to the dense network."""
    num_seeds: int
    runs: tuple[str, ...]
    baseline: Baseline | None = None


@dataclass(frozen=True)
class Comparison:
    """Rows, grouped by table, and notes about runs that were skipped or missed their budget."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def tables(self) -> list[list[Row]]:
        """The rows of each table."""
        return [list(rows) for _, rows in itertools.groupby(self.rows, lambda row: row.subject)]


@dataclass(frozen=True)
class _Run:
    path: str
    report: RunReport
    hardware: str | None

    @property
    def match(self) -> str:
        return "none" if self.report.ledger.match is None else self.report.ledger.match.kind


_Group = Sequence[_Run]
"""Runs that differ in their seed only."""
_MOST_NOTES = 4
"""Skipped directories that an error names."""


def compare_runs(paths: Sequence[str | os.PathLike[str]]) -> Comparison:
    """Compare the runs in these directories; directories without a finished run are skipped with a note."""
    by_seed: dict[object, dict[int | None, _Run]] = {}
    notes: list[str] = []
    for path in [os.fspath(path) for path in paths]:
        try:
            report = load_finished(path, is_brief=True)
            run = _Run(path, report, report.hardware(RunDir(path).environment))
        except UserError as error:
            reason = str(error).removeprefix(path).lstrip(" /:")
            notes.append(f"{path} skipped: {'it ' if reason.startswith('is ') else ''}{reason}")
            continue
        key = (report.command, tuple(report.task.items()), tuple(sorted(report.settings.items())))
        twin = by_seed.setdefault(key, {}).setdefault(report.seed, run)
        if twin is not run:
            notes.append(f"{path} skipped: it repeats seed {report.seed} of {twin.path}")
    if not by_seed:
        more = f"; and {len(notes) - _MOST_NOTES} more" if len(notes) > _MOST_NOTES else ""
        raise UserError(f"no finished run in {plural(len(paths), 'path')} ({'; '.join(notes[:_MOST_NOTES])}{more})")
    groups = [list(runs.values()) for runs in by_seed.values()]
    notes += [note for group in groups for run in group if (note := _missed_budget(run))]
    tables: dict[str, list[_Group]] = {}
    for subject, group in zip(_subjects([group[0] for group in groups]), groups, strict=True):
        tables.setdefault(subject, []).append(group)
    return Comparison(tuple(row for subject, table in tables.items() for row in _rows(subject, table)), tuple(notes))


def mean_interval(values: Sequence[float], confidence: float = 0.9) -> tuple[float, float] | None:
    """Interval of the mean of normal values by Student's t; None for fewer than two.

    >>> low, high = mean_interval([0.90, 0.92])  # t = 6.314 at one degree of freedom
    >>> round(low, 4), round(high, 4)
    (0.8469, 0.9731)
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # the quantile of scipy.stats.t, which takes a second to import

    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    margin = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return fmean(values) - margin, fmean(values) + margin


def _missed_budget(run: _Run) -> str | None:
    match = run.report.ledger.match
    if match is None or match.relative_error is None or abs(match.relative_error) <= _MATCHED_WITHIN:
        return None
    direction = "more" if match.relative_error > 0 else "less"
    return (
        f"{run.path} spent {abs(match.relative_error):.1%} {direction} than its matched budget of "
        f"{match_unit(match.kind)}"
    )


def _rows(subject: str, groups: Sequence[_Group]) -> list[Row]:
    """The rows of one table, relative to its baseline."""
    rows = [_row(subject, group) for group in groups]
    settings = _settings(rows, [group[0].report.settings for group in groups])
    rows = [replace(row, settings=own) for row, own in zip(rows, settings, strict=True)]
    baseline = _trained_baseline(rows) or _computed_baseline([run for group in groups for run in group])
    return rows if baseline is None else [_relative(row, baseline) for row in rows]


def _row(subject: str, group: _Group) -> Row:
    report, reports = group[0].report, [run.report for run in group]
    networks, ledgers = [each.network for each in reports], [each.ledger for each in reports]
    vals = [network.val.score for network in networks]
    # A mean over only those seeds that were tested would pass for one over all.
    tests = [network.test.score for network in networks if network.test is not None]
    tests = tests if len(tests) == len(group) else []
    return Row(
        method=report.method.name + (" (discover)" if report.command == "discover" else ""),
        is_accuracy=all(score_format(each).is_fraction for each in reports),
        mode=report.mode,
        subject=subject,
        match=group[0].match,
        epochs=report.epochs,
        epochs_trained=fmean(each.total_epochs for each in ledgers),
        unit=score_format(report).unit,
        density=fmean(network.density for network in networks),
        density_model=fmean(network.density_model for network in networks),
        val=fmean(vals),
        val_interval=mean_interval(vals),
        test=fmean(tests) if tests else None,
        test_interval=mean_interval(tests),
        training_flops=fmean(each.training_flops for each in ledgers),
        seconds=fmean(each.timing.seconds for each in reports),
        hardware=group[0].hardware if len({run.hardware for run in group}) == 1 else None,
        inference_relative=fmean(network.inference_relative for network in networks),
        num_seeds=len(group),
        runs=tuple(run.path for run in group),
    )


def _trained_baseline(rows: Sequence[Row]) -> Baseline | None:
    """The longest dense training that was not matched to a budget, averaged over its seeds.

    The longest, because that does not depend on which sparse runs are compared, and because a dense training that was
    cut short would make everything else look expensive. Among equally long ones that with most seeds, then the first.
    """
    dense = [row for row in rows if row.method == "dense"]
    if not dense:
        return None
    unmatched = [row for row in dense if row.match == "none"]
    row = max(unmatched or dense, key=lambda row: (row.epochs_trained, row.num_seeds))
    return Baseline(
        kind="trained", settings=row.settings, epochs=row.epochs_trained, unit=row.unit,
        training_flops=row.training_flops or 1.0, seconds=row.seconds, hardware=row.hardware, runs=row.runs,
    )  # fmt: skip


def _computed_baseline(runs: Sequence[_Run]) -> Baseline | None:
    """What a dense training as long as the longest run would cost."""
    known = [run for run in runs if run.report.ledger.dense_training_flops]
    if not known:
        return None
    unmatched = [run for run in known if run.match == "none"]
    # By FLOPs, because lengths may be in different units.
    longest = max(unmatched or known, key=lambda run: run.report.ledger.dense_training_flops or 0).report
    return Baseline(
        kind="computed", settings="", epochs=longest.epochs, unit=score_format(longest).unit,
        training_flops=longest.ledger.dense_training_flops or 1.0, seconds=None, hardware=None, runs=(),
    )  # fmt: skip


def _relative(row: Row, baseline: Baseline) -> Row:
    same_hardware = row.hardware is not None and row.hardware == baseline.hardware
    return replace(
        row,
        baseline=baseline,
        training_relative=row.training_flops / baseline.training_flops,
        wall_relative=row.seconds / baseline.seconds if baseline.seconds and same_hardware else None,
    )


# What distinguishes tables and rows

_Settings = Mapping[str, str]


def _subjects(runs: Sequence[_Run]) -> list[str]:
    """Dataset and model of each run, followed by the rest of its task where that differs."""
    named = [" ".join(filter(None, (run.report.dataset, run.report.model))) or "calls of discover" for run in runs]
    tasks = [run.report.task for run in runs]
    differing = _differing_by(named, tasks)
    subjects = []
    for task, name in zip(tasks, named, strict=True):
        in_words = {key: words(task[key]) for key, words in _TASK_WORDS.items() if key in differing[name] & task.keys()}
        others = differing[name] - in_words.keys()
        own = ", ".join(filter(None, [*in_words.values(), _listed(task, others, _short_names(others))]))
        subjects.append(f"{name}, {own}" if own else name)
    return subjects


_TASK_WORDS: Mapping[str, Callable[[str], str]] = {
    "prunable": lambda value: f"{int(value):,} prunable weights",
    "dense_inference_flops": lambda value: f"{int(value):,} FLOPs per forward pass",
    "mode": lambda value: "lower is better" if value == "min" else "higher is better",
}
"""What is known of the task of a call, in words that are as exact as the values."""


def _settings(rows: Sequence[Row], settings: Sequence[_Settings]) -> list[str]:
    """What distinguishes each row of a table: all that differs among rows that look the same, and its scope and recipe.

    Rows of different methods have different options anyway, but densities are relative to the scope, and accuracies
    belong to a recipe.
    """
    looks = [(row.method, row.match, round(row.epochs_trained, 1)) for row in rows]
    recipes = [own.get("recipe_name") for own in settings]
    alike, same_recipe = _differing_by(looks, settings), _differing_by(recipes, settings)
    everywhere = {"scope", "recipe_name", "name"} & _differing(settings)
    shown = []
    for look, name in zip(looks, recipes, strict=True):
        recipe = {key for key in same_recipe[name] if key.startswith("recipe.")}
        shown.append((alike[look] | recipe | everywhere) - _IN_COLUMNS)
    short = _short_names({key for keys in shown for key in keys})
    return [_listed(own, keys, short) for own, keys in zip(settings, shown, strict=True)]


def _differing_by(groups: Sequence[Hashable], settings: Sequence[_Settings]) -> dict[Hashable, set[str]]:
    """The keys that differ within each group; for thousands of runs, one pass over all of them."""
    members: dict[Hashable, list[_Settings]] = {}
    for group, own in zip(groups, settings, strict=True):
        members.setdefault(group, []).append(own)
    return {group: _differing(found) for group, found in members.items()}


def _differing(settings: Sequence[_Settings]) -> set[str]:
    keys = {key for one in settings for key in one}
    return {key for key in keys if len({one.get(key) for one in settings}) > 1}


def _short_names(keys: set[str]) -> dict[str, str]:
    """Keys without their prefix ("lr" for "recipe.lr"), unless two of them end the same."""
    ends = Counter(key.rpartition(".")[2] for key in keys)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys}


def _listed(settings: _Settings, keys: set[str], short: Mapping[str, str]) -> str:
    values = {short[key]: settings.get(key, "null") for key in sorted(keys)}
    return ", ".join(f"{name} {'none' if value == 'null' else value}" for name, value in values.items())
