"""`pathgrow train`: the report of one training and of levels, stored stages, costs of custom methods."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from pathgrow import attach, data, methods, models
from pathgrow.checkpoint import RunDir, StageFiles
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, MaskUpdate, Method, NetworkView, Progress
from pathgrow.methods.picks import all_candidates, at_random
from pathgrow.report.html import cost_by_kind
from pathgrow.report.schema import load_report
from pathgrow.report.text import findings
from pathgrow.runs import stages
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.training import train
from pathgrow.sparse.training_state import pack_training, unpack_training_
from pathgrow.trainer import Trainer, recipes
from pathgrow.trainer.interface import Job
from tests.support.catalogue import Trials
from tests.support.command import assert_same
from tests.support.faults import Kill, kill_and_resume, replaced
from tests.support.graphs_on_a_cpu import graphs_on_a_cpu
from tests.support.trainings import report, trained_once

DENSITY = 0.25


EPOCHS = 2


BATCH = 64


QUICK = {"update_interval": 3, "rewind_step": 4, "num_search_steps": 5, "num_iterations": 3}
"""Options that methods share, small enough for the 28 steps of these trainings."""


def config(method: str, **given: Any) -> TrainConfig:
    known = methods.defaults(method)
    options = {name: value for name, value in QUICK.items() if name in known}
    if "target_density" in known:
        options |= {"start_density": 0.1, "gamma": 1.0}
    values = {
        "method": method,
        "method_options": {**options, **given.pop("method_options", {})},
        "epochs": EPOCHS,
        "scope": "all",
        "model_options": {"widths": [16]},
        "recipe": {"batch_size": BATCH},
        "threads": 1,
    }
    if {"density", "target_density"} & known.keys():
        values["density"] = DENSITY
    return TrainConfig.from_dict({**values, **given})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return trained_once(tmp_path_factory, config)


def without_clock(run: Path) -> dict[str, Any]:
    return {name: part for name, part in report(run).items() if name != "timing"}


@pytest.mark.parametrize("method", methods.names())
def test_every_method_reaches_its_density_and_reports_its_cost(method: str, trained: Callable[[str], Path]) -> None:
    run = trained(method)
    values, masks = report(run), Masks.load(run / "network_masks.safetensors")
    weights = load_file(run / "network.safetensors")
    network, num = values["network"], 64 * 16 + 16 * 10
    assert (network["num"], network["num_parameters"]) == (num, num + 26)
    assert network["num_on"] == masks.num_on
    if "exact_count" not in methods.entry(method).exceptions:
        assert masks.num_on == (num if method == "dense" else round(DENSITY * num))
    assert network["density_model"] == pytest.approx((masks.num_on + 26) / (num + 26))
    for name, mask in masks.items():
        assert not weights[name][~mask].any(), "plain weights, zero where the masks are off"
    # In a network of linear layers a weight is a multiply-add.
    assert network["inference_flops"] == 2 * masks.num_on
    assert network["dense_inference_flops"] == 2 * num
    assert network["inference_relative"] == masks.num_on / num
    assert values["ledger"]["dense_training_flops"] == EPOCHS * (898 // BATCH) * BATCH * 6 * num
    assert values["ledger"]["training_flops"] > 0
    assert 0 < network["val"]["score"] <= 1
    assert 0 < network["test"]["score"] <= 1
    assert values["config"] == RunDir(run).config


@pytest.mark.parametrize(
    "method", ["dense", "random", "snip", "grasp", "synflow", "dpai", "phew", "edge_popup", "st3", "topkast", "snfs"]
)
def test_the_cost_of_static_masks(method: str, trained: Callable[[str], Path]) -> None:
    values = report(trained(method))
    num, num_on = values["network"]["num"], values["network"]["num_on"]
    with_gradients_of = {"snfs": num, "topkast": round((DENSITY + 0.1) * num)}.get(method, num_on)
    sample = 6 * num if method in ("dense", "edge_popup", "st3") else 2 * (2 * num_on + with_gradients_of)
    before = {"snip": BATCH * 6 * num, "grasp": BATCH * 4 * 6 * num, "synflow": 3 * 6 * num, "dpai": 5 * 6 * num}
    assert values["ledger"]["start_flops"] == before.get(method, 0)
    assert values["ledger"]["training_flops"] == values["ledger"]["samples"] * sample + before.get(method, 0)


@pytest.mark.parametrize("method", ["gmp", "rigl", "set", "granet", "gse", "gts", "acdc", "mest", "chts"])
def test_the_cost_of_masks_that_change_during_training(method: str, trained: Callable[[str], Path]) -> None:
    """Against a plain loop that counts the weights each batch has seen."""
    values = report(trained(method))
    steps = values["ledger"]["samples"] // BATCH
    made = config(method).make_method(steps)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = {"loss": lambda model, x: model(x).square().mean(), "batches": [torch.randn(BATCH, 64)]}
    sparse = attach(model, optimizer, made, torch.zeros(1, 64), scope=Masks.full(model), **probe)
    num, flops, num_changes = sparse.masks.num, 0, 0
    for _ in range(steps):
        num_on, is_due = sparse.masks.num_on, sparse.update_is_due
        with_all = is_due and made.cost == "dense_gradient_at_updates"
        flops += BATCH * 2 * (2 * num_on + (num if with_all else num_on))
        if is_due and "data" in made.needs:
            flops += BATCH * 2 * 3 * num_on  # a batch of its own, to see where gradients may be large
        num_changes += is_due
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        if is_due and method == "chts":  # four products of the two layers' matrices
            flops += 4 * 64 * 16 * (64 + 16) + 4 * 16 * 10 * (16 + 10)
        if method == "gts" and sparse.masks.num_on > num_on:
            flops += 2 * 3 * num  # path scores: one sample through all weights
    assert num_changes > 2
    assert values["ledger"]["training_flops"] == flops


def test_the_cost_of_pruning_in_levels(trained: Callable[[str], Path]) -> None:
    values = report(trained("imp_c"))
    num = values["network"]["num"]
    numbers_on = [round(phase["density"] * num) for phase in values["ledger"]["phases"]]
    assert numbers_on[0] == num
    assert numbers_on == sorted(numbers_on, reverse=True)
    assert len(numbers_on) == 1 + 7, "a fifth less each time: 0.8 to the 7th is the first below a quarter"
    assert values["ledger"]["relative"] == pytest.approx(sum(numbers_on) / num)


def test_a_rewound_network_trains_from_the_rewind_step(trained: Callable[[str], Path]) -> None:
    values = report(trained("imp"))
    per_level = EPOCHS * (898 // BATCH) * BATCH
    first, *others = values["ledger"]["phases"]
    assert first["samples"] == per_level
    assert {phase["samples"] for phase in others} == {per_level - QUICK["rewind_step"] * BATCH}


def test_a_training_that_starts_at_a_step_ends_like_the_whole() -> None:
    """Order, augmentation and learning rate are those of the step, not of a beginning."""
    dataset = data.load("digits")
    trainer = Trainer(dataset, recipes.recipe("digits").override({"batch_size": BATCH}))

    def fresh() -> Any:
        torch.manual_seed(0)
        model, optimizer = trainer.place(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))
        return attach(model, optimizer, "random", scope=Masks.full(model))

    class Kept:
        name = "kept"
        state: Any = None

        def is_due(self, step: int, seconds: float) -> bool:
            return step == 17

        def is_worth_saving(self, seconds: float) -> bool:
            return False

        def load(self, attached: Any) -> None:
            return None

        def save(self, attached: Any, step: int, noise: Any) -> None:
            self.state = copy.deepcopy(pack_training(attached))

    whole, kept = fresh(), Kept()
    assert trainer.train([Job(attached=whole, epochs=2, seed=3, progress=kept)]) == [2 * 14 * BATCH]
    rest = fresh()
    unpack_training_(rest, *kept.state)
    assert trainer.train([Job(attached=rest, epochs=2, seed=3, first_step=17)]) == [(2 * 14 - 17) * BATCH]
    for here, there in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize(("match", "beside"), [("parameters", 26), ("prunable", 0)])
def test_a_budget_of_parameters_is_taken_from_another_run(
    match: str, beside: int, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    """With the biases, which no method switches, or without."""
    grown = report(trained("gcg"))
    budget = sum(
        phase["epochs"] * (beside + round(phase["density"] * grown["network"]["num"]))
        for phase in grown["ledger"]["phases"]
    )
    values = train(config("random", match=match, match_run=str(trained("gcg"))), tmp_path).as_json()
    assert values["ledger"]["match"]["kind"] == match
    assert values["ledger"]["match"]["budget"] == budget
    assert values["network"]["epochs"] == round(budget / (beside + values["network"]["num_on"]))
    assert values["ledger"]["match"]["spent"] == values["network"]["epochs"] * (beside + values["network"]["num_on"])


def test_epochs_times_parameters_of_masks_that_change_within_a_training(
    trained: Callable[[str], Path], tmp_path: Path
) -> None:
    """A training that begins dense has had more parameters than it ends with; counted step by step here."""
    method, num, num_on, total = config("gmp").make_method(28), 1184, 1184, 0
    for step in range(28):
        total += 26 + num_on
        change = method.schedule(Progress(round=0, step=step, num_on=num_on, num=num))
        num_on -= change.num_drop if change is not None else 0
    assert report(trained("gmp"))["ledger"]["epochs_times_parameters"] == pytest.approx(total / 14)
    assert report(trained("gmp"))["ledger"]["epochs_times_prunable"] == pytest.approx(total / 14 - 2 * 26)
    values = train(config("random", match="parameters", match_run=str(trained("gmp"))), tmp_path).as_json()
    match = values["ledger"]["match"]
    assert match["budget"] == pytest.approx(total / 14)
    assert match["spent"] == match["epochs"] * (26 + values["network"]["num_on"])
    assert match["relative_error"] == pytest.approx(match["spent"] / match["budget"] - 1)


def test_a_budget_by_number_and_the_schedule_stretched_over_it(tmp_path: Path) -> None:
    budget = 5 * (26 + round(DENSITY * 1184))
    values = train(config("rigl", match="parameters", match_budget=budget), tmp_path).as_json()
    assert values["network"]["epochs"] == 5
    assert values["ledger"]["samples"] == 5 * 14 * BATCH
    num_steps = 5 * 14
    changes = [step for step in range(1, num_steps) if step % 3 == 0 and step < 0.75 * num_steps]
    num, num_on = values["network"]["num"], values["network"]["num_on"]
    extra = values["ledger"]["training_flops"] - values["ledger"]["samples"] * 6 * num_on
    assert extra / (BATCH * 2 * (num - num_on)) == pytest.approx(len(changes), abs=1)


class Killed(BaseException):
    pass


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> Counter[str]:
    """From now on trainings are stored after every step, and the process dies at one of the saves."""
    saved: Counter[str] = Counter()
    save = StageFiles.save

    def counted(self: StageFiles, stage: str, *stored: Any) -> None:
        save(self, stage, *stored)
        saved[stage] += 1
        if saved.total() == after:
            raise Killed

    monkeypatch.setattr(StageFiles, "save", counted)
    monkeypatch.setattr(stages, "SECONDS_BETWEEN_SAVES", 0.0)
    return saved


@pytest.mark.item(3)
@pytest.mark.parametrize("method", methods.names())
def test_every_method_resumes_with_identical_results(
    method: str, trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = len(report(trained(method))["ledger"]["phases"]) > 1
    for after in (2, 19, 45 if several else 7):  # numbers of saves: where there are several trainings, in a later one
        with monkeypatch.context() as patched:
            saved = dying(patched, after)
            with pytest.raises(Killed):
                train(config(method), tmp_path)
        if after == 2:
            assert list(saved) == ["plan", "start"], "killed when the initial masks were chosen"
        else:
            assert any(name.startswith("partial-") for name in saved), "killed inside a training"
        assert not RunDir(tmp_path).finished
    train(config(method), tmp_path)
    assert without_clock(tmp_path) == without_clock(trained(method))
    assert (tmp_path / "network.safetensors").read_bytes() == (trained(method) / "network.safetensors").read_bytes()
    assert list((tmp_path / "stages").glob("partial-*.safetensors")) == []


@pytest.fixture(scope="module")
def _no_fsync() -> Iterator[None]:
    """A kill loses nothing that the kernel has."""
    with replaced(os, "fsync", lambda descriptor: None):
        yield


def captured(out: Path, method: str) -> None:
    """Train with CUDA-graph steps."""
    with graphs_on_a_cpu():
        train(config(method, engine={"step": "cuda_graph"}), out)


def eager(out: Path, method: str) -> None:
    train(config(method), out)


@pytest.mark.item(3)
@pytest.mark.usefixtures("_no_fsync")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [eager, captured], ids=lambda steps: steps.__name__)
def test_methods_killed_at_random_points_end_with_identical_bits(
    steps: Callable[[Path, str], None], tmp_path: Path, trials: Trials
) -> None:
    """SIGKILL in a step, in the middle of a change of masks, or within a save."""
    names = methods.names()
    for method in trials.draw.sample(names, trials.count(quick=4, full=len(names))):
        counting, undisturbed, path = Kill(), tmp_path / method, tmp_path / "killed"
        with counting.patched():
            steps(undisturbed, method)
        for number in range(trials.count(quick=1, full=17)):
            with trials.one(f"{method} {number}"):
                kill_and_resume(functools.partial(steps, method=method), path, counting.num_events, trials, num_kills=3)
                assert_same(path, undisturbed)
            shutil.rmtree(path)


def test_lost_levels_are_trained_again(trained: Callable[[str], Path], tmp_path: Path) -> None:
    run = shutil.copytree(trained("lth"), tmp_path / "run")
    (run / "report.json").unlink()
    for path in (run / "stages").glob("*-8.*"):
        path.unlink()
    (run / "stages" / "weights-007.safetensors").unlink()
    train(config("lth"), run)
    assert without_clock(run) == without_clock(trained("lth"))


def test_a_finished_run_is_read_and_the_test_split_is_used_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge: list[str] = []
    evaluate = Trainer.evaluate

    def watched(self: Trainer, split: Any) -> Callable[[nn.Module], tuple[float, float]]:
        score, name = evaluate(self, split), "test" if split is self.data.test else "val"

        def scored(model: nn.Module) -> tuple[float, float]:
            charge.append(name)
            return score(model)

        return scored

    monkeypatch.setattr(Trainer, "evaluate", watched)
    first = train(config("imp_c"), tmp_path)
    num_levels = len(first.ledger.phases)
    once = ["val"] * num_levels + ["test"]
    assert charge == once
    assert train(config("imp_c"), tmp_path) == first
    assert charge == once


@pytest.mark.parametrize(
    ("method", "match"),
    [
        *((name, "none") for name in ("gcg", "gradient_growth", "pathgrow_d", "random_growth", "trace_growth")),
        ("gcg", "flops"),
    ],
)
def test_growth_to_less_than_the_automatic_start_density(method: str, match: str, tmp_path: Path) -> None:
    """Of 1184 weights the automatic start would take at least 12 (1%)."""
    asked = config(method, density=0.008, match=match, epochs=1, method_options={"start_density": None})
    train(asked, tmp_path / "run")
    masks = Masks.load(tmp_path / "run" / "network_masks.safetensors")
    assert (masks.num, masks.num_on) == (1184, 9)


def test_the_budget_of_another_model_is_refused(trained: Callable[[str], Path]) -> None:
    other = config("random", match="flops", match_run=str(trained("gcg")), model_options={"widths": [8]})
    with pytest.raises(UserError, match="model_options"):
        other.resolved()


def test_few_mask_updates_are_a_warning(tmp_path: Path) -> None:
    seldom = config("set", epochs=10, method_options={"update_interval": 100})
    with pytest.warns(UserWarning, match=r"only 2 mask updates in 140 steps \(update interval 100\)"):
        report = train(seldom, tmp_path / "seldom")
    assert [note.partition(";")[0] for note in report.notes] == [
        "only 2 mask updates in 140 steps (update interval 100)"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(config("set"), tmp_path / "often").notes == ()


EPOCHS, STEPS = 2, 898 // 64


NUM, DENSE = 64 * 16 + 16 * 10, 26


def trained_in(out: Path, method: str, **given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "method": method,
        "density": 0.25,
        "epochs": EPOCHS,
        "scope": "all",
        "model_options": {"widths": [16]},
        "recipe": {"batch_size": 64},
        "threads": 1,
    }
    return train(TrainConfig.from_dict({**values, **given}), out).as_json()


def test_levels_add_up_and_keep_one_network_on_disk(tmp_path: Path) -> None:
    values = trained_in(tmp_path, "imp_c")
    assert [point["epochs"] for point in values["curve"]["rounds"]] == [EPOCHS * level for level in range(1, 9)]
    assert [phase["phase"] for phase in values["ledger"]["phases"]] == [f"level-{level}" for level in range(1, 9)]
    assert values["network"]["epochs"] == 8 * EPOCHS
    kept = sorted(path.stem for path in (tmp_path / "stages").glob("*.safetensors"))
    assert kept == ["start", "weights-007"], "only the last network is kept"


@pytest.mark.parametrize("final", ["fresh", "grown"])
def test_growth_ends_with_a_fresh_initialization_or_with_the_grown_weights(final: str, tmp_path: Path) -> None:
    """Hardly trained, grown weights are those of the initial network where the seed was, and zero elsewhere."""
    recipe = {"batch_size": 64, "lr": 1e-9, "weight_decay": 0.0}
    values = trained_in(tmp_path, "gcg", epochs=16, recipe=recipe, final=final)
    assert values["network"]["final"] == final
    shown = dict(findings(load_report(values, "report")))["trained"]
    assert shown.endswith(f", the last from {'a fresh initialization' if final == 'fresh' else 'the grown weights'}")
    *growth, last = [phase["epochs"] for phase in values["ledger"]["phases"]]
    assert last == (16 if final == "fresh" else 16 - sum(growth))
    weights = load_file(tmp_path / "network.safetensors")
    start = models.create("mlp", 10, seed=0, widths=(16,)).state_dict()
    name = next(name for name in weights if name.endswith("weight"))
    unmoved = torch.isclose(weights[name], start[name], atol=1e-6)
    seed_mask = unmoved & (weights[name].abs() > 1e-6)
    if final == "grown":
        assert int(seed_mask.sum()) > 10
        assert bool((unmoved | (weights[name].abs() < 1e-6)).all())
    else:
        assert int(seed_mask.sum()) <= 2


def test_growth_that_ends_with_the_grown_weights_is_matched_to_a_budget(tmp_path: Path) -> None:
    match = trained_in(tmp_path, "gcg", epochs=12, match="flops", final="grown")["ledger"]["match"]
    assert abs(match["relative_error"]) < 0.02
    with pytest.raises(UserError, match="final must be 'fresh' for method 'rigl', which does not grow"):
        TrainConfig.from_dict({"method": "rigl", "final": "grown"})


@pytest.mark.parametrize(("rough", "lengths"), [(1, {1}), (2, {2}), (0.2, {3}), ("adaptive", set(range(4, 41)))])
def test_growth_rounds_have_the_requested_length_and_report_their_topology(
    rough: Any, lengths: set[int], tmp_path: Path
) -> None:
    """Early stopping takes four epochs at least: the first one is the best, and three do not improve on it."""
    values = trained_in(tmp_path, "gcg", epochs=16, rough=rough)
    seed, *rounds, final = values["ledger"]["phases"]
    assert len(rounds) > 1
    assert {phase["epochs"] for phase in rounds} <= lengths
    assert (seed["epochs"], final["epochs"]) == (2, 16)
    assert [row["density"] for row in values["topology"]] == [phase["density"] for phase in (seed, *rounds)]


def test_rough_training_needs_growth_and_a_known_length_for_a_matched_budget(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rough has no effect on method 'rigl'"):
        TrainConfig.from_dict({"method": "rigl", "rough": 2})
    with pytest.raises(UserError, match="rough must be a number if a budget is matched"):
        TrainConfig.from_dict({"method": "gcg", "density": 0.2, "rough": "adaptive", "match": "flops"})
    match = trained_in(tmp_path, "gcg", epochs=12, match="flops", rough=2)["ledger"]["match"]
    assert abs(match["relative_error"]) < 0.02


@pytest.mark.parametrize("method", ["random", "edge_popup"])
def test_trained_parameters_are_counted_not_remaining_ones(method: str, tmp_path: Path) -> None:
    """Latent weights are trained whether or not their mask is on."""
    values = trained_in(tmp_path, method)
    num = NUM if method == "edge_popup" else values["network"]["num_on"]
    assert values["network"]["num_on"] == round(0.25 * NUM)
    assert values["ledger"]["epochs_times_parameters"] == EPOCHS * (num + DENSE)


def test_the_cost_of_dense_training_does_not_depend_on_rewinding(tmp_path: Path) -> None:
    """Rewound levels have fewer samples in as many epochs; a dense training does not."""
    ledger = trained_in(tmp_path, "imp", method_options={"rewind_step": 9})["ledger"]
    dense = EPOCHS * STEPS * 64 * 6 * NUM
    assert ledger["samples"] < 8 * EPOCHS * STEPS * 64
    assert ledger["dense_training_flops"] == dense
    assert ledger["relative"] == pytest.approx(ledger["training_flops"] / dense)


def test_epochs_trained_are_counted_by_samples(tmp_path: Path) -> None:
    """The first of eight levels has all steps of its epochs, the others those after the ninth."""
    values = trained_in(tmp_path, "imp", method_options={"rewind_step": 9})
    ledger, steps = values["ledger"], [EPOCHS * STEPS, *[EPOCHS * STEPS - 9] * 7]
    assert [phase["epochs"] for phase in ledger["phases"]] == [EPOCHS] * 8
    assert [phase["epochs_trained"] for phase in ledger["phases"]] == pytest.approx([num / STEPS for num in steps])
    assert ledger["epochs_trained"] == pytest.approx(sum(steps) / STEPS)
    assert values["network"]["epochs"] == round(sum(steps) / STEPS) < 8 * EPOCHS
    by_kind = cost_by_kind(load_report(values, "report"))[1]
    assert by_kind[-1][:3] == ["total", "8", f"{sum(steps) / STEPS:.1f}"]


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
def test_custom_methods_are_charged_for_scoring(
    make: Callable[[], Method], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_methods")
    module.mine = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_methods", module)
    methods.entry("my_methods:mine")  # imported, as the command line does
    phases = trained_in(tmp_path, "my_methods:mine", density=None)["ledger"]["phases"]
    a_training = EPOCHS * STEPS * 64 * 6 * NUM
    if make is pruning_by_gradient:  # a batch through all weights, before there are half as many
        assert [phase["training_flops"] for phase in phases] == [a_training, a_training // 2 + 64 * 6 * NUM]
    else:  # a sample through all weights, seven times
        assert [phase["training_flops"] for phase in phases] == [a_training // 2 + EPOCHS * STEPS // 4 * 6 * NUM]


@pytest.mark.parametrize("killed", [False, True])
def test_choosing_the_initial_masks_is_timed(killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    methods.entry("my_methods:mine")  # imported, as the command line does
    if killed:
        save = StageFiles.save

        def last(self: StageFiles, stage: str, *stored: Any) -> None:
            save(self, stage, *stored)
            if stage == "start":
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(StageFiles, "save", last)
            with pytest.raises(Killed):
                trained_in(tmp_path, "my_methods:mine", density=None)
    timing = trained_in(tmp_path, "my_methods:mine", density=None)["timing"]
    assert num_chosen == 1
    assert timing["phases"] == [{"phase": "training", "seconds": timing["seconds"]}]
    assert 0.5 < timing["seconds"] <= timing["run_seconds"]


@given(num_steps=st.integers(1, 200_000))
def test_late_rewinding_scales_with_short_trainings(num_steps: int) -> None:
    step = methods.create("imp", num_steps=num_steps).rewind_step
    assert step == (500 if num_steps >= 10_000 else pytest.approx(num_steps / 20, abs=0.5))
    assert methods.create("imp", num_steps=num_steps, rewind_step=7).rewind_step == 7


def test_late_rewinding_in_a_custom_loop_goes_to_step_500() -> None:
    assert methods.create("imp").rewind_step == 500
    assert methods.create("imp", rewind_step=2e2).rewind_step == 200


@settings(deadline=None, max_examples=10)
@given(epochs=st.integers(1, 12))
def test_short_levels_keep_nearly_all_of_their_steps(epochs: int) -> None:
    config = TrainConfig.from_dict({"method": "imp", "epochs": epochs, "density": 0.25})
    assert config.make_method(epochs * STEPS).rewind_step == round(0.05 * epochs * STEPS)


@pytest.mark.parametrize("match", [{}, {"match": "flops"}])
def test_a_method_is_created_once_per_length_and_asked_once_per_update(
    match: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: Counter[int] = Counter()
    updated: Counter[int] = Counter()
    make, next_masks = TrainConfig.make_method, Method.next_masks

    def counted_make(self: TrainConfig, num_steps: int) -> Method:
        created[num_steps] += 1
        return make(self, num_steps)

    def counted_update(self: Method, net: NetworkView, update: MaskUpdate, progress: Progress, *rest: Any) -> Masks:
        updated[progress.step] += 1
        return next_masks(self, net, update, progress, *rest)

    rigl = config("rigl", **match)
    monkeypatch.setattr(TrainConfig, "make_method", counted_make)
    monkeypatch.setattr(Method, "next_masks", counted_update)
    report = train(rigl, tmp_path)
    num_steps = report.network.epochs * (898 // BATCH)
    assert created[num_steps] == 1
    assert created.total() - created[1] <= (7 if match else 1), "besides validating the config"
    assert updated.keys() == set(range(0, int(0.75 * num_steps) + 1, 3))
    assert set(updated.values()) == {1}
