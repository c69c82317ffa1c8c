"""`pathgrow methods`: what each method needs, costs and takes; and that everything it advertises can be given."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pathgrow import attach, methods
from pathgrow.cli.options import pairs
from pathgrow.errors import UserError
from pathgrow.methods.allocation import LAWS
from pathgrow.methods.method import Progress
from pathgrow.runs.config import SCOPES, TrainConfig
from tests.support.command import leave

GROWTH = ("gcg", "gradient_growth", "pathgrow_d", "random_growth", "trace_growth")


def listed(capsys: pytest.CaptureFixture[str]) -> Mapping[str, str]:
    """The two lines about each method."""
    assert leave("methods") == 0
    told = capsys.readouterr().out
    after = {name: told.partition(f"\n{name} ")[2] for name in methods.names()}
    return {name: "\n".join(lines.splitlines()[:2]) for name, lines in after.items()}


def told_all(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert leave("methods", name) == 0
    return capsys.readouterr().out


def test_methods_are_listed_with_all_that_one_wants_to_know(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys)
    assert "2 f_S + f_D at changes; needs dense gradients;" in lines["rigl"]
    assert "every=100" in lines["rigl"]
    assert "Evci" in lines["rigl"]
    for pruning in ("imp", "imp_c", "lth"):
        assert "3 f_S in a training at each level; needs dense training" in lines[pruning]
    assert "3 f_S, 6 f_S at changes; needs dense gradients, loss and batches at changes" in lines["gse"]
    assert "3 f_S, and 2 f_S + f_D in a batch of its own at each growth; " in lines["gradient_growth"]
    assert "3 f_D; needs dense training" in lines["dense"]
    for growth in GROWTH:
        assert lines[growth].endswith("; gamma=0.25, start_density=None, target_density=D")
    told = told_all("gcg", capsys)
    assert "  options  gamma=0.25, start_density=None, target_density=D\n" in told
    assert "density, target_density: given as --density" in told
    told = told_all("str", capsys)
    assert "thresholds are learned" in told
    assert "Kusupati" in told


@pytest.mark.parametrize("name", methods.names())
def test_who_needs_a_loss_and_batches_is_told_and_nobody_else(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By `attach` itself, which refuses to begin without them."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"start_density": 0.1} if name in GROWTH else {}
    told = listed(capsys)[name].partition("; needs ")[2].partition("; ")[0]
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


def test_a_method_that_is_no_papers_is_not_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    paper = {
        name: told_all(name, capsys).partition("  paper    ")[2].splitlines()[0] for name in ("trace_growth", "gcg")
    }
    assert paper["trace_growth"].startswith("none of its own; motivated in Yao & Dovrolis")
    assert paper["gcg"].startswith("Yao & Dovrolis")


@pytest.mark.parametrize("name", [name for name in methods.names() if "allocation" in methods.defaults(name)])
def test_every_allocation_that_can_be_given_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = told_all(name, capsys)
    for law, words in LAWS.items():
        assert f"  {law:<10} {words}\n" in told
        methods.create(name, allocation=law)
    assert len(set(LAWS.values())) == len(LAWS)


def taken(name: str, texts: list[str]) -> Mapping[str, Any]:
    """The options that a training has when these are given on a command line."""
    density = {"density": 0.2} if "target_density" in methods.defaults(name) else {}
    options = pairs(texts, "--method-option", "every=200")
    return TrainConfig.from_dict({"method": name, "method_options": options, "threads": 1, **density}).method_options


@pytest.mark.parametrize("name", methods.names())
def test_defaults_can_be_given_as_they_are_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = told_all(name, capsys).partition("  options  ")[2].splitlines()[0]
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
    texts = ["allocation=er", "anneal=constant", "end=1", "by_sign=True", "every=5"]
    about = " ".join((inspect.getdoc(methods.entry("set").make) or "").split())
    assert '`allocation="er", anneal="constant", end=1, by_sign=True`' in about
    given = pairs(texts, "--method-option", "every=200")
    method = TrainConfig.from_dict({"method": "set", "method_options": given, "threads": 1}).make_method(100)
    due = [step for step in range(100) if method.due(Progress(round=0, step=step, num_on=9, num=90)) is not None]
    assert due == list(range(0, 100, 5))
    assert {method.update.rate(step) for step in due} == {0.3}  # type: ignore[union-attr]


def test_every_scope_that_is_taken_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("train", "--help") == 0
    shown = re.search(r"--scope (\S+)", capsys.readouterr().out)
    assert shown is not None
    assert set(shown[1].split("|")) == set(SCOPES)


def test_the_help_of_a_command_is_named_after_its_own_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, command in (
        (["discover", "--budget", "many"], "pathgrow discover"),
        (["data", "get"], "pathgrow data get"),
        (["trian"], "pathgrow"),
    ):
        assert leave(*arguments) == 2
        assert capsys.readouterr().err.endswith(f": see {command} --help\n")
