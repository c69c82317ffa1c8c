"""Small images, and methods that use different parts of a step, to compare CUDA-graph and eager steps."""

from __future__ import annotations

from typing import Any

import torch

from pathgrow.data.dataset import Dataset, Split
from pathgrow.rng import generator

OPTIONS: dict[str, dict[str, Any]] = {
    "erk": {"density": 0.3},
    "rigl": {"density": 0.3, "num_steps": 40, "update_interval": 4},
    "set": {"density": 0.3, "num_steps": 40, "update_interval": 4},
    "snfs": {"density": 0.3, "num_steps": 40, "update_interval": 5},
    "str": {"s_init": -3.0},
    "edge_popup": {"density": 0.3},
}


def made(num: int, size: int) -> Dataset:
    """Noise that is brighter for higher labels, the same for all splits."""
    labels = torch.arange(num) % 10
    noise = torch.randint(0, 128, (num, 3, size, size), generator=generator(0, "gpu test"))
    split = Split((noise + 12 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels, (120.0,) * 3, (60.0,) * 3)
    return Dataset("made", 10, split, split, split)
