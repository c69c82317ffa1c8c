"""Optimizer hooks and mask updates: rounds, steps, closures, loss scales, engines without hooks, random streams."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

from pathgrow import methods
from pathgrow.density.types import Grow, Probe, Reason, Stop
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.masks.sampling import uniform
from pathgrow.methods import fixed
from pathgrow.methods.method import MaskUpdate, Method, NetworkView, Progress
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from pathgrow.sparse.hooks import parse_evaluation
from pathgrow.sparse.tree import flatten_state
from tests.support.sparse_mlp import ALWAYS, GROW, STOP, Script, growing, mlp, off, sparse_mlp, train
from tests.support.swapping import swapping


class TestRounds:
    def test_observing_grows_by_a_quarter_until_the_rule_stops(self) -> None:
        sparse = sparse_mlp(stop=Script((GROW, GROW, STOP)))[2]
        # 140 prunable weights, 28 active: floor(28 / 4) = 7, floor(35 / 4) = 8.
        assert sparse.observe(0.5) == GROW
        assert sparse.masks.num_on == 35
        assert sparse.observe((torch.tensor(0.6), 1.5)) == GROW
        assert sparse.masks.num_on == 43
        for _ in range(3):
            assert sparse.observe(0.7) == STOP
        assert sparse.masks.num_on == 43
        points = sparse.curve.rough
        assert [(p.round, p.epochs, p.density) for p in points] == [(0, 1, 0.2), (1, 2, 0.25), (2, 3, 43 / 140)]
        assert (points[1].loss, points[0].loss) == (1.5, None)
        assert sparse.rule_answer().details == {"points": 3}

    def test_growth_ends_at_the_target(self) -> None:
        sparse = sparse_mlp(method=growing(0.2, target_density=0.275))[2]
        assert isinstance(sparse.observe(0.1), Grow)
        assert not sparse.curve.at_ceiling
        assert isinstance(sparse.observe(0.2), Grow)
        assert sparse.masks.num_on == 38  # round(0.275 * 140), a step of 3 instead of 8
        assert sparse.curve.at_ceiling
        assert sparse.observe(0.3) == Stop(reason=Reason.GROWTH_ENDED, details={"at_density": 38 / 140})

    def test_static_masks_stop(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        found = sparse.masks.clone()
        sparse.detach()
        kept = attach(model, optimizer, fixed(found), stop=ALWAYS)
        assert kept.masks == found
        assert kept.observe(0.5).reason == Reason.MASKS_FINAL
        with pytest.raises(UserError, match="has no 'grow' pick"):
            kept.grow_(1)

    @pytest.mark.parametrize("stop", [None, "probe", ALWAYS])
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("random", Reason.MASKS_FINAL),
            ("rigl", Reason.UPDATES_DURING_TRAINING),
            ("edge_popup", Reason.UPDATES_DURING_TRAINING),
        ],
    )
    def test_verdicts_of_methods_that_do_not_grow(self, name: str, reason: Reason, stop: object) -> None:
        sparse = sparse_mlp(method=methods.create(name), stop=stop)[2]
        assert sparse.observe(0.5) == Stop(reason=reason, details={"method": name})

    @pytest.mark.parametrize("name", ["random_growth", "rigl", "random", "lth"])
    def test_nothing_is_observed_after_detach(self, name: str) -> None:
        for rounds in (0, 1):
            sparse = sparse_mlp(method=methods.create(name), stop=Script((STOP,)))[2]
            for _ in range(rounds):
                sparse.observe(0.5)
            sparse.detach()
            with pytest.raises(UserError, match=r"^observe\(\) cannot be called after detach\(\); attach again$"):
                sparse.observe(0.5)

    @pytest.mark.parametrize("value", ["0.9", b"0.9", (0.9, "0.3"), [], (1, 2, 3), None])
    def test_a_score_must_be_a_number(self, value: Any) -> None:
        sparse = sparse_mlp()[2]
        with pytest.raises(UserError, match=r"observe: expected a score or a pair \(score, loss\), got "):
            sparse.observe(value)
        with pytest.raises(UserError, match=r"evaluate: expected a score or a pair \(score, loss\), got "):
            parse_evaluation(value)

    def test_pruning_goes_on_until_its_schedule_ends(self) -> None:
        sparse = sparse_mlp(method=methods.create("lth", density=0.7), stop=None)[2]
        more = Grow(reason=Reason.SCHEDULE_CONTINUES, details={"method": "lth"})
        assert [sparse.observe(0.5), sparse.observe(0.5)] == [more, more]
        assert sparse.masks.num_on == 98  # 0.7 of 140
        assert sparse.observe(0.5).reason == Reason.MASKS_FINAL

    def test_growing_by_hand_is_exact_and_ends_at_the_last_weight(self) -> None:
        sparse = sparse_mlp()[2]
        assert sparse.grow_(5) == 5
        assert sparse.masks.num_on == 33
        assert sparse.grow_(10_000) == 107
        assert sparse.density == 1.0
        assert sparse.grow_(1) == 0
        assert sparse.round == 2
        with pytest.raises(UserError, match=">= 0, got -1"):
            sparse.grow_(-1)

    @pytest.mark.parametrize("metric", ["high", None, (1.0, 2.0, 3.0), torch.zeros(2), ()])
    def test_an_invalid_metric(self, metric: object) -> None:
        sparse = sparse_mlp()[2]
        with pytest.raises(UserError, match="a score or a pair"):
            sparse.observe(metric)

    @pytest.mark.parametrize("metric", [float("nan"), (0.5, float("inf")), torch.tensor(float("nan"))])
    def test_a_diverged_run_fails_and_changes_nothing(self, metric: object) -> None:
        sparse = sparse_mlp()[2]
        with pytest.raises(RunFailed, match=r"is (nan|inf); lower the learning rate"):
            sparse.observe(metric)
        assert sparse.round == 0
        assert sparse.curve.rough == ()

    def test_a_rule_that_probes(self) -> None:
        sparse = sparse_mlp(stop=Script((Probe(rounds=(0,), reason="look"),)))[2]
        with pytest.raises(UserError, match="needs to train probes"):
            sparse.observe(0.5)


class TestSteps:
    def test_an_update_uses_the_dense_gradient_of_its_step(self) -> None:
        model, optimizer, sparse = sparse_mlp(method=swapping(density=0.2), ema=EMA(update_interval=1))
        x = torch.randn(16, 6)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            tensors = [model.get_parameter(name) for name in sparse.masks]
            gradients = dict(zip(sparse.masks, torch.autograd.grad(loss, tensors, retain_graph=True), strict=True))
            loss.backward()
            before = sparse.masks.clone()
            weights = {name: model.get_parameter(name).detach().clone() for name in sparse.masks}
            optimizer.step()
            if step % 2 == 0:
                assert sparse.masks == before
                continue
            present = torch.cat([weights[n].abs()[before[n]] for n in before])
            limit = present.sort().values[2]
            kept = {n: before[n] & (weights[n].abs() > limit) for n in before}
            free = torch.cat([gradients[n].abs()[~kept[n]] for n in before])
            bar = free.sort(descending=True).values[2]
            for name in before:
                grown = ~kept[name] & (gradients[name].abs() >= bar)
                assert torch.equal(sparse.masks[name], kept[name] | grown)
                assert bool((model.get_parameter(name)[off(sparse, name)] == 0).all())
            # Dropped weights lose their EMA.
            with sparse.ema_weights():
                assert all(bool((model.get_parameter(n)[off(sparse, n)] == 0).all()) for n in sparse.masks)
        assert sparse.masks.num_on == 28
        assert (sparse.step, sparse.round) == (4, 0)


class TestMaskUpdateCallback:
    """`on_mask_update` sees the initial masks and every update once, with its cost; what it stores is saved."""

    @staticmethod
    def note(sparse: Attached) -> None:
        line = [sparse.round, sparse.step, sparse.masks.num_on, sparse.last_scoring_cost.num_path_passes]
        sparse.method_state["notes"] = [*sparse.method_state.get("notes", []), line]

    def test_updates_at_steps(self) -> None:
        model, optimizer, sparse = sparse_mlp(method=swapping(density=0.2), on_mask_update=self.note)
        train(model, optimizer, steps=4)
        assert sparse.method_state["notes"] == [[0, 0, 28, 0], [0, 1, 28, 0], [0, 3, 28, 0]]

    def test_updates_between_rounds_and_their_cost(self) -> None:
        method = methods.create("gcg", start_density=0.2)
        model, optimizer, sparse = sparse_mlp(method=method, on_mask_update=self.note)
        train(model, optimizer)
        sparse.observe(0.5)
        assert sparse.method_state["notes"] == [[0, 0, 28, 0], [0, 3, 35, 1]]
        state = sparse.state_dict()
        sparse.observe(0.5)
        sparse.load_state_dict(state)
        assert len(sparse.method_state["notes"]) == 2, "loading is not an update"

    def test_a_method_updates_its_masks_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        original = Method.next_masks
        monkeypatch.setattr(Method, "next_masks", lambda *args: calls.append(args) or original(*args))
        model, optimizer, _ = sparse_mlp(method=swapping(density=0.2), on_mask_update=self.note)
        train(model, optimizer, steps=4)
        assert len(calls) == 2


class TestHooksDisabled:
    """A training engine calls the parts of a step itself, since a CUDA graph runs no hooks."""

    @staticmethod
    def drive(model: nn.Module, optimizer: Optimizer, sparse: Attached, steps: int = 5) -> None:
        """As `train`, part by part."""
        draw = torch.Generator().manual_seed(0)
        for _ in range(steps):
            with sparse.hooks_disabled():
                optimizer.zero_grad()
                model(torch.randn(16, 6, generator=draw)).square().mean().backward()
                sparse.update_masks_if_due_()
                sparse.mask_gradients_()
                optimizer.step()
                sparse.mask_weights_()
            sparse.finish_step_()

    @pytest.mark.parametrize("method", [growing(), swapping(density=0.2)], ids=["round clock", "step clock"])
    @pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)])
    def test_manual_steps_equal_hooked_ones_bitwise(self, method: Method, make: Callable[..., Optimizer]) -> None:
        ends = []
        for manual in (True, False):
            model = mlp()
            optimizer = make(model.parameters())
            sparse = attach(model, optimizer, method, torch.zeros(1, 6), ema=EMA(update_interval=2), stop=ALWAYS)
            first = sparse.masks.clone()
            self.drive(model, optimizer, sparse) if manual else train(model, optimizer, steps=5)
            sparse.observe(0.5)  # grows where the clock is the round
            self.drive(model, optimizer, sparse) if manual else train(model, optimizer, steps=5)
            assert sparse.masks != first
            assert sparse.step == 10
            with sparse.ema_weights():
                averages = [p.detach().clone() for p in model.parameters()]
            buffers = [value for state in optimizer.state.values() for value in state.values()]
            ends.append([*model.state_dict().values(), *buffers, *averages, *sparse.masks.values()])
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    def test_hooks_do_nothing_inside_the_block(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        with sparse.hooks_disabled():
            model(torch.randn(4, 6)).sum().backward()
            dense = model[0].weight.grad.clone()
            assert bool((dense[off(sparse, "0.weight")] != 0).any())
            optimizer.step()
            assert bool((model[0].weight[off(sparse, "0.weight")] != 0).any())
            assert sparse.step == 0
            sparse.mask_gradients_()
            assert torch.equal(model[0].weight.grad, dense * sparse.masks["0.weight"])
            sparse.mask_weights_()
        buffer = optimizer.state[model[0].weight]["momentum_buffer"]
        for tensor in (model[0].weight, buffer):
            assert bool((tensor[off(sparse, "0.weight")] == 0).all())
            assert bool((tensor[sparse.masks["0.weight"]] != 0).any())
        sparse.finish_step_()
        assert sparse.step == 1
        train(model, optimizer)
        assert sparse.step == 4, "outside of the block they work"
        assert bool((model[0].weight[off(sparse, "0.weight")] == 0).all())

    def test_blocks_may_be_nested_and_end_with_an_error(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        with sparse.hooks_disabled():
            with pytest.raises(ZeroDivisionError), sparse.hooks_disabled():
                raise ZeroDivisionError
            train(model, optimizer, steps=1)
            assert sparse.step == 0, "the outer block is still active"
            sparse.mask_weights_()
        train(model, optimizer, steps=1)
        assert sparse.step == 1

    def test_an_update_is_due_when_the_schedule_says_so_and_made_once(self) -> None:
        model, optimizer, sparse = sparse_mlp(method=swapping(density=0.2))
        due = []
        for _ in range(4):
            due.append(sparse.update_is_due)
            before = sparse.masks.clone()
            self.drive(model, optimizer, sparse, steps=1)
            assert (sparse.masks - before).num_on == 3 * due[-1]
        assert due == [False, True, False, True]
        assert not sparse_mlp()[2].update_is_due, "a round schedule is not called at steps"

    def test_the_ema_is_not_trained(self) -> None:
        model, optimizer, sparse = sparse_mlp(ema=EMA(update_interval=1))
        train(model, optimizer)
        with (
            sparse.ema_weights(),
            pytest.raises(UserError, match="training is not allowed inside ema_weights"),
            sparse.hooks_disabled(),
        ):
            pass

    def test_the_engine_cache_goes_when_the_attachment_does(self) -> None:
        sparse = sparse_mlp()[2]
        sparse.engine_cache["engine"] = object()
        sparse.detach()
        assert sparse.engine_cache == {}


# Loops with closures, loss scales and clipping

BY_STEPS = ("rigl", "set", "itop", "snfs", "dsr", "gmp", "granet")
LATENT = ("str", "edge_popup")
Make = Callable[[Iterable[nn.Parameter]], Optimizer]


def attached(name: str, make: Make = lambda weights: SGD(weights, lr=0.1, momentum=0.9)) -> Attached:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    options: dict[str, Any] = {"s_init": -2.0} if name == "str" else {"density": 0.4}
    if name in BY_STEPS:
        options |= {"num_steps": 20, "update_interval": 2}
    return attach(model, make(model.parameters()), methods.create(name, **options), scope=Masks.full(model))


def loss_at(sparse: Attached, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(step)
    inputs, labels = torch.randn(5, 6, generator=draw), torch.randint(0, 3, (5,), generator=draw)
    return nn.functional.cross_entropy(sparse.model(inputs), labels)


def everything(sparse: Attached) -> dict[str, Tensor]:
    states = (sparse.model.state_dict(), sparse.optimizer.state_dict(), sparse.state_dict())
    return {f"{n} {key}": value for n, state in enumerate(states) for key, value in flatten_state(state)[0].items()}


def assert_equal(one: Attached, other: Attached) -> None:
    here, there = everything(one), everything(other)
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        torch.testing.assert_close(tensor, there[name], rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("name", [*BY_STEPS, *LATENT])
@pytest.mark.parametrize("by_keyword", [True, False])
def test_a_closure_gives_what_gradients_before_the_step_give(name: str, by_keyword: bool) -> None:
    plain, closed = attached(name), attached(name)
    for step in range(8):
        plain.optimizer.zero_grad()
        expected = loss_at(plain, step)
        expected.backward()
        plain.optimizer.step()

        def closure(step: int = step) -> Tensor:
            closed.optimizer.zero_grad()
            loss = loss_at(closed, step)
            loss.backward()
            return loss

        got = closed.optimizer.step(closure=closure) if by_keyword else closed.optimizer.step(closure)
        assert torch.equal(got.detach(), expected.detach())
        assert_equal(plain, closed)
    assert closed.step == 8


@pytest.mark.parametrize("name", ["rigl", "str"])
def test_an_optimizer_that_calls_its_closure_twice(name: str) -> None:
    sparse = attached(name, lambda weights: LBFGS(weights, max_iter=3))

    def closure() -> Tensor:
        sparse.optimizer.zero_grad()
        loss = loss_at(sparse, 0)
        loss.backward()
        return loss

    with pytest.raises(UserError, match="calls its closure several times"):
        sparse.optimizer.step(closure)


@pytest.mark.parametrize("name", [*BY_STEPS, *LATENT])
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("overflow", [(), (4,), (3, 6)])
def test_a_fused_optimizer_under_a_loss_scale(name: str, kind: Any, overflow: tuple[int, ...]) -> None:
    """The result is that of an optimizer for which the scaler unscales and skips steps itself."""
    runs = []
    for fused in (False, True):
        sparse = attached(name, lambda weights, fused=fused: kind(weights, lr=0.02, fused=fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(8):
            sparse.optimizer.zero_grad()
            scaler.scale(loss_at(sparse, step) * (math.inf if step in overflow else 1)).backward()
            scaler.step(sparse.optimizer)
            scaler.update()
        assert sparse.step == 8 - len(overflow)
        runs.append(sparse)
    assert_equal(*runs)


# Clipping. The truth: gradients by torch.autograd.grad, which runs no hooks, masked here.


def dense_gradients(sparse: Attached, *steps: int) -> dict[str, Tensor]:
    weights = dict(sparse.model.named_parameters())
    loss = sum((loss_at(sparse, step) for step in steps), start=torch.zeros(()))
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def masked(sparse: Attached, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: g * sparse.masks[name] if name in sparse.masks else g for name, g in gradients.items()}


def norm(gradients: dict[str, Tensor]) -> Tensor:
    return sum(
        (g.double().square().sum() for g in gradients.values()), start=torch.zeros((), dtype=torch.double)
    ).sqrt()


@pytest.mark.parametrize("name", [*BY_STEPS, "random"])
@pytest.mark.parametrize("num_backward", [1, 2])
def test_clipping_sees_the_norm_of_active_weights_at_every_step(name: str, num_backward: int) -> None:
    sparse = attached(name)
    num_updates = 0
    for step in range(8):
        sparse.optimizer.zero_grad()
        truth = norm(masked(sparse, dense_gradients(sparse, *range(step, step + num_backward))))
        for part in range(num_backward):
            loss_at(sparse, step + part).backward()
        num_updates += sparse.update_is_due
        found = nn.utils.clip_grad_norm_(sparse.model.parameters(), 0.1 * float(truth))
        torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
        sparse.optimizer.step()
    assert num_updates or name == "random"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rigl", "snfs"])
def test_clipping_on_a_gpu_sees_what_it_sees_on_a_cpu(name: str) -> None:
    norms = []
    for device in ("cpu", "cuda"):
        model = mlp().double().to(device)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = methods.create(name, density=0.3, num_steps=20, update_interval=2)
        attach(model, optimizer, method, scope=Masks.full(model))
        draw = torch.Generator().manual_seed(0)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 6, generator=draw).double().to(device)).square().mean().backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
            optimizer.step()
    assert norms[:8] == pytest.approx(norms[8:])


@pytest.mark.parametrize("name", ["set", "itop", "granet", "snfs"])
@pytest.mark.parametrize("clip", [True, False])
def test_weights_that_grow_in_a_clipped_step_are_trained_by_clipped_gradients(name: str, clip: bool) -> None:
    sparse, lr, num_new = attached(name, lambda weights: SGD(weights, lr=0.5)), 0.5, 0
    for step in range(8):
        sparse.optimizer.zero_grad()
        gradients = dense_gradients(sparse, step)
        before = {n: mask.clone() for n, mask in sparse.masks.items()}
        weights = {n: sparse.model.get_parameter(n).detach().clone() for n in before}
        factor = 1.0
        loss_at(sparse, step).backward()
        if clip:
            factor = 0.05 / float(norm(masked(sparse, gradients)))
            nn.utils.clip_grad_norm_(sparse.model.parameters(), 0.05)
        assert factor <= 1
        sparse.optimizer.step()
        for n, now in sparse.masks.items():
            expected = (weights[n] * before[n] - lr * factor * gradients[n]) * now
            torch.testing.assert_close(sparse.model.get_parameter(n).detach(), expected, rtol=1e-4, atol=1e-6)
            num_new += int((now & ~before[n]).sum())
    assert num_new > 5


@pytest.mark.parametrize("name", ["rigl", "itop", "granet", "snfs"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_hidden_gradients_accumulate_and_are_forgotten_as_visible_ones_are(name: str, set_to_none: bool) -> None:
    """Two backward passes are that of the sum; a batch that was dropped by zero_grad leaves no trace."""
    one, other = attached(name), attached(name)
    for step in range(8):
        one.optimizer.zero_grad()
        (loss_at(one, step) + loss_at(one, step + 50)).backward()
        one.optimizer.step()
        loss_at(other, step + 100).backward()
        other.optimizer.zero_grad(set_to_none=set_to_none)
        for part in (step, step + 50):
            loss_at(other, part).backward()
        other.optimizer.step()
        other.optimizer.zero_grad(set_to_none=set_to_none)
        assert_equal(one, other)


def test_an_overflow_that_no_loss_scale_can_see_does_not_stay() -> None:
    """The scaler sees finite gradients, because that of the pruned weight is hidden."""
    sparse = attached("snfs")
    weight, mask = sparse.model.get_parameter("0.weight"), sparse.masks["0.weight"].clone()
    weight.backward(torch.ones_like(weight).where(mask, math.inf))
    assert bool(torch.isfinite(weight.grad).all())
    sparse.optimizer.step()
    momentum = sparse.method_state["momentum"]["0.weight"]
    assert bool(torch.isfinite(momentum).all())
    assert bool((momentum[mask] == 1).all())


# Random streams: one seed, and another stream for every round, step and batch

NUM = 4


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def seeds_of(method: Method, seed: int) -> list[int]:
    """The seeds of the global generator whenever batches are requested, one per round."""
    seeds: list[int] = []

    def batches() -> Iterator[Tensor]:
        seeds.append(torch.initial_seed())
        yield torch.ones(2, 8)

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    sparse = attach(model, optimizer, method, scope=Masks.full(model), seed=seed, loss=squares, batches=batches)
    for _ in range(NUM):
        if method.clock == "round":
            sparse.grow_(2)
        squares(model, torch.ones(2, 8)).backward()
        optimizer.step()
    return seeds


def test_every_round_has_its_own_stream_and_batch_order() -> None:
    drawn: list[int] = []

    def grow(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
        drawn.append(draw.initial_seed())
        net.gradients()
        return uniform(candidates, count, draw)

    start = methods.create("random").start
    method = Method(name="recorded", start=start, start_density=0.1, grow=grow, needs=frozenset({"gradients"}))
    seeds = [seeds_of(method, seed) for seed in (0, 1, 0)]
    ones, others, again = drawn[:NUM], drawn[NUM : 2 * NUM], drawn[2 * NUM :]
    assert len(set(ones + others)) == 2 * NUM
    assert again == ones
    assert len(set(seeds[0] + seeds[1])) == 2 * NUM
    assert seeds[2] == seeds[0]


def test_every_step_has_its_own_stream() -> None:
    drawn: list[int] = []

    def update(net: NetworkView, update: MaskUpdate, progress: Progress, draw: torch.Generator) -> Masks:
        drawn.append(draw.initial_seed())
        return net.masks

    method = dataclasses.replace(methods.create("set", update_interval=1), update=update)
    for seed in (0, 1, 0):
        seeds_of(method, seed)
    assert len(set(drawn[: 2 * NUM])) == 2 * NUM
    assert drawn[2 * NUM :] == drawn[:NUM]
