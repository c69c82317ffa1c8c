"""One mask update of each dynamic sparse training method, re-derived in NumPy on a small network."""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.optim import SGD

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import sample_in
from pathgrow.methods.chts import ReceptiveFields, link_scores
from pathgrow.methods.method import MaskUpdate, NetworkView, Progress
from pathgrow.rng import generator
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.tree import flatten_state
from pathgrow.trainer.device import EngineOptions
from pathgrow.trainer.eager_step import EagerStep
from pathgrow.trainer.recipes import Recipe
from tests.support.chain import (
    NAMES,
    Array,
    Arrays,
    attached,
    batch,
    best,
    best_of_all,
    chain,
    flags,
    gradients,
    magnitudes,
    momenta,
    num_on,
    same,
    squares,
    steps,
    train,
    weights,
)


def cosine(step: int, first: float, end: float, last: float = 0.0) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(step / end, 1))) / 2


def rigl_update(on: Array, weight: Array, gradient: Array, fraction: float) -> tuple[Array, Array]:
    """What is kept, and what is active afterwards."""
    num_drop = int(fraction * on.sum() + 1e-6)
    kept = best(abs(weight), on, int(on.sum()) - num_drop)
    return kept, kept | best(abs(gradient), ~kept, num_drop)


class TestRigL:
    def test_masks_weights_and_momentum_of_a_whole_run(self) -> None:
        model, masks = chain()
        sparse = attached(methods.create("rigl", num_steps=40, update_interval=4), model, masks)
        num_returned = num_new = 0
        due = False
        expected: Arrays = {}
        before: tuple[Arrays, Arrays] = {}, {}
        for step, on, now, state, gradient in steps(sparse, 40):
            if due:
                assert same(on, expected)
                # The change took the place of the step: what stayed has the very weight and momentum, the rest none.
                assert same(now, {name: before[0][name] * expected[name] for name in NAMES})
                if before[1]:
                    assert same(state, {name: before[1][name] * expected[name] for name in NAMES})
                else:
                    assert not state, "a first step that did not count made momentum"
            due = step % 4 == 0 and step <= 30
            if due:
                updates = {
                    name: rigl_update(on[name], now[name], gradient[name], cosine(step, 0.3, 30)) for name in NAMES
                }
                expected, before = {name: after for name, (_, after) in updates.items()}, (now, state)
                for name, (kept, after) in updates.items():
                    assert after.sum() == on[name].sum() == masks[name].sum()
                    num_returned += int((after & on[name] & ~kept).sum())
                    num_new += int((after & ~on[name]).sum())
            else:
                expected = on
        assert num_returned
        assert num_new
        assert same(flags(sparse.masks), expected)

    def test_a_bias_does_not_move_at_an_update_either(self) -> None:
        model, masks = chain()
        sparse = attached(methods.create("rigl", update_interval=2), model, masks)
        before = copy.deepcopy(model[0].bias)
        train(sparse, 0)
        assert torch.equal(model[0].bias, before)
        train(sparse, 1)
        assert not torch.equal(model[0].bias, before)

    def test_drop_schedule(self) -> None:
        method = methods.create("rigl", num_steps=1000)

        def moved(step: int) -> int:
            model, masks = chain(0.5)
            before = masks.clone()
            # Large weights on, small ones off, gradients where nothing is on: all that is dropped is lost.
            with torch.no_grad():
                for name in NAMES:
                    model.get_parameter(name).masked_fill_(~masks[name], 0)
            scores = {name: (~masks[name]).double() + torch.rand(masks[name].shape).double() / 2 for name in NAMES}
            net = NetworkView(model, masks, Masks.select(Masks.full(model)), compute_gradients=lambda: (scores, 0))
            progress = Progress(round=0, step=step, num_on=masks.num_on, num=masks.num)
            after = method.update(net, MaskUpdate(), progress, generator(0, "draw"))
            assert after.num_on == before.num_on
            return (after - before).num_on

        _, masks = chain(0.5)
        for step in (0, 100, 375, 600, 750):
            fraction = cosine(step, 0.3, 750)
            assert moved(step) == sum(int(fraction * int(masks[name].sum()) + 1e-6) for name in NAMES)
        assert moved(750) == 0 < moved(0)
        due = [
            step for step in range(1000) if method.schedule(Progress(round=0, step=step, num_on=1, num=9)) is not None
        ]
        assert due == list(range(0, 751, 100))

    @pytest.mark.parametrize("allocation", ["erk", "uniform"])
    def test_layer_densities_are_those_of_the_allocation(self, allocation: str) -> None:
        from pathgrow.methods.allocation import allocate

        model, _ = chain()
        sparse = attached(
            methods.create("rigl", density=0.3, allocation=allocation, update_interval=3, num_steps=40), model
        )
        counts = allocate(sparse.scope, 0.3, allocation)
        for step in range(12):
            assert {name: int(mask.sum()) for name, mask in sparse.masks.items()} == counts
            train(sparse, step)

    def test_gradients_that_are_not_finite(self) -> None:
        model, masks = chain()
        sparse = attached(methods.create("rigl"), model, masks)
        (squares(model, batch(0)) * math.inf).backward()
        with pytest.raises(UserError, match="not finite"):
            sparse.optimizer.step()


