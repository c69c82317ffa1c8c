"""Names for what differs: between tables, and between rows of one table that would look the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from pathgrow.report.compared_run import Run

_TOLD_ANYWAY = ("density", "match", "match_run", "match_budget", "match_like")
"""Entries of a config that the columns tell already, by themselves or by what was spent."""
_CONCERN_ALL = "scope"
"""Densities are shares of it, so rows of any two methods have to say where theirs differs."""
_RECIPE, _RECIPE_NAME = "recipe.", "recipe_name"

Settings = Mapping[str, str]


def subjects_of(runs: Sequence[Run]) -> list[str]:
    """The name of what each run is trained and tested on: equal names for equal tasks, others for others."""
    named = []
    for run in runs:
        alike = [other.task for other in runs if other.subject == run.subject]
        told = _said(run.task, _differing(alike))
        named.append(f"{run.subject}, {told}" if told else run.subject)
    return named


def settings_of(groups: Sequence[Sequence[Run]]) -> list[str]:
    """For each group of a table, what distinguishes it from others that look the same.

    All entries that differ are told of rows with the same method, match and epochs. Rows of different methods have
    different options anyway; of those only the scope and the recipe are told.
    """
    firsts = [group[0] for group in groups]
    looks = [_look(group) for group in groups]
    told = []
    for run, look in zip(firsts, looks, strict=True):
        alike = [other.settings for other, its in zip(firsts, looks, strict=True) if its == look]
        everybody = [other.settings for other in firsts]
        names = _differing(alike) | {_CONCERN_ALL}.intersection(_differing(everybody)) | _of_recipe(run, everybody)
        told.append(_said(run.settings, names.difference(_TOLD_ANYWAY)))
    return told


def _look(group: Sequence[Run]) -> tuple[object, ...]:
    """What a reader can tell a row by without its settings."""
    return group[0].method, group[0].match, round(sum(run.epochs_trained for run in group) / len(group), 1)


def _of_recipe(run: Run, everybody: Sequence[Settings]) -> set[str]:
    """The recipe's name where it differs, and what was changed in it."""
    same_name = [settings for settings in everybody if settings.get(_RECIPE_NAME) == run.settings.get(_RECIPE_NAME)]
    changed = {name for name in _differing(same_name) if name.startswith(_RECIPE)}
    return changed | ({_RECIPE_NAME} if len(same_name) < len(everybody) else set())


def _differing(settings: Iterable[Settings]) -> set[str]:
    listed = list(settings)
    return {name for one in listed for name in one if any(other.get(name) != one[name] for other in listed)}


def _said(settings: Settings, names: Collection[str]) -> str:
    # "lr" says as much as "recipe.lr", unless two of the names end alike.
    ends = Counter(name.rpartition(".")[2] for name in names)
    short = {name: end if ends[end := name.rpartition(".")[2]] == 1 else name for name in sorted(names)}
    said = {short[name]: settings.get(name, "null") for name in short}
    return ", ".join(f"{name} {'none' if value == 'null' else value}" for name, value in said.items())
