"""Options of commands, parsed so that a wrong value gives one clear sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from pathgrow.errors import UserError

_WORDS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None}
"""As configs write them, and as Python does, which is how `pathgrow methods` lists defaults."""


def whole(metavar: str, help: str) -> Any:
    """An option that takes a whole number."""
    return typer.Option(metavar=metavar, help=help, parser=_parse_whole)


def real(metavar: str, help: str) -> Any:
    """An option that takes a number."""
    return typer.Option(metavar=metavar, help=help, parser=_parse_real)


def text(metavar: str, help: str) -> Any:
    """An option that takes any text."""
    return typer.Option(metavar=metavar, help=help)


# Parsed here, because typer's own messages do not say what was given.
def _parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} was given, a whole number is wanted") from None


def _parse_real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} was given, a number is wanted") from None


def without_none(**values: Any) -> dict[str, Any]:
    """The values that were given; those left out keep their default."""
    return {name: value for name, value in values.items() if value is not None}


def as_number(text: str) -> int | float | None:
    """The number that a text is, or None."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


def pairs(texts: Iterable[str], option: str, example: str) -> dict[str, Any]:
    """NAME=VALUE options as a dict; a value is a number, numbers separated by commas, true, false, none, or a text.

    >>> pairs(["width=8", "widths=8,8", "allocation=erk", "constant=false"], "--model-option", "width=8")
    {'width': 8, 'widths': [8, 8], 'allocation': 'erk', 'constant': False}
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {text!r} was given, NAME=VALUE is wanted: give for example {example}")
        parts = [as_number(part) for part in value.split(",") if part]
        if value in _WORDS:
            pairs[name] = _WORDS[value]
        elif not parts or None in parts:
            pairs[name] = value
        else:
            pairs[name] = parts if "," in value else parts[0]
    return pairs
