"""Where channels lie in memory: last wherever that is faster, and never where it would break memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pathgrow
from pathgrow import models
from pathgrow.trainer import EngineOptions

CPU = EngineOptions(device="cpu").resolve()

# In a process of its own: where the layout is the wrong one, it ends in a segmentation fault.
NARROW = """
import copy, torch
from torch import nn
from pathgrow.data.dataset import Dataset, Split
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.recipes import Recipe
torch.set_num_threads(2)
torch.manual_seed(0)
images = torch.randint(0, 256, (37, 3, 32, 32), dtype=torch.uint8)
split = Split(images, torch.arange(37) % 3, (127.0,) * 3, (70.0,) * 3)
trainer = Trainer(Dataset("made", 3, split, split, split), Recipe(batch_size=37), EngineOptions(device="cpu"))
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 1, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
)
exact = copy.deepcopy(net).double()
net, optimizer = trainer.place(net)
trainer(net, optimizer, 8)
by_hand = torch.optim.SGD(exact.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
for step in range(8):
    by_hand.param_groups[0]["lr"] = 0.1 * trainer.recipe.lr_factor(step, 8)
    by_hand.zero_grad()
    nn.functional.cross_entropy(exact(split.normalized().double()), split.labels).backward()
    by_hand.step()
for name, weight in exact.state_dict().items():
    torch.testing.assert_close(net.state_dict()[name].double(), weight, rtol=1e-3, atol=1e-5)
print("trained")
"""


def test_a_narrow_network_with_a_strided_shortcut_trains_as_it_should() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(pathgrow.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", NARROW], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def lies_last(model: nn.Module) -> bool:
    """By the first weight that is larger than one pixel: others look the same either way."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    weights = [layer.weight for layer in layers if layer.kernel_size != (1, 1)]
    return weights[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "wrn22_2"])
def test_networks_of_usual_width_have_their_channels_last(name: str) -> None:
    assert lies_last(CPU.place(models.create(name, 10)))


def test_narrow_shortcuts_keep_channels_first_on_a_cpu() -> None:
    assert not lies_last(CPU.place(models.create("resnet20", 10, width=8)))
    assert lies_last(CPU.place(models.create("wrn22_2", 10, width=8)))  # its shortcuts begin at 16 channels


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(16, 8, 1, stride=2)])
def test_other_layers_are_no_reason(layer: nn.Conv2d) -> None:
    assert lies_last(CPU.place(nn.Sequential(nn.Conv2d(3, 8, 3), layer)))
