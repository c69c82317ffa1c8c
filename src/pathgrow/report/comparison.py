"""Finished runs side by side: what each says, and the means over runs that differ in nothing but their seed."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pathgrow.errors import UserError
from pathgrow.report.reading import progress_of
from pathgrow.report.story import config_rows
from pathgrow.report.training import BUDGETS
from pathgrow.report.wording import counted
from pathgrow.runs import RunFolder

CONFIDENCE = 0.9
_NO_DIFFERENCE = ("seed", "data_root", "threads", "ranks", "engine")
"""Two runs that differ only in these do the same, apart from the seed and from rounding."""
_MATCHED_WITHIN = 0.01
"""A run whose spending differs from its budget by more than this share is named in the notes."""
_TOLD_ANYWAY = ("density", "match_run", "match_budget")
"""Entries of a config that the columns of the table tell already."""
_SAME_TASK = ("data", "fold", "model", "model_options", "recipe")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run, whatever command it came from."""

    path: str
    method: str
    match: str
    match_off: float | None
    """What was spent beyond the budget that was to be matched, as a share of it."""
    seed: int
    task: str
    """Data, model, recipe and the epochs of a dense training, as a key; costs are compared only between equal tasks."""
    group: str
    """Everything in the config that matters, as a key."""
    settings: Mapping[str, str]
    """The same, entry by entry, with dotted names."""
    subject: str
    """Data and model, for people."""
    epochs: int
    density: float
    density_model: float
    val: float
    test: float | None
    training_flops: int
    training_relative: float | None
    """From the run's own ledger: relative to a dense training, which need not have taken place."""
    inference_relative: float | None
    seconds: float

    @property
    def is_reference(self) -> bool:
        """Whether it is the dense training that costs are compared with, and not one that a budget made longer."""
        return self.method == "dense" and self.training_relative is not None and math.isclose(self.training_relative, 1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The runs of one group."""

    method: str
    subject: str
    match: str
    settings: str
    """What distinguishes this row from others of the same method, subject, match and epochs; empty if nothing does."""
    epochs: int
    """Epochs of the dense training that this one is compared with."""
    density: float
    density_model: float
    val: float
    val_interval: tuple[float, float] | None
    """90% interval of the mean, from the spread over seeds; None for a single seed."""
    test: float | None
    test_interval: tuple[float, float] | None
    training_flops: float
    training_relative: float | None
    """Relative to the dense runs of the same task in the table; without one, the ledger's own figure."""
    seconds: float
    wall_relative: float | None
    """Relative to the dense runs of the same task in the table; None if there is none."""
    inference_relative: float | None
    num_seeds: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """A table, and a note for each folder that was left out or did not spend the budget it was to match."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def compare(paths: Sequence[str | os.PathLike[str]]) -> Comparison:
    """The runs in these folders, grouped; a folder without a finished run is named and left out."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in paths:
        try:
            runs.append(_read(os.fspath(path)))
        except UserError as fault:
            notes.append(str(fault))
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
    firsts = [group[0] for group in groups.values()]
    return Comparison(tuple(_row(group, kept, firsts) for group in groups.values()), tuple(notes))


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


def _apart(run: Run, others: Iterable[Run]) -> str:
    """The settings in which a run differs from others with the same method, subject, match and epochs."""
    alike = [other.settings for other in others if _name(other) == _name(run)]
    names = sorted({name for settings in alike for name in settings}.difference(_TOLD_ANYWAY))
    differing = [name for name in names if any(other.get(name) != run.settings.get(name) for other in alike)]
    # "lr" says as much as "recipe.lr", unless two of the names end alike.
    ends = Counter(name.rpartition(".")[2] for name in differing)
    short = {name: end if ends[end := name.rpartition(".")[2]] == 1 else name for name in differing}
    said = {short[name]: run.settings.get(name, "null") for name in differing}
    return ", ".join(f"{name} {'none' if value == 'null' else value}" for name, value in said.items())


def _name(run: Run) -> tuple[str, str, str, int]:
    return run.method, run.subject, run.match, run.epochs


def _row(group: Sequence[Run], everything: Iterable[Run], firsts: Iterable[Run]) -> Row:
    first = group[0]
    dense = [run for run in everything if run.is_reference and run.task == first.task]
    dense_flops = statistics.fmean(run.training_flops for run in dense) if dense else None
    dense_seconds = statistics.fmean(run.seconds for run in dense) if dense else None
    training_flops = statistics.fmean(run.training_flops for run in group)
    seconds = statistics.fmean(run.seconds for run in group)
    tests = _all_or_none(run.test for run in group)
    relative = _mean(_all_or_none(run.training_relative for run in group))
    return Row(
        method=first.method,
        subject=first.subject,
        match=first.match,
        settings=_apart(first, firsts),
        epochs=first.epochs,
        density=statistics.fmean(run.density for run in group),
        density_model=statistics.fmean(run.density_model for run in group),
        val=statistics.fmean(run.val for run in group),
        val_interval=interval([run.val for run in group]),
        test=_mean(tests),
        test_interval=interval(tests or []),
        training_flops=training_flops,
        training_relative=training_flops / dense_flops if dense_flops else relative,
        seconds=seconds,
        wall_relative=seconds / dense_seconds if dense_seconds else None,
        inference_relative=_mean(_all_or_none(run.inference_relative for run in group)),
        num_seeds=len(group),
        runs=tuple(run.path for run in group),
    )


def _all_or_none(values: Iterable[float | None]) -> list[float] | None:
    """The values if none is missing, else None: a mean over some of the seeds would pass for one over all."""
    listed = list(values)
    present = [value for value in listed if value is not None]
    return present if len(present) == len(listed) else None


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None


def _read(path: str) -> Run:
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise UserError(f"{path} is left out: it is no folder")
    if folder.config is None:
        raise UserError(f"{path} is left out: it holds no run of pathgrow")
    if not folder.finished:
        stages = counted(len(progress_of(folder).points), "stage")
        raise UserError(f"{path} is left out: its run is not finished ({stages} so far)")
    try:
        return _run(path, folder.report())
    except KeyError as fault:
        raise UserError(f"{path} is left out: its report lacks {fault}") from fault
    except TypeError as fault:
        raise UserError(f"{path} is left out: its report is none that pathgrow writes ({fault})") from fault


def _run(path: str, report: Mapping[str, Any]) -> Run:
    config, network, ledger = report["config"], report["network"], report["ledger"]
    is_training = report.get("kind") == "train"
    method = str(config["method"])
    test = network["test"]
    settings = _settings(config)
    task = {name: config.get(name) for name in _SAME_TASK}
    task["epochs"] = config["epochs"] if is_training else config["budget"]
    return Run(
        path=path,
        method=method if is_training else f"{method} (discover)",
        match=config["match"] if is_training else "none",
        match_off=ledger.get("match", {}).get("off"),
        seed=int(config["seed"]),
        task=json.dumps(task, sort_keys=True),
        group=json.dumps(settings, sort_keys=True),
        settings=dict(config_rows(settings)),
        subject=" ".join(str(config[name]) for name in ("data", "model") if name in config),
        epochs=int(task["epochs"]),
        density=float(network["density"]),
        density_model=float(network["density_model"]),
        val=float(network["val"]["score"]),
        test=None if test is None else float(test["score"]),
        training_flops=int(ledger["training_flops"]),
        training_relative=ledger["relative"],
        inference_relative=report["flops"]["inference_relative"] if is_training else _inference(report),
        seconds=float(report["timing"]["seconds"]),
    )


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in config.items() if name not in _NO_DIFFERENCE}
    if left.get("match_like") is not None:
        # Each seed is matched to the run of its own seed: what counts is that those runs are alike.
        left = {name: value for name, value in left.items() if name not in ("match_run", "match_budget")}
    return left


def _inference(report: Mapping[str, Any]) -> float | None:
    """Relative inference FLOPs of a discovery, from the phase of its ledger that trained the network handed back."""
    ledger, network = report["ledger"], report["network"]
    names = ("final", f"probe-{network['round']:03d}")
    phases = {phase["phase"]: phase for phase in ledger["phases"]}
    phase = next((phases[name] for name in names if name in phases and phases[name]["samples"]), None)
    dense = ledger["dense_training_flops"]
    num_epochs = sum(phase["epochs"] for phase in ledger["phases"])
    if phase is None or not dense or not num_epochs:
        return None
    dense_sample = dense / round(report["config"]["budget"] * ledger["samples"] / num_epochs)
    return float(phase["training_flops"] / phase["samples"] / dense_sample)
