"""What a training will cost, and what another has: step by step in a loop, and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pathgrow.errors import UserError
from pathgrow.methods.method import Progress
from pathgrow.runs.bench import Bench
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.forecast import Standing, cost_by_epochs, flops_price, parameters_price, updates_are_due
from pathgrow.runs.plan import plan
from pathgrow.runs.spent import like, spent
from tests.support.trainings import bench

BATCH, STEPS = 64, 898 // 64

NUM = 64 * 16 + 16 * 12
OUTPUT = 12 * 10
BIASES = 16 + 12 + 10


def played(bench: Bench, epochs: int, at: Standing) -> list[tuple[int, bool]]:
    """(weights that are on, whether masks change in it) for every step that is left."""
    method, num_on, seen = bench.make_method(epochs), at.num_on, []
    if method.grow is not None and method.clock == "round":
        seen += [(num_on, False)] * STEPS * max(1, epochs // 8)
        while num_on < round(0.25 * NUM):
            num_on = min(num_on + num_on // 2, round(0.25 * NUM))
            seen += [(num_on, False)] * STEPS * max(1, round(epochs / 160))
        return seen + [(num_on, False)] * STEPS * epochs
    if method.clock == "round":
        round_, again = at.round, method.rewind_step if method.after_update == "rewind" else 0
        while True:
            seen += [(num_on, False)] * (STEPS * epochs - (again if round_ else 0))
            change = method.schedule(Progress(round=round_, step=0, num_on=num_on, num=NUM))
            if change is None or not change.num_drop:
                return seen
            num_on, round_ = num_on - change.num_drop, round_ + 1
    for step in range(at.step, STEPS * epochs):
        change = method.schedule(Progress(round=0, step=step, num_on=num_on, num=NUM))
        is_real = change is not None and (method.update is not None or bool(change.num_drop or change.num_grow))
        seen.append((num_on, is_real))
        if change is not None:
            num_on += change.num_grow - change.num_drop
    return seen


def flops(cost: str, num_on: int, changes: bool) -> int:
    """Of a step: two FLOPs a multiply-add, forward, to the inputs, to the weights."""
    sparse, dense = num_on + OUTPUT, NUM + OUTPUT
    if cost == "dense":
        return BATCH * 6 * dense
    if cost == "batch_at_changes":
        return (2 if changes else 1) * BATCH * 6 * sparse
    to_weights = dense if cost == "dense_gradient_at_steps" or (changes and cost != "sparse") else sparse
    return BATCH * 2 * (2 * sparse + to_weights)


MOVING = ["gmp", "rigl", "set", "granet", "snfs", "gse"]
ALL = [*MOVING, "random", "dense", "imp", "imp_c", "gcg"]


@pytest.mark.parametrize("epochs", [1, 3, 20, 300])
@pytest.mark.parametrize("method", ALL)
def test_a_run_foreseen_costs_what_its_steps_do(method: str, epochs: int) -> None:
    made = bench(method)
    num_on = {"gmp": NUM, "dense": NUM, "imp": NUM, "imp_c": NUM, "granet": NUM // 2, "gcg": 122}.get(method, 304)
    at = Standing(num_on=num_on, macs=num_on + OUTPUT, spent=17.0)
    steps = played(made, epochs, at)
    assert len(steps) >= STEPS * epochs
    cost = made.make_method(epochs).cost
    foreseen = cost_by_epochs(made, at, flops_price(made, at))(epochs)
    assert foreseen == 17 + sum(flops(cost, on, changes) for on, changes in steps)
    parameters = cost_by_epochs(made, at, parameters_price(made))(epochs)
    assert parameters == pytest.approx(17 + sum(on + OUTPUT + BIASES for on, _ in steps) / STEPS)


def test_gradients_that_growth_goes_by_are_foreseen() -> None:
    """The same growth by chance costs as much, but for a batch at each growth whose weight gradients are dense."""
    at = Standing(num_on=122, macs=122 + OUTPUT)
    by_gradient, by_chance = (
        cost_by_epochs(made, at, flops_price(made, at))(3)
        for made in (bench("gradient_growth"), bench("random_growth"))
    )
    grown_from = [122, 183, 274]  # by half each time, to 304
    assert by_gradient - by_chance == sum(BATCH * 2 * (2 * (on + OUTPUT) + NUM + OUTPUT) for on in grown_from)


def test_a_batch_that_is_computed_in_parts_is_looked_at_in_part() -> None:
    """Guiding batches are as large as what the memory is known to hold."""
    whole, halves = (bench("gse", recipe={"batch_size": 64, "accumulate": parts}) for parts in (1, 2))
    at = Standing(num_on=304, macs=304 + OUTPUT)
    num_changes = sum(changes for _, changes in played(whole, 20, at))
    saved = [cost_by_epochs(made, at, flops_price(made, at))(20) for made in (whole, halves)]
    assert saved[0] - saved[1] == num_changes * BATCH // 2 * 6 * (304 + OUTPUT) > 0


@pytest.mark.parametrize("step", [1, 14, 25])
@pytest.mark.parametrize("method", MOVING)
def test_the_rest_of_a_training_is_foreseen_from_where_it_stands(method: str, step: int) -> None:
    made = bench(method)
    at = Standing(num_on=700, macs=700 + OUTPUT, spent=1e6, step=step)
    steps = played(made, 3, at)
    assert len(steps) == 3 * STEPS - step
    cost = made.make_method(3).cost
    assert cost_by_epochs(made, at, flops_price(made, at))(3) == 1e6 + sum(flops(cost, *each) for each in steps)


@pytest.mark.parametrize("level", [0, 2])
def test_levels_that_are_left_are_foreseen_from_where_pruning_stands(level: int) -> None:
    made = bench("imp")
    num_on = round(0.8**level * NUM)
    at = Standing(num_on=num_on, macs=num_on + OUTPUT, spent=5.0, round=level)
    foreseen = cost_by_epochs(made, at, flops_price(made, at))(2)
    assert foreseen == 5 + sum(flops("sparse", *each) for each in played(made, 2, at))


def test_pruning_that_is_not_done_yet_is_due_and_other_methods_owe_nothing() -> None:
    made = bench("gmp")
    for num_on, due in ((NUM, True), (round(0.25 * NUM), False)):
        at = Standing(num_on=num_on, macs=num_on + OUTPUT, step=2 * STEPS)
        assert updates_are_due(made, at) is due
    assert not updates_are_due(bench("rigl"), Standing(num_on=304, macs=304 + OUTPUT, step=2 * STEPS))


# The plan.


def test_a_budget_of_flops_is_a_dense_training_or_what_was_given_and_a_start_is_paid_from_it() -> None:
    dense = 3 * STEPS * BATCH * 6 * (NUM + OUTPUT)
    found = plan(bench("random", match="flops"))
    assert found.budget == dense
    assert found.epochs == round(dense / (STEPS * BATCH * 6 * (304 + OUTPUT)))
    given = plan(bench("random", match="flops", match_budget=5.2 * STEPS * BATCH * 6 * (304 + OUTPUT)))
    assert (given.epochs, given.planned) == (5, 5 * STEPS * BATCH * 6 * (304 + OUTPUT))
    # The gradient of a batch, in the dense network.
    snip = plan(bench("snip", match="flops"))
    assert snip.planned == snip.epochs * STEPS * BATCH * 6 * (304 + OUTPUT) + BATCH * 6 * (NUM + OUTPUT)


def test_a_budget_of_parameters_counts_those_that_are_always_dense_or_does_not() -> None:
    found = plan(bench("random", match="parameters"))
    assert found.budget == 3 * (NUM + OUTPUT + BIASES)
    assert found.epochs == round(found.budget / (304 + OUTPUT + BIASES))
    found = plan(bench("random", match="prunable"))
    assert found.budget == 3 * NUM
    assert (found.epochs, found.planned) == (12, 12 * 304)


def test_a_budget_that_does_not_buy_half_an_epoch_is_refused() -> None:
    an_epoch = 304 + OUTPUT + BIASES
    assert plan(bench("random", match="parameters", match_budget=0.51 * an_epoch)).epochs == 1
    with pytest.raises(UserError, match="one epoch of method 'random' at density 25% costs 462"):
        plan(bench("random", match="parameters", match_budget=0.49 * an_epoch))


# What another run has spent.


def finished(folder: Path, **network: Any) -> str:
    """The report of a discovery: two phases of a model of 1000 parameters, 900 of them switchable, 90 left."""
    folder.mkdir()
    phases = [{"epochs": 3, "density": 0.05}, {"epochs": 10, "density": 0.1}]
    values = {"num": 900, "num_on": 90, "density_model": 190 / 1000, **network}
    config = {"data": "digits", "fold": 1, "model": "mlp", "model_options": {"widths": [8]}, "seed": 3, "delta": 0.01}
    ledger = {"training_flops": 12345, "dense_training_flops": 99999, "phases": phases}
    told = {"format": 1, "config": config, "ledger": ledger, "network": values}
    (folder / "report.json").write_text(json.dumps(told))
    return str(folder)


def test_a_discovery_tells_what_it_has_spent(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    assert spent(path, "flops", {}) == 12345
    assert spent(path, "parameters", {}) == 3 * (100 + 45) + 10 * (100 + 90)
    assert spent(path, "prunable", {}) == 3 * 45 + 10 * 90
    full = finished(tmp_path / "full", num_on=900, density_model=1.0)
    with pytest.raises(UserError, match="ended dense and tells no number of parameters"):
        spent(full, "parameters", {})
    assert spent(full, "prunable", {}) == 3 * 45 + 10 * 90


def test_a_training_tells_both_and_an_older_one_what_it_knows(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    told = json.loads(Path(path, "report.json").read_text())
    told["ledger"] |= {"epochs_times_parameters": 700.5, "epochs_times_prunable": 600.25}
    Path(path, "report.json").write_text(json.dumps(told))
    assert [spent(path, what, {}) for what in ("parameters", "prunable")] == [700.5, 600.25]
    del told["ledger"]["epochs_times_prunable"]
    Path(path, "report.json").write_text(json.dumps(told))
    assert spent(path, "parameters", {}) == 700.5
    with pytest.raises(UserError, match="did not count switchable weights: match parameters or flops"):
        spent(path, "prunable", {})


@pytest.mark.parametrize(
    "other", [{"data": "cifar10"}, {"fold": 2}, {"model": "resnet20"}, {"model_options": {"widths": [9]}}]
)
def test_a_run_of_other_data_or_another_model_is_no_measure(tmp_path: Path, other: dict[str, Any]) -> None:
    path = finished(tmp_path / "run")
    same = {"data": "digits", "fold": 1, "model": "mlp", "model_options": {"widths": [8]}, "seed": 0}
    assert spent(path, "flops", same) == 12345
    with pytest.raises(UserError, match="for the same data and model only"):
        spent(path, "flops", {**same, **other})


def test_runs_are_alike_that_differ_in_their_seed_alone(tmp_path: Path) -> None:
    first, second = (finished(tmp_path / name) for name in ("first", "second"))
    for change, alike in (({"seed": 4}, True), ({"data_root": "elsewhere"}, True), ({"delta": 0.02}, False)):
        told = json.loads(Path(first, "report.json").read_text())
        told["config"] |= change
        Path(second, "report.json").write_text(json.dumps(told))
        assert (like(first) == like(second)) is alike


@pytest.mark.parametrize(
    ("match", "budget"),
    [("flops", 12345), ("parameters", 3 * (100 + 45) + 10 * (100 + 90)), ("prunable", 3 * 45 + 10 * 90)],
)
def test_the_budget_of_another_run_is_what_it_has_spent_of_the_same_kind(
    tmp_path: Path, match: str, budget: float
) -> None:
    path = finished(tmp_path / "run")
    told = json.loads(Path(path, "report.json").read_text())
    told["config"] |= {"model_options": {"inputs": 64, "widths": [8]}}
    Path(path, "report.json").write_text(json.dumps(told))
    given = {"method": "random", "density": 0.25, "fold": 1, "model_options": {"widths": [8]}, "threads": 1}
    config = TrainConfig.from_dict({**given, "match": match, "match_run": path})
    assert config.match_budget == budget
    assert config.match_like == like(path)
