"""What papers and their code fix in numbers: defaults, the last mask update, the final drop fractions."""

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
    "rigl": {"allocation": "erk", "update_interval": 100, "drop_fraction": 0.3, "stop_fraction": 0.75},
    "set": {"allocation": "erk", "drop_fraction": 0.3, "stop_fraction": 0.75, "anneal": "cosine"},  # RigL's comparison
    "snfs": {"allocation": "equal", "drop_fraction": 0.5},
    "dsr": {"threshold": 1e-3, "stop_fraction": 95 / 100},
    "gse": {"allocation": "er_matrix", "drop_fraction": 0.2, "stop_fraction": 120 / 200, "gamma": 1.0},
    "granet": {"allocation": "erk", "start_density": 0.5, "drop_fraction": 0.5, "stop_fraction": 110 / 160},
    "itop": {"allocation": "erk", "drop_fraction": 0.5, "criterion": "gradient"},
    "gmp": {"start_fraction": 0.2, "stop_fraction": 0.75},  # 20 and 75 of 98 thousand steps
    "acdc": {"warmup_fraction": 10 / 100, "phase_fraction": 5 / 100, "final_fraction": 15 / 100},  # ImageNet
    "st3": {"start_fraction": 5 / 160, "stop_fraction": 80 / 160},
    "chts": {"allocation": "equal", "drop_fraction": 0.1, "stop_fraction": 0.75},
    "mest": {"allocation": "equal", "drop_fraction": 0.2, "extra_density": 0.05, "stop_fraction": 120 / 160},
    "imp": {"prune_fraction": 0.2},
    "lth": {"prune_fraction": 0.2},
    "imp_c": {"prune_fraction": 0.2},
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
    assert ours["num_search_steps"] * ours["search_lr"] == pytest.approx(3000 * 0.005)


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
    ("name", "stop_fraction", "expected"),
    [
        ("rigl", 0.5, range(0, 51, 5)),  # the step at the end is one of them, although nothing is dropped there
        ("set", 0.5, range(0, 51, 5)),
        ("gse", 0.5, range(5, 51, 5)),
        ("dsr", 0.6, [5, 10, 15, 20, 30, 40, 60]),  # intervals of 5, 10, 20 and 40 in the quarters
        ("snfs", None, range(5, 120, 5)),
        ("itop", None, range(5, 120, 5)),
    ],
)
def test_masks_move_up_to_the_end_and_not_beyond(
    name: str, stop_fraction: float | None, expected: range | list[int]
) -> None:
    options = {} if stop_fraction is None else {"stop_fraction": stop_fraction}
    assert changes(methods.create(name, update_interval=5, num_steps=100, **options), 120) == list(expected)


@pytest.mark.parametrize(
    ("name", "options", "update_interval", "num_steps", "expected"),
    [
        ("itop", {"criterion": "gradient"}, 4000, 250 * 390, 24),
        ("itop", {"criterion": "random"}, 1500, 250 * 390, 64),
        ("gse", {}, 1000, 200 * 390, 46),  # up to epoch 120
        ("granet", {}, 1000, 160 * 390, 63),  # one of them between two others, where pruning ends
        ("snfs", {}, 400, 100 * 400, 99),
        ("chts", {}, 100, 10_000, 75),
        ("mest", {}, 5 * 782, 160 * 782, 24),  # every 5 epochs up to 120
        ("gmp", {}, 100, 10_000, 55),  # these are ours
    ],
)
def test_short_trainings_change_their_masks_as_often_as_the_published_ones(
    name: str, options: dict[str, str], update_interval: int, num_steps: int, expected: int
) -> None:
    def found(num_steps: int, **more: int) -> list[int]:
        return changes(methods.create(name, num_steps=num_steps, **options, **more), num_steps)

    assert len(found(num_steps)) == expected
    assert len(found(num_steps // 4)) == pytest.approx(expected, abs=1)
    assert len(found(2_240)) == pytest.approx(expected, rel=0.13)  # intervals are whole numbers of steps
    assert update_interval in {later - step for step, later in itertools.pairwise(found(2 * num_steps))}
    assert len(found(2_240, update_interval=1000)) <= 3


@pytest.mark.parametrize("update_interval", [0, -3, 2.5, True, "often", math.inf, math.nan])
def test_an_interval_is_a_whole_number_of_steps(update_interval: Any) -> None:
    assert methods.create("gse", update_interval=1e2) == methods.create("gse", update_interval=100)
    for name in ("gse", "gmp", "granet", "snfs", "itop"):
        with pytest.raises(UserError, match=f"update_interval must be an integer >= 1, got {update_interval!r}"):
            methods.create(name, update_interval=update_interval)


@pytest.mark.parametrize(
    ("name", "fraction_of", "stop_fraction", "last"),
    [
        ("rigl", lambda update: update.drop_fraction, 0.5, 0.0),
        ("set", lambda update: update.drop_fraction, 0.5, 0.0),
        ("gse", lambda update: update.drop_fraction, 0.5, 0.0),
        ("snfs", lambda update: update.drop_fraction, None, 0.004),
        ("granet", lambda update: update.layers.drop_fraction, None, 0.004),
        ("itop", lambda update: update.layers.drop_fraction, None, 0.004),
    ],
)
def test_drop_fractions_fall_along_a_cosine_and_stay(
    name: str, fraction_of: Any, stop_fraction: float | None, last: float
) -> None:
    options = {} if stop_fraction is None else {"stop_fraction": stop_fraction}
    fraction = fraction_of(methods.create(name, drop_fraction=0.4, num_steps=100, **options).update)
    length = 100 * (stop_fraction or 1.0)
    for step in (0, 10, 25, 50, 99, 100, 1000):
        x = min(step / length, 1.0)
        assert fraction(step) == pytest.approx(last + (0.4 - last) * (1 + math.cos(math.pi * x)) / 2)
