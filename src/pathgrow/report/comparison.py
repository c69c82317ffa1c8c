"""Finished runs side by side: means over runs that differ in nothing but their seed, costs relative to one reference.

Runs on the same data and model form a table, and all costs in it are relative to the same training.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pathgrow.errors import UserError
from pathgrow.report.compared_run import Run, read_run
from pathgrow.report.telling_apart import settings_of, subjects_of
from pathgrow.report.training import BUDGETS
from pathgrow.report.wording import counted

CONFIDENCE = 0.9
_MATCHED_WITHIN = 0.01
"""A run whose spending differs from its budget by more than this share is named in the notes."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The training that costs of a table are relative to: its 1x."""

    kind: str
    """ "trained": the dense runs below; "computed": none is there, and this is what a dense training would take."""
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
    """The runs of one group."""

    method: str
    subject: str
    """Data and model, and what else distinguishes this table from others; rows of one table have the same."""
    match: str
    settings: str
    """What distinguishes this row from others that would look the same; empty if nothing does."""
    usual: str
    """Scope and recipe of the rows of a table whose settings do not say otherwise, as far as any says otherwise."""
    epochs: int
    """As asked for: of the dense training that a budget is taken from, or of each level."""
    epochs_trained: float
    """Epochs that were trained in all phases together."""
    density: float
    density_model: float
    val: float
    val_interval: tuple[float, float] | None
    """90% interval of the mean, from the spread over seeds; None for a single seed."""
    test: float | None
    test_interval: tuple[float, float] | None
    training_flops: float
    training_relative: float | None
    """Relative to the reference; None if there is none."""
    seconds: float
    wall_relative: float | None
    """Relative to the reference; None unless it was trained, and on the same hardware."""
    hardware: str | None
    """What the seconds were measured on; None where nobody knows, or where seeds ran on different hardware."""
    inference_relative: float | None
    """Relative to the dense network."""
    num_seeds: int
    runs: tuple[str, ...]
    reference: Reference | None


