"""PHEW: what it refuses, what it never touches, and the corners of real models."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pathgrow import models
from pathgrow.errors import UserError
from pathgrow.graph import Axis, Channels, Graph, Layer, Link, Window, trace
from pathgrow.graph.graph import Flags
from pathgrow.graph.paths import path_scores
from pathgrow.graph.reachability import isolated_units
from pathgrow.masks import Masks
from pathgrow.rng import generator
from pathgrow.walks import Transitions, Walker
from pathgrow.walks.phew import START_DENSITIES, count_isolated, phew, start_density
from pathgrow.walks.positions import Positions


def mlp(*widths: int, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


def num_off_path(model: nn.Module, example: object, masks: Masks) -> int:
    scores = path_scores(model, example, masks)
    return sum(int((masks[name] & inside & (scores[name] <= 0)).sum()) for name, inside in masks.scope.items())


class Block(nn.Module):
    """Stem, a residual block with an identity shortcut, head; all 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 1), nn.Linear(6, 4)
        self.first, self.second = nn.Conv2d(6, 5, 1), nn.Conv2d(5, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head((x + self.second(self.first(x).relu())).mean((2, 3)))


IMAGE = torch.ones(1, 3, 4, 4)


@pytest.mark.parametrize("density", [0, -0.1, 1.5, math.nan, math.inf, "0.1", None, [0.1]])
def test_a_density_outside_0_1_is_refused(density: object) -> None:
    with pytest.raises(UserError, match=r"density .* in \(0, 1\]"):
        phew(mlp(4, 8, 2), torch.ones(1, 4), density)  # type: ignore[arg-type]


def test_a_density_below_one_path_is_refused() -> None:
    with pytest.raises(UserError, match="keeps 1 of 96 weights, fewer than one path"):
        phew(mlp(4, 8, 8, 2), torch.ones(1, 4), 0.01)


def test_an_empty_scope_is_refused() -> None:
    nothing = {"0.weight": torch.zeros(8, 4, dtype=torch.bool)}
    with pytest.raises(UserError, match="no switchable weight"):
        phew(mlp(4, 8, 2), torch.ones(1, 4), 0.5, Masks.select(nothing, nothing))


def test_weights_that_are_not_numbers_are_refused() -> None:
    net = mlp(4, 8, 2)
    net[0].weight.data[0, 0] = math.nan
    with pytest.raises(UserError, match=r"0\.weight holds NaN"):
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
    """Moves positions in a way that the reader does not follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


SPLICED["a pool of places that were lost from sight"] = (
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


def test_branches_of_a_fork_are_equally_likely_however_many_ways_each_has() -> None:
    class Fork(nn.Module):
        """Every channel goes on as four positions, and as their mean."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.places, self.mean = nn.Conv2d(2, 3, 1), nn.Linear(12, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.places(x.flatten(1)) + self.mean(x.mean((2, 3)))

    model = Fork()
    transitions = Transitions(trace(model, torch.ones(1, 2, 2, 2)), model)
    walks = Walker(transitions).walk(0, 2000, generator(0))
    forward = walks.weights[:, ::2] >= 0
    by_name = {layer.name: forward[layer.index].mean() for layer in transitions.graph.layers}
    assert by_name["places.weight"] + by_name["mean.weight"] == pytest.approx(1)
    assert abs(by_name["mean.weight"] - 0.5) < 0.05  # more than four standard deviations


class TestShortcuts:
    def test_an_identity_shortcut_is_not_walked(self) -> None:
        model = Block()
        walks = Walker(Transitions(trace(model, IMAGE), model)).walk(0, 500, generator(0))
        assert bool((walks.weights >= 0).all())  # every walk uses every layer

    def test_it_is_one_of_two_branches_where_asked_for(self) -> None:
        model = Block()
        walks = Walker(Transitions(trace(model, IMAGE), model, identity_shortcuts=True)).walk(0, 2000, generator(0))
        share = (walks.weights[1] >= 0).mean()
        assert abs(share - 0.5) < 0.05  # five standard deviations

    def test_a_unit_without_another_way_takes_it(self) -> None:
        model = Block()
        with torch.no_grad():
            model.first.weight[:, 2] = 0.0  # unit 2 of the stem has no way on but the shortcut
            model.second.weight[4] = 0.0  # unit 4 of the sum has no way back but the shortcut
        transitions = Transitions(trace(model, IMAGE), model)
        walks = Walker(transitions).walk(0, 2000, generator(0))
        stem, first = transitions.graph.layers[0], transitions.graph.layers[1]
        at_stem, skipped = walks.units[stem.target], walks.weights[first.index] < 0
        assert bool((at_stem[skipped & (np.arange(walks.num) % 2 == 0)] == 2).all())
        assert bool(skipped[::2].any())
        assert bool(skipped[1::2].any())
        assert bool(np.isin(at_stem[skipped], [2, 4]).all())


class TestZeros:
    def test_a_zero_head_has_no_preference(self) -> None:
        net = mlp(6, 8, 8, 3)
        nn.init.zeros_(net[2].weight)
        masks = phew(net, torch.ones(1, 6), 0.3)
        assert masks.num_on == round(0.3 * 112)

    def test_a_zero_switchable_layer_is_walked_as_ones(self) -> None:
        net = mlp(6, 8, 8, 3)
        nn.init.zeros_(net[1].weight)
        for density in (0.2, 0.5, 0.9):
            masks = phew(net, torch.ones(1, 6), density)
            assert masks.num_on == round(density * 112)

    def test_a_zero_switchable_layer_with_more_asked_for_than_paths_hold(self) -> None:
        net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(4, 2))
        nn.init.zeros_(net[1].weight)
        with pytest.warns(UserWarning, match="only 24 of the 65 weights"):
            masks = phew(net, torch.ones(1, 2, 1, 1), 0.3)
        assert int(masks["1.weight"][:, :, 1, 1].sum()) == 16  # the live taps came first

    def test_units_cut_off_by_zeros_are_not_entered(self) -> None:
        net = mlp(6, 8, 8, 3)
        with torch.no_grad():
            net[1].weight[:, 3] = 0.0
        masks = phew(net, torch.ones(1, 6), 0.5)
        assert not bool(masks["0.weight"][3].any())

    def test_where_zeros_cut_every_path_the_bare_wiring_is_walked(self) -> None:
        net = mlp(2, 2, 2)
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
            net[1].weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        assert phew(net, torch.ones(1, 2), 0.75, Masks.full(net)).num_on == 6


