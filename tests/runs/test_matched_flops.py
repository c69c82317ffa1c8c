"""Trainings that are given a budget of FLOPs spend it, wherever their weights move to, also when they are killed."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pathgrow import methods
from pathgrow.checkpoint import StageFiles
from pathgrow.errors import RunFailed
from pathgrow.masks import Masks
from pathgrow.methods.method import MaskUpdate, Method, Progress
from pathgrow.methods.picks import at_random
from pathgrow.methods.schedules import PruneCubically
from pathgrow.report.text import findings
from pathgrow.runs import phases
from pathgrow.runs.config import TrainConfig
from pathgrow.runs.forecast import nearest
from pathgrow.runs.pace import LOOKS, Pace, PacedTrainer, lengths, paced
from pathgrow.runs.training import train
from pathgrow.sparse import training_state
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer.interface import Job
from tests.support.ranks import together
from tests.support.trainings import report, trained_once

DENSITY = 0.2
BATCH = 64
STEPS = 898 // BATCH
QUICK = {"update_interval": 7, "rewind_step": 4, "num_search_steps": 5, "num_iterations": 3, "threshold": 0.03}
MOVING = ["snfs", "dsr", "gse", "granet", "gmp"]


def config(method: str, **given: Any) -> TrainConfig:
    """A convolutional network, in which it matters where the weights are."""
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
        "model_options": {"width": 2},
        "recipe": {"batch_size": BATCH},
        "threads": 1,
        "match": "flops",
    }
    if {"density", "target_density"} & known.keys():
        values["density"] = DENSITY
    return TrainConfig.from_dict({**values, **given})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return trained_once(tmp_path_factory, config)


@pytest.mark.parametrize("method", [*MOVING, "rigl", "snip", "grasp", "imp_c", "imp", "gcg", "str"])
def test_what_is_spent_is_the_budget_to_half_an_epoch(method: str, trained: Callable[[str], Path]) -> None:
    told = report(trained(method))
    match, flops = told["ledger"]["match"], told["flops"]
    assert match["kind"] == "flops"
    assert match["budget"] == told["ledger"]["dense_training_flops"]
    assert match["spent"] == sum(phase["training_flops"] for phase in told["ledger"]["phases"])
    assert match["off"] == pytest.approx(match["spent"] / match["budget"] - 1)
    sparse, dense = flops["inference"], flops["dense_inference"]
    a_sample = {"snfs": 2 * sparse + dense, "str": 3 * dense}.get(method, 3 * sparse)
    num_changes = STEPS // QUICK["update_interval"] if told["method"]["cost"] == "dense_gradient_at_changes" else 0
    an_epoch = BATCH * (STEPS * a_sample + num_changes * (dense - sparse))
    assert abs(match["spent"] - match["budget"]) <= 0.52 * an_epoch


@pytest.mark.parametrize("method", ["snfs", "dsr", "granet", "gmp"])
def test_a_length_that_was_foreseen_wrongly_is_mended_on_the_way(method: str, trained: Callable[[str], Path]) -> None:
    told = report(trained(method))
    match = told["ledger"]["match"]
    assert match["lengths"][0] == [0, match["epochs"]]
    assert match["lengths"][-1][1] == told["network"]["epochs"] != match["epochs"]
    assert told["ledger"]["samples"] == told["network"]["epochs"] * STEPS * BATCH
    assert told["network"]["num_on"] == round(DENSITY * told["network"]["num"])


def test_where_nothing_moves_the_length_is_known_beforehand(trained: Callable[[str], Path]) -> None:
    for method in ("rigl", "snip"):
        told = report(trained(method))
        assert told["ledger"]["match"]["planned"] == told["ledger"]["match"]["spent"]
        assert len(told["ledger"]["match"]["lengths"]) <= 1


def test_a_training_that_is_looked_at_has_the_bits_of_one_that_is_not(
    trained: Callable[[str], Path], tmp_path: Path
) -> None:
    """Where the length stays as it was foreseen, looking at it changes nothing."""
    told = report(trained("rigl"))
    assert told["ledger"]["match"]["lengths"] == [[0, told["network"]["epochs"]]]
    whole = train(config("rigl", match="none", epochs=told["network"]["epochs"]), tmp_path)
    assert whole["weights_sha256"] == told["weights_sha256"]
    assert whole["network"] == told["network"]


def test_levels_share_what_is_left(trained: Callable[[str], Path]) -> None:
    told = report(trained("imp_c"))
    of_levels = {phase["epochs"] for phase in told["ledger"]["phases"]}
    assert len(of_levels) > 1
    assert max(of_levels) - min(of_levels) <= 2
    assert abs(told["ledger"]["match"]["relative_error"]) < abs(
        told["ledger"]["match"]["planned"] / told["ledger"]["match"]["budget"] - 1
    )


def test_the_summary_says_how_far_off_it_is(trained: Callable[[str], Path]) -> None:
    told = report(trained("snfs"))
    off = told["ledger"]["match"]["relative_error"]
    assert abs(off) > 0.001
    sentence = dict(findings(told))["trained"]
    assert f"a budget of FLOPs allows ({abs(off):.1%} {'more' if off > 0 else 'less'} than it" in sentence
    assert sentence.startswith(f"{told['network']['epochs']} epochs")


@pytest.mark.gpu
def test_captured_steps_are_paced_too(tmp_path: Path) -> None:
    told = train(config("snfs", engine={"device": "cuda", "step": "cuda_graph", "compile": "off"}), tmp_path)
    match, flops = told["ledger"]["match"], told["flops"]
    assert len(match["lengths"]) > 1
    assert match["lengths"][-1][1] == told["network"]["epochs"]
    an_epoch = BATCH * STEPS * (2 * flops["inference"] + flops["dense_inference"])
    assert abs(match["spent"] - match["budget"]) <= 0.52 * an_epoch


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", ["snfs", "gmp", "imp_c", "gcg"])
def test_killed_and_resumed_it_ends_with_the_same_bits(
    method: str, trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = StageFiles.save
    for after in (23, 29):  # saves: one after every step, and more between stages
        num_saves = 0

        def counted(self: StageFiles, stage: str, *stored: Any, until: int = after) -> None:
            nonlocal num_saves
            save(self, stage, *stored)
            num_saves += 1
            if num_saves == until:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(StageFiles, "save", counted)
            patched.setattr(phases, "TrainingCheckpoint", functools.partial(TrainingCheckpoint, seconds=0.0))
            with pytest.raises(Killed):
                train(config(method), tmp_path)
    train(config(method), tmp_path)
    ours, theirs = ({k: v for k, v in report(out).items() if k != "timing"} for out in (tmp_path, trained(method)))
    assert ours == theirs
    assert (tmp_path / "network.safetensors").read_bytes() == (trained(method) / "network.safetensors").read_bytes()


def as_a_team(out: Path, dies: int | None) -> dict[str, Any]:
    """A matched training in one folder, stored after every fourth step; killed at one of the saves."""
    phases.TrainingCheckpoint = functools.partial(TrainingCheckpoint, seconds=0.0)  # type: ignore[misc, assignment]
    training_state._STEPS_BETWEEN_CHECKS = 4
    save, num_saves = StageFiles.save, 0

    def counted(self: StageFiles, stage: str, *stored: Any) -> None:
        nonlocal num_saves
        save(self, stage, *stored)
        num_saves += 1
        if num_saves == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    StageFiles.save = counted  # type: ignore[method-assign]
    told = train(config("snfs", ranks=2), out)
    return {name: part for name, part in told.items() if name != "timing"}


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_two_ranks_find_the_same_lengths_and_survive_a_kill(tmp_path: Path) -> None:
    calm = together(tmp_path / "said", as_a_team, tmp_path / "calm", None)
    assert [rank.code for rank in calm] == [0, 0], [rank.output for rank in calm]
    assert calm[0].value == calm[1].value
    match = calm[0].value["ledger"]["match"]
    assert len(match["lengths"]) > 1
    assert abs(match["off"]) < 0.1
    killed = together(tmp_path / "said", as_a_team, tmp_path / "killed", 12)
    assert killed[0].code == -signal.SIGKILL
    assert killed[1].code != 0
    resumed = together(tmp_path / "said", as_a_team, tmp_path / "killed", None)
    assert resumed[0].value == resumed[1].value == calm[0].value


# The parts


@given(
    prices=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60),
    budget=st.floats(0.01, 500.0),
    least=st.integers(1, 60),
    guess=st.integers(1, 80),
)
def test_the_nearest_number_of_epochs(prices: list[float], budget: float, least: int, guess: int) -> None:
    def cost(epochs: int) -> float:
        return sum(prices[:epochs]) + 1.0 * max(0, epochs - len(prices))

    best = min(abs(cost(epochs) - budget) for epochs in range(least, 700))
    found = nearest(cost, budget, least=least, guess=guess)
    assert found >= least
    assert abs(cost(found) - budget) == pytest.approx(best)


@given(
    num_steps=st.integers(4, 300),
    shorter=st.integers(4, 300),
    cut=st.floats(0, 1),
    every=st.integers(1, 40),
    end=st.floats(0.3, 1.0),
)
def test_pruning_reaches_its_density_also_when_its_end_moves(
    num_steps: int, shorter: int, cut: float, every: int, end: float
) -> None:
    num, num_on, length = 1000, 1000, num_steps
    step = 0
    while step < length:
        if step >= cut * num_steps:
            length = max(shorter, step + 1)
        schedule = PruneCubically(
            density=0.1, update_interval=every, num_steps=length, start_fraction=0.1, stop_fraction=end
        )
        change = schedule(Progress(round=0, step=step, num_on=num_on, num=num))
        num_on -= change.num_drop if change is not None else 0
        step += 1
    assert num_on == 100


class Trainer:
    """Makes no steps, but asks for the length as an engine does."""

    def train(self, jobs: list[Job]) -> list[int]:
        (job,) = jobs
        assert job.length is not None
        while job.attached.step < 4 * job.length(job.attached.step // 4):
            job.attached.step += 4
        return [10 * job.attached.step]


def job_of(pace: Pace) -> Job:
    def make(epochs: int) -> Method:
        def once_at_half(progress: Progress) -> MaskUpdate | None:
            return MaskUpdate(num_drop=1, num_grow=1) if progress.step == 2 * epochs else None

        return Method(name="m", start=at_random, start_density=0.5, schedule=once_at_half, clock="step", grow=at_random)

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = attach(model, optimizer, paced(make, pace), scope=Masks.full(model))
    return Job(attached=attached, epochs=pace.epochs, seed=0)


@given(st.integers(1, 50), st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_a_paced_training_ends_where_it_was_said_last_and_its_method_with_it(first: int, said: list[int]) -> None:
    pace = Pace(first)
    job, asked, thought = job_of(pace), [], []

    def how_long(attached: Attached, before: int) -> int:
        asked.append(attached.step)
        thought.append(before)
        return said[min(len(asked), len(said)) - 1]

    (num_samples,) = PacedTrainer(Trainer(), pace, how_long).train([job])  # type: ignore[arg-type]
    length = pace.epochs
    assert num_samples == 40 * length
    found = lengths(job.attached.method_state)
    assert found[0] == [0, first]
    assert found[-1][1] == length
    for step, before in zip(asked, thought, strict=True):
        assert before == next(pair[1] for pair in reversed(found) if pair[0] < step // 4)
    at_half = job.attached.method.schedule(Progress(round=0, step=2 * length, num_on=1, num=4))
    assert at_half == MaskUpdate(num_drop=1, num_grow=1), "the method is that of the last length"
    if len({first, *said}) == 1:
        looks = {-(-part * first // LOOKS) for part in range(1, LOOKS)} - {first}
        assert asked == [4 * epoch for epoch in sorted(looks)]
        assert found == [[0, first]]
    job.attached.detach()


def test_a_training_of_an_older_version_is_not_gone_on_with() -> None:
    pace = Pace(3)
    job = job_of(pace)
    del job.attached.method_state["pace"]
    with pytest.raises(RunFailed, match="fixed its length beforehand: resume with that version"):
        PacedTrainer(Trainer(), pace, lambda attached, before: before).train([job])  # type: ignore[arg-type]
    job.attached.detach()


def test_a_paced_method_moves_weights_as_one_of_its_present_length_does() -> None:
    """How many are moved falls over the training, so it is asked for by the length that was said last."""

    def make(epochs: int) -> Method:
        return Method(
            name="m", start=at_random, start_density=0.5, schedule=lambda progress: None, clock="step",
            update=lambda net, change, progress, draw: epochs,  # type: ignore[arg-type, return-value]
        )  # fmt: skip

    pace = Pace(3)
    method = paced(make, pace)
    for pace.epochs in (3, 7, 5):
        assert method.update(None, None, None, None) == pace.epochs  # type: ignore[misc, arg-type]