class Batches:
    """What a step reads of a feed."""

    num_rows = 6

    def lr_factor(self, step: int) -> float:
        return 1.0

    def batch(self, step: Any) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(int(step))
        return torch.randn(6, 2, 4, 4, generator=draw), torch.randint(0, 3, (6,), generator=draw)


@pytest.mark.parametrize(
    "name", ["rigl", "set", "granet", "snfs", "dsr", "itop", "gmp", "gse", "gts", "acdc", "mest", "chts"]
)
def test_engine_steps_equal_hooked_ones_bitwise(name: str) -> None:
    feed = Batches()

    def made() -> Attached:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = nn.Sequential(
                nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
            )  # fmt: skip
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        options = {"threshold": 0.05} if name == "dsr" else {}
        options |= {} if name == "acdc" else {"update_interval": 3}
        method = methods.create(name, density=0.3, num_steps=20, **options)
        loss = {"loss": lambda model, pair: nn.functional.cross_entropy(model(pair[0]), pair[1])}
        scope, pair = Masks.full(model), feed.batch(99)
        return attach(model, optimizer, method, pair[0], scope=scope, batches=[pair], **loss)

    hooked, manual = made(), made()
    step = EagerStep(manual, feed, Recipe(), EngineOptions(device="cpu").resolve())
    num_changes = 0
    for number in range(20):
        before = manual.masks.clone()
        hooked.optimizer.zero_grad()
        images, labels = feed.batch(number)
        nn.functional.cross_entropy(hooked.model(images), labels).backward()
        hooked.optimizer.step()
        step(number)
        num_changes += manual.masks != before
        assert hooked.masks == manual.masks
        for here, there in (
            (hooked.model, manual.model),
            (hooked.optimizer, manual.optimizer),
            (hooked, manual),
        ):
            tensors, others = flatten_state(here.state_dict())[0], flatten_state(there.state_dict())[0]
            assert tensors.keys() == others.keys()
            assert all(torch.equal(tensor, others[key]) for key, tensor in tensors.items()), number
    assert num_changes >= 2


