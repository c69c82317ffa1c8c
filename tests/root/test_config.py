"""Config fields: checks, strict loading from JSON, overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pathgrow.config import Option, check, from_json, option, override, to_json
from pathgrow.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = option(0.1, above=0, example="0.1")
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    size: int = option(1, at_least=1)
    share: float = option(0.5, at_least=0, below=1)
    length: int | Literal["auto"] | None = option(None, at_least=1)
    mode: Literal["on", "off"] = "on"
    loud: bool = False
    pair: tuple[float, float] = (0.0, 1.0)
    inner: Inner = field(default_factory=Inner)
    free: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1], "the value must be a JSON object, got [1]"),
        ({}, "name is missing"),
        ({"name": 1}, "name must be a string, got 1"),
        ({"nam": "a"}, "unknown key 'nam': did you mean name"),
        ({"name": "a", "size": 0}, "size must be >= 1, got 0"),
        ({"name": "a", "size": True}, "size must be an integer >= 1, got True"),
        ({"name": "a", "size": 1.5}, "size must be an integer >= 1, got 1.5"),
        ({"name": "a", "share": 1}, "share must be in [0, 1), got 1"),
        ({"name": "a", "share": math.nan}, "share must be a number in [0, 1), got nan"),
        ({"name": "a", "share": 10**400}, "share must be a number in [0, 1), got 1000"),
        ({"name": "a", "length": "long"}, "length must be an integer >= 1 or 'auto', got 'long'"),
        ({"name": "a", "mode": "of"}, "mode must be one of 'on', 'off', got 'of'"),
        ({"name": "a", "loud": 1}, "loud must be true or false, got 1"),
        ({"name": "a", "pair": [1]}, "pair must be a list of 2 values, got [1]"),
        ({"name": "a", "pair": [1, "b"]}, "pair[1] must be a number, got 'b'"),
        ({"name": "a", "inner": 3}, "inner must be a JSON object, got 3"),
        ({"name": "a", "inner": {"rate": -1}}, "inner.rate must be > 0, got -1 (e.g. 0.1)"),
        ({"name": "a", "inner": {"rat": 1}}, "unknown inner key 'rat': did you mean rate"),
        ({"name": "a", "inner": {"steps": [1, None]}}, "inner.steps[1] must be an integer, got None"),
        ({"name": "a", "free": {"a": [1.0, math.inf]}}, "free.a[1] must be finite, got inf"),
        ({"name": "a", "free": {1: 2}}, "free must be a JSON object, got {1: 2}"),
    ],
)
def test_wrong_values_are_refused_with_their_path(values: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        from_json(Outer, values)
    assert str(refused.value).startswith(message)


def test_a_config_survives_json() -> None:
    config = Outer(name="a", length="auto", inner=Inner(rate=2.0, steps=(1, 2)), free={"widths": [8], "none": None})
    assert from_json(Outer, to_json(config)) == config


def test_numbers_and_lists_become_the_declared_types() -> None:
    config = from_json(Outer, {"name": "a", "share": 0, "inner": {"steps": [1]}, "free": {"widths": (8, 8)}})
    assert isinstance(config.share, float)
    assert (config.inner.steps, config.free) == ((1,), {"widths": [8, 8]})


def test_an_override_keeps_what_it_does_not_name() -> None:
    config = Outer(name="a", size=3, inner=Inner(rate=2.0, steps=(1,)))
    changed = override(config, {"loud": True, "inner": {"rate": 1}})
    assert changed == Outer(name="a", size=3, loud=True, inner=Inner(rate=1.0, steps=(1,)))
    assert override(config, {"inner": Inner()}).inner == Inner()
    for values, message in (({"inner": {"rate": 0}}, "inner.rate must be > 0"), ({"inner": 1}, "inner must be a JSON")):
        with pytest.raises(UserError, match=message):
            override(config, values)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"above": 0}, "> 0"),
        ({"at_least": 1}, ">= 1"),
        ({"at_most": 1}, "<= 1"),
        ({"below": 1}, "< 1"),
        ({"at_least": 0, "below": 1}, "in [0, 1)"),
        ({"above": 0, "at_most": 1}, "in (0, 1]"),
        ({}, ""),
    ],
)
def test_bounds_in_words(bounds: dict[str, float], words: str) -> None:
    assert Option(**bounds).bounds == words
