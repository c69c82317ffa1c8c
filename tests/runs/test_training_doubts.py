"""What is doubtful about a training: told where it is, and with advice that removes the doubt when it is followed."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathgrow import methods
from pathgrow.methods.method import MaskUpdate, Method, Progress
from pathgrow.methods.picks import at_random
from pathgrow.runs.bench import Bench, moves
from pathgrow.runs.doubts import doubt_about_changes, doubt_about_rewinding, doubts
from tests.support import trainings

STEPS = 898 // 64
FEW = 5

bench = functools.cache(trainings.bench)
"""Data and network of a bench are read and never written here."""


def with_options(method: str, **options: Any) -> Bench:
    """The bench of a method, with its own defaults but for some options."""
    made = bench(method)
    left = {"density", "target_density", "num_steps"}
    own = {name: value for name, value in methods.defaults(method).items() if name not in left}
    config = dataclasses.replace(made.config, method_options={**own, **options})
    return dataclasses.replace(made, config=config)


def num_changes(bench: Bench, epochs: int) -> int:
    """Of the masks, counted step by step."""
    method, num = bench.make_method(epochs), bench.scope.num
    num_on, found = round((method.start_density or 1.0) * num), 0
    for step in range(epochs * STEPS):
        change = method.schedule(Progress(round=0, step=step, num_on=num_on, num=num))
        if change is not None and (method.update is not None or change.num_drop or change.num_grow):
            found += 1
            num_on += change.num_grow - change.num_drop
    return found


def followed(bench: Bench, epochs: int, advice: str) -> tuple[Bench, int]:
    """The training that somebody has who does as told."""
    options = dict(bench.config.method_options)
    if found := re.fullmatch(r"give --epochs (\d+)", advice):
        return bench, int(found[1])
    if found := re.fullmatch(r"give --method-option (\w+)=(\d+)", advice):
        options[found[1]] = int(found[2])
    else:
        found = re.fullmatch(r"leave out --method-option (\w+)=(\d+)", advice)
        assert found is not None, advice
        assert options.pop(found[1]) == int(found[2])
    config = dataclasses.replace(bench.config, method_options=options)
    return dataclasses.replace(bench, config=config), epochs


MOVING = [name for name in methods.names() if moves(methods.create(name))]


@settings(max_examples=300, deadline=None)
@given(
    method=st.sampled_from(MOVING),
    epochs=st.integers(1, 60),
    every=st.none() | st.sampled_from([1, 3, 20, 21, 100, 137, 1000, 10**6]),
    num_steps=st.none() | st.sampled_from([2, 3, 50, 10_000]),
    end=st.none() | st.sampled_from([0.01, 0.3, 0.95]),
)
def test_advice_that_is_followed_removes_the_doubt(
    method: str, epochs: int, every: int | None, num_steps: int | None, end: float | None
) -> None:
    given = {"update_interval": every, "num_steps": num_steps, "stop_fraction": end}
    known = methods.defaults(method).keys() - (
        {"stop_fraction"} if method == "gmp" else set()
    )  # which has a `start_fraction` before it
    options = {name: value for name, value in given.items() if value is not None and name in known}
    made = with_options(method, **options)
    found = num_changes(made, epochs)
    told = doubt_about_changes(made, epochs)
    assert (told is None) is (found >= FEW)
    if told is None:
        return
    times = f"{found} time{'' if found == 1 else 's'}"
    start = f"method {method!r} will change its masks {times} in these {epochs * STEPS} steps"
    assert told.startswith(start)
    rest = told.removeprefix(start)
    assert not rest or rest.startswith(": ")
    for advice in rest.removeprefix(": ").split(", or ") if rest else []:
        mended, length = followed(made, epochs, advice)
        assert num_changes(mended, length) >= FEW
        assert doubt_about_changes(mended, length) is None
        if length != epochs:
            assert num_changes(mended, length - 1) < FEW or length - 1 == epochs, "no longer than it takes"


@pytest.mark.parametrize(
    ("method", "options", "epochs", "advice"),
    [
        ("dsr", {}, 1, ["give --epochs 86"]),
        ("rigl", {"update_interval": 20}, 1, ["give --epochs 8"]),
        ("rigl", {"num_steps": 3}, 80, ["leave out --method-option num_steps=3"]),
        ("rigl", {}, 20, ["give --method-option update_interval=20", "give --epochs 39"]),
        ("rigl", {"stop_fraction": 0.001}, 20, []),
        ("gmp", {"update_interval": 10**6}, 20, ["give --method-option update_interval=20"]),
    ],
)
def test_advice_is_given_where_there_is_any(
    method: str, options: dict[str, Any], epochs: int, advice: list[str]
) -> None:
    told = doubt_about_changes(with_options(method, **options), epochs)
    assert told is not None
    assert told.partition(": ")[2] == ", or ".join(advice)


def test_where_a_budget_decides_on_the_length_nobody_is_told_to_change_it() -> None:
    made = with_options("rigl", update_interval=100)
    matched = dataclasses.replace(made, config=dataclasses.replace(made.config, match="flops"))
    told = doubt_about_changes(matched, 20)
    assert told is not None
    assert told.endswith("280 steps: give --method-option update_interval=20")


def once(*, density: float = 0.25, num_steps: int = 100) -> Method:
    """Half-way through the training, one weight makes room for another."""

    def half_way(progress: Progress) -> MaskUpdate | None:
        return MaskUpdate(num_drop=1, num_grow=1) if progress.step == num_steps // 2 else None

    return Method(
        name="once", start=at_random, start_density=density, drop=at_random, grow=at_random, schedule=half_way,
        clock="step",
    )  # fmt: skip


def test_a_method_that_changes_once_by_design_gets_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("changing_once")
    module.once = once  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "changing_once", module)
    for epochs in (1, 30):
        told = doubt_about_changes(trainings.bench("changing_once:once"), epochs)
        assert told == f"method 'once' will change its masks 1 time in these {epochs * STEPS} steps"


@pytest.mark.parametrize("method", ["gmp", "granet", "snfs", "gse", "itop", "str", "random", "imp", "gcg"])
def test_methods_that_follow_the_length_of_the_training_or_change_nothing_within_it_need_no_warning(
    method: str,
) -> None:
    options = {"start_density": 0.1} if method == "gcg" else {}
    for epochs in (2, 3, 40):
        assert doubts(with_options(method, **options), epochs) == []


@given(epochs=st.integers(1, 100), rewind_step=st.integers(0, 2000))
@settings(deadline=None)
def test_levels_that_lose_more_than_half_of_their_steps_are_told(epochs: int, rewind_step: int) -> None:
    made, num_steps = with_options("imp", rewind_step=rewind_step), epochs * STEPS
    told = doubt_about_rewinding(made, epochs)
    if rewind_step >= num_steps or 2 * rewind_step <= num_steps:  # the first are refused
        assert told is None
        return
    left = num_steps - rewind_step
    assert told is not None
    assert f"back to step {rewind_step} of {num_steps}, so that a level of {epochs} epoch" in told
    assert f" trains {left} step" in told
    mended, _ = followed(made, epochs, told.rpartition(": ")[2])
    assert doubts(mended, epochs) == []


def test_where_a_budget_is_matched_longer_levels_may_cost_too_much_to_be_advised() -> None:
    made = with_options("imp", rewind_step=10)
    matched = dataclasses.replace(made, config=dataclasses.replace(made.config, match="parameters"))
    told = doubt_about_rewinding(matched, 1)
    assert told == "method 'imp' sets weights back to step 10 of 14, so that a level of 1 epoch trains 4 steps"
