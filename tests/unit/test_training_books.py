"""What a training writes of itself: epochs of all levels, parameters that were trained, one network on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pathgrow.experiment import Experiment
from pathgrow.experiment import run as run_experiment
from pathgrow.experiment.setup import Setup
from pathgrow.runs import RunFolder
from pathgrow.training import TrainRun, train
from pathgrow.training.levels import Levels
from pathgrow.training.meter import Meter
from pathgrow.training.plan import plan
from tests.trainings import bench

EPOCHS, STEPS = 2, 898 // 64
NUM, DENSE = 64 * 16 + 16 * 10, 26


def trained(out: Path, method: str, **given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "method": method,
        "density": 0.25,
        "epochs": EPOCHS,
        "scope": "all",
        "model_options": {"widths": [16]},
        "recipe": {"batch_size": 64},
        "threads": 1,
    }
    return train(TrainRun.from_dict({**values, **given}), out)


def test_levels_add_up_and_leave_one_network_on_disk(tmp_path: Path) -> None:
    told = trained(tmp_path, "imp_c")
    assert len(told["phases"]) == 8
    assert [phase["epochs"] for phase in told["phases"]] == [EPOCHS * level for level in range(1, 9)]
    assert told["network"]["epochs"] == 8 * EPOCHS
    kept = sorted(path.stem for path in (tmp_path / "stages").glob("*.safetensors"))
    assert kept == ["level-007", "start"], "of a level that is over its network is enough"


@pytest.mark.parametrize("method", ["random", "edge_popup"])
def test_parameters_that_are_trained_are_counted_not_those_that_are_left(method: str, tmp_path: Path) -> None:
    """Hidden weights are trained whether a mask shows them or not."""
    told = trained(tmp_path, method)
    num = NUM if method == "edge_popup" else told["network"]["num_on"]
    assert told["network"]["num_on"] == round(0.25 * NUM)
    assert told["ledger"]["epochs_times_parameters"] == EPOCHS * (num + DENSE)


def test_what_training_dense_would_cost_does_not_hang_on_where_levels_begin(tmp_path: Path) -> None:
    """Levels that are set back to a step have fewer samples in as many epochs; a dense training has not."""
    ledger = trained(tmp_path, "imp", method_options={"rewind_step": 9})["ledger"]
    dense = EPOCHS * STEPS * 64 * 6 * NUM
    assert ledger["samples"] < 8 * EPOCHS * STEPS * 64
    assert ledger["dense_training_flops"] == dense
    assert ledger["relative"] == pytest.approx(ledger["training_flops"] / dense)


@pytest.mark.parametrize("what", ["train", "discover"])
def test_a_training_left_half_done_is_cleared_when_its_run_is_over(what: str, tmp_path: Path) -> None:
    """A kill may come between the end of a stage and its clearing up; then nobody asks for the half of it again."""
    shared: dict[str, Any] = {"model_options": {"widths": [16]}, "threads": 1}
    if what == "train":
        config: Setup = TrainRun.from_dict({**shared, "method": "random", "density": 0.3, "epochs": 1})
        run = partial(train, config, tmp_path / "run")
    else:
        config = Experiment.from_dict({**shared, "budget": 1, "start_density": 0.2, "target_density": 0.2})
        run = partial(run_experiment, config, tmp_path / "run")
    first = run()
    (tmp_path / "run" / "report.json").unlink()
    with RunFolder.open(tmp_path / "run", config.as_dict(), device="cpu") as folder:
        folder.save("partial-level-000-0", {"step": 3}, {"weights": torch.zeros(3)})
    again = run()
    assert {**again, "timing": None} == {**first, "timing": None}
    assert list((tmp_path / "run" / "stages").glob("partial-*.safetensors")) == []


def test_a_level_is_never_shorter_than_what_it_is_set_back_to() -> None:
    """All of the budget is spent already; what is left to train has to go beyond the step it begins at all the same."""
    made = bench("imp", match="flops", method_options={"rewind_step": STEPS + 3}, epochs=30)
    levels = Levels(made, plan(made))
    spent = [levels._train_(0, [], 0, 0.0)]
    levels.attached.advance_()
    assert levels._level_epochs(1, spent * 1000, STEPS + 3) == 2
    levels.attached.detach()


def test_samples_that_a_change_has_looked_at_are_paid_for() -> None:
    """A change at the third step that looked at 5 samples of its own, and one at the seventh that looked at none."""
    meter = Meter(cost="sparse", dense_macs=100, batch_size=2, num=50)
    price = {"steps": [0, 3, 7], "macs": [10, 20, 30], "num_on": [5, 10, 15], "num_probed": [0, 5, 0]}
    steps = 2 * 6 * (3 * 10 + 4 * 20 + 3 * 30)
    assert meter.training_flops({"price": price}, 0, 10) == steps + 5 * 6 * 10
    assert meter.training_flops({"price": price}, 3, 10) == steps - 2 * 6 * 3 * 10
