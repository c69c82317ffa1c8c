"""FLOPs against hooks that count what really runs, and against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.flops import (
    forward_macs,
    sample_flops,
    sample_training_flops,
    scoring_flops,
    training_flops,
)
from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocate


def macs_by_hooks(model: nn.Module, example: torch.Tensor, masks: dict[str, torch.Tensor]) -> int:
    """Present weights times output positions, layer by layer, seen from outside; attention products apart."""
    names = {module: name for name, module in model.named_modules()}
    total = 0

    def count(module: nn.Module, _args: object, output: torch.Tensor) -> None:
        nonlocal total
        weight = f"{names[module]}.weight"
        num_on = int(masks[weight].sum()) if weight in masks else module.weight.numel()
        total += num_on * (output.numel() // module.weight.shape[0])

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model(example)
    for handle in handles:
        handle.remove()
    return total


def random_masks(model: nn.Module, seed: int) -> Masks:
    full = Masks.full(model)
    rng = torch.Generator().manual_seed(seed)
    return Masks({name: torch.rand(mask.shape, generator=rng) < 0.3 for name, mask in full.items()})


@pytest.mark.parametrize(
    ("name", "options", "products"),
    [
        ("mlp", {}, 0),
        ("resnet20", {"width": 4}, 0),
        ("resnet18", {"width": 4, "stem": "imagenet"}, 0),
        ("resnet50", {"width": 4, "image_size": 64}, 0),
        ("wrn22_2", {"width": 4}, 0),
        ("vit", {"depth": 2, "dim": 24, "heads": 3}, 2 * (2 * 65 * 65 * 24)),
        ("vit", {"depth": 2, "dim": 24, "heads": 3, "spt": True, "lsa": True}, 2 * (2 * 65 * 65 * 24)),
        ("pit", {"dims": [8, 16], "depths": [1, 2], "heads": [2, 4]}, 2 * 257**2 * 8 + 2 * (2 * 65**2 * 16)),
    ],
)
def test_forward_macs_are_what_hooks_count(name, options, products):
    model = models.create(name, 5, seed=0, **options)
    example = model.example_input()
    graph = trace(model, example)
    assert forward_macs(graph) == macs_by_hooks(model, example, {}) + products
    masks = random_masks(model, seed=1)
    assert forward_macs(graph, masks) == macs_by_hooks(model, example, dict(masks)) + products


def test_layers_without_a_mask_count_in_full():
    model = models.create("mlp", 10, inputs=8, widths=[7, 6])
    on_rank0 = Masks({"layers.0.weight": torch.zeros(7, 8, dtype=torch.bool)})
    assert forward_macs(trace(model, model.example_input()), on_rank0) == 7 * 6 + 6 * 10


def test_the_batch_of_the_example_does_not_count():
    model = models.create("resnet20", 10, width=4)
    one = model.example_input()
    assert training_flops(model, one.repeat(3, 1, 1, 1)) == training_flops(model, one)


def test_a_weight_used_twice_costs_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(6, 6, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(torch.relu(self.shared(x)))

    assert forward_macs(trace(Twice(), torch.ones(1, 6))) == 72


def test_training_is_three_passes_of_two_operations():
    model = models.create("mlp", 10)
    example = model.example_input()
    masks = random_masks(model, seed=2)
    graph = trace(model, example)
    sparse, dense = macs_by_hooks(model, example, dict(masks)), macs_by_hooks(model, example, {})
    assert sample_training_flops(graph, masks) == training_flops(model, example, masks) == 6 * sparse
    assert scoring_flops(graph, masks, num_gradient_samples=1) == 4 * sparse + 2 * dense


def test_masks_of_another_model_are_refused():
    model, other = models.create("mlp", 10), models.create("mlp", 10, widths=(7,))
    with pytest.raises(UserError):
        training_flops(model, model.example_input(), Masks.full(other))


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ("sparse", 3 * 10),
        ("batch_at_updates", 3 * 10),
        ("dense_gradient_at_updates", 3 * 10),
        ("dense_gradient_at_steps", 2 * 10 + 40),
        ("dense", 3 * 40),
    ],
)
def test_a_training_sample_by_hand(cost, expected):
    """A chain 3-4-2 with 5 of its 12 + 8 weights active: a forward pass takes 2 x 5 FLOPs, a dense one 2 x 20."""
    graph = trace(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.zeros(1, 3))
    masks = Masks({"0.weight": torch.arange(12).view(4, 3) < 3, "1.weight": torch.arange(8).view(2, 4) < 2})
    assert sample_flops(cost, forward_macs(graph, masks), forward_macs(graph)) == expected


@pytest.mark.parametrize(("density", "expected"), [(0.2, 0.42), (0.1, 0.24)])
def test_rigl_on_resnet50_costs_what_its_authors_state(density, expected):
    """Shares of dense training in their table, for ERK with a mask update every hundred steps."""
    model = models.create("resnet50", 1000)
    graph = trace(model, model.example_input())
    masks = Masks.full(model)
    for name, num in allocate(masks, density, "erk").items():
        masks[name].flatten()[num:] = False
    mean = (100 * sample_training_flops(graph, masks) + scoring_flops(graph, masks, num_gradient_samples=1)) / 101
    assert mean / sample_training_flops(graph) == pytest.approx(expected, abs=0.01)
