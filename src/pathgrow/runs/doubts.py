"""What is doubtful about a training that is about to begin, in one sentence each.

Advice is given only if following it would remove the doubt: each is tried on the schedule first, which can be played
through without a network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pathgrow.density import words
from pathgrow.errors import is_number
from pathgrow.methods.method import Method, Progress, count_at
from pathgrow.runs.bench import Bench, moves

_FEW_CHANGES = 5
_STEPS_TO_GROW = 20
"""That new weights should have before the next change can drop them: RigL at shorter intervals did worse on digits."""
_LONGER, _STILL_SHORT = 10, 2_000
"""Nobody is sent to a training of more than ten times the length, unless it is a matter of minutes even so."""


def doubts(bench: Bench, epochs: int) -> list[str]:
    """What a person should know before a training of so many epochs (at each level) begins; mostly nothing."""
    found = (doubt_about_changes(bench, epochs), doubt_about_rewinding(bench, epochs))
    return [doubt for doubt in found if doubt is not None]


def doubt_about_changes(bench: Bench, epochs: int) -> str | None:
    """A warning about a training whose masks are to change within it and hardly will, or None."""
    method, num_steps = bench.make_method(epochs), epochs * bench.steps_per_epoch
    if not moves(method) or method.start_density is None:  # chosen later, for somebody's own method: cannot be told yet
        return None
    num_changes = _num_changes(bench, method, num_steps)
    if num_changes >= _FEW_CHANGES:
        return None
    told = (
        f"method {method.name!r} will change its masks {words.counted(num_changes, 'time')} in these {num_steps} steps"
    )
    advice = _other_options(bench, num_steps) + _more_epochs(bench, epochs)
    return told + (f": {', or '.join(advice)}" if advice else "")


def doubt_about_rewinding(bench: Bench, epochs: int) -> str | None:
    """A warning about levels that begin so late that little is left of them, or None."""
    method, num_steps = bench.make_method(epochs), epochs * bench.steps_per_epoch
    if method.after_update != "rewind" or not num_steps / 2 < method.rewind_step < num_steps:
        return None
    told = (
        f"method {method.name!r} sets weights back to step {method.rewind_step} of {num_steps}, so that a level "
        f"of {words.counted(epochs, 'epoch')} trains {words.counted(num_steps - method.rewind_step, 'step')}"
    )
    if "rewind_step" not in bench.config.method_options or bench.config.match != "none":  # longer levels cost more
        return told
    return f"{told}: give --method-option rewind_step={num_steps // 20}"


def _other_options(bench: Bench, num_steps: int) -> list[str]:
    """Advice on an option of the method."""
    given = bench.config.method_options
    if "num_steps" in given and _is_enough(bench, num_steps, {"num_steps": num_steps}):
        return [f"leave out --method-option num_steps={given['num_steps']}"]
    every, often = given.get("every"), max(_STEPS_TO_GROW, num_steps // 20)
    if is_number(every) and often < every and _is_enough(bench, num_steps, {"every": often}):
        return [f"give --method-option every={often}"]
    return []


def _more_epochs(bench: Bench, epochs: int) -> list[str]:
    """Advice on the fewest epochs that would do; where a budget is matched they are not the user's choice."""
    if bench.config.match != "none":
        return []
    per_epoch = bench.steps_per_epoch
    most = max(_LONGER * epochs * per_epoch, _STILL_SHORT) // per_epoch
    low, high = epochs, 2 * epochs
    while high < most and not _is_enough(bench, high * per_epoch):
        low, high = high, 2 * high
    high = min(high, most)
    if high <= low or not _is_enough(bench, high * per_epoch):
        return []
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_enough(bench, middle * per_epoch) else (middle, high)
    return [f"give --epochs {high}"]


def _is_enough(bench: Bench, num_steps: int, changed: Mapping[str, Any] | None = None) -> bool:
    """Whether masks would change often enough in a training of so many steps, with some options changed."""
    options = {**bench.config.method_options, **(changed or {})}
    config = dataclasses.replace(bench.config, method_options=options)
    return _num_changes(bench, config.make_method(num_steps), num_steps) >= _FEW_CHANGES


def _num_changes(bench: Bench, method: Method, num_steps: int) -> int:
    """How often masks change in a training of so many steps; more than enough is not counted."""
    assert method.start_density is not None
    num = bench.scope.num
    num_on, found = count_at(method.start_density, num), 0
    for step in range(num_steps):
        change = method.due(Progress(round=0, step=step, num_on=num_on, num=num))
        if change is not None:
            num_on += change.num_grow - change.num_drop
            found += 1
            if found == _FEW_CHANGES:
                break
    return found
