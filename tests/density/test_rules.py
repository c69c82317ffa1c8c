"""Rules by name, and the range of their options."""

from __future__ import annotations

import math

import pytest

from pathgrow.density import rules
from pathgrow.density.probe import ProbeRule
from pathgrow.density.types import DEFAULT_DELTA
from pathgrow.errors import UserError


def test_names_and_options() -> None:
    assert rules.names() == ["probe", "exponential", "trajectory"]
    for name in rules.names():
        assert rules.create(name, delta=0.02).name == name
        assert rules.description(name).endswith(".")
    assert rules.create("probe", max_probes=6) == ProbeRule(delta=DEFAULT_DELTA, max_probes=6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("prob", {}, "unknown density rule 'prob': did you mean probe"),
        (
            "trajectory",
            {"max_points": 3},
            "'trajectory' has no option 'max_points', did you mean min_points? (options: ",
        ),
        ("probe", {"delta": 0.0}, "delta must be > 0"),
        ("trajectory", {"delta": math.nan}, "delta must be > 0"),
        ("exponential", {"delta": math.inf}, "delta must be > 0 and finite"),
        ("probe", {"max_probes": 3}, "max_probes must be None or > 3, got 3"),
        ("probe", {"max_cost": 0.5}, "max_cost must be None or >= 1 dense training, got 0.5"),
        ("probe", {"max_cost": math.nan}, "max_cost must be"),
        ("probe", {"spacing": 1.0}, "spacing must be a ratio > 1, got 1.0"),
        ("probe", {"max_width": 0.9}, "max_width must be a ratio > 1"),
        ("probe", {"max_gain_width": 1.0}, "max_gain_width must be a ratio > 1"),
        ("exponential", {"level": 1.0}, "level must be in [0, 1), got 1.0"),
        ("exponential", {"min_points": 3}, "min_points must be >= 5, got 3"),
        ("trajectory", {"beyond": 0.5}, "beyond must be >= 1, got 0.5"),
        ("trajectory", {"min_points": 2}, "min_points must be >= 5, got 2"),
    ],
)
def test_invalid_names_and_options_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        rules.create(name, **options)
    assert message in str(caught.value)
