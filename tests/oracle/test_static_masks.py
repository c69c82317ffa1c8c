"""Static masks: each method re-derived in NumPy, or path by path, on a small network."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.paths import signals
from pathgrow.masks import Masks
from pathgrow.methods.allocation import allocate
from pathgrow.methods.dpai import PathCounter
from pathgrow.methods.method import Method, NetworkView
from pathgrow.rng import generator
from pathgrow.sparse.attach import Attached, attach
from tests.support.chain import (
    NAMES,
    SIZES,
    Arrays,
    batch,
    best,
    best_of_all,
    chain,
    flags,
    gradients,
    magnitudes,
    num_on,
    same,
    squares,
    train,
    weights,
)

EXAMPLE = torch.ones(1, SIZES[0], dtype=torch.float64)
SHAPES = ((8, 6), (5, 8), (3, 5))
EVERYWHERE: Arrays = {name: np.ones(shape, dtype=bool) for name, shape in zip(NAMES, SHAPES, strict=True)}
NUM = sum(flags.size for flags in EVERYWHERE.values())


def fresh(seed: int = 3) -> nn.Sequential:
    """A chain whose weights are spread over orders of magnitude, so that scores rank differently from each other."""
    model, _ = chain(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in NAMES:
            weight = model.get_parameter(name)
            weight.mul_(torch.randn(weight.shape, generator=draw, dtype=torch.float64).exp())
    return model


def started(method: Method, model: nn.Module, num_batches: int = 1, seed: int = 0) -> Attached:
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    pairs = [batch(number) for number in range(num_batches)]
    return attach(
        model, optimizer, method, EXAMPLE, scope=Masks.full(model), loss=squares, batches=pairs, seed=seed
    )  # fmt: skip


def masks_of(name: str, model: nn.Module, **options: Any) -> Arrays:
    return flags(started(methods.create(name, **options), copy.deepcopy(model), options.get("num_batches", 1)).masks)


class TestDense:
    def test_training_equals_training_without_pathgrow(self) -> None:
        plain = fresh()
        sparse = started(methods.create("dense"), copy.deepcopy(plain))
        optimizer = SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        for step in range(5):
            train(sparse, step)
            optimizer.zero_grad()
            squares(plain, batch(step)).backward()
            optimizer.step()
        assert sparse.density == 1
        assert all(torch.equal(a, b) for a, b in zip(sparse.model.parameters(), plain.parameters(), strict=True))


class TestRandom:
    @pytest.mark.parametrize("distribution", ["equal", "uniform", "er", "er_matrix", "erk"])
    def test_layers_keep_what_the_distribution_gives_them(self, distribution: str) -> None:
        model = fresh()
        expected = allocate(Masks.full(model), 0.3, distribution)
        found = masks_of("random", model, density=0.3, allocation=distribution)
        assert {name: int(mask.sum()) for name, mask in found.items()} == expected
        assert not same(
            found, flags(started(methods.create("random", density=0.3, allocation=distribution), model, seed=1).masks)
        )

    def test_erk_by_hand(self) -> None:
        # Raw shares 14/48, 13/40, 8/15; 31 of 103: eps = 31 / 35 leaves no layer dense. 12.4, 11.5, 7.1.
        found = masks_of("erk", fresh(), density=0.3)
        assert [int(mask.sum()) for mask in found.values()] == [12, 12, 7]

    def test_plain_takes_any_weight(self) -> None:
        model, seen = fresh(), np.zeros(NUM)
        for seed in range(300):
            masks = flags(started(methods.create("random", density=0.3), copy.deepcopy(model), seed=seed).masks)
            assert num_on(masks) == 31
            seen += np.concatenate([masks[name].reshape(-1) for name in NAMES])
        # Binomial with 300 x 31 / 103 = 90.3 expected, 7.9 standard deviation: four of them.
        assert abs(seen - 300 * 31 / NUM).max() < 4 * 7.9

    def test_an_unknown_distribution(self) -> None:
        with pytest.raises(UserError, match="unknown allocation 'ekr'"):
            methods.create("random", allocation="ekr")


def test_magnitude_keeps_the_largest_of_all_layers() -> None:
    model = fresh()
    assert same(masks_of("magnitude", model, density=0.2), best_of_all(magnitudes(weights(model)), EVERYWHERE, 21))


def test_snip_keeps_the_largest_weight_times_gradient() -> None:
    model = fresh()
    values, slopes = weights(model), gradients(model, batch(0))
    expected = best_of_all({name: abs(values[name] * slopes[name]) for name in NAMES}, EVERYWHERE, 21)
    assert same(masks_of("snip", model, density=0.2), expected)
    # It is neither of its factors, nor signed.
    for other in (magnitudes(values), magnitudes(slopes), {name: values[name] * slopes[name] for name in NAMES}):
        assert not same(expected, best_of_all(other, EVERYWHERE, 21))


@pytest.mark.parametrize("name", ["random", "erk", "magnitude", "snip", "grasp", "synflow", "phew", "dpai"])
@pytest.mark.parametrize("density", [0.0, 1.5, math.nan])
def test_invalid_densities(name: str, density: float) -> None:
    with pytest.raises(UserError, match=r"^density must be in \(0, 1\], got"):
        methods.create(name, density=density)


@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_data_are_required(name: str) -> None:
    model = fresh()
    with pytest.raises(UserError, match="batches"):
        attach(model, SGD(model.parameters(), lr=0.1), name, EXAMPLE, scope=Masks.full(model))


class TestGraSP:
    def test_sign_on_a_quadratic_of_two_weights(self) -> None:
        """Loss (w - b)^2 / 2. Without the first weight the gradient would be larger, without the second smaller."""
        model = nn.Linear(2, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, 1.0]]))
        target = torch.tensor([[5.0], [-1.0]], dtype=torch.float64)

        def loss(net: nn.Module, eye: Tensor) -> Tensor:
            return (net(eye) - target).square().sum() / 2

        def flow(first: float, second: float) -> float:
            return (first - 5) ** 2 + (second + 1) ** 2

        assert flow(0, 1) > flow(1, 1) > flow(1, 0)
        sparse = attach(
            model, SGD(model.parameters(), lr=0.1), methods.create("grasp", density=0.5, temperature=1.0),
            scope=Masks.full(model), loss=loss, batches=[torch.eye(2, dtype=torch.float64)],
        )  # fmt: skip
        assert sparse.masks["weight"].tolist() == [[False, True]]

    @pytest.mark.parametrize(("temperature", "num_batches"), [(1.0, 1), (4.0, 3)])
    def test_keeps_the_largest_signed_weight_times_hessian_times_gradient(
        self, temperature: float, num_batches: int
    ) -> None:
        model, values = fresh(), weights(fresh())

        def slopes(shift: Callable[[str], Any]) -> Arrays:
            """Gradients of the loss of the divided output, at weights moved by `shift`, from those by hand."""
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for name in NAMES:
                    moved.get_parameter(name).add_(torch.as_tensor(shift(name)))
                for part in ("weight", "bias"):  # dividing the output is dividing the last layer
                    moved.get_parameter(f"4.{part}").div_(temperature)
            found = [gradients(moved, batch(number)) for number in range(num_batches)]
            total = {name: sum(part[name] for part in found) for name in NAMES}
            return {**total, "4.weight": total["4.weight"] / temperature}

        at_rest = slopes(lambda name: 0.0)
        ahead, behind = (slopes(lambda name, e=e: e * at_rest[name]) for e in (1e-6, -1e-6))
        scores = {name: values[name] * (ahead[name] - behind[name]) / 2e-6 for name in NAMES}
        found = masks_of("grasp", model, density=0.2, temperature=temperature, num_batches=num_batches)
        assert same(found, best_of_all(scores, EVERYWHERE, 21))
        assert not same(found, best_of_all({n: -s for n, s in scores.items()}, EVERYWHERE, 21))
        assert not same(found, best_of_all(magnitudes(scores), EVERYWHERE, 21))

    def test_gradient_and_hessian_are_those_of_the_scope(self) -> None:
        """By finite differences along the gradient: of the weights in scope, or of all weights as in `--scope all`."""
        model, values, inside = fresh(), weights(fresh()), NAMES[:2]

        def scores(moving: Sequence[str]) -> Arrays:
            def slopes(size: float) -> Arrays:
                moved = copy.deepcopy(model)
                with torch.no_grad():
                    for name in moving:
                        moved.get_parameter(name).add_(torch.as_tensor(size * at_rest[name]))
                return gradients(moved, batch(0))

            at_rest = gradients(model, batch(0))
            ahead, behind = slopes(1e-6), slopes(-1e-6)
            return {name: values[name] * (ahead[name] - behind[name]) / 2e-6 for name in NAMES}

        kept = Masks.select({name: torch.as_tensor(EVERYWHERE[name]) for name in inside})
        pruned, method = copy.deepcopy(model), methods.create("grasp", density=0.2, temperature=1.0)
        optimizer = SGD(pruned.parameters(), lr=0.1)
        found = attach(pruned, optimizer, method, EXAMPLE, scope=kept, loss=squares, batches=[batch(0)]).masks
        candidates = {name: EVERYWHERE[name] & (name in inside) for name in NAMES}
        by_scope, by_all = (best_of_all(scores(names), candidates, found.num_on) for names in (inside, NAMES))
        assert list(found) == list(inside)
        assert all(np.array_equal(found[name].numpy(), by_scope[name]) for name in inside)
        assert not same(by_scope, by_all), "otherwise this tests nothing"

    def test_both_passes_drop_the_same_units(self) -> None:
        """One weight w per unit and loss sum(d w)^2 / 2 over kept units d in {0, 2}: g = 4w there, Hg = 16w, else 0."""

        class Dropped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.linspace(1, 2, 200, dtype=torch.float64).view(1, 200))
                self.dropout = nn.Dropout(0.5)

            def forward(self, x: Tensor) -> Tensor:
                return self.dropout(x * self.weight)

        model = Dropped()
        full = Masks.full(model, {"weight": torch.ones(1, 200, dtype=torch.bool)})
        net = NetworkView(
            model, full, Masks.select(full), loss=lambda net, x: net(x).square().sum() / 2,
            batches=[torch.ones(1, 1, dtype=torch.float64)],
        )  # fmt: skip
        scores = methods.create("grasp", temperature=1.0).start.scores(net, seed=0)["weight"]
        kept = scores > 0
        assert 70 < int(kept.sum()) < 130
        torch.testing.assert_close(scores, 16 * model.weight.detach() ** 2 * kept)

    def test_leaves_the_network_as_it_was(self) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
        before, noise = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        method = methods.create("grasp", density=1.0, num_batches=2)
        sparse = started(method, model, 2)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), noise)
        assert not model._forward_hooks
        assert all(parameter.grad is None for parameter in model.parameters())
        sparse.detach()
        # Dropout is drawn from the seed, so masks are the same each time.
        half = methods.create("grasp", density=0.5, num_batches=2)
        first = started(half, copy.deepcopy(model), 2).masks
        assert first == started(half, copy.deepcopy(model), 2).masks

    def test_an_activation_without_a_second_derivative_is_replaced(self) -> None:
        class Written(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return (x + 3).clamp(0, 6) / 6

        def scores(activation: nn.Module) -> dict[str, Tensor]:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 3)).double()
            full = Masks.full(model)
            loss: Any = lambda net, pair: nn.functional.mse_loss(net(pair[0]), pair[1])  # noqa: E731
            net = NetworkView(model, full, Masks.select(full), loss=loss, batches=[batch(0)])
            found: dict[str, Tensor] = methods.create("grasp").start.scores(net, seed=0)  # type: ignore[union-attr]
            return found

        ours, expected = scores(nn.Hardsigmoid()), scores(Written())
        for name, score in expected.items():
            torch.testing.assert_close(ours[name], score)
            assert score.any()

    def test_a_compiled_network_gets_the_same_masks(self) -> None:
        model = fresh()
        expected = started(methods.create("grasp", density=0.3), copy.deepcopy(model), 1).masks
        compiled: Any = torch.compile(model, backend="aot_eager")
        found = started(methods.create("grasp", density=0.3), compiled, 1).masks
        assert [mask.tolist() for mask in found.values()] == [mask.tolist() for mask in expected.values()]

    def test_an_operation_without_a_second_derivative_raises(self) -> None:
        class Bag(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(6, 3).double()

            def forward(self, x: Tensor) -> Tensor:
                return nn.functional.embedding_bag(torch.arange(len(x))[:, None], self.inner(x), mode="sum")

        with pytest.raises(UserError, match=r"does not provide for _embedding_bag_backward .*snip or synflow$"):
            started(methods.create("grasp", density=0.5), Bag(), 1)

    def test_invalid_options_and_outputs(self) -> None:
        for option, value in (("temperature", 0.0), ("num_batches", 0)):
            with pytest.raises(UserError, match=option):
                methods.create("grasp", **{option: value})
        with pytest.raises(UserError, match="at least 2 batches, got 1"):
            started(methods.create("grasp", num_batches=2), fresh(), 1)

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(6, 3).double()

            def forward(self, x: Tensor) -> dict[str, Tensor]:
                return {"logits": self.inner(x)}

        def loss(net: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.mse_loss(net(pair[0])["logits"], pair[1])

        model = Wrapped()
        with pytest.raises(UserError, match="Wrapped returned a dict; use temperature=1"):
            attach(
                model, SGD(model.parameters(), lr=0.1), "grasp", scope=Masks.full(model), loss=loss, batches=[batch(0)]
            )


def path_sums(arrays: Arrays) -> tuple[float, Arrays, Arrays]:
    """Path by path: the sum of all products of weights; for each position the sum of those through it, and of those
    that would run through it if it held a one."""
    through, others = ({name: np.zeros(array.shape) for name, array in arrays.items()} for _ in range(2))
    total = 0.0
    for path in np.ndindex(*SIZES):
        places = [(path[k + 1], path[k]) for k in range(len(NAMES))]
        values = [float(arrays[name][place]) for name, place in zip(NAMES, places, strict=True)]
        total += math.prod(values)
        for k, (name, place) in enumerate(zip(NAMES, places, strict=True)):
            through[name][place] += math.prod(values)
            others[name][place] += math.prod(values[:k] + values[k + 1 :])
    return total, through, others


class TestSynFlow:
    @staticmethod
    def by_hand(model: nn.Module, density: float, num: int) -> Arrays:
        on = EVERYWHERE
        for iteration in range(1, num + 1):
            present = {name: abs(weights(model)[name]) * on[name] for name in NAMES}
            on = best_of_all(path_sums(present)[1], on, round(NUM * density ** (iteration / num)))
        return on

    def test_keeps_the_path_weight_iteration_by_iteration(self) -> None:
        model, density = fresh(), 20 / NUM
        found = {num: masks_of("synflow", model, density=density, num_iterations=num) for num in (1, 4, 10)}
        for num, masks in found.items():
            assert num_on(masks) == 20
            assert same(masks, self.by_hand(model, density, num))
        assert not same(found[1], found[4])  # or iterating would prove nothing

    def test_biases_do_not_count(self) -> None:
        model, biased = fresh(), fresh()
        with torch.no_grad():
            for name in NAMES:
                biased.get_parameter(name.replace("weight", "bias")).fill_(100.0)
        options = {"density": 20 / NUM, "num_iterations": 4}
        assert same(masks_of("synflow", model, **options), masks_of("synflow", biased, **options))

    def test_pruned_weights_do_not_return(self) -> None:
        """Of 46 weights 19, 7 and 3 are kept.

        By hand, at the second: six inputs of the first unit score 10 x 0.02 each, its ten outputs that are left
        6 x 0.02, a lone input of the second unit 0.2 x 0.8 = 0.16. It goes, and so do all these outputs, whereupon the
        six inputs score nothing. At the third it would score 0.16 if it were still there.
        """
        model = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, 15, bias=False)).double()
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[1.0] * 6 + [0, 0], [0] * 6 + [5, 0.2]]))
            model[1].weight.copy_(torch.tensor([[0.02, 0]] * 14 + [[0, 0.8]]))
        method = methods.create("synflow", density=3 / 46, num_iterations=3)
        masks = attach(model, SGD(model.parameters(), lr=0.1), method, torch.ones(1, 8), scope=Masks.full(model)).masks
        assert masks.num_on == 3
        assert bool(masks["1.weight"][14, 1])
        assert masks["0.weight"][1].tolist() == [False] * 6 + [True, False]

    def test_no_depth_and_no_scale_overflows(self) -> None:
        def deep(scale: float) -> nn.Sequential:
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(40))).double()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(scale)
            return model

        def masks(scale: float) -> Masks:
            model = deep(scale)
            method = methods.create("synflow", density=0.3, num_iterations=5)
            return attach(model, SGD(model.parameters(), lr=0.1), method, EXAMPLE, scope=Masks.full(model)).masks

        assert masks(2.0**40) == masks(1.0) == masks(2.0**-40)  # products reach 2**1600

    def test_iterating_keeps_the_network_in_one_piece(self) -> None:
        model = fresh()
        masks = masks_of("synflow", model, density=8 / NUM)
        assert path_sums({name: abs(weights(model)[name]) * masks[name] for name in NAMES})[0] > 0

    @pytest.mark.parametrize("num", [1, 2, NUM])
    def test_too_few_weights_for_a_path_and_all_of_them(self, num: int) -> None:
        assert num_on(masks_of("synflow", fresh(), density=num / NUM, num_iterations=20)) == num

    def test_at_least_one_iteration(self) -> None:
        with pytest.raises(UserError, match="num_iterations"):
            methods.create("synflow", num_iterations=0)


def test_phew_keeps_whole_paths() -> None:
    model = fresh()
    masks = masks_of("phew", model, density=0.2)
    assert num_on(masks) == 21
    through = path_sums({name: abs(weights(model)[name]) * masks[name] for name in NAMES})[1]
    assert all(((through[name] > 0) == masks[name]).all() for name in NAMES)


class Joined(nn.Module):
    """A residual sum, groups, a shared layer and a concatenation, on one pixel: every position has the same paths."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.shared = nn.Conv2d(4, 4, 1)
        self.up = nn.ConvTranspose2d(4, 3, 1)
        self.head = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = self.shared(torch.relu(x + self.grouped(self.shared(x))))
        return self.head(torch.cat([x, self.up(x)], 1).flatten(1))


