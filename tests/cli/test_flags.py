"""Flags: each becomes a value of the config, and the set of flags changes on purpose only."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pathgrow.cli.main import COMMANDS, parse
from pathgrow.graph.scope import PRESETS
from pathgrow.registry import parse_pair
from pathgrow.runs.config import EVERYTHING, DiscoverConfig, TrainConfig
from pathgrow.runs.search_options import GROWTH_ONLY, PROBES_ONLY
from pathgrow.trainer import EngineOptions, recipes

RECORDED = Path(__file__).with_name("flags.json")


def values(line: str) -> dict[str, Any]:
    """The values of a command line, without those that are not part of a config."""
    parsed = parse(line.split())[1]
    return {name: value for name, value in parsed.items() if name not in ("out", "quiet", "plan", "verify")}


def flags(name: str) -> dict[str, str]:
    """Every flag of a command, hidden aliases included, as `--help` shows it."""
    actions = COMMANDS[name].parser(f"pathgrow {name}")._actions
    return {
        " ".join(action.option_strings) or str(action.metavar): f"{action.metavar or ''}: {action.help}"
        for action in actions
        if "--help" not in action.option_strings
    }


def test_the_flags_are_the_recorded_ones() -> None:
    """After a deliberate change: `python -m tests.cli.test_flags`."""
    assert {name: flags(name) for name in COMMANDS} == json.loads(RECORDED.read_text())


def test_options_without_effect_on_the_default_search_are_apart() -> None:
    """Those that `DiscoverOptions` refuses beside finish="gts" are in groups of their own."""
    groups = COMMANDS["discover"].parser("pathgrow discover")._action_groups
    titles = {
        option: group.title or "" for group in groups for a in group._group_actions for option in a.option_strings
    }
    assert {titles[flag] for flag in ("--delta", "--budget", "--finish", "--max-cost", "--eval-weights")} == {"search"}
    for names, condition in ((GROWTH_ONLY, "growth (with"), (PROBES_ONLY, "probes of growth rounds (with")):
        for name in names:
            flag = "--from-scratch" if name == "warm_start" else f"--{name.replace('_', '-')}"
            assert titles[flag].startswith(condition)


def test_without_flags_a_config_has_its_defaults() -> None:
    assert values("discover") == values("train") == {}
    config = DiscoverConfig.from_dict({})
    assert (config.recipe_name, config.recipe) == ("digits", recipes.recipe("digits"))
    assert (config.budget, config.engine) == (80, EngineOptions())


@pytest.mark.parametrize(
    ("flag", "field", "value"),
    [
        ("--reference 1", "reference", 1.0),
        ("--reference dense", "reference", "dense"),
        ("--rough 3", "rough", 3),
        ("--rough 0.1", "rough", 0.1),
        ("--rough adaptive", "rough", "adaptive"),
        ("--gamma 1", "gamma", 1.0),
        ("--gamma=1", "gamma", 1.0),
        ("--seed 7", "seed", 7),
        ("--from-scratch", "warm_start", False),
        ("--budget 7", "budget", 7),
        ("--epochs 7", "budget", 7),
        ("--recipe cifar", "budget", 160),
        ("--recipe cifar --budget 7", "budget", 7),
        ("--select-by gain", "select_by", "gain"),
        ("--eval-weights ema", "eval_weights", "ema"),
        ("--model-option widths=8,9 --model-option inputs=64", "model_options", {"widths": [8, 9], "inputs": 64}),
    ],
)
def test_a_flag_of_discover_sets_a_value(flag: str, field: str, value: object) -> None:
    found = getattr(DiscoverConfig.from_dict(values(f"discover --finish static {flag}")), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("flag", ["--epochs", "--budget"])
def test_both_commands_accept_both_names_of_the_budget(flag: str) -> None:
    assert TrainConfig.from_dict(values(f"train --method rigl {flag} 5")).epochs == 5
    assert DiscoverConfig.from_dict(values(f"discover {flag} 5")).budget == 5


def test_flags_of_recipe_and_engine_are_nested() -> None:
    line = "--recipe cifar-step --batch-size 16 --weight-decay 1 --lr 0.5 --device cpu --precision bf16 --step eager"
    config = DiscoverConfig.from_dict(values(f"discover {line} --compile on --deterministic --max-concurrent 3"))
    changed = {"batch_size": 16, "weight_decay": 1.0, "lr": 0.5}
    assert config.recipe == dataclasses.replace(recipes.recipe("cifar-step"), **changed)
    assert config.engine == EngineOptions(
        device="cpu", precision="bf16", step="eager", compile="on", deterministic=True, max_concurrent=3
    )


def test_every_scope_is_in_the_help() -> None:
    shown = re.match(r"[\w|]+", flags("train")["--scope"])
    assert shown is not None
    assert set(shown[0].split("|")) == {*PRESETS, EVERYTHING}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1), ("a=1.5", 1.5), ("a=1e4", 1e4), ("a=8,8", [8, 8]), ("a=8,", [8]), ("a=0.5,1", [0.5, 1]),
        ("a=True", True), ("a=false", False), ("a=None", None), ("a=erk", "erk"), ("a=a,b", "a,b"), ("a=b=c", "b=c"),
    ],
)  # fmt: skip
def test_pairs(text: str, value: object) -> None:
    assert parse_pair(text, "--model-option") == ("a", value)


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: flags(name) for name in COMMANDS}, indent=1) + "\n")
