"""`pathgrow methods`, `models`, `recipes`, `rules` and `data`: everything listed can be used as it is written."""

from __future__ import annotations

import inspect
import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pathgrow import attach, data, methods, models
from pathgrow.cli import lists
from pathgrow.density import rules
from pathgrow.errors import UserError
from pathgrow.methods.allocation import DISTRIBUTIONS
from pathgrow.methods.method import Progress
from pathgrow.registry import parse_pair
from pathgrow.runs.config import TrainConfig
from pathgrow.trainer import recipes
from tests.support.command import leave

GROWTH = ("gcg", "gradient_growth", "pathgrow_d", "random_growth", "trace_growth")


RECORDED = Path(lists.__file__).with_name("methods.txt")


def described() -> str:
    """The list of methods, from the methods themselves."""
    lines: list[str] = []
    for family, group in itertools.groupby(methods.names(), lambda name: methods.entry(name).family):
        lines.append(f"{family}:")
        for name in group:
            method, about = methods.create(name), inspect.getdoc(methods.entry(name).make) or ""
            lines.append(f"{name:<17}{about.partition(chr(10))[0]}")  # which names the paper
            lines.append(f"{' ' * 17}cost/step: {lists._cost(method)}.{lists._requirements(method)}")
            lines.append(f"{' ' * 17}options: {lists._options(methods.defaults(name))}")
        lines.append("")
    return "\n".join(lines) + "\n"


def test_the_list_of_methods_is_the_recorded_one() -> None:
    """After a deliberate change: `python -m tests.cli.test_lists`."""
    assert RECORDED.read_text() == described()


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert leave(*line.split()) == 0
    return capsys.readouterr().out


def listed(capsys: pytest.CaptureFixture[str]) -> Mapping[str, list[str]]:
    """The three lines about each method: paper, cost and requirements, options."""
    text = printed("methods", capsys)
    after = {name: text.partition(f"\n{name} ")[2].splitlines()[:3] for name in methods.names()}
    return {name: [line.strip() for line in lines] for name, lines in after.items()}


@pytest.mark.parametrize(
    ("table", "names"),
    [("models", models.names()), ("rules", rules.names()), ("recipes", recipes.names()), ("data", data.names())],
)
def test_every_entry_of_a_table_has_a_line_of_its_own(
    table: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(table, capsys).splitlines()
    assert [line.split()[0] for line in lines] == list(names)
    about = [line.split(maxsplit=1)[1] for line in lines]
    assert not [text for text in about if text.endswith((",", ";", ":"))]
    if table != "models":  # ResNets of different depths have equal options
        assert len(set(about)) == len(about)


def test_recipes_show_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in printed("recipes", capsys).splitlines())
    assert lines["cifar"] == "sgd lr 0.1 wd 0.0005, cosine, 160 epochs, batch size 128; crop_padding flip"
    assert lines["digits"].endswith("; no augmentation")
    assert "autoaugment-cifar" in lines["cifar-vit"]


def test_methods_are_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    *blocks, legend = printed("methods", capsys).split("\n\n")
    assert legend.startswith("cost/step:")
    names = []
    for block in blocks:
        heading, *lines = block.splitlines()
        for paper, cost, options in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
            name, described = paper.split(maxsplit=1)
            names.append(name)
            assert f"{methods.entry(name).family}:" == heading
            assert described.endswith(".")
            assert re.fullmatch(r" {17}cost/step: \d.*\.", cost)
            assert re.fullmatch(r" {17}options: (\w+=.+|none)", options)
    assert names == methods.names()


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("rigl", "3x sparse forward; at mask updates 2x sparse + 1x dense. Requires dense gradients."),
        ("imp", "3x sparse forward, in a full training per level. Requires dense training."),
        ("lth", "3x sparse forward, in a full training per level. Requires dense training."),
        (
            "gse",
            "3x sparse forward; at mask updates 6x sparse. Requires dense gradients, loss and batches at mask updates.",
        ),
        (
            "gradient_growth",
            "3x sparse forward; at each growth step 2x sparse + 1x dense for one batch. "
            "Requires dense gradients, loss and batches at growth steps, a traceable model.",
        ),
        ("snip", "3x sparse forward. Requires loss and batches before training."),
        ("random", "3x sparse forward."),
        ("dense", "3x dense forward. Requires dense training."),
    ],
)
def test_costs_and_requirements(name: str, cost: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys)[name][1] == f"cost/step: {cost}"
    assert f"  cost/step  {cost}\n" in printed(f"methods {name}", capsys)


