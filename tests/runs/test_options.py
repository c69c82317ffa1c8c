"""Options of a discovery."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pathgrow import discover, methods
from pathgrow.density.probe import ProbeRule
from pathgrow.errors import UserError
from pathgrow.methods.method import GrowEachRound
from pathgrow.runs.config import DiscoverConfig
from pathgrow.runs.options import DiscoverOptions
from pathgrow.runs.records import Record


@pytest.mark.parametrize(
    ("budget", "seed", "rough", "probe"),
    [(1, 1, 1, 1), (4, 1, 1, 1), (10, 1, 1, 3), (40, 5, 1, 12), (100, 12, 1, 16), (160, 20, 1, 16), (440, 55, 3, 44)],
)
def test_lengths_follow_from_the_budget(budget: int, seed: int, rough: int, probe: int) -> None:
    """An eighth; a 160th, to the nearest; a tenth, but at least 16 epochs, or 0.3 of the budget if that is less."""
    options = DiscoverOptions(budget=budget)
    assert (options.num_seed_epochs, options.num_rough_epochs, options.num_probe_epochs) == (seed, rough, probe)
    assert options.num_final_epochs([]) == budget
    for whole in (
        DiscoverOptions(budget=budget, reference=0.9),
        DiscoverOptions(budget=budget, final="grown", probe_fraction=0.1),
    ):
        assert whole.num_probe_epochs == budget
    assert DiscoverOptions(budget=budget, probe_fraction=0.47).num_probe_epochs == max(1, round(0.47 * budget))


def test_options_reach_the_rule_and_the_method() -> None:
    options = DiscoverOptions(delta=0.03, start_density=0.07, gamma=0.5)
    assert options.density_rule() == ProbeRule(delta=0.03)
    method = options.growth_method()
    assert (method.start_density, method.target_density) == (0.07, None)
    assert method.schedule == GrowEachRound(gamma=0.5)
    assert DiscoverOptions(method=methods.create("gcg", start_density=0.2)).growth_method().start_density == 0.2
    assert DiscoverOptions(rule=ProbeRule(delta=0.5), delta=0.03).density_rule() == ProbeRule(delta=0.5)


def test_numbers_are_written_and_functions_are_not() -> None:
    def total_epochs(records: Sequence[Record]) -> int:
        return sum(record.num_epochs for record in records)

    default, number, function = (DiscoverOptions(final_epochs=given).as_dict() for given in (None, 30, total_epochs))
    assert default["final_epochs"] is None
    assert number == {**default, "final_epochs": 30}
    assert function == {name: value for name, value in default.items() if name != "final_epochs"}
    json.dumps([default, number, function])


def test_a_preset_replaces_defaults_only() -> None:
    paper = DiscoverOptions.checked({"preset": "paper", "budget": 40})
    assert (paper.finish, paper.rule, paper.select_by, paper.final) == ("static", "exponential", "gain", "grown")
    assert (paper.num_seed_epochs, paper.num_rough_epochs, paper.growth_method().schedule.gamma) == (5, 5, 0.25)  # type: ignore[attr-defined]
    assert paper.num_final_epochs([], grown_epochs=70) == 40 + 70
    longer = DiscoverOptions.checked({"preset": "paper", "rough": 10, "final_epochs": 30})
    assert (longer.num_rough_epochs, longer.num_final_epochs([], 70), longer.rule) == (10, 30, "exponential")
    with pytest.raises(UserError, match="preset must be 'paper', got 'article'"):
        DiscoverOptions.checked({"preset": "article"})
    config = DiscoverConfig.from_dict({"preset": "paper", "gamma": 0.5})
    assert (config.finish, config.gamma, config.rough) == ("static", 0.5, 5)
    assert DiscoverConfig.from_dict(config.as_dict()) == config


def test_an_extensive_training_of_fresh_weights_has_the_budget() -> None:
    assert DiscoverOptions(finish="static", final_epochs="extensive", budget=30).num_final_epochs([], 70) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"finish": "set", "final": "grown"}, "final must be 'fresh' with finish='set'"),
        ({"finish": ["gts", "set"], "max_density": 0.5}, "max_density has no effect with finish='set'"),
        ({"finish": ["gts", "set"], "start": "pretrained"}, "but finish='set' starts from a sparse network"),
        ({"finish": "gts", "rule": "probe", "rough": 3}, "rough has no effect on a network that is pruned"),
        ({"finish": "static", "max_cost": 1}, "max_cost has no effect with finish='static', whose rule decides"),
        ({"finish": ["set", "gmp"], "max_cost": 1}, "max_cost has no effect with finish='set'"),
        ({"preset": "paper", "max_cost": 1}, "max_cost has no effect with finish='static'"),
        ({"reference": 97.5, "num_val": 100}, r"reference must be in \[0, 1\], since num_val says .*, got 97.5"),
        ({"reference": -0.1, "num_val": 100, "mode": "min"}, r"reference must be in \[0, 1\]"),
        ({"epochs": 20}, "unknown option 'epochs': did you mean budget"),
        ({"finish": 3}, "finish must be a name or a list of names, got 3"),
    ],
)
def test_options_that_do_not_fit_the_finisher(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DiscoverOptions.checked(options)


def test_a_reference_in_percent_is_fine_without_the_number_of_examples() -> None:
    for given in ({"reference": 97.5}, {"reference": 1, "num_val": 100}, {"reference": "dense", "num_val": 100}):
        DiscoverOptions.checked(given)


def test_the_command_refuses_a_cost_limit_without_effect() -> None:
    with pytest.raises(UserError, match="max_cost has no effect with finish='set'"):
        DiscoverConfig.from_dict({"finish": "set", "max_cost": 1.0})


def test_several_finishers_use_the_options_of_each() -> None:
    options = DiscoverOptions.checked({"finish": ["gts", "set"], "rough": 3, "max_cost": 0.5})
    assert (options.prunes, options.probes, options.finishers) == (True, True, ("gts", "set"))


def test_a_store_does_not_hide_that_the_model_is_none(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"^model must be a torch.nn.Module, got 2$"):
        discover(
            2, SGD(model.parameters(), lr=0.1), lambda *_: None, lambda _: 0.5, torch.zeros(1, 2), budget=2,
            store=tmp_path / "run",
        )  # type: ignore[arg-type]  # fmt: skip
    assert list(tmp_path.iterdir()) == []
