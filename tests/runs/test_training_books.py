"""What a training writes of itself: epochs of all levels, parameters that were trained, one network on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from pathgrow.checkpoint import RunDir, StageFiles
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, MaskUpdate, Method, NetworkView, Progress
from pathgrow.methods.picks import all_candidates, at_random
from pathgrow.runs.config import DiscoverConfig, RunConfig, TrainConfig
from pathgrow.runs.levels import Levels
from pathgrow.runs.meter import Meter
from pathgrow.runs.plan import plan
from pathgrow.runs.run_discovery import run as run_experiment
from pathgrow.runs.training import train
from tests.support.trainings import bench

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
    return train(TrainConfig.from_dict({**values, **given}), out)


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


def test_epochs_trained_are_counted_by_samples(tmp_path: Path) -> None:
    """The first of eight levels has all steps of its epochs, the others those after the ninth."""
    ledger = trained(tmp_path, "imp", method_options={"rewind_step": 9})["ledger"]
    steps = [EPOCHS * STEPS, *[EPOCHS * STEPS - 9] * 7]
    assert [phase["epochs"] for phase in ledger["phases"]] == [EPOCHS] * 8
    assert [phase["epochs_trained"] for phase in ledger["phases"]] == pytest.approx([num / STEPS for num in steps])
    assert ledger["epochs_trained"] == pytest.approx(sum(steps) / STEPS)


@pytest.mark.parametrize("what", ["train", "discover"])
def test_a_training_left_half_done_is_cleared_when_its_run_is_over(what: str, tmp_path: Path) -> None:
    """A kill may come between the end of a stage and its clearing up; then nobody asks for the half of it again."""
    shared: dict[str, Any] = {"model_options": {"widths": [16]}, "threads": 1}
    if what == "train":
        config: RunConfig = TrainConfig.from_dict({**shared, "method": "random", "density": 0.3, "epochs": 1})
        run = partial(train, config, tmp_path / "run")
    else:
        config = DiscoverConfig.from_dict({**shared, "budget": 1, "start_density": 0.2, "target_density": 0.2})
        run = partial(run_experiment, config, tmp_path / "run")
    first = run()
    (tmp_path / "run" / "report.json").unlink()
    with RunDir.open(tmp_path / "run", config.as_dict(), device="cpu") as folder:
        folder.stages.save("partial-level-000-0", {"step": 3}, {"weights": torch.zeros(3)})
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
    """A change at the third step that cost 500 to decide on, and one at the seventh that cost nothing."""
    meter = Meter(cost="sparse", dense_macs=100, batch_size=2, num=50)
    price = {
        "steps": [0, 3, 7], "changed": [-1, 2, 6], "macs": [10, 20, 30], "num_on": [5, 10, 15], "reading": [0, 500, 0],
    }  # fmt: skip
    steps = 2 * 6 * (3 * 10 + 4 * 20 + 3 * 30)
    assert meter.training_flops({"price": price}, 0, 10) == steps + 500
    assert meter.training_flops({"price": price}, 0, 2) == 2 * 6 * 2 * 10
    assert meter.training_flops({"price": price}, 3, 10) == steps - 2 * 6 * 3 * 10


def pruning_by_gradient() -> Method:
    """Half of the weights goes after a training, those with the smallest gradients."""

    def smallness(net: NetworkView) -> dict[str, Tensor]:
        return {name: -gradient for name, gradient in net.gradients().items()}

    def half_once(progress: Progress) -> MaskUpdate | None:
        return MaskUpdate(num_drop=progress.num // 2) if progress.round == 0 else None

    return Method(
        name="mine", start=all_candidates, start_density=1.0, drop=ByScore(smallness, top_k), schedule=half_once,
        needs=frozenset({"gradients"}),
    )  # fmt: skip


def rewiring_by_paths() -> Method:
    """Ten weights make room at every fourth step for others that lie on heavy paths."""

    def at_fourth_steps(progress: Progress) -> MaskUpdate | None:
        return MaskUpdate(num_drop=10, num_grow=10) if progress.step % 4 == 3 else None

    return Method(
        name="mine", start=at_random, start_density=0.5, drop=at_random, grow=ByScore(NetworkView.path_scores, top_k),
        schedule=at_fourth_steps, clock="step", needs=frozenset({"paths"}),
    )  # fmt: skip


@pytest.mark.parametrize("make", [pruning_by_gradient, rewiring_by_paths])
def test_a_method_of_ones_own_pays_for_what_it_reads(
    make: Callable[[], Method], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_methods")
    module.mine = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_methods", module)
    phases = trained(tmp_path, "my_methods:mine", density=None)["ledger"]["phases"]
    a_training = EPOCHS * STEPS * 64 * 6 * NUM
    if make is pruning_by_gradient:  # a batch through all weights, before there are half as many
        assert [phase["training_flops"] for phase in phases] == [a_training, a_training // 2 + 64 * 6 * NUM]
    else:  # a sample through all weights, seven times
        assert [phase["training_flops"] for phase in phases] == [a_training // 2 + EPOCHS * STEPS // 4 * 6 * NUM]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed", [False, True])
def test_choosing_the_first_masks_takes_time_too(killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its FLOPs are part of the first phase, and so are its seconds, also where masks are taken from a store."""
    num_chosen = 0

    def slowly(*given: Any) -> Masks:
        nonlocal num_chosen
        num_chosen += 1
        time.sleep(0.5)
        return at_random(*given)

    module = ModuleType("my_methods")
    module.mine = lambda: Method(name="mine", start=slowly, start_density=0.5)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_methods", module)
    if killed:
        save = StageFiles.save

        def last(self: StageFiles, stage: str, *stored: Any) -> None:
            save(self, stage, *stored)
            if stage == "start":
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(StageFiles, "save", last)
            with pytest.raises(Killed):
                trained(tmp_path, "my_methods:mine", density=None)
    timing = trained(tmp_path, "my_methods:mine", density=None)["timing"]
    assert num_chosen == 1
    assert timing["phases"] == [{"phase": "level-000", "seconds": timing["seconds"]}]
    assert 0.5 < timing["seconds"] <= timing["run_seconds"]