class TestPathCounter:
    def test_chain_path_by_path(self) -> None:
        model, masks = chain(density=0.5)
        counted = PathCounter(trace(model, EXAMPLE), torch.device("cpu"))({n: masks[n].double() for n in NAMES})
        on = {name: array.astype(np.float64) for name, array in flags(masks).items()}
        total, _, others = path_sums(on)
        assert counted.log_total.item() == pytest.approx(np.log(total))
        for name, gradient in zip(NAMES, counted.gradients, strict=True):
            np.testing.assert_allclose(gradient.numpy() * total, others[name], rtol=1e-12)

    def test_agrees_with_the_linear_pass_where_positions_are_alike(self) -> None:
        model, example = Joined().double(), torch.ones(1, 2, 1, 1, dtype=torch.float64)
        draw = torch.Generator().manual_seed(0)
        masks = {name: torch.rand(mask.shape, generator=draw) < 0.6 for name, mask in Masks.full(model).items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        truth = signals(model, example, masks)
        paths = PathCounter(trace(model, example), torch.device("cpu"))
        counted = paths({name: mask.double() for name, mask in masks.items()})
        assert counted.log_total.item() == pytest.approx(truth.log2_total * np.log(2))
        found = {name: torch.zeros(mask.shape, dtype=torch.float64) for name, mask in masks.items()}
        for layer, gradient in zip(paths.graph.layers, counted.gradients, strict=True):
            assert layer.name is not None
            layer.lay_(gradient, found[layer.name])
        for name, score in truth.scores():
            torch.testing.assert_close(found[name], score)

    @pytest.mark.parametrize("size", [1, 2])
    def test_taps_of_a_transposed_convolution_that_reach_nothing(self, size: int) -> None:
        """From one pixel every tap of three reaches an output; with a border cut off, the middle one alone."""
        for padding, stride in ((0, 1), (1, 1), (1, 2)):
            layer = nn.ConvTranspose2d(2, 3, 3, padding=padding, stride=stride).double()
            counted = PathCounter(trace(layer, torch.ones(1, 2, size, size).double()), torch.device("cpu"))({})
            moved = torch.zeros(3, 3, dtype=torch.bool)
            for tap in np.ndindex(3, 3):
                with torch.no_grad():
                    layer.weight.zero_()[0, 0][tap] = 1.0
                    moved[tap] = bool(nn.functional.conv_transpose2d(
                        torch.ones(1, 2, size, size).double(), layer.weight, None, stride, padding
                    ).any())  # fmt: skip
            assert torch.equal((counted.gradients[0] > 0)[0, 0], moved)

    def test_depth_does_not_overflow(self) -> None:
        model = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(400)))
        counted = PathCounter(trace(model, torch.ones(1, 10)), torch.device("cpu"))({})
        assert counted.log_total.item() == pytest.approx(401 * np.log(10))
        assert all(gradient.sum().item() == pytest.approx(1) for gradient in counted.gradients)


