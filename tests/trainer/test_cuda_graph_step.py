"""CUDA-graph steps compute what eager steps do, in one process and in two; graphs are replaced by Python calls."""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pathgrow import attach
from pathgrow.distributed.comm import SINGLE_PROCESS, Communicator
from pathgrow.distributed.process_group import join_process_group
from pathgrow.masks import Masks
from pathgrow.methods import create
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.cuda_graph_step import CudaGraphStep, no_garbage_collection
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import recipe
from tests.support.compared_steps import OPTIONS, made
from tests.support.graphs_on_a_cpu import graphs_on_a_cpu
from tests.support.ranks import Rank, together

RECIPES: dict[str, dict[str, Any]] = {"rigl": {"clip_norm": 1.0}, "snfs": {"accumulate": 2}}
STEPS: tuple[Literal["cuda_graph", "eager"], ...] = ("cuda_graph", "eager")
DISTRIBUTED = ["rigl", "snfs", "edge_popup"]


class SmallNet(nn.Module):
    """Convolutions, batch norm and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        x = (x + self.bn2(self.conv2(x))).relu()
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def trained(name: str, step: Literal["cuda_graph", "eager"], comm: Communicator = SINGLE_PROCESS) -> dict[str, Any]:
    """Train for five epochs; in between, optimizer state moves, gradients are removed and the learning rate drops."""
    losses: list[float] = []
    with graphs_on_a_cpu() if step == "cuda_graph" else nullcontext():
        plan = recipe("cifar").override({"batch_size": 16, "lr": 0.05, **RECIPES.get(name, {})})
        options = EngineOptions(device="cpu", step=step)
        trainer = Trainer(made(96, 8), plan, options, on_epoch=lambda done, of, loss: losses.append(loss), comm=comm)
        assert trainer.plan.cuda_graphs == (step == "cuda_graph")
        torch.manual_seed(comm.rank)
        model, optimizer = trainer.place(SmallNet())
        model.get_parameter("fc.bias").requires_grad_(False)
        scope = Masks.full(model)
        attached = attach(model, optimizer, create(name, **OPTIONS[name]), scope=scope, seed=1, comm=comm)
        with torch.no_grad():
            model.get_parameter("bn1.bias").add_(comm.rank)  # both kinds of steps start with the weights of rank 0
        trainer.train([Job(attached=attached, epochs=2, seed=7)])
        if comm.rank == comm.size - 1:  # new addresses on one rank: all ranks have to record again
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].clone()
        trainer.train([Job(attached=attached, epochs=1, seed=8)])
        optimizer.zero_grad()  # nothing is recorded again, so the step has to restore its gradients
        trainer.train([Job(attached=attached, epochs=1, seed=9)])
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        trainer.train([Job(attached=attached, epochs=1, seed=10)])
        trainer.evaluate(trainer.data.test)(model)  # with the buffers of rank 0
        return {"masks": attached.masks.digest(), "weights": model.state_dict(), "losses": losses}


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["masks"] == theirs["masks"]
    for key, tensor in ours["weights"].items():
        assert torch.equal(tensor, theirs["weights"][key]), key


@pytest.mark.parametrize("name", list(OPTIONS))
def test_graphs_compute_what_an_eager_step_does(name: str) -> None:
    graphs, eager = (trained(name, step) for step in STEPS)
    assert_equal(graphs, eager)
    assert graphs["losses"] == eager["losses"]
    assert len(graphs["losses"]) == 5


def trained_on_two_ranks() -> dict[tuple[str, str], dict[str, Any]]:
    with join_process_group("cpu") as comm:
        return {(name, step): trained(name, step, comm) for name in DISTRIBUTED for step in STEPS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """Both ranks after all trainings: starting processes takes longer than training."""
    return together(tmp_path_factory.mktemp("ranks"), trained_on_two_ranks)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", DISTRIBUTED)
def test_graphs_on_two_ranks_compute_what_eager_steps_do(name: str, ranks: list[Rank]) -> None:
    assert [rank.code for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    (graphs, eager), (other_graphs, other_eager) = ([rank.value[name, step] for step in STEPS] for rank in ranks)
    for other in (eager, other_graphs, other_eager):
        assert_equal(other, graphs)
    assert graphs["losses"] == pytest.approx(eager["losses"], rel=1e-6)
    assert other_graphs["losses"] == []


def test_graphs_are_recorded_again_only_if_necessary() -> None:
    with graphs_on_a_cpu():
        options = EngineOptions(device="cpu", step="cuda_graph")
        trainer = Trainer(made(96, 8), recipe("cifar").override({"batch_size": 16}), options)
        model, optimizer = trainer.place(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)))
        attached = attach(model, optimizer, create("erk", density=0.3), scope=Masks.full(model), seed=1)
        seen = []
        for lr in (0.1, 0.1, 0.2):
            optimizer.param_groups[0]["lr"] = lr
            trainer.train([Job(attached=attached, epochs=1, seed=1)])
            seen.append(attached.engine_cache["engine"].step)
        assert seen[0] is seen[1]
        assert seen[1] is not seen[2]


# The order of calls within a step


class Recorder:
    """Graphs, buckets and an attached model that record the calls they get."""

    def __init__(self, parameter: nn.Parameter, is_due: bool, replaces_step: bool) -> None:
        self.calls: list[str] = []
        self.update_is_due = is_due
        self._parameter, self._replaces_step = parameter, replaces_step
        self.optimizer = SGD([parameter], lr=0.5)

    def graph(self, name: str) -> Any:
        return SimpleNamespace(replay=lambda: self.calls.append(name))

    def hooks_disabled(self) -> Any:
        return nullcontext()

    def update_masks_if_due_(self) -> bool:
        self.calls.append(f"update by {self._gradient} at lr {self.optimizer.param_groups[0]['lr']}")
        return self._replaces_step

    @property
    def _gradient(self) -> float:
        assert self._parameter.grad is not None
        return float(self._parameter.grad)

    def record_gradients_(self) -> None:
        self.calls.append(f"record {self._gradient}")

    def average_(self) -> None:
        self.calls.append("average")

    def mask_weights_(self) -> None:
        self.calls.append("mask")

    def finish_step_(self) -> None:
        self.calls.append("finish")


@pytest.mark.parametrize(
    ("is_due", "replaces_step", "distributed", "calls", "index"),
    [
        (False, False, False, ["backward", "update", "finish"], 0),
        (True, False, False, ["backward", "update by 3.0 at lr 0.125", "update", "finish"], 0),
        (True, True, False, ["backward", "update by 3.0 at lr 0.125", "mask", "finish"], 1),
        (False, False, True, ["backward", "average", "record 3.0", "update", "finish"], 0),
        (True, True, True, ["backward", "average", "record 3.0", "update by 3.0 at lr 0.125", "mask", "finish"], 1),
    ],
)
def test_masks_are_updated_between_the_graphs_and_may_replace_the_second(
    is_due: bool, replaces_step: bool, distributed: bool, calls: list[str], index: int
) -> None:
    parameter = nn.Parameter(torch.zeros(()))
    recorder = Recorder(parameter, is_due, replaces_step)
    step: Any = object.__new__(CudaGraphStep)
    step.attached, step._index = recorder, torch.zeros((), dtype=torch.int64)
    step._backward_graph, step._update_graph = recorder.graph("backward"), recorder.graph("update")
    step._optimizer, step._base_lrs, step._own_rng = recorder.optimizer, [0.5], nullcontext
    step._feed = SimpleNamespace(lr_factor=lambda number: 0.25)
    step._buckets = recorder if distributed else None
    step._gradients = [(parameter, torch.tensor(3.0))]
    parameter.grad = torch.tensor(5.0)  # set by other code since the recording
    step(1)
    assert recorder.calls == calls
    assert int(step._index) == index  # otherwise the second graph increments it
    assert recorder.optimizer.param_groups[0]["lr"] == 0.5


class Cycle:
    """An object that only garbage collection frees, like the step of a network that nobody uses anymore."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_freed_while_a_graph_is_recorded() -> None:
    before, thresholds = weakref.ref(Cycle()), gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with no_garbage_collection():
            assert before() is None
            during = weakref.ref(Cycle())
            [Cycle() for _ in range(100)]
            assert during() is not None
    finally:
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    with pytest.raises(RuntimeError), no_garbage_collection():
        raise RuntimeError
    assert gc.isenabled()
