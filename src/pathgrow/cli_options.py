"""Options of commands, parsed so that what is wrong with them is said in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from pathgrow.errors import UserError

_WORDS = {"true": True, "false": False, "none": None}


def whole(metavar: str, help: str) -> Any:
    """A whole number."""
    return typer.Option(metavar=metavar, help=help, parser=_parse_whole)


def real(metavar: str, help: str) -> Any:
    """A number."""
    return typer.Option(metavar=metavar, help=help, parser=_parse_real)


def text(metavar: str, help: str) -> Any:
    """Anything."""
    return typer.Option(metavar=metavar, help=help)


# Parsed here: typer's own messages do not say what was got.
def _parse_whole(text: str) -> int:
    """The whole number that was written, or what is wrong with it."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} was got, a whole number is wanted") from None


def _parse_real(text: str) -> float:
    """The number that was written, or what is wrong with it."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} was got, a number is wanted") from None


def without_none(**values: Any) -> dict[str, Any]:
    """What was given; the rest keeps its default."""
    return {name: value for name, value in values.items() if value is not None}


def as_number(text: str) -> int | float | None:
    """What a text says, or None where it is no number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


def pairs(texts: Iterable[str], option: str, example: str) -> dict[str, Any]:
    """NAME=VALUE options; a value is a number, a list of numbers with commas, true, false, none, or a text.

    >>> pairs(["width=8", "widths=8,8", "allocation=erk", "constant=false"], "--model-option", "width=8")
    {'width': 8, 'widths': [8, 8], 'allocation': 'erk', 'constant': False}
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {text!r} was got, NAME=VALUE is wanted: give for example {example}")
        parts = [as_number(part) for part in value.split(",") if part]
        if value in _WORDS:
            pairs[name] = _WORDS[value]
        elif not parts or None in parts:
            pairs[name] = value
        else:
            pairs[name] = parts if "," in value else parts[0]
    return pairs