class TestSET:
    @pytest.mark.parametrize("by_sign", [False, True])
    def test_what_is_kept_and_how_many_grow(self, by_sign: bool) -> None:
        model, masks = chain()
        method = methods.create(
            "set", num_steps=100, update_interval=4, drop_fraction=0.4, stop_fraction=1.0, by_sign=by_sign
        )
        sparse = attached(method, model, masks)
        previous: tuple[Arrays, Arrays] | None = None
        num_new = 0
        for step, on, now, _, _ in steps(sparse, 30):
            if previous is not None:
                kept, before = previous
                for name in NAMES:
                    assert not (kept[name] & ~on[name]).any()
                    assert on[name].sum() == before[name].sum()
                    num_new += int((on[name] & ~before[name]).sum())
            previous = None
            if step % 4 == 0:
                fraction = cosine(step, 0.4, 100)
                sides = (now, {name: -array for name, array in now.items()}) if by_sign else (
                    {name: abs(array) for name, array in now.items()},
                )  # fmt: skip
                kept = {name: np.zeros_like(on[name]) for name in NAMES}
                for side in sides:
                    for name in NAMES:
                        here = on[name] & (side[name] > 0)
                        kept[name] |= best(side[name], here, int(here.sum()) - int(fraction * here.sum() + 1e-6))
                previous = kept, on
        assert num_new > 10

    @pytest.mark.parametrize(("method", "options"), [("set", {}), ("itop", {"criterion": "random"})])
    def test_growth_is_uniform_over_all_that_is_not_kept(self, method: str, options: dict[str, str]) -> None:
        model, masks = chain()
        masks.apply_(model)
        net = NetworkView(model, masks, Masks.select(Masks.full(model)), method_state={"ever_on": dict(masks.clone())})
        update = methods.create(method, drop_fraction=0.3, **options).update
        progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
        name, num = NAMES[0], 400
        on, weight = flags(masks)[name], weights(model)[name]
        num_grow = int(0.3 * on.sum() + 1e-6)
        free = ~best(abs(weight), on, int(on.sum()) - num_grow)
        counts: Counter[int] = Counter()
        for seed in range(num):
            after = update(net, MaskUpdate(), progress, generator(seed, "draw"))[name].numpy()
            counts.update(np.flatnonzero(after & free).tolist())
        assert sum(counts.values()) == num * num_grow
        places = np.flatnonzero(free)
        likely = num * num_grow / len(places)
        # Without replacement, counts vary by less than a multinomial: the chi-square is scaled to one.
        squares = sum((counts[place] - likely) ** 2 for place in places) / likely / (1 - num_grow / len(places))
        assert 0.005 < stats.chi2.sf(squares, len(places) - 1) < 0.995

    def test_by_sign_zeros_go_first(self) -> None:
        """At a drop fraction of 0 nothing else does; where they come back is drawn."""
        model, masks = chain()
        masks.apply_(model)
        with torch.no_grad():
            model[0].weight[masks[NAMES[0]]] *= torch.arange(int(masks[NAMES[0]].sum())) % 3 != 0
        net = NetworkView(model, masks, Masks.select(Masks.full(model)))
        update = methods.create("set", drop_fraction=0.0, by_sign=True).update
        progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
        drawn = [update(net, MaskUpdate(), progress, generator(seed, "draw"))[NAMES[0]] for seed in range(60)]
        always = torch.stack(drawn).all(0)
        assert torch.equal(always, model[0].weight != 0)

    def test_the_paper_s_own_settings(self) -> None:
        method = methods.create(
            "set", anneal="constant", stop_fraction=math.inf, drop_fraction=0.3, update_interval=10, num_steps=50
        )
        assert method.update.drop_fraction(10**6) == 0.3
        assert method.schedule(Progress(round=0, step=10**6, num_on=1, num=9)) == MaskUpdate()


class TestMEST:
    @pytest.mark.parametrize("extra", [0.0, 0.2])
    @pytest.mark.parametrize("allocation", ["equal", "erk"])
    def test_a_whole_run(self, extra: float, allocation: str) -> None:
        from pathgrow.methods.allocation import allocate

        options = {"density": 0.3, "extra_density": extra, "gradient_weight": 5.0, "allocation": allocation}
        sparse = attached(methods.create("mest", **options, num_steps=60, update_interval=4), chain()[0])
        scope, final = sparse.scope, allocate(sparse.scope, 0.3, allocation)
        counts, kept, num_by_gradient, num_new = allocate(scope, 0.3 + extra, allocation), None, 0, 0
        before = flags(sparse.masks)
        for step, on, now, _, gradient in steps(sparse, 60):
            assert {name: int(on[name].sum()) for name in NAMES} == counts
            if kept is not None:
                assert not any((kept[name] & ~on[name]).any() for name in NAMES)
                num_new += sum(int((on[name] & ~before[name]).sum()) for name in NAMES)
            before, kept = on, None
            if step == 0 or step > 45 or (step % 4 and step != 45) or (step == 45 and not extra):
                continue
            left = 0.0 if step == 45 else 0.5 if step >= 0.75 * 45 else 1.0
            counts = allocate(scope, 0.3 + left * extra, allocation)
            num_kept = {n: final[n] if extra else final[n] - int(0.2 * left * final[n] + 1e-6) for n in NAMES}
            kept = {n: best(abs(now[n]) + 5 * abs(gradient[n]), on[n], num_kept[n]) for n in NAMES}
            num_by_gradient += not same(kept, {n: best(abs(now[n]), on[n], num_kept[n]) for n in NAMES})
        assert counts == final
        assert num_by_gradient
        assert num_new

    @pytest.mark.parametrize("num_steps", [1, 2, 5, 40])
    def test_the_density_is_reached(self, num_steps: int) -> None:
        method = methods.create("mest", density=0.1, num_steps=num_steps)
        num_on = round(method.start_density * 1000)
        assert num_on == (150 if num_steps > 1 else 100)
        for step in range(num_steps):
            if (change := method.schedule(Progress(round=0, step=step, num_on=num_on, num=1000))) is not None:
                num_on += change.num_grow - change.num_drop
        assert num_on == 100


