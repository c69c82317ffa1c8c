"""Errors that people read.

A `UserError` says what was given, what is wanted and what to do; the command line turns it into exit code 2.
A `RunFailed` is a run that started well and could not go on (NaN loss, a full disk): exit code 1.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TypeGuard


class UserError(ValueError):
    """Something the caller can mend; the message is one clear sentence."""


class RunFailed(RuntimeError):
    """A run that cannot go on; everything written before stays valid."""


class PeerFailed(RunFailed):
    """A run of several processes ends here because another process failed, which has said why."""

    def __init__(self, sentence: str, *, rank: int, exit_code: int) -> None:
        super().__init__(f"rank {rank} failed: {sentence}")
        self.exit_code = exit_code


def nearest_names(got: str, known: Iterable[str], *, most: int) -> list[str]:
    """Names that somebody who wrote `got` may have meant, the nearest first; capitals do not matter.

    >>> nearest_names("STR", ["set", "str"], most=1)
    ['str']
    """
    by_lower: dict[str, list[str]] = {}
    for name in known:
        by_lower.setdefault(name.lower(), []).append(name)
    near = difflib.get_close_matches(got.lower(), by_lower, n=most, cutoff=0.5)
    return [name for lower in near for name in by_lower[lower]][:most]


def unknown_name(kind: str, got: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not in a table, with the nearest ones first.

    >>> str(unknown_name("model", "resnet23", ["mlp", "resnet20", "resnet32"]))
    "unknown model 'resnet23': did you mean resnet32, resnet20? (known: mlp, resnet20, resnet32)"
    >>> str(unknown_name("data set", "cifar10", ["digits"]))
    "unknown data set 'cifar10' (known: digits)"
    """
    names = sorted(known)
    near = nearest_names(got, names, most=3)
    hint = f": did you mean {', '.join(near)}?" if near else ""
    return UserError(f"unknown {kind} {got!r}{hint} (known: {', '.join(names)})")


def require(fine: bool, name: str, given: object, wanted: str, example: str) -> None:
    """Raise a `UserError` about a value that is not `fine`.

    >>> require(False, "gamma", -1, "a number above 0", "0.25")
    Traceback (most recent call last):
    pathgrow.errors.UserError: gamma -1 was given, a number above 0 is wanted: give for example 0.25
    """
    if not fine:
        raise UserError(f"{name} {given!r} was given, {wanted} is wanted: give for example {example}")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an int; Python counts True and False as such, people do not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite int or float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
