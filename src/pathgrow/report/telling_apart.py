"""Names for what differs: between tables, and between rows of one table that would look the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from pathgrow.report.compared_run import Run

_TOLD_ANYWAY = ("density", "match", "match_run", "match_budget", "match_like")
"""Entries of a config that the columns tell already, by themselves or by what was spent."""
_SCOPE = "scope"
"""Densities are shares of it, so rows of any two methods have to say where theirs differs."""
_RECIPE, _RECIPE_NAME = "recipe.", "recipe_name"

Settings = Mapping[str, str]


def subjects_of(runs: Sequence[Run]) -> list[str]:
    """The name of what each run is trained and tested on: equal names for equal tasks, others for others."""
    named = []
    for run in runs:
        alike = [other.task for other in runs if other.subject == run.subject]
        names = _differing(alike)
        told = _said(run.task, names, _shortened(names))
        named.append(f"{run.subject}, {told}" if told else run.subject)
    return named


def settings_of(groups: Sequence[Sequence[Run]]) -> tuple[list[str], str]:
    """For each group of a table, what distinguishes it from others; and what holds where it says nothing else.

    All entries that differ are told of rows with the same method, match and epochs. Rows of different methods have
    different options anyway; of those only the scope and the recipe are told, and these not where they are as in most.
    """
    firsts = [group[0] for group in groups]
    looks = [_look(group) for group in groups]
    everybody = [run.settings for run in firsts]
    usual = _usual(everybody)
    names = []
    for run, look in zip(firsts, looks, strict=True):
        alike = [other.settings for other, its in zip(firsts, looks, strict=True) if its == look]
        differing = _differing(alike) | ({_SCOPE} & _differing(everybody)) | _of_recipe(run.settings, everybody)
        as_usual = {name for name, value in usual.items() if run.settings.get(name) == value}
        names.append(differing.difference(_TOLD_ANYWAY, as_usual))
    short = _shortened({*usual, *(name for told in names for name in told)})
    told = [_said(run.settings, its, short) for run, its in zip(firsts, names, strict=True)]
    return told, _said(usual, usual, short)


def _usual(everybody: Sequence[Settings]) -> dict[str, str]:
    """What more than half of the rows have, of the scope, the recipe's name and, if that is the same, what is in it."""
    differing = _differing(everybody)
    found = {}
    for name in sorted(differing):
        is_of_recipe = name.startswith(_RECIPE) and _RECIPE_NAME not in differing
        [(value, num)] = Counter(settings.get(name) for settings in everybody).most_common(1)
        if (is_of_recipe or name in (_SCOPE, _RECIPE_NAME)) and value is not None and 2 * num > len(everybody):
            found[name] = value
    return found


def _look(group: Sequence[Run]) -> tuple[object, ...]:
    """What a reader can tell a row by without its settings."""
    return group[0].method, group[0].match, round(sum(run.epochs_trained for run in group) / len(group), 1)


def _of_recipe(own: Settings, everybody: Sequence[Settings]) -> set[str]:
    """The recipe's name where it differs, and what was changed in it."""
    same_name = [settings for settings in everybody if settings.get(_RECIPE_NAME) == own.get(_RECIPE_NAME)]
    changed = {name for name in _differing(same_name) if name.startswith(_RECIPE)}
    return changed | ({_RECIPE_NAME} if len(same_name) < len(everybody) else set())


def _differing(settings: Iterable[Settings]) -> set[str]:
    listed = list(settings)
    return {name for one in listed for name in one if any(other.get(name) != one[name] for other in listed)}


def _shortened(names: Collection[str]) -> dict[str, str]:
    """Names by their last part, as "lr" says as much as "recipe.lr", unless two of them end alike."""
    ends = Counter(name.rpartition(".")[2] for name in names)
    return {name: end if ends[end := name.rpartition(".")[2]] == 1 else name for name in names}


def _said(settings: Settings, names: Collection[str], short: Mapping[str, str]) -> str:
    said = {short[name]: settings.get(name, "null") for name in sorted(names)}
    return ", ".join(f"{name} {'none' if value == 'null' else value}" for name, value in said.items())
