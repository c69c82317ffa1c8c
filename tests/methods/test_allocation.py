"""Layer densities against published check values, and what must hold for every scope."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathgrow import models
from pathgrow import scope as prunable
from pathgrow.errors import UserError
from pathgrow.graph import Graph, trace
from pathgrow.masks import Masks
from pathgrow.methods.allocation import DISTRIBUTIONS, RandomInLayers, allocate, uniform_in_layers
from pathgrow.methods.method import NetworkView

distributions = st.sampled_from(list(DISTRIBUTIONS))
shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 40), st.integers(1, 40)),
        st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=8,
)


def scope_of_shapes(*sizes: tuple[int, ...]) -> Masks:
    inside = {f"layer{number}": torch.ones(size, dtype=torch.bool) for number, size in enumerate(sizes)}
    return Masks.select(inside, inside)


@pytest.fixture(scope="module")
def resnet() -> tuple[Masks, Graph]:
    model = models.create("resnet50", 1000)
    inside = {name: torch.ones_like(mask) for name, mask in Masks.full(model).items()}
    return Masks.select(inside, inside), trace(model, torch.zeros(1, 3, 224, 224))


class TestResNet50:
    """RigL's own figures: ERK at 80 and 90% sparse, and the cost of a forward pass in shares of the dense one."""

    @staticmethod
    def share_of_macs(graph: Graph, counts: dict[str, int]) -> float:
        assert all(layer.name is not None for layer in graph.layers)
        macs = sum(counts[str(layer.name)] * layer.positions for layer in graph.layers)
        return macs / sum(layer.macs for layer in graph.layers)

    @pytest.mark.parametrize(
        ("density", "epsilon", "num_dense", "cost"), [(0.2, 99.56, 8, 0.414), (0.1, 48.79, 1, 0.242)]
    )
    def test_erk(
        self, resnet: tuple[Masks, Graph], density: float, epsilon: float, num_dense: int, cost: float
    ) -> None:
        scope, graph = resnet
        counts = allocate(scope, density, "erk")
        assert len(counts) == 54
        assert sum(counts.values()) == round(density * 25_502_912)
        free = {name: num for name, num in counts.items() if num < scope[name].numel()}
        assert len(counts) - len(free) == num_dense
        # density x product of dimensions / sum of dimensions is the same number in every layer that is not dense
        for name, num in free.items():
            assert num / sum(scope[name].shape) == pytest.approx(epsilon, abs=0.005 + 1 / sum(scope[name].shape))
        assert self.share_of_macs(graph, counts) == pytest.approx(cost, abs=0.0005)

    @pytest.mark.parametrize(("density", "cost"), [(0.2, 0.223), (0.1, 0.126)])
    def test_uniform(self, resnet: tuple[Masks, Graph], density: float, cost: float) -> None:
        scope, graph = resnet
        counts = allocate(scope, density, "uniform")
        assert next(iter(counts.values())) == 64 * 3 * 7 * 7
        assert self.share_of_macs(graph, counts) == pytest.approx(cost, abs=0.0005)


def test_equal_is_the_density_of_every_tensor() -> None:
    assert allocate(scope_of_shapes((10, 2), (20, 20), (4, 2, 5, 5)), 0.1, "equal") == {
        "layer0": 2,
        "layer1": 40,
        "layer2": 20,
    }


def test_er_does_not_look_at_kernels() -> None:
    # By hand: 300 weights of 1000 + 9000; raw shares 20/100 and 20/100 whatever the kernel, so 30 and 270.
    scope = scope_of_shapes((10, 10, 1, 10), (10, 10, 9, 10))
    assert allocate(scope, 0.03, "er") == {"layer0": 30, "layer1": 270}
    # ERK: 31/1000 and 39/9000, so they fraction 300 as 31 to 39.
    assert allocate(scope, 0.03, "erk") == {"layer0": 133, "layer1": 167}


