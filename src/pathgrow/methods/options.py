"""What is wrong with an option of a method, in one sentence that names that method's options and no others."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from pathgrow.errors import UserError, is_int, nearest_names

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a name"),
)
"""Most special first: Python's truth values are whole numbers too."""


def unknown_option(method: str, got: str, known: Collection[str]) -> UserError:
    """An error for an option that a method does not have, with the nearest of those that it has.

    >>> str(unknown_option("rigl", "evry", ["rate", "every"]))
    "method 'rigl' has no option 'evry', did you mean every? (its options: every, rate)"
    >>> str(unknown_option("dense", "rate", []))
    "method 'dense' has no option 'rate', it has none at all: leave it out"
    """
    if not known:
        return UserError(f"method {method!r} has no option {got!r}, it has none at all: leave it out")
    names = sorted(known)
    near = nearest_names(got, names, most=1)
    hint = f", did you mean {near[0]}? (its options: {', '.join(names)})" if near else f": choose {', '.join(names)}"
    return UserError(f"method {method!r} has no option {got!r}{hint}")


def of_their_kinds(method: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a method takes them; one that is of another kind than its default is refused.

    A whole number may be written as 1e4. Options whose default is None may be of any kind.

    >>> of_their_kinds("rigl", {"rate": 0, "every": 1e2}, {"rate": 0.3, "every": 100})
    {'rate': 0, 'every': 100}
    >>> of_their_kinds("rigl", {"every": "often"}, {"rate": 0.3, "every": 100})
    Traceback (most recent call last):
    pathgrow.errors.UserError: option every='often' of method 'rigl' was given, a whole number is wanted: ...
    """
    taken = {}
    for name, value in given.items():
        default = defaults.get(name)
        if is_int(default) and isinstance(value, float) and value.is_integer():
            value = int(value)
        wanted = next((words for kind, words in _KINDS if isinstance(default, kind)), None)
        if wanted is not None and not _is_like(value, default):
            raise UserError(
                f"option {name}={value!r} of method {method!r} was given, {wanted} is wanted: "
                f"give for example {name}={default}"
            )
        taken[name] = value
    return taken


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float if isinstance(default, float) else type(default))


def cannot_be_made(method: str, given: Mapping[str, Any], defaults: Mapping[str, Any], fault: TypeError) -> UserError:
    """An error for values that a function could not make its method with."""
    told = ", ".join(f"{name}={value!r}" for name, value in given.items() if value != defaults.get(name))
    return UserError(f"method {method!r} cannot be made with {told} ({fault}): give values of the right kind")


def parameters(make: Any, name: str) -> Mapping[str, inspect.Parameter]:
    """What a function that makes a method takes."""
    try:
        return inspect.signature(make).parameters
    except ValueError as fault:  # some of Python's own functions do not say what they take
        raise UserError(f"{name!r} is no function that returns a pathgrow.Method: name one that does") from fault
