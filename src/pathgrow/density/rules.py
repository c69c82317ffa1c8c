"""Table of density rules by name."""

import inspect
from collections.abc import Callable
from typing import Any

from pathgrow.density.probe import ProbeRule
from pathgrow.density.trajectory import ExponentialRule, TrajectoryRule
from pathgrow.density.types import DEFAULT_DELTA, Rule
from pathgrow.registry import check_option_names, lookup, option_defaults

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
    return (inspect.getdoc(lookup("density rule", name, _RULES)) or "").partition("\n")[0]


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
    make = lookup("density rule", name, _RULES)
    check_option_names(f"density rule {name!r}", options, option_defaults(make))
    return make(delta=delta, **options)
