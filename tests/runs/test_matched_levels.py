"""Pruning between trainings meets a budget of any kind, or is refused one that it cannot; and where it goes back to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.forecast import Standing, cost_by_epochs, price_of
from pathgrow.runs.plan import plan
from pathgrow.runs.training import train
from tests.support.command import leave
from tests.support.trainings import bench, report

BATCH, STEPS = 64, 898 // 64
NUM, OUTPUT, BIASES = 64 * 16 + 16 * 12, 12 * 10, 16 + 12 + 10
"""Of the network of `tests.support.trainings.bench`."""
SMALL = {"density": 0.25, "model_options": {"widths": [16, 12]}, "recipe": {"batch_size": BATCH}, "threads": 1}


def in_units(phases: list[dict[str, Any]], match: str) -> list[float]:
    """What one epoch of each phase costs, in the unit of a budget: a weight of these layers is a multiply-add."""
    numbers_on = [round(phase["density"] * NUM) for phase in phases]
    beside = {"parameters": OUTPUT + BIASES, "prunable": 0, "flops": OUTPUT}[match]
    factor = 6 * BATCH * STEPS if match == "flops" else 1
    return [factor * (on + beside) for on in numbers_on]


@pytest.mark.parametrize("match", ["parameters", "prunable", "flops"])
@pytest.mark.parametrize(("method", "options"), [("imp", {"rewind_step": 9}), ("imp", {}), ("lth", {}), ("imp_c", {})])
def test_levels_share_a_budget_of_any_kind(match: str, method: str, options: dict[str, Any], tmp_path: Path) -> None:
    given = {"method": method, "method_options": options, "epochs": 7, "match": match, **SMALL}
    told = train(TrainConfig.from_dict(given), tmp_path)
    ledger = told["ledger"]
    of_an_epoch = in_units(ledger["phases"], match)
    trained = [phase["samples"] / (BATCH * STEPS) for phase in ledger["phases"]]
    spent = sum(epochs * price for epochs, price in zip(trained, of_an_epoch, strict=True))
    assert ledger["match"]["spent"] == pytest.approx(spent)
    assert ledger["match"]["budget"] == pytest.approx(7 * of_an_epoch[0])
    assert abs(spent - 7 * of_an_epoch[0]) <= of_an_epoch[-1] / 2 * 1.0001


def test_a_budget_of_parameters_is_met_where_levels_are_short(tmp_path: Path) -> None:
    """One epoch for every level leaves most of this budget, two for every level need more than it."""
    given = {"method": "imp", "method_options": {"rewind_step": 20}, "density": 0.1, "epochs": 4, "threads": 1}
    with pytest.warns(UserWarning, match="so that a level of 1 epoch trains 8 steps"):
        told = train(TrainConfig.from_dict({**given, "match": "parameters"}), tmp_path)
    assert len({phase["epochs"] for phase in told["ledger"]["phases"]}) > 1
    assert abs(told["ledger"]["match"]["relative_error"]) < 0.01


@pytest.mark.parametrize("match", ["parameters", "prunable", "flops"])
@pytest.mark.parametrize("method", ["lth", "imp_c"])
def test_a_budget_that_does_not_buy_an_epoch_for_every_level_is_refused(method: str, match: str) -> None:
    levels = [NUM]
    while levels[-1] > round(0.25 * NUM):
        levels.append(max(round(0.8 ** len(levels) * NUM), round(0.25 * NUM)))
    costs = in_units([{"density": on / NUM} for on in levels], match)
    least = sum(costs)
    just = plan(bench(method, match=match, match_budget=least - 0.49 * costs[-1]))
    assert (just.epochs, just.planned) == (1, pytest.approx(least, rel=1e-3))
    with pytest.raises(UserError, match=f"^one epoch in each training of method '{method}' at density 25% costs"):
        plan(bench(method, match=match, match_budget=least - 0.51 * costs[-1]))


def test_levels_that_are_set_back_far_are_planned_beyond_that_step() -> None:
    found = plan(bench("imp", match="parameters", method_options={"rewind_step": 2 * STEPS + 3}, epochs=7))
    assert found.epochs == 3
    with pytest.raises(UserError, match=r"^3 epochs in each training of method 'imp' at density 25% costs"):
        plan(bench("imp", match="parameters", method_options={"rewind_step": 2 * STEPS + 3}, epochs=2))


def test_a_command_that_cannot_meet_its_budget_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"train --method lth --match flops --epochs 4 --density 0.1 --out {tmp_path / 'run'}"
    assert leave(*line.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("pathgrow: one epoch in each training of method 'lth' at density 10% costs")
    assert told.count("\n") == 1


def test_a_number_beside_a_run_to_match_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, line = tmp_path / "run", "train --method random --epochs 1 --model-option widths=8,8 --quiet --out"
    assert leave(*line.split(), str(run)) == 0
    matched = [*line.split(), str(tmp_path / "matched"), "--match", "flops", "--match-run", str(run)]
    assert leave(*matched, "--match-budget", "3") == 2
    told = capsys.readouterr().err
    assert told.startswith(f"pathgrow: match_budget 3.0 was given beside {run}, a run that has spent ")
    assert told.endswith(": leave out one of --match-budget and --match-run\n")
    assert leave(*matched) == 0
    config = TrainConfig.from_dict(report(tmp_path / "matched")["config"])
    assert TrainConfig.from_dict(config.as_dict()) == config, "which holds the run and what it has spent"


# Where levels go back to.


@given(num_steps=st.integers(1, 200_000))
def test_late_rewinding_goes_back_to_the_same_share_of_short_trainings(num_steps: int) -> None:
    step = methods.create("imp", num_steps=num_steps).rewind_step
    assert step == (500 if num_steps >= 10_000 else pytest.approx(num_steps / 20, abs=0.5))
    assert methods.create("imp", num_steps=num_steps, rewind_step=7).rewind_step == 7


def test_in_a_loop_of_ones_own_late_rewinding_goes_back_to_step_500() -> None:
    assert methods.create("imp").rewind_step == 500
    assert methods.create("imp", rewind_step=2e2).rewind_step == 200


@settings(deadline=None, max_examples=10)
@given(epochs=st.integers(1, 12))
def test_a_short_training_by_default_keeps_nearly_all_of_each_level(epochs: int) -> None:
    config = TrainConfig.from_dict({"method": "imp", "epochs": epochs, **SMALL})
    assert config.make_method(epochs * STEPS).rewind_step == round(0.05 * epochs * STEPS)


def test_what_is_left_is_foreseen_from_the_step_that_was_chosen_at_first() -> None:
    """By then the length may be another, and with it the step that a new run would choose."""
    made = bench("imp", match="parameters", method_options={})
    num_on = round(0.8 * NUM)
    at = Standing(num_on=num_on, macs=num_on + OUTPUT, spent=3.0, round=1, rewind_step=11)
    levels, left = [num_on], made.make_method(40)
    assert left.rewind_step == 28
    while levels[-1] > round(0.25 * NUM):
        levels.append(max(round(0.8 ** (len(levels) + 1) * NUM), round(0.25 * NUM)))
    wanted = 3 + sum((40 * STEPS - 11) / STEPS * (on + OUTPUT + BIASES) for on in levels)
    assert cost_by_epochs(made, at, price_of(made, at))(40) == pytest.approx(wanted)
