"""A captured step computes what an eager one does, alone and in a team; its graphs are stood in for by calls."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from pathgrow import attach, models
from pathgrow.masks import Masks
from pathgrow.methods import create
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.process_group import join_process_group
from pathgrow.trainer.recipes import recipe
from tests.support.compared_steps import OPTIONS, made
from tests.support.graphs_on_a_cpu import graphs_on_a_cpu
from tests.support.ranks import together

PLANS: dict[str, dict[str, Any]] = {"rigl": {"clip_norm": 1.0}, "snfs": {"accumulate": 2}}


def trained(name: str, step: Literal["cuda_graph", "eager"]) -> dict[str, Any]:
    """What this process came to after five epochs, between which slots move, gradients are lost, and the rate falls."""
    told: list[float] = []
    with join_process_group("cpu") as comm, graphs_on_a_cpu() if step == "cuda_graph" else nullcontext():
        plan = recipe("cifar").override({"batch_size": 16, "lr": 0.05, **PLANS.get(name, {})})
        trainer = Trainer(
            made(96, 8), plan, EngineOptions(device="cpu", step=step), on_epoch=lambda done, of, loss: told.append(loss)
        )
        assert trainer.plan.cuda_graphs == (step == "cuda_graph")
        model, optimizer = trainer.place(models.create("resnet20", 10, seed=comm.rank, width=8, image_size=8))
        model.get_parameter("fc.bias").requires_grad_(False)
        scope = Masks.full(model)
        attached = attach(model, optimizer, create(name, **OPTIONS[name]), scope=scope, seed=1, comm=comm)
        with torch.no_grad():
            model.get_parameter("bn1.bias").add_(comm.rank)  # put right by both steps: all begin as the first does
        trainer.train([Job(attached=attached, epochs=2, seed=7)])
        if comm.rank == comm.size - 1:  # slots of one process alone lie elsewhere now: all have to capture again
            for slots in optimizer.state.values():
                slots["momentum_buffer"] = slots["momentum_buffer"].clone()
        trainer.train([Job(attached=attached, epochs=1, seed=8)])
        optimizer.zero_grad()  # nothing is captured again now: the step has to find its gradients
        trainer.train([Job(attached=attached, epochs=1, seed=9)])
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        trainer.train([Job(attached=attached, epochs=1, seed=10)])
        trainer.evaluate(trainer.data.test)(model)  # with the buffers of the first, whose rows they describe
        return {"masks": attached.masks.digest(), "weights": model.state_dict(), "told": told}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["masks"] == theirs["masks"]
    for key, tensor in ours["weights"].items():
        assert torch.equal(tensor, theirs["weights"][key]), key


@pytest.mark.parametrize("name", list(OPTIONS))
def test_alone(name: str) -> None:
    captured, eager = trained(name, "cuda_graph"), trained(name, "eager")
    assert_same(captured, eager)
    assert captured["told"] == eager["told"]
    assert len(captured["told"]) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["rigl", "snfs", "edge_popup"])
def test_in_a_team(name: str, tmp_path: Path) -> None:
    captured, eager = (together(tmp_path / step, trained, name, step) for step in ("cuda_graph", "eager"))
    assert [rank.code for rank in captured + eager] == [0] * 4, [rank.said for rank in captured + eager]
    for other in (captured[1], eager[0], eager[1]):
        assert_same(other.value, captured[0].value)
    assert captured[0].value["told"] == pytest.approx(eager[0].value["told"], rel=1e-6)
    assert captured[1].value["told"] == []


def test_a_step_is_captured_again_only_when_it_must() -> None:
    with graphs_on_a_cpu():
        trainer = Trainer(
            made(96, 8), recipe("cifar").override({"batch_size": 16}), EngineOptions(device="cpu", step="cuda_graph")
        )
        model, optimizer = trainer.place(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)))
        attached = attach(model, optimizer, create("erk", density=0.3), scope=Masks.full(model), seed=1)
        seen = []
        for rate in (0.1, 0.1, 0.2):
            optimizer.param_groups[0]["lr"] = rate
            trainer.train([Job(attached=attached, epochs=1, seed=1)])
            seen.append(attached.engine_cache["engine"].step)
        assert seen[0] is seen[1]
        assert seen[1] is not seen[2]