def test_more_than_paths_can_hold_is_filled_up_with_a_warning() -> None:
    """Over a single pixel a padded 3x3 kernel has one live tap in nine."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(4, 2))
    example = torch.ones(1, 2, 1, 1)
    with pytest.warns(UserWarning, match="only 24 of the 108 weights asked for could be placed on paths"):
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

    def test_isolated_means_no_way_in_or_no_way_out(self) -> None:
        net = mlp(2, 4, 3, 2)
        first = torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]], dtype=torch.bool)
        second = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
        masks = Masks({"0.weight": first, "1.weight": second})
        isolated = isolated_units(trace(net, torch.ones(1, 2)), masks)
        assert isolated[0].tolist() == [False, True, True, True]
        assert isolated[1].tolist() == [False, True, False]
        assert count_isolated(trace(net, torch.ones(1, 2)), masks) == (4, 7)


class TestPositions:
    """Sets of positions against relations written out by hand."""

    @pytest.mark.parametrize("transposed", [False, True])
    @pytest.mark.parametrize(
        ("taps", "stride", "padding", "dilation", "size"),
        [(3, 1, 1, 1, 4), (3, 2, 1, 1, 5), (2, 2, 0, 1, 6), (3, 1, 2, 2, 4)],
    )
    def test_moving_along_one_axis(
        self, taps: int, stride: int, padding: int, dilation: int, size: int, transposed: bool
    ) -> None:
        reads = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        size_in, size_out = (reads, size) if transposed else (size, reads)
        window = Window((Axis(taps, stride, padding, dilation, size_in, size_out),), transposed=transposed)
        layer = Layer(0, "w", "conv", 1, 2, (1, 1, taps), 1, window, size_out)
        nodes = (Channels(0, 1, True), Channels(1, 1), Channels(2, 1))
        positions = Positions(Graph(nodes, (Link(0, 1),), (layer,), ((2, np.array([0])),), 0, False, False))

        def moved(here: Flags, tap: int, *, forward: bool) -> tuple[Flags, ...]:
            return positions.sets(
                positions.along_layer(layer, positions.places((here,)), np.array([tap]), forward=forward)
            )

        for tap in range(taps):
            links = set()
            for near in range(reads):
                far = near * stride + tap * dilation - padding
                if 0 <= far < size:
                    links.add((near, far) if transposed else (far, near))
            for start in range(size_in):
                here = np.arange(size_in)[None] == start
                (there,) = moved(here, tap, forward=True)
                assert set(np.flatnonzero(there)) == {b for a, b in links if a == start}
            for end in range(size_out):
                here = np.arange(size_out)[None] == end
                (there,) = moved(here, tap, forward=False)
                assert set(np.flatnonzero(there)) == {a for a, b in links if b == end}
            assert bool(layer.live_taps()[tap]) == bool(links)


def test_a_branch_that_leads_nowhere_is_not_walked() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.aside = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            self.aside(self.aside(x).relu())
            return self.b(x)

    model = Aside()
    rates = Transitions(trace(model, torch.ones(1, 4)), model).visit_rates()
    names = [layer.name for layer in trace(model, torch.ones(1, 4)).layers]
    totals = dict(zip(names, (float(rate.sum()) for rate in rates.values()), strict=True))
    assert totals == {"a.weight": pytest.approx(2), "b.weight": pytest.approx(2), "aside.weight": 0}
