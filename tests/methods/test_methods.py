"""The table of methods: creation by name, options and their errors."""

from __future__ import annotations

import inspect
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.methods.allocation import DISTRIBUTIONS
from pathgrow.methods.method import GrowEachRound, Method
from pathgrow.methods.picks import at_random

NAN, INF = float("nan"), float("inf")
GROWTH = ("gcg", "gradient_growth", "pathgrow_d", "random_growth", "trace_growth")


def custom(*, density: float = 0.5) -> Method:
    return Method(name="custom", start=at_random, start_density=density)


def test_every_name_gives_an_equal_value_each_time() -> None:
    for name in methods.names():
        method = methods.create(name)
        assert method == methods.create(name)
        assert method.name == name
        assert methods.entry(name).paper


def test_every_method_has_one_row_among_the_papers() -> None:
    page = Path(__file__).parents[2] / "docs" / "papers.md"
    rows = re.findall(r"^\| `(\w+)` \|", page.read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(methods.names())


@pytest.mark.parametrize("name", GROWTH)
def test_growth_methods_take_the_same_options(name: str) -> None:
    method = methods.create(name, gamma=0.5, start_density=0.1, target_density=0.4)
    assert method == methods.create(name, gamma=0.5, start_density=0.1, target_density=0.4)
    assert method != methods.create(name)
    assert method.schedule == GrowEachRound(gamma=0.5, target_density=0.4)


def test_an_integer_in_scientific_notation() -> None:
    assert methods.create("grasp", num_batches=2e0) == methods.create("grasp", num_batches=2)


def test_a_custom_method_has_an_entry_too() -> None:
    assert methods.entry("pathgrow.methods.rigl:rigl").make(density=0.3).start_density == 0.3


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("gcq", {}, "unknown method 'gcq': did you mean gcg"),
    ("gcg", {"gama": 0.5}, "method 'gcg' has no option 'gama', did you mean gamma? (options: gamma, start_density"),
    ("rigl", {"updat_interval": 3}, "did you mean update_interval? (options: allocation, density, drop_fraction,"),
    ("snip", {"gamma": 3}, "method 'snip' has no option 'gamma' (options: density)"),
    ("dense", {"density": 3}, "method 'dense' has no option 'density'; it takes no options"),
    ("rigl", {"allocation": 1}, "option allocation of method 'rigl' must be a string, got 1 (e.g. erk)"),
    ("rigl", {"density": None}, "option density of method 'rigl' must be a number, got None"),  # not automatic here
    ("rigl", {"update_interval": 1.5}, "update_interval of method 'rigl' must be an integer, got 1.5 (e.g. 100)"),
    ("rigl", {"num_steps": INF}, "num_steps of method 'rigl' must be an integer, got inf"),
    ("rigl", {"drop_fraction": 0.3, "update_interval": "a"}, "update_interval of method 'rigl' must be an integer"),
    ("rigl", {"update_interval": 3, "drop_fraction": "a"}, "drop_fraction of method 'rigl' must be a number, got 'a'"),
    ("rigl", {"density": 2.0}, "density must be in (0, 1], got 2.0"),
    ("erk", {"density": True}, "option density of method 'erk' must be a number, got True"),
    ("set", {"anneal": 0}, "anneal of method 'set' must be a string"),
    ("set", {"anneal": "linear"}, "unknown anneal 'linear'"),
    ("set", {"by_sign": 1}, "by_sign of method 'set' must be true or false, got 1"),
    ("itop", {"criterion": None}, "criterion of method 'itop' must be a string"),
    ("itop", {"update_interval": NAN}, "update_interval must be an integer >= 1, got nan"),
    ("itop", {"update_interval": "a", "drop_fraction": 0.5}, "update_interval must be an integer >= 1, got 'a'"),
    ("gse", {"guide": 2}, "guide of method 'gse' must be a string"),
    ("gse", {"gamma": INF}, "gamma must be a number of candidates per active weight > 0, got inf"),
    ("gse", {"gamma": [1, 2]}, "gamma of method 'gse' must be a number, got [1, 2]"),
    ("dsr", {"stop_fraction": NAN}, "stop_fraction must be > 0, got nan"),
    ("dsr", {"stop_fraction": "late"}, "stop_fraction of method 'dsr' must be a number, got 'late'"),
    ("imp", {"rewind_step": 0.5}, "rewind_step must be an integer >= 0, got 0.5"),
    ("grasp", {"num_batches": 1.5}, "num_batches of method 'grasp' must be an integer"),
    ("synflow", {"num_iterations": NAN}, "num_iterations of method 'synflow' must be an integer"),
    ("str", {"s_init": NAN}, "s_init must be finite, got nan"),
    ("str", {"s_init": "low"}, "cannot create method 'str' with s_init='low' ("),
    ("str", {"s_decay": INF}, "s_decay must be >= 0, got inf"),
    ("gcg", {"start_density": "a"}, "start_density must be in (0, 1], got 'a'"),
    ("gcg", {"start_density": 0.3, "target_density": 0.2}, "start_density must be <= target_density, got 0.3 > 0.2"),
    *[
        ("gcg", {option: value}, f"{option} must be in (0, 1], got {value}")
        for option in ("start_density", "target_density")
        for value in (0.0, -0.1, 1.1, NAN)
    ],
    *[("random_growth", {"gamma": gamma}, f"gamma must be > 0, got {gamma}") for gamma in (0.0, -1.0, INF, NAN)],
    ("custom_methods:wrong", {}, "'custom_methods:wrong' must return a pathgrow.Method, got int"),
    ("custom_methods:absent", {}, "module 'custom_methods' has no function 'absent'"),
    ("custom_methods:number", {}, "module 'custom_methods' has no function 'number'"),
    ("custom_methods:required", {}, "option 'density' of method 'custom_methods:required' has no default"),
    ("no_such_package.at_all:custom", {}, "cannot be imported"),
    ("a-b:custom", {}, "does not name a module; expected 'package.module:function'"),
    ("custom_methods:custom", {"gamma": 0.1}, "has no option 'gamma' (options: density)"),
]