def test_er_of_matrices_counts_every_tap_as_an_input() -> None:
    # By hand: 8 + 4 * 3 * 3 and 10 + 32 are 44 and 42, so 86 weights at eps = 1.
    assert allocate(scope_of_shapes((8, 4, 3, 3), (10, 32)), 86 / 608, "er_matrix") == {"layer0": 44, "layer1": 42}


def test_dense_layers_are_found_one_after_another() -> None:
    # ER by hand: raw 1.5, 0.75 and 0.2 of 2, 8 and 100 weights; 60 of 110 are kept. eps = 60 / (3 + 6 + 20) > 1/1.5:
    # the first is dense; (60 - 2) / 26 > 1/0.75: the second too; the third keeps the other 50.
    assert allocate(scope_of_shapes((2, 1), (4, 2), (10, 10)), 60 / 110, "er") == {
        "layer0": 2,
        "layer1": 8,
        "layer2": 50,
    }


def test_uniform_keeps_the_first_dense_where_it_is_small() -> None:
    assert allocate(scope_of_shapes((10, 2), (20, 20), (40, 20)), 0.1, "uniform") == {
        "layer0": 20,
        "layer1": 34,
        "layer2": 68,
    }
    # A first layer with most of the weights would leave nothing to the others.
    assert allocate(scope_of_shapes((20, 20), (10, 10)), 0.1, "uniform") == {"layer0": 40, "layer1": 10}
    # 10 of 100 beside 90: at 0.16 its density takes 10 of 16 and leaves the others under half of their 14.4; at 0.2 it
    # leaves them 10 of 18.
    first = scope_of_shapes((5, 2), (9, 10))
    assert allocate(first, 0.16, "uniform") == {"layer0": 2, "layer1": 14}
    assert allocate(first, 0.2, "uniform") == {"layer0": 10, "layer1": 10}


def test_the_smallest_layer_keeps_a_weight() -> None:
    assert allocate(scope_of_shapes((30, 30), (1, 2), (30, 30)), 0.01, "uniform") == {
        "layer0": 9,
        "layer1": 1,
        "layer2": 8,
    }


@given(sizes=shapes, density=st.floats(1e-4, 1.0), distribution=distributions)
@settings(max_examples=150)
def test_numbers_are_exact_and_fit(sizes: list[tuple[int, ...]], density: float, distribution: str) -> None:
    scope = scope_of_shapes(*sizes)
    counts = allocate(scope, density, distribution)
    assert sum(counts.values()) == max(1, round(density * scope.num))
    assert all(0 <= counts[name] <= inside.numel() for name, inside in scope.items())
    if sum(counts.values()) >= len(sizes):
        assert min(counts.values()) >= 1
    assert allocate(scope, 1.0, distribution) == {name: inside.numel() for name, inside in scope.items()}


@given(sizes=shapes, density=st.floats(0.05, 0.95), distribution=st.sampled_from(("er", "erk")))
@settings(max_examples=150)
def test_layers_that_are_not_dense_share_by_their_dimensions(
    sizes: list[tuple[int, ...]], density: float, distribution: str
) -> None:
    scope = scope_of_shapes(*sizes)
    counts = allocate(scope, density, distribution)
    raw = {}
    for name, inside in scope.items():
        lengths = inside.shape if distribution == "erk" else inside.shape[:2]
        raw[name] = Fraction(sum(lengths), math.prod(lengths)) * inside.numel()
    free = [name for name, num in counts.items() if 1 < num < scope[name].numel() - 1]
    for one in free:
        for other in free:
            # One weight of rounding on either side, and what the layers that must keep one weight have taken.
            slack = (len(sizes) + 2) * (raw[one] + raw[other])
            assert abs(counts[one] * raw[other] - counts[other] * raw[one]) <= slack


def partial(shape: tuple[int, ...], *block: slice) -> torch.Tensor:
    inside = torch.zeros(shape, dtype=torch.bool)
    inside[block] = True
    return inside


