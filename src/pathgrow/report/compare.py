"""Comparison of finished runs: one table per dataset and model, one row per configuration, averaged over seeds.

All costs in a table are relative to the same dense baseline.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report.formats import plural
from pathgrow.report.load import load_finished
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
    training_flops: float
    seconds: float | None
    """None if it is computed."""
    hardware: str | None
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Runs that differ in their seed only."""

    method: str
    subject: str
    """Dataset and model, and what else distinguishes this table from others."""
    match: str
    settings: str
    """What distinguishes this row from others that would look the same."""
    epochs: int
    """As configured: of the dense training that a budget is taken from, or of each level."""
    epochs_trained: float
    """Epochs trained in all phases together."""
    density: float
    density_model: float
    val: float
    val_interval: tuple[float, float] | None
    """90% interval of the mean over seeds; None for a single seed."""
    test: float | None
    test_interval: tuple[float, float] | None
    training_flops: float
    training_relative: float | None
    """Relative to the baseline; None if there is none."""
    seconds: float
    wall_relative: float | None
    """Relative to the baseline; None unless that was trained on the same hardware."""
    hardware: str | None
    """None if it is unknown or differs between seeds."""
    inference_relative: float
    """Relative to the dense network."""
    num_seeds: int
    runs: tuple[str, ...]
    baseline: Baseline | None