@pytest.fixture(autouse=True)
def _custom_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("custom_methods")
    module.custom, module.wrong, module.number, module.required = custom, lambda: 3, 5, lambda *, density: None
    monkeypatch.setitem(sys.modules, "custom_methods", module)


@pytest.mark.parametrize(("name", "options", "message"), ERRORS)
def test_errors(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        methods.create(name, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1\ndef f(:\n", "(invalid syntax in {file}, line 2)"),
        ("x = 1\n\nx / 0\n", "(ZeroDivisionError: division by zero in {file}, line 3)"),
        ("raise SystemExit\n", "(SystemExit in {file}, line 1)"),
        ("from pathgrow import nothing_like_it\n", "in {file}, line 1)"),
        ("import no_such_package\n", "(No module named 'no_such_package')"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_sentence(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broken_methods.py"
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        methods.create("broken_methods:custom")
    assert str(caught.value).startswith("method 'broken_methods:custom' cannot be imported (")
    assert str(caught.value).endswith(reason.format(file=file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rigl", "random"])
def test_docstrings_name_every_allocation(name: str) -> None:
    about = inspect.getdoc(methods.entry(name).make) or ""
    assert all(f'"{distribution}"' in about for distribution in DISTRIBUTIONS)


def test_a_custom_method() -> None:
    assert methods.create("custom_methods:custom", density=0.25).start_density == 0.25
    for function in (methods.entry, methods.defaults):
        with pytest.raises(UserError, match="unknown method 'gcq': did you mean gcg"):
            function("gcq")


def test_fixed_masks_must_be_masks() -> None:
    with pytest.raises(UserError, match=r"masks must be a pathgrow.Masks, got None"):
        methods.fixed(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gts", {"num_growths": 2**31}),
        ("acdc", {"phase_fraction": math.inf}),
        ("st3", {"num_steps": 1e30}),
        ("grasp", {"temperature": 2**64}),
        ("synflow", {"num_iterations": 10**6}),
        ("dpai", {"num_search_steps": 10**6}),
        ("str", {"s_init": 1e308}),
        ("imp", {"prune_fraction": 1e-9}),
        ("gcg", {"gamma": 1e308}),
        ("gcg", {"gamma": 1e-9}),
    ],
)
def test_options_that_would_overflow_or_never_end_are_refused(name: str, options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))}.* must "):
        methods.create(name, **options)