@pytest.mark.parametrize("distribution", ["er", "er_matrix", "erk"])
@pytest.mark.parametrize(
    ("shape", "block", "alone"),
    [
        ((10, 10), (slice(None), slice(5, 10)), (10, 5)),
        ((30, 10), (slice(20, 30),), (10, 10)),  # V of a fused QKV projection
        ((12, 8, 3, 3), (slice(0, 12, 2), slice(3, 8), slice(1, 3)), (6, 5, 2, 3)),
    ],
)
def test_a_block_counts_as_a_tensor_of_its_own(
    shape: tuple[int, ...], block: tuple[slice, ...], alone: tuple[int, ...], distribution: str
) -> None:
    inside = {"layer0": partial(shape, *block), "layer1": torch.ones(20, 10, dtype=torch.bool)}
    expected = allocate(scope_of_shapes(alone, (20, 10)), 0.2, distribution)
    assert allocate(Masks.select(inside, inside), 0.2, distribution) == expected


def test_erk_in_a_block_by_hand() -> None:
    # 15 / 50 of 50 and 20 / 100 of 100: 30 weights are shared as 15 to 20.
    inside = {"a": partial((10, 10), slice(None), slice(5, 10)), "b": torch.ones(10, 10, dtype=torch.bool)}
    assert allocate(Masks.select(inside, inside), 0.2, "erk") == {"a": 13, "b": 17}


def test_a_tensor_without_prunable_weights_keeps_none() -> None:
    inside = {"a": partial((10, 10), slice(0, 0)), "b": torch.ones(10, 10, dtype=torch.bool)}
    assert allocate(Masks.select(inside, inside), 0.2, "erk") == {"a": 0, "b": 20}


def test_erk_of_a_vision_transformer() -> None:
    """By hand: V, the projection and both MLP layers have 384, 384, 576 and 576 rows and columns. One eps for all makes
    10% of a block's 221,184 weights: eps 11.52, so V and the projection have 11.52 * 384 of 192^2 weights, 12.0%."""
    model = models.create("vit", 200)
    inside = prunable(model, example_input=torch.zeros(1, 3, 64, 64))
    for name, num in allocate(inside, 0.1, "erk").items():
        expected = 0.12 if "qkv" in name or "proj" in name else 0.09
        assert num / int(inside[name].sum()) == pytest.approx(expected, abs=1e-4), name


@given(sizes=shapes, density=st.floats(0.01, 1.0), distribution=distributions, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_random_masks_have_these_numbers(
    sizes: list[tuple[int, ...]], density: float, distribution: str, seed: int
) -> None:
    scope = scope_of_shapes(*sizes)
    counts = allocate(scope, density, distribution)
    net = NetworkView(torch.nn.Identity(), Masks.empty(scope), scope)
    picked = RandomInLayers(distribution)(net, scope, sum(counts.values()), torch.Generator().manual_seed(seed))
    assert {name: int(chosen.sum()) for name, chosen in picked.items()} == counts


def test_picks_in_layers_stay_inside_their_candidates() -> None:
    draw = torch.Generator().manual_seed(0)
    inside = {"a": torch.ones(4, 5, dtype=torch.bool), "b": torch.ones(3, 3, dtype=torch.bool)}
    inside["a"][0] = False
    candidates = Masks.select({"a": inside["a"] & (torch.rand(4, 5, generator=draw) < 0.7), "b": inside["b"]}, inside)
    seen = torch.zeros(4, 5)
    for _ in range(200):
        picked = uniform_in_layers(candidates, {"a": 3, "b": 0}, draw)
        assert [int(chosen.sum()) for chosen in picked.values()] == [3, 0]
        seen += picked["a"]
    assert torch.equal(seen > 0, candidates["a"])


def test_unknown_distributions_and_densities() -> None:
    scope = scope_of_shapes((3, 3))
    with pytest.raises(UserError, match="unknown allocation 'ekr': did you mean er"):
        allocate(scope, 0.5, "ekr")
    with pytest.raises(UserError, match="unknown allocation 'plain'"):
        RandomInLayers("plain")
    for density in (0.0, 1.5, math.nan):
        with pytest.raises(UserError, match=r"density must be in \(0, 1\]"):
            allocate(scope, density, "erk")
