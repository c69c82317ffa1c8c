"""Table of density rules by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pathgrow.density.literal import ExponentialRule
from pathgrow.density.probe import ProbeRule
from pathgrow.density.trajectory import TrajectoryRule
from pathgrow.density.types import DEFAULT_DELTA, Rule
from pathgrow.errors import UserError, unknown_name

_RULES: dict[str, Callable[..., Rule]] = {
    "probe": ProbeRule,
    "exponential": ExponentialRule,
    "trajectory": TrajectoryRule,
}


def names() -> list[str]:
    """Return the names of all rules, the default first."""
    return list(_RULES)


def description(name: str) -> str:
    """Return the one-line description of a rule.

    >>> description("trajectory")
    'Use the growing network alone: stop at twice the density at which the fitted curve reaches 95% of its gain.'
    """
    if name not in _RULES:
        raise unknown_name("density rule", name, _RULES)
    return (inspect.getdoc(_RULES[name]) or "").partition("\n")[0]


def create(name: str, *, delta: float = DEFAULT_DELTA, **options: Any) -> Rule:
    """Create a rule by name.

    Parameters
    ----------
    name : one of `names()`.
    delta : allowed gap to the reference score, in units of the score.
    options : fields of that rule, such as `max_probes` of `probe` or `beyond` of `trajectory`.

    >>> create("probe", delta=0.005, max_probes=8).name
    'probe'
    """
    if name not in _RULES:
        raise unknown_name("density rule", name, _RULES)
    make = _RULES[name]
    known = sorted(inspect.signature(make).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UserError(f"density rule {name!r} has no option {unknown[0]!r} (known: {', '.join(known)})")
    return make(delta=delta, **options)