@dataclass(frozen=True)
class Comparison:
    """Rows, grouped by table, and notes about runs that were skipped or missed their budget."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def tables(self) -> list[list[Row]]:
        """The rows of each table."""
        tables: dict[str, list[Row]] = {}
        for row in self.rows:
            tables.setdefault(row.subject, []).append(row)
        return list(tables.values())


@dataclass(frozen=True)
class _Run:
    path: str
    report: RunReport
    hardware: str | None

    @property
    def method(self) -> str:
        return self.report.method.name + (" (discover)" if self.report.command == "discover" else "")

    @property
    def match(self) -> str:
        return "none" if self.report.ledger.match is None else self.report.ledger.match.kind

    @property
    def epochs(self) -> float:
        trained = self.report.ledger.epochs_trained
        return sum(phase.epochs for phase in self.report.ledger.phases) if trained is None else trained


_Group = Sequence[_Run]
"""Runs that differ in their seed only."""


def compare_runs(paths: Sequence[str | os.PathLike[str]]) -> Comparison:
    """Compare the runs in these directories; directories without a finished run are skipped with a note."""
    groups: dict[object, list[_Run]] = {}
    notes: list[str] = []
    for path in [os.fspath(path) for path in paths]:
        try:
            report = load_finished(path)
            run = _Run(path, report, report.hardware(RunDir(path).environment))
        except UserError as error:
            notes.append(f"{path} skipped: {str(error).removeprefix(path).lstrip(' /:')}")
            continue
        key = (report.command, tuple(report.task.items()), tuple(sorted(report.settings.items())))
        group = groups.setdefault(key, [])
        twin = next((other for other in group if other.report.seed == report.seed), None)
        if twin is None:
            group.append(run)
        else:
            notes.append(f"{path} skipped: it repeats seed {report.seed} of {twin.path}")
    if not groups:
        raise UserError(f"no finished run in {plural(len(paths), 'path')} ({'; '.join(notes)})")
    notes += [note for group in groups.values() for run in group if (note := _missed_budget(run))]
    tables: dict[str, list[_Group]] = {}
    for subject, group in zip(_subjects([group[0] for group in groups.values()]), groups.values(), strict=True):
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
    from scipy.stats import t  # slow to import

    margin = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - margin, statistics.fmean(values) + margin


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
    settings = _settings(groups)
    baseline = _baseline(groups, settings)
    return [_row(subject, group, own, baseline) for group, own in zip(groups, settings, strict=True)]


def _row(subject: str, group: _Group, settings: str, baseline: Baseline | None) -> Row:
    first, reports = group[0], [run.report for run in group]
    networks = [report.network for report in reports]
    vals = [network.val.score for network in networks]
    # A mean over only those seeds that were tested would pass for one over all.
    tests = [network.test.score for network in networks if network.test is not None]
    tests = tests if len(tests) == len(group) else []
    training_flops, seconds = _cost(group)
    hardware = _hardware(group)
    wall_relative = None
    if baseline is not None and baseline.seconds and hardware is not None and hardware == baseline.hardware:
        wall_relative = seconds / baseline.seconds
    return Row(
        method=first.method,
        subject=subject,
        match=first.match,
        settings=settings,
        epochs=first.report.epochs,
        epochs_trained=_epochs(group),
        density=statistics.fmean(network.density for network in networks),
        density_model=statistics.fmean(network.density_model for network in networks),
        val=statistics.fmean(vals),
        val_interval=mean_interval(vals),
        test=statistics.fmean(tests) if tests else None,
        test_interval=mean_interval(tests),
        training_flops=training_flops,
        training_relative=training_flops / baseline.training_flops if baseline is not None else None,
        seconds=seconds,
        wall_relative=wall_relative,
        hardware=hardware,
        inference_relative=statistics.fmean(network.inference_relative for network in networks),
        num_seeds=len(group),
        runs=tuple(run.path for run in group),
        baseline=baseline,
    )


def _baseline(groups: Sequence[_Group], settings: Sequence[str]) -> Baseline | None:
    """The longest dense training that was not matched to a budget, averaged over its seeds.

    The longest, because that does not depend on which sparse runs are compared, and because a dense training that was
    cut short would make everything else look expensive. Among equally long ones that with most seeds, then the first.
    """
    dense = [(group, own) for group, own in zip(groups, settings, strict=True) if group[0].method == "dense"]
    plain = [(group, own) for group, own in dense if group[0].match == "none"]
    if dense:
        group, own = max(plain or dense, key=lambda found: (_epochs(found[0]), len(found[0])))
        training_flops, seconds = _cost(group)
        return Baseline(
            kind="trained", settings=own, epochs=_epochs(group), training_flops=training_flops or 1.0, seconds=seconds,
            hardware=_hardware(group), runs=tuple(run.path for run in group),
        )  # fmt: skip
    runs = [run for group in groups for run in group if run.report.ledger.dense_training_flops]
    unmatched = [run for run in runs if run.match == "none"]
    if not runs:
        return None
    longest = max(unmatched or runs, key=lambda run: run.report.epochs).report
    return Baseline(
        kind="computed", settings="", epochs=longest.epochs, training_flops=longest.ledger.dense_training_flops or 1.0,
        seconds=None, hardware=None, runs=(),
    )  # fmt: skip


def _epochs(group: _Group) -> float:
    return statistics.fmean(run.epochs for run in group)


def _cost(group: _Group) -> tuple[float, float]:
    """Mean training FLOPs and seconds."""
    reports = [run.report for run in group]
    seconds = statistics.fmean(report.timing.seconds for report in reports)
    return statistics.fmean(report.ledger.training_flops for report in reports), seconds


def _hardware(group: _Group) -> str | None:
    found = {run.hardware for run in group}
    return found.pop() if len(found) == 1 else None


# What distinguishes tables and rows

_Settings = Mapping[str, str]


def _subjects(runs: Sequence[_Run]) -> list[str]:
    """Dataset and model of each run, followed by the rest of its task where that differs."""
    named = [" ".join(filter(None, (run.report.dataset, run.report.model))) or "calls of discover" for run in runs]
    subjects = []
    for run, name in zip(runs, named, strict=True):
        keys = _differing(other.report.task for other, its in zip(runs, named, strict=True) if its == name)
        own = _listed(run.report.task, keys, _short_names(keys))
        subjects.append(f"{name}, {own}" if own else name)
    return subjects


def _settings(groups: Sequence[_Group]) -> list[str]:
    """What distinguishes each row of a table: all that differs among rows that look the same, and its scope and recipe.

    Rows of different methods have different options anyway, but densities are relative to the scope, and accuracies
    belong to a recipe.
    """
    everything = [group[0].report.settings for group in groups]
    looks = [(group[0].method, group[0].match, round(_epochs(group), 1)) for group in groups]
    shown = []
    for own, look in zip(everything, looks, strict=True):
        alike = _differing(other for other, its in zip(everything, looks, strict=True) if its == look)
        same_recipe = [other for other in everything if other.get("recipe_name") == own.get("recipe_name")]
        recipe = {key for key in _differing(same_recipe) if key.startswith("recipe.")}
        shown.append((alike | recipe | ({"scope", "recipe_name"} & _differing(everything))) - _IN_COLUMNS)
    short = _short_names({key for keys in shown for key in keys})
    return [_listed(own, keys, short) for own, keys in zip(everything, shown, strict=True)]


def _differing(settings: Iterable[_Settings]) -> set[str]:
    found = list(settings)
    return {key for one in found for key in one if any(other.get(key) != one[key] for other in found)}


def _short_names(keys: set[str]) -> dict[str, str]:
    """Keys without their prefix ("lr" for "recipe.lr"), unless two of them end the same."""
    ends = Counter(key.rpartition(".")[2] for key in keys)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys}


def _listed(settings: _Settings, keys: set[str], short: Mapping[str, str]) -> str:
    values = {short[key]: settings.get(key, "null") for key in sorted(keys)}
    return ", ".join(f"{name} {'none' if value == 'null' else value}" for name, value in values.items())
