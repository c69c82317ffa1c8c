"""Engine options, how they resolve on this machine, and the memory layout they choose."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.data.dataset import Dataset, Split
from pathgrow.errors import UserError
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.recipes import Recipe
from pathgrow.trainer.trainer import make_optimizer
from tests.support.ranks import together

CPU = EngineOptions(device="cpu").resolve()


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "precision must be one of 'auto', 'fp32', 'bf16', got 'fp16'"),
        ({"precision": 16}, "precision must be one of .* got 16"),
        ({"step": "graph"}, "step must be one of 'auto', 'cuda_graph', 'eager', got 'graph'"),
        ({"compile": "of"}, "compile must be one of 'auto', 'on', 'off', got 'of'"),
        ({"deterministic": 1}, "deterministic must be true or false, got 1"),
        ({"device": 0}, "device must be a string, got 0"),
        ({"max_concurrent": 0}, r"max_concurrent must be in \[1, 32\], got 0"),
        ({"max_concurrent": 33}, r"max_concurrent must be in \[1, 32\], got 33"),
        ({"max_concurrent": 2.0}, "max_concurrent must be an integer .* got 2.0"),
        ({"max_concurrent": True}, "max_concurrent must be an integer .* got True"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ({"device": "cuda:x"}, "device must be .* got 'cuda:x'"),
        ({"device": "cpu", "step": "cuda_graph"}, "step 'cuda_graph' needs a GPU, got device cpu; use step='eager'"),
        ({"device": "cuda:99"}, "device cuda:99 is not available, torch sees"),
    ],
)
def test_invalid_engine_options(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        EngineOptions(**options).resolve()
    assert "\n" not in str(caught.value)


def test_a_cpu_uses_float32_and_eager_steps_by_default() -> None:
    plan = CPU
    assert (plan.device.type, plan.autocast, plan.cuda_graphs, plan.compile) == ("cpu", None, False, "off")
    plan = EngineOptions(device="cpu", precision="bf16", step="eager", compile="on").resolve()
    assert (plan.autocast, plan.cuda_graphs, plan.compile) == (torch.bfloat16, False, "on")


def test_auto_compiles_if_it_pays_off() -> None:
    plan = dataclasses.replace(CPU, compile="auto")
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(10)])
    # 10 layers take 6 s to compile; a step of 10 ms then saves 2.3 ms, so 2,609 steps break even.
    assert not plan.compiles(model, 2_500, 0.01)
    assert plan.compiles(model, 2_700, 0.01)
    assert dataclasses.replace(plan, compile="on").compiles(model, 1, 1e-6)
    assert not dataclasses.replace(plan, compile="off").compiles(model, 10**9, 1.0)


def test_deterministic_flags_are_set_during_and_between_trainings_only() -> None:
    cudnn = torch.backends.cudnn

    def flags() -> tuple[bool, bool]:
        return cudnn.benchmark, cudnn.deterministic

    deterministic = EngineOptions(device="cpu", deterministic=True).resolve()
    fast = CPU
    before = flags()
    try:
        for set_before in (before, (True, False), (False, True)):
            cudnn.benchmark, cudnn.deterministic = set_before
            with deterministic.training_flags():
                assert (*flags(), torch.are_deterministic_algorithms_enabled()) == (False, True, True)
            with deterministic.flags_between_trainings():
                assert flags() == (False, True)
            with fast.training_flags():
                assert (*flags(), torch.are_deterministic_algorithms_enabled()) == (True, False, False)
            with fast.flags_between_trainings():
                assert flags() == set_before
            assert (*flags(), torch.are_deterministic_algorithms_enabled()) == (*set_before, False)
    finally:
        cudnn.benchmark, cudnn.deterministic = before


class Unpooled(nn.Module):
    """Has an operation without a deterministic implementation, on a CPU too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(48, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        return self.fc(nn.functional.max_unpool2d(pooled, indices, 2).flatten(1))


def test_an_operation_that_is_not_deterministic_is_named() -> None:
    images = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8)
    split = Split(images, torch.arange(8) % 3, (127.0,) * 3, (70.0,) * 3)
    data, recipe = Dataset("made", 3, split, split, split), Recipe(batch_size=4)
    trainer = Trainer(data, recipe, EngineOptions(device="cpu", deterministic=True))
    with pytest.raises(UserError, match=r"^max_unpooling2d\S*, which this model uses, has no deterministic"):
        trainer(*trainer.place(Unpooled()), 1)
    assert not torch.are_deterministic_algorithms_enabled()
    fast = Trainer(data, recipe, EngineOptions(device="cpu"))
    fast(*fast.place(Unpooled()), 1)


# Memory layout


def train_narrow() -> None:
    """Compare with plain SGD in double precision; with the wrong layout this crashes, hangs, or differs."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (37, 3, 32, 32), dtype=torch.uint8)
    split = Split(images, torch.arange(37) % 3, (127.0,) * 3, (70.0,) * 3)
    trainer = Trainer(Dataset("made", 3, split, split, split), Recipe(batch_size=37), EngineOptions(device="cpu"))
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 1, stride=2), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    exact = copy.deepcopy(net).double()
    net, optimizer = trainer.place(net)
    trainer(net, optimizer, 8)
    plain = torch.optim.SGD(exact.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for step in range(8):
        plain.param_groups[0]["lr"] = 0.1 * trainer.recipe.lr_factor(step, 8)
        plain.zero_grad()
        nn.functional.cross_entropy(exact(split.normalized().double()), split.labels).backward()
        plain.step()
    for name, weight in exact.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name].double(), weight, rtol=1e-3, atol=1e-5)


def test_a_narrow_network_with_a_strided_shortcut_trains_correctly(tmp_path: Path) -> None:
    [rank] = together(tmp_path, train_narrow, num=1)  # in a separate process, since it may crash
    assert rank.code == 0, rank.output


def is_channels_last(model: nn.Module) -> bool:
    """Check the first kernel larger than one pixel: others look the same in both layouts."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    weights = [layer.weight for layer in layers if layer.kernel_size != (1, 1)]
    return weights[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "wrn22_2"])
def test_reference_networks_are_channels_last(name: str) -> None:
    assert is_channels_last(CPU.place(models.create(name, 10)))


def test_networks_with_narrow_shortcuts_are_not_channels_last_on_a_cpu() -> None:
    assert not is_channels_last(CPU.place(models.create("resnet20", 10, width=8)))
    assert is_channels_last(CPU.place(models.create("wrn22_2", 10, width=8)))  # its shortcuts have 16 channels and more


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(16, 8, 1, stride=2)])
def test_other_layers_do_not_prevent_channels_last(layer: nn.Conv2d) -> None:
    assert is_channels_last(CPU.place(nn.Sequential(nn.Conv2d(3, 8, 3), layer)))


def test_place_converts_the_weights_and_creates_the_optimizer() -> None:
    split = Split(torch.zeros(8, 2, 4, 4, dtype=torch.uint8), torch.arange(8) % 2, (0.0,) * 2, (1.0,) * 2)
    trainer = Trainer(Dataset("made", 2, split, split, split), Recipe(), EngineOptions(device="cpu"))
    model, optimizer = trainer.place(nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3)))
    assert model[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert not model[2].weight.is_contiguous()
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    expected = make_optimizer(nn.Linear(2, 2), Recipe()).defaults
    assert optimizer.defaults == expected