class TestCHTs:
    def test_scores_count_neighbors_that_are_shared(self) -> None:
        """Against sets of neighbors, one pair at a time."""
        _, masks = chain(0.4)
        for mask in masks.values():
            rows, columns = mask.shape
            of_row = [set(np.flatnonzero(mask[row]).tolist()) for row in range(rows)]
            of_column = [set(np.flatnonzero(mask[:, column]).tolist()) for column in range(columns)]

            def one_end(mine: set[int], others: list[set[int]], connected: set[int]) -> float:
                both = [(len(mine & others[other]), len(others[other])) for other in connected]
                return sum((shared + 1) / max(degree - shared, 1) for shared, degree in both if shared)

            expected = [
                [one_end(of_row[r], of_row, of_column[c]) + one_end(of_column[c], of_column, of_row[r])
                 for c in range(columns)]
                for r in range(rows)
            ]  # fmt: skip
            found = link_scores(mask)
            np.testing.assert_allclose(found.numpy()[~mask.numpy()], np.array(expected)[~mask.numpy()])
        kernels = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)) < 0.4
        assert torch.equal(link_scores(kernels), link_scores(kernels.reshape(4, 12)).view(4, 3, 2, 2))

    def test_what_is_drawn_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[tuple[Array, Array, int, Array]] = []

        def recorded(scores: Tensor, candidates: Tensor, num: int, draw: torch.Generator) -> Tensor:
            found = sample_in(scores, candidates, num, draw)
            drawn.append((scores.numpy().copy(), candidates.numpy().copy(), num, found.numpy()))
            return found

        monkeypatch.setattr(sys.modules["pathgrow.methods.chts"], "sample_in", recorded)
        model, masks = chain()
        sparse = attached(methods.create("chts", update_interval=5, num_steps=40, drop_fraction=0.4), model, masks)
        before: tuple[Arrays, Arrays] = {}, {}
        num_updates = 0
        for step, on, now, state, _ in steps(sparse, 40):
            if not drawn:
                before = now, state
                continue
            assert len(drawn) == 6
            exponent, fraction = 1 + 8 * (step - 1) / 30, cosine(step - 1, 0.4, 30)
            for name, (scores, there, num, kept), (links, free, num_new, new) in zip(
                NAMES, drawn[::2], drawn[1::2], strict=True
            ):
                num_drop = int(fraction * there.sum() + 1e-6)
                assert (num, num_new) == (there.sum() - num_drop, num_drop)
                np.testing.assert_allclose(scores, abs(before[0][name]) ** exponent)
                assert np.array_equal(free, ~kept)
                np.testing.assert_allclose(links, link_scores(torch.from_numpy(kept)).numpy())
                assert np.array_equal(on[name], kept | new)
                # The update took the place of the step.
                assert np.array_equal(now[name], before[0][name] * on[name])
                assert np.array_equal(state[name], before[1][name] * on[name])
            drawn.clear()
            before, num_updates = (now, state), num_updates + 1
        assert num_updates == 6

    @pytest.mark.parametrize("shape", [(4, 12), (12, 4), (3, 7), (4, 3, 2, 2)])
    def test_receptive_fields(self, shape: tuple[int, ...]) -> None:
        closeness = ReceptiveFields(0.25, "equal").closeness(torch.ones(shape, dtype=torch.bool)).flatten(1)
        rows, columns = closeness.shape
        few, many = min(rows, columns), max(rows, columns)
        for row, column in itertools.product(range(rows), range(columns)):
            mine, other = (row, column) if rows == few else (column, row)
            gap = abs(other - mine * (many // few))
            assert float(closeness[row, column]) == pytest.approx((1 + min(gap, many - gap)) ** -3.0)
        assert bool((ReceptiveFields(1.0, "equal").closeness(torch.ones(shape)) == 1).all())
        with pytest.raises(UserError, match="randomness must be in"):
            methods.create("chts", randomness=0.0)


class TestITOP:
    @pytest.mark.parametrize("criterion", ["gradient", "random"])
    def test_explored_is_the_union_of_all_masks(self, criterion: str) -> None:
        model, masks = chain(0.2)
        sparse = attached(methods.create("itop", criterion=criterion, update_interval=3, num_steps=30), model, masks)
        union = flags(sparse.masks)
        assert sparse.method_state["explored"] == masks.density
        for _, on, *_ in steps(sparse, 30):
            union = {name: union[name] | on[name] for name in NAMES}
            assert sparse.method_state["explored"] == num_on(union) / masks.num
        assert sparse.method_state["explored"] > 1.5 * masks.density

    def test_an_update_by_gradient(self) -> None:
        model, masks = chain()
        sparse = attached(methods.create("itop", update_interval=5, num_steps=50), model, masks)
        for step, on, now, _, gradient in steps(sparse, 6):
            if step == 5:
                fraction = cosine(5, 0.5, 50, 0.005)
                expected = {name: rigl_update(on[name], now[name], gradient[name], fraction)[1] for name in NAMES}
        assert same(flags(sparse.masks), expected)


def shared_out(num: int, shares: Array, capacity: Array) -> Array:
    """Largest remainders; what does not fit is redistributed among the others."""
    quotas, full = np.zeros(len(shares)), np.zeros(len(shares), dtype=bool)
    while True:
        quotas[~full] = (num - capacity[full].sum()) * shares[~full] / shares[~full].sum()
        over = ~full & (quotas >= capacity)
        if not over.any():
            break
        full |= over
        quotas[over] = capacity[over]
    counts = np.floor(quotas + 1e-6).astype(int)
    for place in np.argsort(counts - quotas, kind="stable")[: num - counts.sum()]:
        counts[place] += 1
    return counts


class TestSNFS:
    def test_momentum_is_gathered_at_all_positions(self) -> None:
        model, masks = chain()
        sparse = attached(methods.create("snfs"), model, masks)
        expected = {name: np.zeros(masks[name].shape) for name in NAMES}
        for _, _, _, _, gradient in steps(sparse, 5):
            for name in NAMES:
                np.testing.assert_allclose(sparse.method_state["momentum"][name].numpy(), expected[name], rtol=1e-10)
                expected[name] = 0.9 * expected[name] + gradient[name]
        assert any(expected[name][~masks[name].numpy()].any() for name in NAMES)

    @pytest.mark.parametrize(("density", "seed"), [(0.4, 3), (0.75, 3), (0.9, 17)])
    def test_redistribution(self, density: float, seed: int) -> None:
        rate = 0.5
        model, masks = chain(density, seed)
        sparse = attached(methods.create("snfs", drop_fraction=rate, update_interval=4, num_steps=40), model, masks)
        expected = flags(masks)
        num_moved_between_layers = num_spared = 0
        for step, on, now, _, gradient in steps(sparse, 46):  # beyond its end, where some still move
            assert same(on, expected)
            assert num_on(on) == masks.num_on
            if step == 0 or step % 4:
                continue
            # `watch` comes first: the momentum at a change has the gradient of its step in it.
            momentum = {
                name: abs(0.9 * sparse.method_state["momentum"][name].numpy() + gradient[name]) for name in NAMES
            }
            shares = np.array([momentum[name][on[name]].mean() for name in NAMES])
            shares /= shares.sum()
            kept, spared = {}, set()
            for name, fraction in zip(NAMES, shares, strict=True):
                p, lack = cosine(step, rate, 40, rate / 100), 1 - on[name].mean()
                if lack < 0.2 and fraction > 1 / 3:
                    spared |= {name} if lack < p else set()
                    p = min(p, lack)
                kept[name] = best(abs(now[name]), on[name], int(on[name].sum()) - math.ceil(p * on[name].sum() - 1e-6))
            capacity = np.array([int((~kept[name]).sum()) for name in NAMES])
            num_grow = shared_out(num_on(on) - num_on(kept), shares, capacity)
            expected = {
                name: kept[name] | best(momentum[name], ~kept[name], num)
                for name, num in zip(NAMES, num_grow, strict=True)
            }
            num_spared += sum(not expected[name].all() for name in spared)  # a full layer would not tell
            num_moved_between_layers += sum(abs(int(expected[n].sum()) - int(on[n].sum())) for n in NAMES)
        assert num_moved_between_layers
        assert num_spared or density < 0.9

    def test_a_layer_keeps_its_last_weight_though_others_pull_harder(self) -> None:
        model, masks = chain(0.5)
        lone = torch.zeros_like(masks[NAMES[1]])
        lone[2, 3] = True
        masks[NAMES[1]].copy_(lone)
        masks.apply_(model)
        momentum = {name: torch.rand(masks[name].shape).double() * (name != NAMES[1]) for name in NAMES}
        net = NetworkView(model, masks, Masks.select(Masks.full(model)), method_state={"momentum": momentum})
        progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
        after = methods.create("snfs", drop_fraction=0.5).update(net, MaskUpdate(), progress, generator(0, "draw"))
        assert torch.equal(after[NAMES[1]], lone)
        assert after.num_on == masks.num_on

    @pytest.mark.parametrize(
        ("num", "pull", "drop_fraction", "num_gone"),
        [
            (81, 1.1, 0.5, 16),  # no more than the 19% that it lacks
            (79, 1.1, 0.5, 40),  # which is for layers that lack less than a fifth
            (81, 0.5, 0.5, 41),  # and matter more than the average
            (81, 1.1, 0.1, 9),  # nor does it drop more than others
        ],
    )
    def test_nearly_dense_layers_that_matter_are_spared(
        self, num: int, pull: float, drop_fraction: float, num_gone: int
    ) -> None:
        model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(5))).double()
        masks = Masks({f"{k}.weight": torch.arange(100).view(10, 10) < n for k, n in enumerate([num, 10, 10, 10, 0])})
        masks.apply_(model)
        # Where nothing is on, momentum is larger: new places are taken before old ones come back.
        momentum = {name: torch.where(on, 1.0, 9.0).double() for name, on in masks.items()}
        momentum["0.weight"][masks["0.weight"]] = pull
        net = NetworkView(model, masks, Masks.select(Masks.full(model)), method_state={"momentum": momentum})
        progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
        after = methods.create("snfs", drop_fraction=drop_fraction).update(
            net, MaskUpdate(), progress, generator(0, "draw")
        )
        assert int((masks - after)["0.weight"].sum()) == num_gone
        assert not after["4.weight"].any(), "a layer with nothing on has no fraction"


