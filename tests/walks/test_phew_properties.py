"""What must hold for PHEW masks of every net, density and seed.

Truth about paths comes from autograd on the module itself: with magnitudes for weights, masked, and an input of ones,
the derivative of the summed output by a weight is positive exactly if a path of kept weights runs through it.
"""

from __future__ import annotations

import itertools
import warnings

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from pathgrow.errors import UserError
from pathgrow.graph.scope import scope
from pathgrow.masks import Masks
from pathgrow.walks.phew import phew


class Residual(nn.Module):
    """Two convolutions beside an identity or a projection."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        same = channels == out and stride == 1
        self.project = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x).relu()) + self.project(x)).relu()


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


KINDS = ["conv", "strided", "pointwise", "depthwise", "residual", "projected", "transposed"]
KINDS += ["pool", "adaptive", "padded pool", "padded apart"]


@st.composite
def nets(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Small nets of every kind of part, on maps so small that most taps leave them."""
    seed = draw(st.integers(0, 2**20))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if draw(st.booleans()):
            widths = draw(st.lists(st.integers(1, 8), min_size=3, max_size=5))
            layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
            return nn.Sequential(*layers), torch.ones(1, widths[0])
        size, channels = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        example, parts = torch.ones(1, channels, size, size), []
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(KINDS))
            out = draw(st.integers(1, 5))
            if kind == "conv":
                parts.append(nn.Conv2d(channels, out, 3, padding=1, bias=False))
            elif kind == "strided":
                parts.append(nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False))
            elif kind == "pointwise":
                parts.append(nn.Conv2d(channels, out, 1, bias=False))
            elif kind == "depthwise":
                parts.append(nn.Conv2d(channels, 2 * channels, 3, padding=1, groups=channels, bias=False))
                out = 2 * channels
            elif kind == "residual":
                parts.append(Residual(channels, channels, 1))
                out = channels
            elif kind == "projected":
                parts.append(Residual(channels, out, 2))
            elif kind == "padded pool":
                parts += [nn.ZeroPad2d(1), nn.AvgPool2d(3, stride=2)]
                out = channels
            elif kind == "padded apart":
                parts += [nn.ZeroPad2d(1), nn.Conv2d(channels, out, 3, bias=False)]
            elif kind == "transposed":
                parts.append(nn.ConvTranspose2d(channels, out, 3, stride=2, padding=1, bias=False))
            else:
                parts.append({"pool": nn.AvgPool2d(3, 2, 1), "adaptive": nn.AdaptiveAvgPool2d(2)}[kind])
                out = channels
            channels = out
        body = nn.Sequential(*parts)
        flat = draw(st.booleans())
        width = body(example).numel() if flat else channels
        head = [nn.Flatten() if flat else Mean(), nn.Linear(width, 3, bias=False), nn.Linear(3, 2, bias=False)]
        return nn.Sequential(*body, *head), example


def on_a_path(model: nn.Module, example: Tensor, masks: Masks) -> dict[str, Tensor]:
    """By parameter: positions that a path of kept weights runs through."""
    weights = {}
    for name, parameter in model.named_parameters():
        weight = parameter.detach().double().abs()
        weights[name] = (weight * masks[name] if name in masks else weight).requires_grad_()
    functional_call(model, weights, (example.double(),)).sum().backward()
    return {name: weight.grad > 0 for name, weight in weights.items()}


def seeded(
    net: tuple[nn.Module, Tensor], density: float, seed: int, everything: bool
) -> tuple[Masks, list[str]] | None:
    """Masks and warnings; None where the density is too small for one path."""
    model, example = net
    switchable = Masks.full(model) if everything else scope(model, example_input=example)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            masks = phew(model, example, density, switchable, seed)
        except UserError as error:
            message = str(error)
        else:
            return masks, [str(warning.message) for warning in caught]
    assert "fewer than one path" in message
    assert round(density * switchable.num) < len(switchable)
    return None


@given(nets(), st.floats(0.02, 1.0), st.integers(0, 9), st.booleans())
def test_exact_count_and_every_weight_on_a_path(
    net: tuple[nn.Module, Tensor], density: float, seed: int, everything: bool
) -> None:
    found = seeded(net, density, seed, everything)
    if found is None:
        return
    masks, complaints = found
    assert masks.num_on == max(1, round(density * masks.num))
    if masks.density == 1.0:
        return  # everything was asked for, also what no path reaches
    connected = on_a_path(*net, masks)
    num_off_path = sum(int((masks[name] & masks.scope[name] & ~connected[name]).sum()) for name in masks)
    if not complaints:
        assert num_off_path == 0
    else:
        # A complaint must be true: no single weight was left that could have joined.
        assert all("could be placed on paths" in text for text in complaints)
        placed = Masks({name: masks[name] & (connected[name] | ~masks.scope[name]) for name in masks}, masks.scope)
        joinable = on_a_path(*net, placed)
        assert not any(bool((flags & joinable[name]).any()) for name, flags in placed.missing().items())
        assert num_off_path > 0


@given(nets(), st.floats(0.1, 0.9), st.integers(0, 3))
def test_same_seed_same_masks_and_the_model_is_untouched(
    net: tuple[nn.Module, Tensor], density: float, seed: int
) -> None:
    model, _ = net
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = (seeded(net, density, seed, True) for _ in range(2))
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first[0] == second[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
