"""Deterministic training on a GPU: repeated, resumed, in other processes, with eager, graph and compiled steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pathgrow import methods, models
from pathgrow.checkpoint import MemoryStore
from pathgrow.data.dataset import Dataset
from pathgrow.errors import UserError
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.training_state import TrainingCheckpoint
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import recipe
from tests.contract.contract import AlwaysGrow, small
from tests.support import compared_steps
from tests.support.catalogue import Trials
from tests.support.command import everything

pytestmark = [pytest.mark.gpu, pytest.mark.item(6)]

DEVICE = "cuda"
PLAN = recipe("cifar").override({"batch_size": 32, "lr": 0.05})
STEPS = ["eager", "cuda_graph"]
REPEATS = 3


COMMANDS = {
    "discovery": "discover --epochs 8 --finish static --delta 0.05",
    "bf16, eager": "train --method rigl --density 0.2 --epochs 3 --step eager --precision bf16",
    "compiled": "train --method set --density 0.2 --epochs 3 --step cuda_graph --precision bf16 --compile on",
}
Started = dict[str, list[tuple[Path, "subprocess.Popen[bytes]"]]]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Every command in several processes, which run while this process trains."""
    root, seed, running = Path(__file__).parents[2], request.config.getoption("--attack-seed"), Started()
    for name, command in COMMANDS.items():
        for _ in range(REPEATS):
            out = tmp_path_factory.mktemp("run") / "out"
            # Own caches: each process compiles, and chooses kernels, by itself.
            caches = {"TORCHINDUCTOR_CACHE_DIR": f"{out}-inductor", "TRITON_CACHE_DIR": f"{out}-triton"}
            engine = f"--device {DEVICE} --deterministic --threads 1 --seed {seed} --out"
            process = subprocess.Popen(
                [sys.executable, "-m", "pathgrow", *command.split(), *engine.split(), str(out)],
                env={**os.environ, "PYTHONPATH": str(root / "src"), **caches},
                stdout=subprocess.DEVNULL,
            )
            running.setdefault(name, []).append((out, process))
    yield running
    for one in running.values():
        for _, process in one:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return compared_steps.made(192, 16)


class Convolutions(nn.Module):
    """A network that compiles in seconds, with batch norm and dropout."""

    def __init__(self, seed: int, pool: nn.Module | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 16, 3, stride=2)
            self.norm, self.head = nn.BatchNorm2d(12), nn.Linear(16 * 49, 10)
        self.drop = nn.Dropout(0.2)
        self.pool = pool if pool is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.second(self.norm(self.first(x)).relu()).relu())
        return self.head(self.drop(x.flatten(1)))


class Network:
    """A network, its trainer and its method; trained in two parts, between which growth methods update their masks."""

    def __init__(self, data: Dataset, model: nn.Module, method: str, seed: int, **options: Any) -> None:
        chosen = {"precision": "fp32", "compile": "off", **options}
        self.trainer = Trainer(data, PLAN, EngineOptions(device=DEVICE, deterministic=True, **chosen))
        model, optimizer = self.trainer.place(model)
        with self.trainer.plan.flags_between_trainings():
            self.attached = attach(
                model, optimizer, small(method), torch.zeros(1, 3, 16, 16, device=DEVICE),
                stop=AlwaysGrow(), loss=self.trainer.loss, batches=self.trainer.batches, seed=seed,
            )  # fmt: skip

    def train(self, seed: int, progress: TrainingCheckpoint | None = None) -> None:
        self.trainer.train([Job(attached=self.attached, epochs=1, seed=seed, progress=progress)])

    def state(self) -> dict[str, Tensor]:
        """Weights, buffers, masks and momentum."""
        kept = {f"mask {name}": mask.clone() for name, mask in self.attached.masks.items()}
        kept |= {name: tensor.clone() for name, tensor in self.attached.model.state_dict().items()}
        for name, parameter in self.attached.model.named_parameters():
            kept[f"momentum {name}"] = self.attached.optimizer.state[parameter]["momentum_buffer"].clone()
        return kept


def different(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


def resnet(seed: int) -> nn.Module:
    return models.create("resnet20", 10, seed=seed, width=4, image_size=16)


def results(data: Dataset, method: str, seed: int, **options: Any) -> list[dict[str, Tensor]]:
    """The states that a number of trainings of the same network end with."""
    found = []
    for _ in range(REPEATS):
        model = Convolutions(seed) if options.get("compile") == "on" else resnet(seed)
        torch.manual_seed(seed)  # of the batches that growth by gradients reads
        network = Network(data, model, method, seed, **options)
        network.train(seed)
        network.attached.advance_()
        network.train(seed + 1)
        found.append(network.state())
    return found


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("compile", ["off", "on"])
def test_repeated_trainings_end_with_the_same_bits(
    data: Dataset, trials: Trials, precision: str, step: str, compile: str
) -> None:
    others = [name for name in methods.names() if name not in ("gcg", "rigl")]
    num = trials.count(quick=1, full=2) if compile == "off" else 0
    for method in ["gcg", "rigl", *trials.draw.sample(others, num)]:
        seed = trials.draw.randrange(2**31)
        with trials.one(f"{method}, {step}, compile {compile}, {precision}, seed {seed}"):
            first, *rest = results(data, method, seed, step=step, precision=precision, compile=compile)
            assert [different(first, other) for other in rest] == [[]] * (REPEATS - 1)
            trials.add("trainings repeated in one process", REPEATS)


class Killed(Exception):
    """Stands for a kill."""


class SavedOnce(TrainingCheckpoint):
    """Saves after every step and is killed after one of them."""

    def __init__(self, store: MemoryStore, last: int) -> None:
        super().__init__(store, "partial-test-0", seconds=0.0)
        object.__setattr__(self, "last", last)

    def save(self, attached: Attached, step: int, rng_state: Tensor) -> None:
        super().save(attached, step, rng_state)
        if step == self.last:
            raise Killed


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_killed_training_resumes_with_the_same_bits(data: Dataset, trials: Trials, step: str, compile: str) -> None:
    seed = trials.draw.randrange(2**31)

    def network() -> Network:
        return Network(data, Convolutions(seed), "rigl", seed, step=step, compile=compile)

    whole = network()
    whole.train(seed)
    for last in range(1, 6):  # of six steps
        with trials.one(f"killed after step {last}, {step}, compile {compile}, seed {seed}"):
            store, killed, resumed = MemoryStore(), network(), network()
            with pytest.raises(Killed):
                killed.train(seed, SavedOnce(store, last))
            resumed.train(seed, TrainingCheckpoint(store, "partial-test-0"))
            assert different(whole.state(), resumed.state()) == []
            trials.add("trainings resumed")


@pytest.mark.parametrize("step", STEPS)
def test_an_operation_that_is_not_deterministic_is_named(data: Dataset, step: str) -> None:
    network = Network(data, Convolutions(0, nn.AdaptiveAvgPool2d(7)), "random", 0, step=step)
    with pytest.raises(UserError, match=r"^adaptive_avg_pool2d\S*, which this model uses, has no deterministic"):
        network.train(0)


def test_processes_end_with_the_same_files(started: Started, trials: Trials) -> None:
    for name, runs in started.items():
        with trials.one(name):
            assert [process.wait(300) for _, process in runs] == [0] * REPEATS
            first, *rest = (everything(out) for out, _ in runs)
            for other in rest:
                assert [key for key in first if first[key] != other[key]] == []
            trials.add("processes compared", REPEATS)