class TestDPaI:
    @staticmethod
    def noise(seed: int) -> Arrays:
        draw = generator(seed, "start")
        return {
            name: abs(torch.randn(EVERYWHERE[name].shape, generator=draw, dtype=torch.float64)).numpy()
            for name in NAMES
        }

    @staticmethod
    def chosen(scores: Arrays, counts: dict[str, int], able: Arrays) -> Arrays:
        return {name: best(scores[name], able[name], counts[name]) for name in NAMES}

    @pytest.mark.parametrize("partly", [False, True])
    @pytest.mark.parametrize(
        ("alpha", "beta"), [(0.0, 0.0), (0.99, 0.5), (0.5, 0.0), (0.5, 1.0), (1.0, 0.0), (1.0, 1.0)]
    )
    def test_a_few_steps_by_hand(self, alpha: float, beta: float, partly: bool) -> None:
        """Adam hardly sees the size of a slope: with alpha 1 some slopes are zero, which it does see."""
        model, rate, num = fresh(), 0.2, 4
        inside = {name: torch.ones_like(mask) for name, mask in Masks.full(model).items()}
        if partly:
            inside["2.weight"][:, ::2] = False
        scope = Masks.select(inside, inside)
        able = {name: mask.numpy() for name, mask in inside.items()}
        counts = allocate(scope, 0.25, "erk")
        scores = {name: np.where(able[name], noise, -1.0) for name, noise in self.noise(0).items()}
        first, second = ({name: np.zeros_like(score) for name, score in scores.items()} for _ in range(2))
        for step in range(1, num + 1):
            chosen = self.chosen(scores, counts, able)
            total, through, others = path_sums({name: (chosen[name] | ~able[name]).astype(float) for name in NAMES})
            assert total > 0
            for name in NAMES:
                slope = others[name] / total
                used = through[name] > 0
                lone = ~used.any(axis=1, keepdims=True)
                slope *= (1 - alpha) + alpha * ((1 - beta) * lone + beta * ~used)
                first[name] = 0.9 * first[name] + 0.1 * slope
                second[name] = 0.999 * second[name] + 0.001 * slope**2
                size = np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8
                scores[name] = scores[name] + rate * first[name] / (1 - 0.9**step) / size
        method = methods.create(
            "dpai", density=0.25, alpha=alpha, beta=beta, num_search_steps=num, search_lr=rate
        )  # fmt: skip
        found = attach(model, SGD(model.parameters(), lr=0.1), method, EXAMPLE, scope=scope).masks
        assert same(flags(found.present()), self.chosen(scores, counts, able))
        assert not same(flags(found.present()), self.chosen(self.noise(0), counts, able))

    @pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.9, 0.0), (0.9, 1.0), (0.7, 0.3)])
    def test_units_and_kernels_of_convolutions(self, alpha: float, beta: float) -> None:
        """A kernel without a used weight, and a unit without a used kernel, pull all of their weights."""
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))
        paths = PathCounter(trace(model, torch.ones(1, 3, 6, 6)), torch.device("cpu"))
        draw = torch.Generator().manual_seed(2)
        kept = {name: torch.rand(mask.shape, generator=draw) < 0.05 for name, mask in Masks.full(model).items()}
        kept["0.weight"][1] = False
        counted = paths({name: mask.double() for name, mask in kept.items()})
        found = methods.create("dpai", alpha=alpha, beta=beta).start.ascent(paths, kept)
        kinds = set()
        for name, gradient in zip(kept, counted.gradients, strict=True):
            used = (gradient > 0) & kept[name]
            for out, into in np.ndindex(*used.shape[:2]):
                lone_unit, lone_kernel = not used[out].any(), not used[out, into].any()
                kinds.add((lone_unit, lone_kernel))
                factor = (1 - alpha) + alpha * ((1 - beta) * lone_unit + beta * lone_kernel)
                torch.testing.assert_close(found[name][out, into], gradient[out, into] * factor)
        assert kinds == {(False, False), (False, True), (True, True)}

    def test_layer_densities_of_convolutions_are_those_of_erk(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1))
        method = methods.create("dpai", density=0.25, num_search_steps=2)
        scope = Masks.full(model)
        masks = attach(model, SGD(model.parameters(), lr=0.1), method, torch.ones(1, 3, 6, 6), scope=scope).masks
        # 13/108 and 11/20 of 108 and 20 weights: 32 are shared out as 13 to 11. ER would leave the second 9.6.
        assert [int(mask.sum()) for mask in masks.values()] == [17, 15]

    def test_search_finds_paths_and_units(self) -> None:
        """At a density where chance leaves most weights on no path, and over seeds where it leaves none at all."""
        model, num_cut = fresh(), 0
        for seed in range(12):
            totals, units = [], []
            for num in (0, 100):
                method = methods.create("dpai", density=0.1, num_search_steps=num)
                masks = flags(started(method, copy.deepcopy(model), seed=seed).masks)
                total, through, _ = path_sums({name: mask.astype(np.float64) for name, mask in masks.items()})
                totals.append(total)
                units.append(sum(int((part > 0).any(axis=1).sum()) for part in through.values()))
            assert totals[1] > totals[0]
            assert units[1] >= units[0]
            num_cut += totals[0] == 0
        assert num_cut > 0

    def test_neither_weights_nor_data_are_used(self) -> None:
        assert same(*(masks_of("dpai", fresh(seed), density=0.2, num_search_steps=5) for seed in (3, 4)))

    def test_only_the_scope_is_selected_from(self) -> None:
        model = fresh()
        inside = {name: torch.ones_like(mask) for name, mask in Masks.full(model).items()}
        inside["2.weight"][:, ::2] = False
        del inside["4.weight"]
        method = methods.create("dpai", density=0.3, num_search_steps=20)
        masks = attach(model, SGD(model.parameters(), lr=0.1), method, EXAMPLE, scope=inside).masks
        assert masks.num_on == round(0.3 * (48 + 20))
        assert bool(masks["2.weight"][:, ::2].all())

    @pytest.mark.parametrize(
        ("option", "value"), [("alpha", 1.5), ("beta", -0.1), ("num_search_steps", -1), ("search_lr", 0.0)]
    )
    def test_options_out_of_range(self, option: str, value: float) -> None:
        with pytest.raises(UserError, match=option):
            methods.create("dpai", **{option: value})