def test_a_described_method_shows_paper_options_and_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    for name in GROWTH:
        assert listed(capsys)[name][2] == "options: gamma=0.25, start_density=None, target_density=D"
    text = printed("methods gcg", capsys)
    assert "  paper      Yao & Dovrolis" in text
    assert "  options    gamma=0.25, start_density=None, target_density=D\n" in text
    assert "density, target_density: set by --density" in text
    text = printed("methods str", capsys)
    assert "  except     exact_count: " in text
    assert "Kusupati" in text
    assert "  paper      none of its own" in printed("methods trace_growth", capsys)


@pytest.mark.parametrize("name", methods.names())
def test_who_needs_a_loss_and_batches_is_told_and_nobody_else(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By `attach` itself, which refuses to begin without them."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"start_density": 0.1} if name in GROWTH else {}
    told = listed(capsys)[name][1].partition(" Requires ")[2]
    refused = None
    try:
        attach(model, optimizer, methods.create(name, **options), torch.zeros(1, 64)).detach()
    except UserError as error:
        refused = str(error)
    assert (refused is not None) is ("loss and batches" in told)
    if refused is None:
        return
    assert "loss" in refused
    before = name in ("snip", "grasp")
    assert ("loss and batches before training" in told) is before
    assert ("loss and batches at " in told) is not before


@pytest.mark.parametrize("name", [name for name in methods.names() if "allocation" in methods.defaults(name)])
def test_every_allocation_that_can_be_given_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(f"methods {name}", capsys)
    for distribution, words in DISTRIBUTIONS.items():
        assert f"  {distribution:<10} {words}\n" in told
        methods.create(name, allocation=distribution)
    assert len(set(DISTRIBUTIONS.values())) == len(DISTRIBUTIONS)


def taken(name: str, texts: list[str]) -> Mapping[str, Any]:
    """The options that a training has when these are given on a command line."""
    density = {"density": 0.2} if "target_density" in methods.defaults(name) else {}
    options = dict(parse_pair(text, "--method-option") for text in texts)
    return TrainConfig.from_dict({"method": name, "method_options": options, **density}).method_options


@pytest.mark.parametrize("name", methods.names())
def test_defaults_can_be_given_as_they_are_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(f"methods {name}", capsys).partition("  options    ")[2].splitlines()[0]
    texts = [] if told == "none" else told.split(", ")
    by_density = ("density=", "target_density=")
    wanted = {option: value for option, value in methods.defaults(name).items() if f"{option}=" not in by_density}
    assert dict(taken(name, [text for text in texts if not text.startswith(by_density)])) == wanted


@pytest.mark.parametrize("name", methods.names())
def test_settings_that_a_docstring_names_can_be_given_as_they_are_written(name: str) -> None:
    about = inspect.getdoc(methods.entry(name).make) or ""
    known = methods.defaults(name)
    for quoted in re.findall(r"`([^`]*)`", about.replace("\n", " ")):
        words = [word.rstrip(",") for word in quoted.split()]
        if not all(re.fullmatch(r"\w+=\S+", word) and word.partition("=")[0] in known for word in words):
            continue
        texts = [shlex.split(word)[0] for word in words]  # as a shell hands them on
        options = taken(name, texts)
        assert all(options[text.partition("=")[0]] is not None for text in texts)


def test_the_papers_own_settings_of_set_are_taken() -> None:
    """Weights move to the last step, as many each time."""
    texts = ["allocation=er", "anneal=constant", "stop_fraction=1", "by_sign=True", "update_interval=5"]
    about = " ".join((inspect.getdoc(methods.entry("set").make) or "").split())
    assert '`allocation="er", anneal="constant", stop_fraction=1, by_sign=True`' in about
    given = dict(parse_pair(text, "--method-option") for text in texts)
    method = TrainConfig.from_dict({"method": "set", "method_options": given}).make_method(100)
    due = [step for step in range(100) if method.due(Progress(round=0, step=step, num_on=9, num=90)) is not None]
    assert due == list(range(0, 100, 5))
    assert {method.update.drop_fraction(step) for step in due} == {0.3}  # type: ignore[union-attr]


if __name__ == "__main__":
    RECORDED.write_text(described())
