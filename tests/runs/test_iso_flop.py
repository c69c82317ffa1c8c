"""Forecasts against schedules played step by step, plans against budgets, costs of finished runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathgrow import methods
from pathgrow.checkpoint import StageFiles
from pathgrow.errors import UserError
from pathgrow.methods.method import Method, Progress
from pathgrow.report.loading import load_finished
from pathgrow.runs import iso_flop
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.iso_flop import CostMeter, Forecast, Workload, make_plan
from pathgrow.runs.training import train
from tests.support.trainings import trained_once, workload

BATCH, STEPS = 64, 898 // 64
NUM, OUTPUT, BIASES = 64 * 16 + 16 * 12, 12 * 10, 16 + 12 + 10
"""Of the network of `tests.support.trainings.workload`: prunable weights, output weights, biases."""


def played(load: Workload, epochs: int, num_on: int) -> list[tuple[int, bool]]:
    """(active weights, whether masks are updated) for every step of a run."""
    method, seen = load.method(epochs), []
    if method.grow is not None and method.clock == "round":
        seen += [(num_on, False)] * STEPS * max(1, epochs // 8)
        while num_on < round(0.25 * NUM):
            num_on = min(num_on + num_on // 2, round(0.25 * NUM))
            seen += [(num_on, False)] * STEPS * max(1, round(epochs / 160))
        return seen + [(num_on, False)] * STEPS * epochs
    if method.clock == "round":
        level, rewind = 0, method.rewind_step if method.after_update == "rewind" else 0
        while True:
            seen += [(num_on, False)] * (STEPS * epochs - (rewind if level else 0))
            update = method.schedule(Progress(round=level, step=0, num_on=num_on, num=NUM))
            if update is None or not update.num_drop:
                return seen
            num_on, level = num_on - update.num_drop, level + 1
    for step in range(STEPS * epochs):
        update = method.schedule(Progress(round=0, step=step, num_on=num_on, num=NUM))
        is_real = update is not None and (method.update is not None or bool(update.num_drop or update.num_grow))
        seen.append((num_on, is_real))
        if update is not None:
            num_on += update.num_grow - update.num_drop
    return seen


def flops(cost: str, num_on: int, changes: bool) -> int:
    """Of a step: two FLOPs a multiply-add, forward, to the inputs, to the weights."""
    sparse, dense = num_on + OUTPUT, NUM + OUTPUT
    if cost == "dense":
        return BATCH * 6 * dense
    if cost == "batch_at_updates":
        return (2 if changes else 1) * BATCH * 6 * sparse
    to_weights = dense if cost == "dense_gradient_at_steps" or (changes and cost != "sparse") else sparse
    return BATCH * 2 * (2 * sparse + to_weights)


ALL = [
    "gmp",
    "gts",
    "acdc",
    "mest",
    "chts",
    "rigl",
    "set",
    "granet",
    "snfs",
    "gse",
    "random",
    "dense",
    "imp",
    "imp_c",
    "gcg",
]


@pytest.mark.parametrize("epochs", [1, 3, 20, 300])
@pytest.mark.parametrize("method", ALL)
def test_a_forecast_is_the_sum_over_all_steps(method: str, epochs: int) -> None:
    by_flops, by_parameters = (Forecast(workload(method, match=match)) for match in ("flops", "parameters"))
    load = by_flops.workload
    steps = played(load, epochs, by_flops.num_on)
    assert len(steps) >= STEPS * epochs
    cost = load.method(epochs).cost
    links = 4 * 64 * 16 * (64 + 16) + 4 * 16 * 12 * (16 + 12) if method == "chts" else 0
    assert by_flops.cost(epochs) == sum(flops(cost, on, updates) + links * updates for on, updates in steps)
    assert by_parameters.cost(epochs) == pytest.approx(sum(on + OUTPUT + BIASES for on, _ in steps) / STEPS)


def test_a_forecast_includes_the_gradients_that_growth_uses() -> None:
    """Random growth costs as much, except for a batch with dense weight gradients at each growth step."""
    by_gradient, at_random = (
        Forecast(workload(method, match="flops")).cost(3) for method in ("gradient_growth", "random_growth")
    )
    grown_from = [122, 183, 274]  # by half each time, to 304
    assert by_gradient - at_random == sum(BATCH * 2 * (2 * (on + OUTPUT) + NUM + OUTPUT) for on in grown_from)


def test_a_forecast_of_latent_weights_that_are_not_all_trained() -> None:
    cost, trained = Forecast(workload("topkast", match="flops")).cost(3), round(0.35 * NUM)
    assert cost == 3 * STEPS * BATCH * 2 * (2 * (304 + OUTPUT) + trained + OUTPUT)


def test_gradient_accumulation_makes_the_batches_for_scoring_smaller() -> None:
    whole, halves = (
        Forecast(workload("gse", match="flops", recipe={"batch_size": 64, "accumulate": parts})) for parts in (1, 2)
    )
    num_updates = sum(updates for _, updates in played(whole.workload, 20, whole.num_on))
    assert whole.cost(20) - halves.cost(20) == num_updates * BATCH // 2 * 6 * (304 + OUTPUT) > 0


# Plans


def test_a_budget_of_flops_is_that_of_dense_training_by_default_and_includes_the_initial_masks() -> None:
    epoch = STEPS * BATCH * 6 * (304 + OUTPUT)
    plan = make_plan(workload("random", match="flops"))
    assert plan.budget == 3 * STEPS * BATCH * 6 * (NUM + OUTPUT)
    assert plan.epochs == round(plan.budget / epoch)
    given = make_plan(workload("random", match="flops", match_budget=5.2 * epoch))
    assert (given.epochs, given.planned) == (5, 5 * epoch)
    snip = make_plan(workload("snip", match="flops"))
    assert snip.planned == snip.epochs * epoch + BATCH * 6 * (NUM + OUTPUT), "the gradient of a batch, dense"


def test_a_budget_of_parameters_counts_those_that_are_always_dense_or_not() -> None:
    plan = make_plan(workload("random", match="parameters"))
    assert plan.budget == 3 * (NUM + OUTPUT + BIASES)
    assert plan.epochs == round(plan.budget / (304 + OUTPUT + BIASES))
    plan = make_plan(workload("random", match="prunable"))
    assert plan.budget == 3 * NUM
    assert (plan.epochs, plan.planned) == (12, 12 * 304)


def test_a_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load = workload("imp", match="flops", epochs=9)
    plan = make_plan(load)
    monkeypatch.setattr(iso_flop, "Forecast", None)
    assert make_plan(load) == plan
    assert len(plan.lengths) == 8


def test_a_method_is_created_once_per_length(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[int] = []
    make = TrainConfig.make_method

    def counted(self: TrainConfig, num_steps: int) -> Method:
        created.append(num_steps)
        return make(self, num_steps)

    load = workload("rigl", match="flops", epochs=20)
    monkeypatch.setattr(TrainConfig, "make_method", counted)
    plan = make_plan(load)
    load.method(plan.epochs)
    assert len(created) == len(set(created)) < 20


@pytest.mark.parametrize("match", ["parameters", "flops"])
def test_a_budget_below_half_an_epoch_is_refused(match: str) -> None:
    epoch = 304 + OUTPUT + BIASES if match == "parameters" else STEPS * BATCH * 6 * (304 + OUTPUT)
    assert make_plan(workload("random", match=match, match_budget=0.51 * epoch)).epochs == 1
    with pytest.raises(
        UserError, match=rf"1 epoch of method 'random' at density 0.25 would cost \S+ \({match}\), more"
    ):
        make_plan(workload("random", match=match, match_budget=0.49 * epoch))


SMALL = {"density": 0.25, "model_options": {"widths": [16, 12]}, "recipe": {"batch_size": BATCH}, "threads": 1}


@pytest.mark.parametrize("method", ["random", "rigl", "imp_c"])
@pytest.mark.parametrize("match", ["flops", "parameters"])
def test_a_budget_of_a_million_epochs_is_refused_at_once(match: str, method: str) -> None:
    with pytest.raises(UserError, match=rf"^a budget of 1e\+30 \({match}\) is more than 100,000 epochs of method"):
        make_plan(workload(method, match=match, match_budget=1e30))


def epoch_costs(densities: Sequence[float], match: str) -> list[float]:
    """What an epoch at each density costs, in the unit of a budget: a weight of these layers is a multiply-add."""
    always = {"parameters": OUTPUT + BIASES, "prunable": 0, "flops": OUTPUT}[match]
    factor = 6 * BATCH * STEPS if match == "flops" else 1
    return [factor * (round(density * NUM) + always) for density in densities]


@pytest.mark.parametrize("match", ["parameters", "prunable", "flops"])
@pytest.mark.parametrize(("method", "options"), [("imp", {"rewind_step": 9}), ("imp", {}), ("lth", {}), ("imp_c", {})])
def test_levels_share_a_budget_of_any_kind(match: str, method: str, options: dict[str, Any], tmp_path: Path) -> None:
    given = {"method": method, "method_options": options, "epochs": 7, "match": match, **SMALL}
    ledger = train(TrainConfig.from_dict(given), tmp_path).ledger
    costs = epoch_costs([phase.density for phase in ledger.phases], match)
    trained = [phase.samples / (BATCH * STEPS) for phase in ledger.phases]
    spent = sum(epochs * cost for epochs, cost in zip(trained, costs, strict=True))
    assert ledger.match is not None
    assert ledger.match.spent == pytest.approx(spent)
    assert ledger.match.budget == pytest.approx(7 * costs[0])
    assert ledger.match.relative_error == pytest.approx(spent / (7 * costs[0]) - 1)
    assert abs(spent - 7 * costs[0]) <= costs[-1] / 2 * 1.01


def test_short_levels_differ_by_an_epoch_to_meet_a_budget(tmp_path: Path) -> None:
    """One epoch per level leaves most of this budget, two per level exceed it."""
    given = {"method": "imp", "method_options": {"rewind_step": 20}, "density": 0.1, "epochs": 4, "threads": 1}
    with pytest.warns(UserWarning, match="rewind_step 20 leaves 8 of 28 steps per level"):
        ledger = train(TrainConfig.from_dict({**given, "match": "parameters"}), tmp_path).ledger
    lengths = [phase.epochs for phase in ledger.phases]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert ledger.match is not None
    assert ledger.match.relative_error is not None
    assert abs(ledger.match.relative_error) < 0.01


@pytest.mark.parametrize("match", ["parameters", "prunable", "flops"])
@pytest.mark.parametrize("method", ["lth", "imp_c"])
def test_a_budget_of_less_than_an_epoch_per_level_is_refused(method: str, match: str) -> None:
    levels = [NUM]
    while levels[-1] > round(0.25 * NUM):
        levels.append(max(round(0.8 ** len(levels) * NUM), round(0.25 * NUM)))
    costs = epoch_costs([on / NUM for on in levels], match)
    least = sum(costs)
    plan = make_plan(workload(method, match=match, match_budget=least - 0.49 * costs[-1]))
    assert (plan.epochs, plan.planned) == (1, pytest.approx(least, rel=1e-3))
    with pytest.raises(UserError, match=f"^1 epoch per training of method '{method}' at density 0.25 would cost"):
        make_plan(workload(method, match=match, match_budget=least - 0.51 * costs[-1]))


def test_levels_are_longer_than_what_they_rewind_to() -> None:
    options = {"rewind_step": 2 * STEPS + 3}
    assert make_plan(workload("imp", match="parameters", method_options=options, epochs=7)).epochs == 3
    with pytest.raises(UserError, match=r"^3 epochs per training of method 'imp' at density 0.25 would cost"):
        make_plan(workload("imp", match="parameters", method_options=options, epochs=2))


@given(
    costs=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60),
    budget=st.floats(0.01, 500.0),
    least=st.integers(1, 60),
)
def test_the_largest_number_of_epochs_within_a_budget(costs: list[float], budget: float, least: int) -> None:
    def cost(epochs: int) -> float:
        return sum(costs[:epochs]) + 1.0 * max(0, epochs - len(costs))

    found = iso_flop._most_epochs(cost, budget, least)
    assert found >= least
    assert cost(found) <= budget or found == least
    assert cost(found + 1) > budget


# Whole runs of a convolutional network, in which it matters where the weights are

DENSITY = 0.2
QUICK = {"update_interval": 7, "rewind_step": 4, "num_search_steps": 5, "num_iterations": 3, "threshold": 0.03}


def config(method: str) -> TrainConfig:
    known = methods.defaults(method)
    options = {name: value for name, value in QUICK.items() if name in known}
    if "target_density" in known:
        options |= {"start_density": 0.1, "gamma": 0.5}
    values: dict[str, Any] = {
        "method": method,
        "method_options": options,
        "epochs": 8 if method.startswith("imp") else 3,  # one for each level at least
        "scope": "all",
        "model": "resnet20",
        "model_options": {"width": 1},
        "recipe": {"batch_size": BATCH},
        "threads": 1,
        "match": "flops",
    }
    if {"density", "target_density"} & known.keys():
        values["density"] = DENSITY
    return TrainConfig.from_dict(values)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return trained_once(tmp_path_factory, config)


@pytest.mark.parametrize("method", ["rigl", "snip", "str", "snfs", "gmp", "imp_c", "gcg"])
def test_what_is_spent_is_near_the_budget(method: str, trained: Callable[[str], Path]) -> None:
    """To half an epoch if masks stay where they are; if weights move between layers, the forecast is an estimate."""
    report = load_finished(trained(method))
    match, ledger, network = report.ledger.match, report.ledger, report.network
    assert match is not None
    assert (match.kind, match.budget) == ("flops", ledger.dense_training_flops)
    assert match.spent == sum(phase.training_flops for phase in ledger.phases)
    assert match.relative_error == pytest.approx(match.spent / match.budget - 1)
    assert match.planned is not None
    sparse, dense = network.inference_flops, network.dense_inference_flops
    num_updates = STEPS // QUICK["update_interval"] if report.method.cost == "dense_gradient_at_updates" else 0
    sample = 3 * (dense if method == "str" else sparse)
    epoch = BATCH * (STEPS * sample + num_updates * (dense - sparse))
    if method in ("rigl", "snip", "str"):
        assert match.spent == match.planned
        assert abs(match.spent - match.budget) <= 0.52 * epoch
    else:
        assert abs(match.planned - match.budget) <= (1 if method == "snfs" else 0.52) * epoch
        assert abs(match.relative_error) < 0.3


def test_a_matched_training_is_one_of_that_length(trained: Callable[[str], Path], tmp_path: Path) -> None:
    matched = load_finished(trained("rigl"))
    assert matched.network.epochs != config("rigl").epochs
    plain = dataclasses.replace(config("rigl"), match="none", epochs=matched.network.epochs)
    report = train(plain, tmp_path)
    assert (report.weights_sha256, report.network) == (matched.weights_sha256, matched.network)
    assert report.ledger.match is None


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", ["imp_c", "gcg"])
def test_an_interrupted_run_keeps_its_plan(
    method: str, trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, num_saves = StageFiles.save, 0

    def dying(self: StageFiles, stage: str, *stored: Any) -> None:
        nonlocal num_saves
        save(self, stage, *stored)
        num_saves += 1
        if num_saves == 8:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StageFiles, "save", dying)
        with pytest.raises(Killed):
            train(config(method), tmp_path)
    resumed = train(config(method), tmp_path)
    assert dataclasses.replace(resumed, timing=None) == dataclasses.replace(  # type: ignore[arg-type]
        load_finished(trained(method)),
        timing=None,  # type: ignore[arg-type]
    )


# The cost log


def test_mask_updates_are_charged_to_the_steps_they_are_part_of() -> None:
    """An update at the third step that took 500 FLOPs of scoring, and one at the seventh that took none."""
    meter = CostMeter(cost="sparse", dense_macs=100, batch_size=2, num=50)
    log = {
        "since": [0, 3, 7], "updated": [-1, 2, 6], "macs": [10, 20, 30], "num_on": [5, 10, 15], "scoring": [0, 500, 0],
    }  # fmt: skip
    steps = 2 * 6 * (3 * 10 + 4 * 20 + 3 * 30)
    assert meter.training_flops({"cost_log": log}, 0, 10) == steps + 500
    assert meter.training_flops({"cost_log": log}, 0, 2) == 2 * 6 * 2 * 10
    assert meter.training_flops({"cost_log": log}, 3, 10) == steps - 2 * 6 * 3 * 10
    assert meter.weight_steps({"cost_log": log}, 10) == 3 * 5 + 4 * 10 + 3 * 15
