"""A resumed discovery notices that the user's functions are not those that trained the stored stages."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pathgrow
from pathgrow.checkpoint import MemoryStore
from pathgrow.runs.fingerprint import fingerprint


def changed(first: Any, second: Any) -> set[str]:
    before, now = fingerprint(first), fingerprint(second)
    return {name for name in {*before, *now} if before.get(name) != now.get(name)}


def defined(source: str, **values: Any) -> Callable[..., Any]:
    """The function `fit` of a script, as every run of the script defines it again."""
    space = {"__name__": "script", **values}
    exec(textwrap.dedent(source), space)
    return space["fit"]  # type: ignore[no-any-return]


SCRIPT = """
calls = 0
def helper(x):
    return {}
def fit(model, optimizer, epochs):
    global calls
    calls = calls + 1
    return [helper(rate) for _ in range(epochs)]
"""


def test_the_same_script_has_the_same_fingerprint_wherever_it_stands() -> None:
    first = defined(SCRIPT.format("x + 1"), rate=0.1)
    first(None, None, 3)  # counts
    assert changed(first, defined("\n\n# a comment" + SCRIPT.format("x + 1"), rate=0.1)) == set()


@pytest.mark.parametrize(
    ("source", "values", "names"),
    [
        (SCRIPT.format("x + 1"), {"rate": 0.2}, {"rate"}),
        (SCRIPT.format("x + 2"), {"rate": 0.1}, {"helper.code"}),
        (SCRIPT.format("x + 1").replace("epochs)]", "2 * epochs)]"), {"rate": 0.1}, {"code"}),
    ],
    ids=["a setting that only an inner function reads", "a helper", "the function"],
)
def test_a_change_is_named(source: str, values: dict[str, Any], names: set[str]) -> None:
    assert changed(defined(SCRIPT.format("x + 1"), rate=0.1), defined(source, **values)) == names


def test_values_of_many_kinds_are_compared() -> None:
    source = "def fit(model, optimizer, epochs): return value"
    data = torch.arange(5000.0)
    other = data.clone()
    other[::50] += 1

    def loader(num: int, batch: int = 10) -> DataLoader[Any]:
        return DataLoader(TensorDataset(data[:num]), batch_size=batch)

    differing: list[tuple[Any, Any]] = [
        (data, other),
        (data, data[:4000]),
        (data.numpy(), other.numpy()),
        (loader(100), loader(90)),
        (loader(100), loader(100, batch=20)),
        ({"lr": 0.1}, {"lr": 0.2}),
        (Namespace(lr=0.1), Namespace(lr=0.2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
    ]
    for first, second in differing:
        assert changed(defined(source, value=first), defined(source, value=second)), (first, second)
        assert not changed(defined(source, value=first), defined(source, value=first))
    history: dict[str, list[float]] = {"loss": []}
    recording = defined(source, value=history)
    before = fingerprint(recording)
    history["loss"].append(1.0)
    assert fingerprint(recording) == before, "what a training records is not a setting"


def test_methods_partials_and_callable_objects() -> None:
    class Training:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def fit(self, model: object, optimizer: object, epochs: int) -> float:
            return self.rate

        __call__ = fit

    assert changed(Training(0.1).fit, Training(0.2).fit) == {"self.rate"}
    assert changed(Training(0.1), Training(0.2)) == {"self.rate"}
    first, second = (functools.partial(defined(SCRIPT.format("x"), rate=0.1), scale=scale) for scale in (1, 2))
    assert changed(first, second) == {"scale"}


def test_constants_without_order_are_the_same_in_every_process() -> None:
    script = (
        "from pathgrow.runs.fingerprint import fingerprint\n"
        "def fit(model, optimizer, epochs): return epochs in {'a', 'b', 'c', 'd', 'e'}\n"
        "print(fingerprint(fit))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in "1234"
    }
    assert len(found) == 1


INPUTS = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()


@pytest.mark.parametrize("max_cost", [1, None], ids=["rounds", "dense first"])
def test_a_resumed_discovery_warns_of_a_changed_function_and_of_other_scores(max_cost: float | None) -> None:
    store = MemoryStore()

    def discover(rate: float, data: list[tuple[Tensor, Tensor]]) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

        def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
            for _ in range(2 * epochs):
                optimizer.zero_grad()
                (rate * nn.functional.cross_entropy(model(INPUTS), LABELS)).backward()
                optimizer.step()

        def evaluate(model: nn.Module) -> float:
            [(inputs, labels)] = data  # as from a file: what a list holds is not compared
            with torch.no_grad():
                return float((model(inputs).argmax(1) == labels).double().mean())

        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pathgrow.discover(
                model,
                optimizer,
                fit,
                evaluate,
                INPUTS[:1],
                budget=8,
                delta=0.05,
                max_cost=max_cost,
                store=store,
                progress=False,
            )
        return [str(warning.message) for warning in caught if "is too short to be divided" not in str(warning.message)]

    assert discover(1.0, [(INPUTS, LABELS)]) == []
    assert discover(1.0, [(INPUTS, LABELS)]) == []
    [change] = discover(2.0, [(INPUTS, LABELS)])
    assert change.startswith("fit has changed since the stored stages were trained (rate: 1.0 before, 2.0 now)")
    [other] = discover(1.0, [(INPUTS, 1 - LABELS)])
    assert "for a stored network that it gave" in other
