"""PHEW: errors, corner cases of real models, and properties of the masks of every net, density and seed.

Truth about paths in the property tests comes from autograd on the module itself: with magnitudes for weights, masked,
and an input of ones, the derivative of the summed output by a weight is positive exactly if a path of kept weights runs
through it.
"""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.paths import path_scores
from pathgrow.graph.scope import scope, scope_of
from pathgrow.masks import Masks
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker
from pathgrow.walks.phew import START_DENSITIES, _Marks, _Seeding, count_isolated, phew, start_density


def mlp(*widths: int, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


def num_off_path(model: nn.Module, example: object, masks: Masks) -> int:
    scores = path_scores(model, example, masks)
    return sum(int((masks[name] & inside & (scores[name] <= 0)).sum()) for name, inside in masks.scope.items())


@pytest.mark.parametrize("density", [0, -0.1, 1.5, math.nan, math.inf, "0.1", None, [0.1]])
def test_a_density_outside_0_1_is_refused(density: object) -> None:
    with pytest.raises(UserError, match=r"density .* in \(0, 1\]"):
        phew(mlp(4, 8, 2), torch.ones(1, 4), density)  # type: ignore[arg-type]


def test_a_density_below_one_path_is_refused() -> None:
    with pytest.raises(UserError, match="keeps 1 of 96 weights, fewer than one path"):
        phew(mlp(4, 8, 8, 2), torch.ones(1, 4), 0.01)


def test_an_empty_scope_is_refused() -> None:
    nothing = {"0.weight": torch.zeros(8, 4, dtype=torch.bool)}
    with pytest.raises(UserError, match="no prunable weight"):
        phew(mlp(4, 8, 2), torch.ones(1, 4), 0.5, Masks.select(nothing, nothing))


def test_weights_that_are_not_numbers_are_refused() -> None:
    net = mlp(4, 8, 2)
    net[0].weight.data[0, 0] = math.nan
    with pytest.raises(UserError, match=r"0\.weight must be finite"):
        phew(net, torch.ones(1, 4), 0.5)


def test_density_one_keeps_everything() -> None:
    net = mlp(4, 8, 2)
    assert phew(net, torch.ones(1, 4), 1.0) == Masks.full(net, phew(net, torch.ones(1, 4), 0.5).scope)


def test_seeds_differ() -> None:
    net = mlp(20, 30, 30, 5)
    first, second = (phew(net, torch.ones(1, 20), 0.1, seed=seed) for seed in (0, 1))
    assert first != second


def test_dense_layers_are_walked_but_not_marked() -> None:
    net = mlp(6, 8, 8, 8, 3)
    whole = Masks.full(net)
    scope = Masks.select({"1.weight": whole["1.weight"]}, {"1.weight": whole["1.weight"]})
    masks = phew(net, torch.ones(1, 6), 0.5, scope)
    assert list(masks) == ["1.weight"]
    assert (masks.num_on, masks.num) == (32, 64)


def test_rows_outside_the_scope_stay_on() -> None:
    net = mlp(6, 8, 8, 3)
    rows = torch.zeros(8, 8, dtype=torch.bool)
    rows[5:] = True
    masks = phew(net, torch.ones(1, 6), 0.25, Masks.select({"1.weight": rows}, {"1.weight": rows}))
    assert bool(masks["1.weight"][:5].all())
    assert int(masks["1.weight"][5:].sum()) == 6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("density", [0.02, 0.1, 0.35, 0.7, 0.95])
def test_a_small_resnet_on_tiny_maps(seed: int, density: float) -> None:
    """8x8 images: the last stage is 2x2, where five taps in nine leave the map."""
    model = models.create("resnet20", 10, seed=seed, image_size=8, width=6)
    example = model.example_input()
    masks = phew(model, example, density, seed=seed)
    assert masks.num_on == round(density * masks.num)
    assert num_off_path(model, example, masks) == 0


def test_a_bottleneck_resnet_uses_all_its_layers() -> None:
    """1x1 convolutions on the main branch are ordinary layers, and every one of them is walked."""
    model = models.create("resnet50", 10, seed=0, stem="small", image_size=32)
    masks = phew(model, model.example_input(), 0.005)
    assert masks.num_on == round(0.005 * masks.num)
    assert all(bool((masks[name] & masks.scope[name]).any()) for name in masks)


def test_vit_query_and_key_rows_are_left_alone() -> None:
    model = models.create("vit", 10, seed=0)
    example = model.example_input()
    masks = phew(model, example, 0.02)
    partial = [name for name, inside in masks.scope.items() if not bool(inside.all())]
    assert all(bool(masks[name][~masks.scope[name]].all()) for name in partial)
    assert num_off_path(model, example, masks) == 0


SPLICED: dict[str, tuple[list[nn.Module], Tensor]] = {
    "groups": (
        [nn.Conv2d(2, 24, 1), nn.Conv2d(24, 24, 1, groups=6), nn.Conv2d(24, 3, 1)],
        torch.ones(1, 2, 2, 2),
    ),
    "a map of two by two": (
        [nn.Conv2d(1, 10, 3, padding=1), nn.Conv2d(10, 10, 3, padding=1), nn.Conv2d(10, 2, 3, padding=1)],
        torch.ones(1, 1, 2, 2),
    ),
}


class Mirror(nn.Module):
    """Moves positions in a way that the tracer does not track."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


SPLICED["pooling of untracked positions"] = (
    [
        nn.Conv2d(1, 6, (1, 7), padding=(0, 3)), Mirror(), nn.AvgPool2d((1, 2)),
        nn.Conv2d(6, 6, (1, 3), padding=(0, 1)), nn.Conv2d(6, 2, 1),
    ],
    torch.ones(1, 1, 1, 4),
)  # fmt: skip


@pytest.mark.parametrize("kind", SPLICED)
def test_weights_that_join_two_walks_are_on_a_path(kind: str) -> None:
    """Heads of walks fit to few tails: those of the same group, and those that stay on the map, seen or not."""
    layers, example = SPLICED[kind]
    model = nn.Sequential(*layers)
    for seed, density in itertools.product(range(12), (0.08, 0.1, 0.12)):
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name in Masks.full(model):
                weight = model.get_parameter(name)
                weight.copy_(torch.randn(weight.shape, generator=draw))
        assert num_off_path(model, example, phew(model, example, density, Masks.full(model), seed)) == 0


class TestZeros:
    def test_a_zero_head_has_no_preference(self) -> None:
        net = mlp(6, 8, 8, 3)
        nn.init.zeros_(net[2].weight)
        masks = phew(net, torch.ones(1, 6), 0.3)
        assert masks.num_on == round(0.3 * 112)

    def test_a_zero_prunable_layer_is_walked_as_ones(self) -> None:
        net = mlp(6, 8, 8, 3)
        nn.init.zeros_(net[1].weight)
        for density in (0.2, 0.5, 0.9):
            masks = phew(net, torch.ones(1, 6), density)
            assert masks.num_on == round(density * 112)

    def test_a_zero_prunable_layer_with_more_requested_than_paths_hold(self) -> None:
        net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(4, 2))
        nn.init.zeros_(net[1].weight)
        with pytest.warns(UserWarning, match="only 24 of the 65 requested weights"):
            masks = phew(net, torch.ones(1, 2, 1, 1), 0.3)
        assert int(masks["1.weight"][:, :, 1, 1].sum()) == 16  # the live taps came first

    def test_units_cut_off_by_zeros_are_not_entered(self) -> None:
        net = mlp(6, 8, 8, 3)
        with torch.no_grad():
            net[1].weight[:, 3] = 0.0
        masks = phew(net, torch.ones(1, 6), 0.5)
        assert not bool(masks["0.weight"][3].any())

    def test_the_bare_graph_is_walked_if_zeros_cut_every_path(self) -> None:
        net = mlp(2, 2, 2)
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
            net[1].weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        assert phew(net, torch.ones(1, 2), 0.75, Masks.full(net)).num_on == 6


def test_more_than_paths_can_hold_is_filled_up_with_a_warning() -> None:
    """Over a single pixel a padded 3x3 kernel has one live tap in nine."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(4, 2))
    example = torch.ones(1, 2, 1, 1)
    with pytest.warns(UserWarning, match="only 24 of the 108 requested weights could be placed on paths"):
        masks = phew(net, example, 0.5)
    assert masks.num_on == 108
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert phew(net, example, 24 / 216).num_on == 24  # exactly all that can be


def test_a_tied_weight_is_counted_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.shared, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.shared(self.shared(self.inside(x)).relu()))

    model = Twice()
    masks = phew(model, torch.ones(1, 4), 0.4)
    assert masks.num_on == round(0.4 * 60)
    assert num_off_path(model, torch.ones(1, 4), masks) == 0