@dataclass(frozen=True)
class Comparison:
    """Rows, those of one table together, and a note for each folder that was left out or missed its budget."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def tables(self) -> list[list[Row]]:
        """The rows table by table."""
        tables: dict[str, list[Row]] = {}
        for row in self.rows:
            tables.setdefault(row.subject, []).append(row)
        return list(tables.values())


def compare(paths: Sequence[str | os.PathLike[str]]) -> Comparison:
    """The runs in these folders, grouped; a folder without a finished run is named and left out."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in [os.fspath(path) for path in paths]:
        try:
            runs.append(read_run(path))
        except UserError as fault:
            notes.append(f"{path} is left out: {fault}")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(run.group, [])
        twin = next((other for other in group if other.seed == run.seed), None)
        if twin is not None:
            notes.append(f"{run.path} is left out: it repeats seed {run.seed} of {twin.path}")
        else:
            group.append(run)
    if not groups:
        raise UserError(
            f"none of {counted(len(paths), 'folder')} holds a finished run ({'; '.join(notes)}): "
            "give the folders named by --out"
        )
    kept = [run for group in groups.values() for run in group]
    notes += [_missed(run, off) for run in kept if (off := run.match_off) is not None and abs(off) > _MATCHED_WITHIN]
    tables: dict[str, list[list[Run]]] = {}
    for subject, group in zip(subjects_of([group[0] for group in groups.values()]), groups.values(), strict=True):
        tables.setdefault(subject, []).append(group)
    return Comparison(tuple(row for subject, table in tables.items() for row in _rows(subject, table)), tuple(notes))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Interval of the mean of normal values by Student's t; None for fewer than two.

    >>> low, high = interval([0.90, 0.92])  # t = 6.314 at one degree of freedom
    >>> round(low, 4), round(high, 4)
    (0.8469, 0.9731)
    """
    if len(values) < 2:
        return None
    from scipy.stats import t  # here: it takes longer to import than the table to print

    spread = statistics.stdev(values) / math.sqrt(len(values))
    margin = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * spread
    mean = statistics.fmean(values)
    return mean - margin, mean + margin


def _missed(run: Run, off: float) -> str:
    budget, by = BUDGETS.get(run.match, "budget"), "more" if off > 0 else "less"
    return f"{run.path} has spent {abs(off):.1%} {by} than the {budget} that it was to match: its epochs are whole"


def _rows(subject: str, groups: Sequence[Sequence[Run]]) -> list[Row]:
    settings, usual = settings_of(groups)
    reference = _reference(groups, settings)
    return [_row(subject, group, told, usual, reference) for group, told in zip(groups, settings, strict=True)]


def _reference(groups: Sequence[Sequence[Run]], settings: Sequence[str]) -> Reference | None:
    """The longest dense training that no budget made longer or shorter, as a mean over its seeds.

    The longest, because it does not depend on which sparse runs are beside it, and because a dense training that was
    cut short would make everything else look expensive. Of equally long ones that with most seeds, then the first.
    """
    dense = [(group, told) for group, told in zip(groups, settings, strict=True) if group[0].method == "dense"]
    plain = [(group, told) for group, told in dense if group[0].match == "none"]
    if dense:
        group, told = max(plain or dense, key=lambda found: (_epochs(found[0]), len(found[0])))
        return Reference(
            kind="trained",
            settings=told,
            epochs=_epochs(group),
            training_flops=statistics.fmean(run.training_flops for run in group),
            seconds=statistics.fmean(run.seconds for run in group),
            hardware=_hardware(group),
            runs=tuple(run.path for run in group),
        )
    # The same rule for trainings that nobody made: those with a budget of their own are asked last.
    runs = [run for group in groups for run in group if run.dense_flops]
    asked = [run for run in runs if run.match == "none"] or runs
    if not asked:
        return None
    longest = max(asked, key=lambda run: run.epochs)
    assert longest.dense_flops is not None
    return Reference(
        kind="computed", settings="", epochs=longest.epochs, training_flops=longest.dense_flops, seconds=None,
        hardware=None, runs=(),
    )  # fmt: skip


def _row(subject: str, group: Sequence[Run], settings: str, usual: str, reference: Reference | None) -> Row:
    first = group[0]
    training_flops = statistics.fmean(run.training_flops for run in group)
    seconds, hardware = statistics.fmean(run.seconds for run in group), _hardware(group)
    tests = _all_or_none(run.test for run in group)
    wall_relative = None
    if reference is not None and reference.seconds and hardware is not None and hardware == reference.hardware:
        wall_relative = seconds / reference.seconds
    return Row(
        method=first.method,
        subject=subject,
        match=first.match,
        settings=settings,
        usual=usual,
        epochs=first.epochs,
        epochs_trained=_epochs(group),
        density=statistics.fmean(run.density for run in group),
        density_model=statistics.fmean(run.density_model for run in group),
        val=statistics.fmean(run.val for run in group),
        val_interval=interval([run.val for run in group]),
        test=_mean(tests),
        test_interval=interval(tests or []),
        training_flops=training_flops,
        training_relative=None if reference is None else training_flops / reference.training_flops,
        seconds=seconds,
        wall_relative=wall_relative,
        hardware=hardware,
        inference_relative=_mean(_all_or_none(run.inference_relative for run in group)),
        num_seeds=len(group),
        runs=tuple(run.path for run in group),
        reference=reference,
    )


def _epochs(group: Sequence[Run]) -> float:
    return statistics.fmean(run.epochs_trained for run in group)


def _hardware(group: Sequence[Run]) -> str | None:
    seen = {run.hardware for run in group}
    return seen.pop() if len(seen) == 1 else None


def _all_or_none(values: Iterable[float | None]) -> list[float] | None:
    """The values if none is missing, else None: a mean over some of the seeds would pass for one over all."""
    listed = list(values)
    present = [value for value in listed if value is not None]
    return present if len(present) == len(listed) else None


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None