class TestDSR:
    def run(self, density: float, threshold: float, **options: Any) -> tuple[Attached, list[tuple[Any, ...]]]:
        model, masks = chain(density)
        sparse = attached(
            methods.create("dsr", update_interval=3, num_steps=100, threshold=threshold, **options),
            model,
            masks,
            lr=0.2,
        )
        found = []
        for step, on, now, _, _ in steps(sparse, 20):
            found.append((step, on, now, sparse.method_state["threshold"]))
        found.append((20, flags(sparse.masks), weights(model), sparse.method_state["threshold"]))
        return sparse, found

    def test_pruning_by_threshold_and_growth_in_proportion(self) -> None:
        _, found = self.run(0.4, 0.02)
        directions = set()
        for (step, on, now, threshold), (_, after, _, next_threshold) in itertools.pairwise(found):
            if step == 0 or step % 3:
                assert same(after, on)
                assert next_threshold == threshold
                continue
            kept = {name: on[name] & (abs(now[name]) >= threshold) for name in NAMES}
            assert all(kept[name].any() for name in NAMES)
            gone = num_on(on) - num_on(kept)
            left = np.array([int(kept[name].sum()) for name in NAMES])
            capacity = np.array([int((~on[name]).sum()) for name in NAMES])
            num_grow = shared_out(gone, left.astype(float), capacity) if gone else [0, 0, 0]
            for name, num in zip(NAMES, num_grow, strict=True):
                assert not (kept[name] & ~after[name]).any()
                assert not (on[name] & ~kept[name] & after[name]).any(), "grown where a weight has just gone"
                assert int((after[name] & ~on[name]).sum()) == num
            expected = 0.1 * num_on(on)
            factor = 2 if gone < 0.9 * expected else 0.5 if gone > 1.1 * expected else 1
            assert next_threshold == threshold * factor
            directions.add(factor)
        assert {2, 0.5} <= directions

    @pytest.mark.parametrize("density", [0.3, 0.9])
    def test_below_any_threshold_a_layer_keeps_its_largest_and_what_finds_no_place_stays(self, density: float) -> None:
        sparse, found = self.run(density, 1e3)
        step, on, now, _ = found[3]
        after = found[4][1]
        assert step == 3
        kept = {name: best(abs(now[name]), on[name], 1) for name in NAMES}
        gone = {name: on[name] & ~kept[name] for name in NAMES}
        capacity = sum(int((~on[name]).sum()) for name in NAMES)
        stay = best_of_all(magnitudes(now), gone, max(0, num_on(gone) - capacity))
        assert num_on(stay) > 0 if density == 0.9 else num_on(stay) == 0
        assert num_on(after) == num_on(on) == sparse.masks.num_on
        assert same({name: on[name] & after[name] for name in NAMES}, {n: kept[n] | stay[n] for n in NAMES})

    @pytest.mark.parametrize(("num_gone", "factor"), [(8, 2), (9, 1), (10, 1), (11, 1), (12, 0.5), (60, 0.5)])
    def test_the_threshold_follows_the_number_of_dropped_weights(self, num_gone: int, factor: float) -> None:
        model = nn.Sequential(nn.Linear(20, 10)).double()
        on = torch.arange(200).view(10, 20) % 2 == 0
        with torch.no_grad():
            model[0].weight.copy_(on * torch.arange(1, 201).view(10, 20).double())
        masks = Masks({"0.weight": on})
        threshold = 2.0 * num_gone + 1  # the k-th weight that is on is 2k + 1: one is at the threshold, and stays
        net = NetworkView(model, masks, Masks.select(Masks.full(model)), method_state={"threshold": threshold})
        update = methods.create("dsr", drop_fraction=0.1).update
        after = update(net, MaskUpdate(), Progress(round=0, step=0, num_on=100, num=200), generator(0, "draw"))
        assert (masks - after).num_on == num_gone
        assert net.method_state["threshold"] == factor * threshold

    def test_intervals_double_with_each_quarter(self) -> None:
        def due(**options: float) -> list[int]:
            schedule = methods.create("dsr", update_interval=10, num_steps=400, **options).schedule
            return [step for step in range(600) if schedule(Progress(round=0, step=step, num_on=1, num=9)) is not None]

        assert due() == [*range(10, 100, 10), *range(100, 200, 20), 200, 240, 280, 320]
        assert due(stop_fraction=math.inf) == [*due(), 400, 480, 560]