class TestStartDensity:
    def test_the_smallest_that_isolates_few_units(self) -> None:
        model = models.create("resnet20", 10, seed=0)
        example = model.example_input()
        density, masks = start_density(model, example)
        graph = trace(model, example)
        shares = {}
        assert START_DENSITIES == (0.01, 0.02, 0.03, 0.05)
        for candidate in START_DENSITIES:
            num_isolated, num_hidden = count_isolated(graph, phew(model, example, candidate))
            shares[candidate] = num_isolated / num_hidden
        fitting = [candidate for candidate in START_DENSITIES if shares[candidate] <= 0.05]
        assert density == (fitting[0] if fitting else 0.05)
        assert masks == phew(model, example, density)

    def test_five_percent_at_most(self) -> None:
        net = mlp(4, 200, 200, 2)  # 2040 weights at 5%, but all walks enter by 4 inputs and leave by 2 outputs
        with torch.no_grad():
            net[1].weight[:, 20:] *= 1e-6  # nearly all walks pass 20 units
        assert start_density(net, torch.ones(1, 4))[0] == 0.05


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_walks_fit_as_counted_one_by_one(seed: int, target: int) -> None:
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 2, bias=False))
    graph = trace(net, torch.ones(1, 6))
    marks, noise = _Marks(graph, scope_of(net, graph)), np.random.default_rng(seed)
    marks.add(noise.integers(0, 72, 3))
    seeding = _Seeding(
        Walker(Transitions(graph, net)), marks, marks.num_on + target, generator(0), net, torch.ones(1, 6)
    )
    numbers = noise.integers(-1, 72, (40, 2))
    taken: set[int] = set()
    expected = 0
    for walk in numbers:
        taken |= {int(number) for number in walk if number >= 0 and bool(marks.is_new(np.array([number]))[0])}
        if len(taken) > target:
            break
        expected += 1
    assert seeding._num_fit(numbers) == expected


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
    prunable = Masks.full(model) if everything else scope(model, example_input=example)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            masks = phew(model, example, density, prunable, seed)
        except UserError as error:
            message = str(error)
        else:
            return masks, [str(warning.message) for warning in caught]
    assert "fewer than one path" in message
    assert round(density * prunable.num) < len(prunable)
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
