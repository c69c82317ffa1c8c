"""The report of a real discovery says each thing once, and shows why the answer is where it is."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import nn

import pathgrow
from pathgrow.report import page, summary, wording
from pathgrow.report.figure import draw
from pathgrow.report.frame import fit_reaches_goal, threshold
from pathgrow.report.picture import Picture

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(300, 12, generator=GENERATOR)
LABELS = (INPUTS @ torch.randn(12, 4, generator=GENERATOR)).argmax(1)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for batch in torch.randperm(200).split(25):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(INPUTS[batch]), LABELS[batch]).backward()
            optimizer.step()


def evaluate(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(INPUTS[200:]).argmax(1) == LABELS[200:]).float().mean())


@pytest.fixture(scope="module")
def found() -> pathgrow.Discovery:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return pathgrow.discover(model, optimizer, fit, evaluate, INPUTS[:1], budget=20, delta=0.03, start_density=0.1)


@pytest.fixture
def told(found: pathgrow.Discovery) -> dict[str, Any]:
    return found.report()


def terminal(told: dict[str, Any]) -> str:
    console = Console(width=400, file=io.StringIO())
    console.print(summary(told, 120))
    return console.file.getvalue()


def text_of(shown: str) -> str:
    """What a page says, without its tooltips and its title."""
    body = re.sub(r"<(title|desc|style)\b.*?</\1>", "", shown, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


@pytest.mark.parametrize("rule", ["probe", "trajectory", "exponential"])
@pytest.mark.parametrize("show", [terminal, lambda told: text_of(page(told))])
def test_intervals_and_the_gain_answer_stand_once(told: dict[str, Any], found, rule: str, show) -> None:
    answer = found.answer if rule == "probe" else pathgrow.density.rules.create(rule, delta=0.03).answer(found.curve)
    assert answer.density is not None
    fields = ("gain_density", "interval", "gain_interval", "words")
    told["answer"] |= {name: getattr(answer, name) for name in fields}
    told["answer"] |= {"operating_density": answer.density, "rule": rule}
    if rule != "probe":
        told["answer"] |= {"notes": list(answer.notes), "reason": found.rule.decide(found.curve).reason}
    shown = show(told)
    for low, high in {answer.interval, answer.gain_interval}:
        assert shown.count(wording.percent_range([low, high])) == 1
        for rounded in (".0f", ".1f"):
            assert shown.count(f"{100 * low:{rounded}}% to {100 * high:{rounded}}%") <= 1
    assert shown.count("90% interval") - shown.count("its 90% interval") == (1 if rule == "exponential" else 2)
    assert len(re.findall(r"gain answer\s+\d|gain answer is \d", shown)) == (0 if rule == "exponential" else 1)


def test_what_is_left_out_of_the_list_is_in_the_words(found: pathgrow.Discovery, told: dict[str, Any]) -> None:
    assert set(told["answer"]["notes"]) < set(found.words.splitlines())
    assert "90% interval of the answer: " in found.words
    assert "The gain answer is " in found.words


def test_the_line_through_the_answer_is_drawn(told: dict[str, Any]) -> None:
    """The mark stands on the goal, and the dotted line goes through it."""
    density, goal = told["answer"]["operating_density"], threshold(told)
    axes = Figure().add_subplot()
    draw(axes, told)
    [line] = [line for line in axes.get_lines() if line.get_label() == "two thirds of the fits lie above"]
    assert np.interp(np.log(density), np.log(line.get_xdata()), line.get_ydata()) == pytest.approx(goal, abs=2e-4)
    picture = Picture.of(told)
    x, y = np.array([pair.split(",") for pair in picture.cautious.split()], dtype=float).T
    assert np.interp(picture.answer[0], x, y) == pytest.approx(picture.answer[1], abs=1.0)
    assert page(told).count("two thirds of the fits lie above") == 1
    assert "▲ answer: two thirds of the fits reach the goal" in terminal(told)


def test_where_the_fitted_curve_reaches_the_goal_is_said(told: dict[str, Any]) -> None:
    fit, goal = told["curve"]["fit"], threshold(told)
    middle = fit_reaches_goal(told)
    assert np.interp(np.log(middle), np.log(fit["density"]), fit["score"]) == pytest.approx(goal)
    assert f"the fitted curve, their middle, reaches it at {wording.percent(middle)}." in terminal(told)
    told["reference"]["score"] -= 1.0
    assert fit_reaches_goal(told) is None, "it lies above the goal everywhere"


def test_reports_of_earlier_versions_are_shown(told: dict[str, Any]) -> None:
    del told["answer"]["notes"], told["curve"]["fit"]["cautious"], told["curve"]["untrained"]
    words = told["answer"]["words"].splitlines()
    assert wording.explanation(told)[1:] == words[1:]
    assert "lie above" not in page(told)
