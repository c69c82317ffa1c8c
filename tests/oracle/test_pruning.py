"""Pruning methods against their definitions: rounds, cubic curves, rewinding, the two parts of a GraNet update."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import Progress
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from tests.support.chain import (
    NAMES,
    Arrays,
    attached,
    best,
    best_of_all,
    chain,
    flags,
    magnitudes,
    num_on,
    same,
    steps,
    train,
    weights,
)


def normed(optimizer: type[SGD] | type[Adam], method: str, **options: object) -> Attached:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)).double()
    extra = {"momentum": 0.9} if optimizer is SGD else {}
    return attach(
        model, optimizer(model.parameters(), lr=0.05, **extra), methods.create(method, **options),
        scope=Masks.full(model),
    )  # fmt: skip


class TestRounds:
    @pytest.mark.parametrize("name", ["imp", "lth", "imp_c"])
    def test_densities_and_what_is_pruned(self, name: str) -> None:
        model, _ = chain()
        sparse = attached(methods.create(name, density=0.1, **({"rewind_step": 1} if name == "imp" else {})), model)
        num, level = sparse.masks.num, 0
        assert sparse.masks.density == 1
        while True:
            train(sparse, level)
            on, now = flags(sparse.masks), weights(model)
            if not sparse.advance_():
                break
            level += 1
            left = max(round(0.8**level * num), round(0.1 * num))
            assert sparse.masks.num_on == left
            assert same(flags(sparse.masks), best_of_all(magnitudes(now), on, left))
        assert level == math.ceil(math.log(0.1) / math.log(0.8))
        assert sparse.masks.num_on == round(0.1 * num)

    def test_densities_of_a_large_network(self) -> None:
        schedule = methods.create("imp", density=0.009).schedule
        num, left, densities = 1_000_000, 1_000_000, []
        for level in range(30):
            change = schedule(Progress(round=level, step=0, num_on=left, num=num))
            if change is None:
                break
            left -= change.num_drop
            densities.append(round(100 * left / num, 1))
        table = [
            80,
            64,
            51.2,
            41,
            32.8,
            26.2,
            21,
            16.8,
            13.4,
            10.7,
            8.6,
            6.9,
            5.5,
            4.4,
            3.5,
            2.8,
            2.3,
            1.8,
            1.4,
            1.2,
            0.9,
        ]
        assert densities[:21] == table

    def test_every_level_takes_something_from_the_smallest_network(self) -> None:
        schedule = methods.create("lth", density=0.01).schedule
        left, level = 3, 0
        while (change := schedule(Progress(round=level, step=0, num_on=left, num=3))) is not None:
            left, level = left - change.num_drop, level + 1
        assert left == 1

    @pytest.mark.parametrize("optimizer", [SGD, Adam])
    @pytest.mark.parametrize(("name", "rewind_step"), [("lth", 0), ("imp", 2), ("imp", 0)])
    def test_rewinding(self, optimizer: type[SGD] | type[Adam], name: str, rewind_step: int) -> None:
        sparse = normed(optimizer, name, **({"rewind_step": rewind_step} if name == "imp" else {}))
        draw = torch.Generator().manual_seed(0)

        def step() -> None:
            sparse.optimizer.zero_grad()
            sparse.model(torch.randn(8, 6, generator=draw).double()).square().mean().backward()
            sparse.optimizer.step()

        then = copy.deepcopy(sparse.model.state_dict())
        for number in range(1, 6):
            step()
            if number == rewind_step:
                then = copy.deepcopy(sparse.model.state_dict())
        trained = copy.deepcopy(sparse.model.state_dict())
        for _ in range(2):
            assert sparse.advance_()
            for key, value in sparse.model.state_dict().items():
                mask = sparse.masks[key] if key in sparse.masks else torch.ones((), dtype=torch.bool)
                assert torch.equal(value, then[key] * mask), key
            assert not torch.equal(then["1.running_mean"], trained["1.running_mean"])
            for state in sparse.optimizer.state.values():
                assert all(not bool(value.any()) for value in state.values() if isinstance(value, torch.Tensor))
            for _ in range(3):
                step()

    @pytest.mark.parametrize("name", ["lth", "imp_c"])
    def test_the_ema_restarts_when_weights_are_rewound(self, name: str) -> None:
        """After a rewind it averages the new round alone; with continued training it continues."""
        sparse = attached(methods.create(name), chain()[0], ema=EMA(decay=0.99, update_interval=1))

        def ema_weights() -> Arrays:
            with sparse.ema_weights():
                return weights(sparse.model)

        for step in range(4):
            train(sparse, step)
        sparse.advance_()
        assert same(ema_weights(), weights(sparse.model)) == (name == "lth")
        seen = []
        for step in range(4, 7):
            train(sparse, step)
            seen.append(weights(sparse.model))
        means = {n: np.mean([arrays[n] for arrays in seen], axis=0) for n in NAMES}
        assert all(np.allclose(ema_weights()[n], means[n]) == (name == "lth") for n in NAMES)

    def test_continued_training_keeps_weights_and_resets_the_optimizer(self) -> None:
        sparse = normed(SGD, "imp_c")
        for _ in range(3):
            sparse.optimizer.zero_grad()
            sparse.model(torch.randn(8, 6).double()).square().mean().backward()
            sparse.optimizer.step()
        before = copy.deepcopy(sparse.model.state_dict())
        assert any(bool(state["momentum_buffer"].any()) for state in sparse.optimizer.state.values())
        assert sparse.advance_()
        for key, value in sparse.model.state_dict().items():
            assert torch.equal(value, before[key] * sparse.masks[key] if key in sparse.masks else before[key])
        assert not any(bool(state["momentum_buffer"].any()) for state in sparse.optimizer.state.values())

    def test_a_run_resumed_after_the_rewind_step_rewinds_to_it(self) -> None:
        sparse = attached(methods.create("imp", rewind_step=2), chain()[0])
        for step in range(4):
            train(sparse, step)
        other = attached(methods.create("imp", rewind_step=2), chain(seed=9)[0])
        other.model.load_state_dict(sparse.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(sparse.optimizer.state_dict()))
        other.load_state_dict(sparse.state_dict())
        for run in (sparse, other):
            run.advance_()
            train(run, 4)
        assert sparse.masks == other.masks
        assert same(weights(sparse.model), weights(other.model))

    def test_a_state_from_before_the_rewind_step_has_no_rewind_point(self) -> None:
        sparse = attached(methods.create("imp", rewind_step=2), chain()[0])
        train(sparse, 0)
        early = sparse.state_dict()
        for step in range(1, 4):
            train(sparse, step)
        sparse.load_state_dict(early)
        assert (sparse.step, sparse.method_state) == (1, {})

    def test_a_round_that_ends_before_the_rewind_step(self) -> None:
        sparse = attached(methods.create("imp", rewind_step=9), chain()[0])
        train(sparse, 0)
        with pytest.raises(UserError, match="rewind to step 9 after 1 steps"):
            sparse.advance_()
        assert sparse.masks.density == 1


def lamp_scores(now: Arrays, on: Arrays) -> Arrays:
    """By the definition, one weight at a time."""
    found = {}
    for name in NAMES:
        squares = now[name].ravel() ** 2 * on[name].ravel()
        sums = np.array([squares[squares >= square].sum() for square in squares])
        found[name] = (squares / sums).reshape(now[name].shape)
    return found


class TestLAMP:
    @pytest.mark.parametrize("name", ["imp", "lth", "imp_c"])
    def test_rounds(self, name: str) -> None:
        sparse = attached(
            methods.create(name, density=0.1, score="lamp", **({"rewind_step": 1} if name == "imp" else {})), chain()[0]
        )
        num, num_differing, level = sparse.masks.num, 0, 0
        while True:
            train(sparse, level)
            on, now = flags(sparse.masks), weights(sparse.model)
            if not sparse.advance_():
                break
            level += 1
            left = max(round(0.1 * num), round(0.8**level * num))
            assert same(flags(sparse.masks), best_of_all(lamp_scores(now, on), on, left))
            num_differing += not same(flags(sparse.masks), best_of_all(magnitudes(now), on, left))
        assert num_differing > 2

    def test_gradual(self) -> None:
        options = {"density": 0.15, "num_steps": 30, "update_interval": 3, "start_fraction": 0.1, "stop_fraction": 0.9}
        sparse = attached(methods.create("gmp", score="lamp", **options), chain()[0])
        expected = None
        for _, on, now, _, _ in steps(sparse, 30):
            if expected is not None and num_on(on) < num_on(expected[0]):
                assert same(on, best_of_all(expected[1], expected[0], num_on(on)))
            expected = on, lamp_scores(now, on)
        assert sparse.masks.num_on == round(0.15 * sparse.masks.num)

    def test_every_layer_keeps_its_largest_weight_and_weights_outside_the_scope_do_not_count(self) -> None:
        model, _ = chain()
        with torch.no_grad():
            model[2].weight *= 1e-9
            model[4].weight.zero_()
        scope = {name: torch.ones_like(model.get_parameter(name), dtype=torch.bool) for name in NAMES[:2]}
        scope["0.weight"][0] = False
        with torch.no_grad():
            model[0].weight[0] = 1e9
        method = methods.create("imp_c", density=0.02, prune_fraction=0.98, score="lamp")
        sparse = attach(model, SGD(model.parameters(), lr=0.1), method, scope=scope)
        assert sparse.advance_()
        largest = {name: abs(weights(model)[name]) * scope[name].numpy() for name in scope}
        # Two weights are left: the largest of each layer, which has a score of one at any scale.
        assert {name: np.flatnonzero(mask & scope[name]).tolist() for name, mask in sparse.masks.items()} == {
            name: [int(array.argmax())] for name, array in largest.items()
        }


class TestGradual:
    def test_the_cubic_curve_and_what_is_pruned(self) -> None:
        model, _ = chain()
        sparse = attached(
            methods.create("gmp", density=0.15, num_steps=50, update_interval=3, start_fraction=0.2, stop_fraction=0.7),
            model,
        )
        num, expected = sparse.masks.num, None
        for step, on, now, _, _ in steps(sparse, 50):
            if expected is not None:
                assert same(on, expected)
            expected = on
            if 10 <= step <= 35 and ((step - 10) % 3 == 0 or step == 35):
                left = round(num * (0.15 + 0.85 * (1 - (step - 10) / 25) ** 3))
                expected = best_of_all(magnitudes(now), on, left)
                assert num_on(expected) == left
            elif step < 10:
                assert num_on(on) == num
        assert sparse.masks.num_on == round(0.15 * num)

    def test_gts_grows_in_equal_ratios_then_follows_the_cubic_curve(self) -> None:
        model, masks = chain(0.1)
        options = {"density": 0.15, "peak_density": 0.6, "num_growths": 3, "grow_fraction": 0.25}
        method = methods.create(
            "gts", **options, num_steps=60, update_interval=4, start_fraction=0.4, stop_fraction=0.8
        )
        assert method.grow == methods.create("gcg").grow
        sparse = attached(method, model, masks, example_input=torch.zeros(1, 6, dtype=torch.float64))
        num, first, peak = masks.num, masks.num_on, round(0.6 * masks.num)
        expected: Arrays | int = first
        before = flags(masks)
        for step, on, now, _, _ in steps(sparse, 60):
            if isinstance(expected, int):  # grown: how many, and that none was lost
                assert num_on(on) == expected
                assert not any((before[name] & ~on[name]).any() for name in NAMES)
            else:
                assert same(on, expected)
            before, expected = on, on
            if step in (5, 10, 15):
                expected = peak if step == 15 else round(num_on(on) * (peak / num_on(on)) ** (5 / (20 - step)))
                assert expected == pytest.approx(first * (peak / first) ** (step / 15), abs=1)
            elif 24 <= step <= 48 and step % 4 == 0:
                left = round(num * (0.15 + 0.45 * (1 - (step - 24) / 24) ** 3))
                expected = best_of_all(magnitudes(now), on, left)
        assert sparse.masks.num_on == round(0.15 * num)

    def test_acdc_alternates_and_pruned_weights_return_as_zero(self) -> None:
        options = {"warmup_fraction": 0.05, "phase_fraction": 0.1, "final_fraction": 0.15}  # CIFAR-100, in steps
        sparse = attached(methods.create("acdc", density=0.2, num_steps=200, **options), chain()[0])
        num, few = sparse.masks.num, round(0.2 * sparse.masks.num)
        returned = expected = None
        for step, on, now, _, gradient in steps(sparse, 200):
            if expected is not None:
                assert same(on, expected)
            if returned is not None:  # from zero and without momentum
                was_on, pull = returned
                for name in NAMES:
                    np.testing.assert_allclose(now[name][~was_on[name]], -0.05 * pull[name][~was_on[name]])
            returned = expected = None
            if step in (10, 50, 90, 130, 170):
                assert num_on(on) == num
                expected = best_of_all(magnitudes(now), on, few)
            elif step in (30, 70, 110, 150):
                assert all((now[name][~on[name]] == 0).all() for name in NAMES)
                expected, returned = {name: np.ones_like(on[name]) for name in NAMES}, (on, gradient)
            elif step:
                expected = on
        assert sparse.masks.num_on == few

    @pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 12, 1000])
    @pytest.mark.parametrize("start", [10, 90, 400])
    def test_gts_ends_on_the_density_however_short_the_training(self, num_steps: int, start: int) -> None:
        schedule, num_on, highest = methods.create("gts", num_steps=num_steps).schedule, start, start
        for step in range(num_steps):
            if (change := schedule(Progress(round=0, step=step, num_on=num_on, num=1000))) is not None:
                num_on += change.num_grow - change.num_drop
                highest = max(highest, num_on)
        assert num_on == 100
        assert highest == (700 if num_steps > 1 else max(start, 100))

    @pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 50])
    @pytest.mark.parametrize("stop_fraction", [0.3, 1.0])
    def test_the_density_is_reached_before_training_ends(self, num_steps: int, stop_fraction: float) -> None:
        options = {"num_steps": num_steps, "update_interval": 4, "start_fraction": 0.1, "stop_fraction": stop_fraction}
        schedule = methods.create("gmp", density=0.1, **options).schedule
        left = 1000
        for step in range(num_steps):
            change = schedule(Progress(round=0, step=step, num_on=left, num=1000))
            left -= 0 if change is None else change.num_drop
        assert left == 100

    def test_a_shortened_training_still_reaches_the_density(self) -> None:
        schedule = methods.create("gmp", density=0.1, num_steps=40, update_interval=4, stop_fraction=0.5).schedule
        for step, num_drop in ((19, None), (20, 300), (21, 300), (33, 300)):
            change = schedule(Progress(round=0, step=step, num_on=400, num=1000))
            assert (change.num_drop if change else None) == num_drop

    @pytest.mark.parametrize("density", [0.1, 0.3])
    def test_granet_prunes_over_all_layers_then_rewires_within_them(self, density: float) -> None:
        model, masks = chain(0.6)
        start = masks.density
        method = methods.create(
            "granet", density=density, start_density=start, num_steps=60, update_interval=4, stop_fraction=0.5
        )
        sparse = attached(method, model, masks)
        num, expected, num_pruned, num_new = masks.num, None, 0, 0
        for step, on, now, _, gradient in steps(sparse, 60):
            if expected is not None:
                assert same(on, expected)
            expected = on
            if step == 0 or (step % 4 and step != 30):
                continue
            left = min(num_on(on), max(1, round(num * (density + (start - density) * max(0.0, 1 - step / 30) ** 3))))
            if step == 30 and left == num_on(on) and step % 4:
                continue  # off the grid, and nothing to prune
            num_pruned += num_on(on) - left
            pruned = best_of_all(magnitudes(now), on, left)
            fraction = 0.005 + (0.5 - 0.005) * (1 + math.cos(math.pi * step / 60)) / 2
            expected = {}
            for name in NAMES:
                here = int(pruned[name].sum())
                num_drop = int(fraction * here + 1e-6)
                kept = best(abs(now[name]), pruned[name], here - num_drop)
                expected[name] = kept | best(abs(gradient[name]), ~kept, num_drop)
            num_new += sum(int((expected[name] & ~on[name]).sum()) for name in NAMES)
        assert num_pruned == masks.num_on - round(density * num)
        assert num_new
        assert sparse.masks.num_on == round(density * num)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("imp", {"prune_fraction": 1.0}, "prune_fraction"),
        ("imp", {"density": 0.0}, "density"),
        ("imp", {"rewind_step": -1}, "rewind_step"),
        ("gmp", {"score": "size"}, "unknown score 'size'"),
        ("gmp", {"start_fraction": 0.8, "stop_fraction": 0.5}, "start_fraction < stop_fraction"),
        ("gmp", {"update_interval": 0}, "update_interval"),
        ("gts", {"density": 0.8}, "density must be <= peak_density, got 0.8 > 0.7"),
        ("gts", {"start_density": 0.8}, "start_density must be <= peak_density, got 0.8 > 0.7"),
        ("gts", {"grow_fraction": 0.5}, "grow_fraction must be > 0 and <= start_fraction, got 0.5 and 0.4"),
        ("acdc", {"phase_fraction": 0.0}, "phase_fraction and final_fraction must be > 0"),
        ("acdc", {"warmup_fraction": 0.9}, "final_fraction <= 1"),
        ("mest", {"extra_density": -0.1}, "extra_density must be in .* got -0.1"),
        ("mest", {"gradient_weight": math.nan}, "gradient_weight must be >= 0, got nan"),
        ("gts", {"num_growths": 0}, "num_growths must be an integer .*, got 0"),
        ("granet", {"density": 0.6, "start_density": 0.5}, "density must be <= start_density"),
        ("rigl", {"drop_fraction": 1.0}, "drop"),
        ("rigl", {"num_steps": 0}, "num_steps"),
        ("rigl", {"stop_fraction": 0.0}, "stop_fraction"),
        ("set", {"anneal": "linear"}, "anneal"),
        ("set", {"anneal": "constant", "drop_fraction": 1.5}, "drop"),
        ("itop", {"criterion": "size"}, "criterion"),
        ("dsr", {"drop_fraction": 0.0}, "drop_fraction"),
        ("gse", {"guide": "grab"}, "grabo"),
        ("gse", {"gamma": 0.0}, "gamma"),
        ("snfs", {"allocation": "erc"}, "erk"),
    ],
)
def test_invalid_options(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        methods.create(name, **options)


def test_numpy_ranking_takes_the_largest() -> None:
    scores = {name: np.arange(6.0).reshape(2, 3) + k for k, name in enumerate(NAMES)}
    chosen = best_of_all(scores, {name: np.ones((2, 3), dtype=bool) for name in NAMES}, 3)
    assert [int(chosen[name].sum()) for name in NAMES] in ([0, 1, 2], [1, 1, 1])
