"""Density rules by name: one literal table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pathgrow.density.literal import ExponentialRule
from pathgrow.density.probe import ProbeRule
from pathgrow.density.trajectory import TrajectoryRule
from pathgrow.density.types import Rule
from pathgrow.errors import UserError, unknown_name

_RULES: dict[str, Callable[..., Rule]] = {
    "probe": ProbeRule,
    "exponential": ExponentialRule,
    "trajectory": TrajectoryRule,
}


def names() -> list[str]:
    """The rules there are, the default first."""
    return list(_RULES)


def description(name: str) -> str:
    """What a rule does, in a line.

    >>> description("trajectory")
    'From the growing network alone: stop at twice the density where the fitted curve has made 95% of its gain.'
    """
    if name not in _RULES:
        raise unknown_name("density rule", name, _RULES)
    return (inspect.getdoc(_RULES[name]) or "").partition("\n")[0]


def create(name: str, *, delta: float = 0.01, **options: Any) -> Rule:
    """A rule with its options.

    Parameters
    ----------
    name : one of `names()`.
    delta : how far below the reference a score may stay, in units of the score.
    options : fields of that rule, such as `max_probes` for `probe` or `beyond` for `trajectory`.

    >>> create("probe", delta=0.005, max_probes=8).name
    'probe'
    """
    if name not in _RULES:
        raise unknown_name("density rule", name, _RULES)
    make = _RULES[name]
    known = sorted(inspect.signature(make).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UserError(f"the rule {name!r} has no option {unknown[0]!r}: its options are {', '.join(known)}")
    return make(delta=delta, **options)
