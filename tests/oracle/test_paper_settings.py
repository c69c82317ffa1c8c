"""What papers and their code fix in numbers: defaults, when masks change for the last time, where drop rates end."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.methods.method import Method, Progress

DEFAULTS: dict[str, dict[str, Any]] = {
    "gcg": {"gamma": 0.25},  # undoes a step of pruning by a fifth
    "rigl": {"allocation": "erk", "every": 100, "rate": 0.3, "end": 0.75},
    "set": {"allocation": "erk", "every": 100, "rate": 0.3, "end": 0.75, "anneal": "cosine"},  # in RigL's comparison
    "snfs": {"allocation": "equal", "rate": 0.5},
    "dsr": {"threshold": 1e-3, "end": 95 / 100},
    "gse": {"allocation": "er_matrix", "rate": 0.2, "end": 120 / 200, "gamma": 1.0},
    "granet": {"allocation": "erk", "start_density": 0.5, "rate": 0.5, "end": 110 / 160},
    "itop": {"allocation": "erk", "rate": 0.5, "criterion": "gradient"},
    "gmp": {"begin": 0.2, "end": 0.75},  # 20 and 75 of 98 thousand steps
    "imp": {"share": 0.2},
    "lth": {"share": 0.2},
    "imp_c": {"share": 0.2},
    "grasp": {"temperature": 200.0},
    "synflow": {"num_iterations": 100},
    "dpai": {"alpha": 0.99, "beta": 0.5},
    "edge_popup": {"constant": True},
}


@pytest.mark.parametrize(("name", "papers"), DEFAULTS.items())
def test_defaults_are_the_papers(name: str, papers: dict[str, Any]) -> None:
    ours = methods.defaults(name)
    assert {option: ours[option] for option in papers} == papers


def test_dpai_searches_as_far_as_its_script() -> None:
    ours = methods.defaults("dpai")
    assert ours["num_search_steps"] * ours["search_rate"] == pytest.approx(3000 * 0.005)


def changes(method: Method, num_steps: int) -> list[int]:
    """The steps at which masks may move."""
    num = 10**6
    found, num_on = [], round((method.start_density or 1.0) * num)
    for step in range(num_steps):
        change = method.schedule(Progress(round=0, step=step, num_on=num_on, num=num))
        if change is not None:
            found.append(step)
            num_on += change.num_grow - change.num_drop
    return found


@pytest.mark.parametrize(
    ("name", "end", "wanted"),
    [
        ("rigl", 0.5, range(0, 51, 5)),  # the step at the end is one of them, although nothing is dropped there
        ("set", 0.5, range(0, 51, 5)),
        ("gse", 0.5, range(5, 51, 5)),
        ("dsr", 0.6, [5, 10, 15, 20, 30, 40, 60]),  # intervals of 5, 10, 20 and 40 in the quarters
        ("snfs", None, range(5, 120, 5)),
        ("itop", None, range(5, 120, 5)),
    ],
)
def test_masks_move_up_to_the_end_and_not_beyond(name: str, end: float | None, wanted: range | list[int]) -> None:
    options = {} if end is None else {"end": end}
    assert changes(methods.create(name, every=5, num_steps=100, **options), 120) == list(wanted)


@pytest.mark.parametrize(
    ("name", "options", "every", "num_steps", "wanted"),
    [
        ("itop", {"criterion": "gradient"}, 4000, 250 * 390, 24),
        ("itop", {"criterion": "random"}, 1500, 250 * 390, 64),
        ("gse", {}, 1000, 200 * 390, 46),  # up to epoch 120
        ("granet", {}, 1000, 160 * 390, 63),  # one of them between two others, where pruning ends
        ("snfs", {}, 400, 100 * 400, 99),
        ("gmp", {}, 100, 10_000, 55),  # these are ours
    ],
)
def test_short_trainings_change_their_masks_as_often_as_the_published_ones(
    name: str, options: dict[str, str], every: int, num_steps: int, wanted: int
) -> None:
    def found(num_steps: int, **more: int) -> list[int]:
        return changes(methods.create(name, num_steps=num_steps, **options, **more), num_steps)

    assert len(found(num_steps)) == wanted
    assert len(found(num_steps // 4)) == pytest.approx(wanted, abs=1)
    assert len(found(2_240)) == pytest.approx(wanted, rel=0.13)  # intervals are whole numbers of steps
    assert every in {later - step for step, later in itertools.pairwise(found(2 * num_steps))}
    assert len(found(2_240, every=1000)) <= 3


@pytest.mark.parametrize("every", [0, -3, 2.5, True, "often", math.inf, math.nan])
def test_an_interval_is_a_whole_number_of_steps(every: Any) -> None:
    assert methods.create("gse", every=1e2) == methods.create("gse", every=100)
    for name in ("gse", "gmp", "granet", "snfs", "itop"):
        with pytest.raises(UserError, match=f"every {every!r} was given, a whole number of steps from 1 up is wanted"):
            methods.create(name, every=every)


@pytest.mark.parametrize(
    ("name", "rate_of", "end", "last"),
    [
        ("rigl", lambda update: update.rate, 0.5, 0.0),
        ("set", lambda update: update.rate, 0.5, 0.0),
        ("gse", lambda update: update.rate, 0.5, 0.0),
        ("snfs", lambda update: update.rate, None, 0.004),
        ("granet", lambda update: update.layers.rate, None, 0.004),
        ("itop", lambda update: update.layers.rate, None, 0.004),
    ],
)
def test_drop_rates_fall_along_a_cosine_and_stay(name: str, rate_of: Any, end: float | None, last: float) -> None:
    options = {} if end is None else {"end": end}
    rate = rate_of(methods.create(name, rate=0.4, num_steps=100, **options).update)
    length = 100 * (end or 1.0)
    for step in (0, 10, 25, 50, 99, 100, 1000):
        x = min(step / length, 1.0)
        assert rate(step) == pytest.approx(last + (0.4 - last) * (1 + math.cos(math.pi * x)) / 2)