@pytest.mark.parametrize("name", ["rigl", "set", "itop", "snfs", "dsr", "granet", "gmp", "gse"])
@pytest.mark.parametrize("killed", [5, 9])
def test_a_resumed_run_has_all_state(name: str, killed: int) -> None:
    def made(seed: int) -> Attached:
        method = methods.create(name, density=0.3, update_interval=2, num_steps=20)
        return attached(method, chain(seed=seed)[0], seed=seed, loss=squares, batches=[batch(99)])

    sparse = made(0)
    for step in range(killed):
        train(sparse, step)
    saved = copy.deepcopy([sparse.model.state_dict(), sparse.optimizer.state_dict(), sparse.state_dict()])
    other = made(1)
    other.model.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    for step in range(killed, 15):
        for run in (sparse, other):
            train(run, step)
    assert sparse.masks == other.masks
    assert same(weights(sparse.model), weights(other.model))
    assert same(momenta(sparse), momenta(other))
    (tensors, metadata), (others, other_facts) = flatten_state(sparse.state_dict()), flatten_state(other.state_dict())
    assert metadata == other_facts
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[key]) for key, tensor in tensors.items())


def test_gradients_by_hand_are_those_of_torch() -> None:
    model, masks = chain()
    masks.apply_(model)
    squares(model, batch(0)).backward()
    for name, gradient in gradients(model, batch(0)).items():
        np.testing.assert_allclose(model.get_parameter(name).grad.numpy(), gradient, rtol=1e-10)
