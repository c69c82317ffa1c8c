"""Attaching to a foreign loop: what is enforced, what is refused, what the clock does."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from pathgrow import methods
from pathgrow.density.types import Answer, Curve, Grow, Probe, Stop, Verdict
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.methods.picks import at_random
from pathgrow.methods.static import fixed
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from pathgrow.walks import phew
from tests.support.swapping import swapping


@dataclasses.dataclass(frozen=True)
class Script:
    """A rule that says what it is told to, one word per observation."""

    words: tuple[Verdict, ...]
    name: str = "script"

    def decide(self, curve: Curve) -> Verdict:
        return self.words[len(curve.rough) - 1]

    def answer(self, curve: Curve) -> Answer:
        return Answer(rule=self.name, delta=0.01, status="open", details={"points": len(curve.rough)})


GROW, STOP = Grow(reason="more"), Stop(reason="enough")
ALWAYS = Script((GROW,) * 100)


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def growing(density: float = 0.2, **options: object) -> Method:
    """Random start and growth: nothing here depends on paths."""
    method = methods.create("random_growth", start_density=density, **options)
    return dataclasses.replace(method, start=at_random)


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3, seed: int = 0) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 6, generator=draw)).square().mean().backward()
        optimizer.step()


def sparse_mlp(**options: object) -> tuple[nn.Sequential, SGD, Attached]:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    options = {"stop": ALWAYS, **options}
    method = options.pop("method", growing())
    return model, optimizer, attach(model, optimizer, method, torch.zeros(1, 6), **options)


def off(sparse: Attached, name: str) -> Tensor:
    return ~sparse.masks[name]


class TestEnforcement:
    def test_the_trained_weights_are_those_of_a_net_with_masks_in_its_graph(self) -> None:
        """An independent truth: weight * mask inside the forward pass, trained by the same optimizer."""
        model, optimizer, sparse = sparse_mlp()
        truth = mlp()
        plain = SGD(truth.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
        masks = {name: mask.clone() for name, mask in sparse.masks.items()}
        for step in range(5):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            plain.zero_grad()
            shown = {name: p * masks[name] if name in masks else p for name, p in truth.named_parameters()}
            torch.func.functional_call(truth, shown, x).square().mean().backward()
            plain.step()
        for name, parameter in truth.named_parameters():
            expected = parameter * masks[name] if name in masks else parameter
            torch.testing.assert_close(model.get_parameter(name), expected)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    @pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)])
    def test_an_overflow_where_weights_are_off_leaves_no_trace(
        self, dtype: torch.dtype, bad: float, make: Callable[..., Optimizer]
    ) -> None:
        """The truth is the same step with zeros there; what is on, finite or not, is not touched."""
        steps = []
        for there in (bad, 0.0):
            model = mlp().to(dtype)
            optimizer = make(model.parameters())
            sparse = attach(model, optimizer, growing(), scope=Masks.full(model), ema=EMA(update_interval=1))
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            for name in sparse.masks:
                model.get_parameter(name).grad[off(sparse, name)] = there
            optimizer.step()
            with sparse.ema_weights():
                ema_weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            slots = [value for state in optimizer.state.values() for value in state.values()]
            steps.append([*model.state_dict().values(), *ema_weights.values(), *slots])
            assert all(bool((ema_weights[name][off(sparse, name)] == 0).all()) for name in sparse.masks)
        assert all(torch.equal(here, there) for here, there in zip(*steps, strict=True))

    def test_an_overflow_in_the_backward_pass_is_masked_and_one_where_weights_are_on_is_not_hidden(self) -> None:
        model, _, sparse = sparse_mlp()
        weight, kept = model[0].weight, sparse.masks["0.weight"]
        weight.backward(torch.full_like(weight, math.inf))
        assert torch.equal(weight.grad, torch.full_like(weight, math.inf).where(kept, 0.0))

    def test_optimizer_state_wider_than_the_weights_is_masked(self) -> None:
        model = mlp().to(torch.bfloat16)
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.state[model[0].weight]["master"] = torch.full((10, 6), math.pi)
        sparse = attach(model, optimizer, growing(), scope=Masks.full(model))
        expected = torch.full((10, 6), math.pi).where(sparse.masks["0.weight"], 0.0)
        assert torch.equal(optimizer.state[model[0].weight]["master"], expected)

    def test_weights_start_at_zero_and_the_scope_decides_which(self) -> None:
        model, _, sparse = sparse_mlp()
        assert sorted(sparse.masks) == ["0.weight", "3.weight"]
        assert all(bool((model.get_parameter(name)[off(sparse, name)] == 0).all()) for name in sparse.masks)
        assert bool((model[5].weight != 0).all())

    def test_positions_outside_a_partial_scope_stay_dense_and_are_not_counted(self) -> None:
        model = mlp()
        inside = torch.zeros(10, 6, dtype=torch.bool)
        inside[5:] = True
        optimizer = Adam(model.parameters())
        sparse = attach(model, optimizer, growing(0.1), scope=Masks.select({"0.weight": inside}, {"0.weight": inside}))
        assert (sparse.masks.num, sparse.masks.num_on) == (30, 3)
        train(model, optimizer)
        assert bool((model[0].weight[:5] != 0).all())
        assert int((model[0].weight[5:] != 0).sum()) == 3

    def test_clipping_sees_only_gradients_that_count(self) -> None:
        model, _, sparse = sparse_mlp()
        model(torch.randn(4, 6)).sum().backward()
        assert all(bool((model.get_parameter(name).grad[off(sparse, name)] == 0).all()) for name in sparse.masks)

    def test_gradients_that_are_written_by_hand_are_masked_before_the_step(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for name in sparse.masks:
            assert torch.equal(model.get_parameter(name).grad, 1.0 * sparse.masks[name])
            assert bool((model.get_parameter(name)[off(sparse, name)] == 0).all())
            assert bool((optimizer.state[model.get_parameter(name)]["momentum_buffer"][off(sparse, name)] == 0).all())

    def test_a_closure_is_masked_too(self) -> None:
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        sparse = attach(model, optimizer, growing())

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(4, 6)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert all(bool((model.get_parameter(name)[off(sparse, name)] == 0).all()) for name in sparse.masks)

    def test_an_optimizer_that_moves_every_weight_is_held_back(self) -> None:
        class Drift(Optimizer):
            """As Muon and its kin: the update of one weight depends on the gradients of others."""

            @torch.no_grad()
            def step(self, closure: object = None) -> None:
                for parameter in self.param_groups[0]["params"]:
                    parameter += 1.0
                    self.state[parameter]["sum"] = self.state[parameter].get("sum", 0) + torch.ones_like(parameter)

        model = mlp()
        optimizer = Drift(model.parameters(), {})
        sparse = attach(model, optimizer, growing())
        optimizer.step()
        optimizer.step()
        for name, mask in sparse.masks.items():
            assert torch.equal(optimizer.state[model.get_parameter(name)]["sum"], 2.0 * mask)
            assert bool((model.get_parameter(name)[~mask] == 0).all())

    def test_weights_loaded_behind_its_back_are_not_switched_on(self) -> None:
        model, _, sparse = sparse_mlp()
        before = sparse.masks.clone()
        model.load_state_dict(mlp(seed=1).state_dict())
        sparse.grow_(20)
        new = sparse.masks - before
        assert all(bool((model.get_parameter(name)[positions] == 0).all()) for name, positions in new.items())
        assert bool((model[0].weight[before["0.weight"]] != 0).all())

    def test_old_momentum_is_cleared_where_weights_are_switched_off(self) -> None:
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        train(model, optimizer)
        sparse = attach(model, optimizer, growing())
        slot = optimizer.state[model[0].weight]["momentum_buffer"]
        assert torch.equal(slot != 0, sparse.masks["0.weight"] & (slot != 0))
        assert int((slot != 0).sum()) > 0

    def test_parameters_that_the_optimizer_does_not_own_keep_their_masked_values(self) -> None:
        model = mlp()
        optimizer = SGD([{"params": model[3].parameters(), "lr": 0.1}, {"params": [model[5].bias]}], lr=0.01)
        sparse = attach(model, optimizer, growing())
        before = model[0].weight.clone()
        train(model, optimizer)
        assert torch.equal(model[0].weight, before)
        assert bool((model[3].weight[off(sparse, "3.weight")] == 0).all())
        assert model[0].weight not in optimizer.state

    def test_a_wrapper_is_looked_through(self) -> None:
        model = mlp()
        inner = SGD(model.parameters(), lr=0.1)
        sparse = attach(model, SimpleNamespace(optimizer=SimpleNamespace(optimizer=inner)).optimizer, growing())
        assert sparse.optimizer is inner

    def test_detach_gives_the_plain_loop_back(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        sparse.detach()
        train(model, optimizer)
        assert bool((model[0].weight != 0).all())
        with pytest.raises(UserError, match="after detach"):
            sparse.grow_(1)
        attach(model, optimizer, growing())
        sparse.detach()
        with pytest.raises(UserError, match="already attached"):
            attach(model, optimizer, growing())


class TestRefusals:
    def test_nothing_to_sparsify(self) -> None:
        model = mlp()
        nothing = torch.zeros(10, 6, dtype=torch.bool)
        scope = Masks.select({"0.weight": nothing}, {"0.weight": nothing})
        with pytest.raises(UserError, match="nothing to sparsify"):
            attach(model, SGD(model.parameters(), lr=0.1), growing(), scope=scope)

    def test_an_optimizer_of_another_model(self) -> None:
        with pytest.raises(UserError, match="owns none of the weights"):
            attach(mlp(), SGD(mlp().parameters(), lr=0.1), growing())

    def test_a_scope_of_another_model(self) -> None:
        model = mlp()
        with pytest.raises(UserError, match="the parameter of Sequential has shape"):
            attach(
                model,
                SGD(model.parameters(), lr=0.1),
                growing(),
                scope=Masks.full(nn.Sequential(nn.Conv2d(1, 2, 1), mlp())),
            )

    def test_something_that_is_no_optimizer(self) -> None:
        with pytest.raises(UserError, match=r"optimizer must be a torch.optim.Optimizer, got SimpleNamespace"):
            attach(mlp(), SimpleNamespace(), growing())

    def test_a_second_optimizer_on_weights_that_are_attached(self) -> None:
        """By weight, not by model: a part of it, or something around it, counts as well."""
        model, _, sparse = sparse_mlp()
        for part in (model, nn.Sequential(model), model[0]):
            with pytest.raises(UserError, match=r"weight' is already attached.*detach\(\)"):
                attach(part, SGD(part.parameters(), lr=0.1), growing(), scope=Masks.full(part))
        sparse.detach()
        attach(model, SGD(model.parameters(), lr=0.1), growing(), scope=Masks.full(model)).detach()

    def test_attaching_twice(self) -> None:
        model, optimizer, _ = sparse_mlp()
        with pytest.raises(UserError, match="already attached"):
            attach(model, optimizer, growing())

    def test_gradient_growth_without_data(self) -> None:
        model = mlp()
        with pytest.raises(UserError, match=r"pass loss=f\(model, batch\) and batches"):
            attach(model, SGD(model.parameters(), lr=0.1), "gradient_growth", torch.zeros(1, 6), batches=[1])

    def test_a_refused_attachment_leaves_everything_as_it_was(self) -> None:
        model = mlp()
        before = copy.deepcopy(model.state_dict())
        optimizer = SGD(model.parameters(), lr=0.1)
        short = dataclasses.replace(
            growing(), start=lambda net, candidates, count, draw: at_random(net, candidates, count - 1, draw)
        )
        with pytest.raises(UserError, match="must pick exactly 28 candidates, got 27"):
            attach(model, optimizer, short)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert not optimizer._optimizer_step_pre_hooks

    @pytest.mark.parametrize("metric", ["high", None, (1.0, 2.0, 3.0), torch.zeros(2), ()])
    def test_a_metric_that_is_none(self, metric: object) -> None:
        sparse = sparse_mlp()[2]
        with pytest.raises(UserError, match="a score or a pair"):
            sparse.observe(metric)

    @pytest.mark.parametrize("metric", [float("nan"), (0.5, float("inf")), torch.tensor(float("nan"))])
    def test_a_diverged_run_fails_and_changes_nothing(self, metric: object) -> None:
        sparse = sparse_mlp()[2]
        with pytest.raises(RunFailed, match="diverged"):
            sparse.observe(metric)
        assert sparse.round == 0
        assert sparse.curve.rough == ()

    def test_a_rule_that_wants_copies(self) -> None:
        sparse = sparse_mlp(stop=Script((Probe(rounds=(0,), reason="look"),)))[2]
        with pytest.raises(UserError, match="needs to train probes"):
            sparse.observe(0.5)


def test_an_attachment_shows_itself_in_a_line() -> None:
    model, optimizer, sparse = sparse_mlp()
    train(model, optimizer)
    assert repr(sparse) == "Attached(random_growth: 28 of 140 prunable weights active, density 20%, round 0, step 3)"
    sparse.observe(0.5)
    sparse.detach()
    assert repr(sparse) == (
        "Attached(random_growth: 35 of 140 prunable weights active, density 25%, round 1, step 3, detached)"
    )


class TestClock:
    def test_observing_grows_by_a_quarter_until_the_rule_stops(self) -> None:
        sparse = sparse_mlp(stop=Script((GROW, GROW, STOP)))[2]
        # 140 switchable weights, 28 on: floor(28 / 4) = 7, floor(35 / 4) = 8.
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
        assert isinstance(sparse.observe(0.3), Stop)

    def test_a_method_that_keeps_its_masks_says_stop(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        found = sparse.masks.clone()
        sparse.detach()
        kept = attach(model, optimizer, fixed(found), stop=ALWAYS)
        assert kept.masks == found
        assert "the masks of method 'fixed' are static" in kept.observe(0.5).reason
        with pytest.raises(UserError, match="has no 'grow' pick"):
            kept.grow_(1)

    @pytest.mark.parametrize("stop", [None, "probe", ALWAYS])
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("random", "the masks of method 'random' are static"),
            ("rigl", "method 'rigl' updates its masks during training"),
            ("edge_popup", "method 'edge_popup' updates its masks during training"),
        ],
    )
    def test_methods_without_growth_do_not_speak_of_it(self, name: str, said: str, stop: object) -> None:
        sparse = sparse_mlp(method=methods.create(name), stop=stop)[2]
        verdict = sparse.observe(0.5)
        assert isinstance(verdict, Stop)
        assert verdict.reason == said

    def test_pruning_goes_on_until_its_schedule_ends(self) -> None:
        sparse = sparse_mlp(method=methods.create("lth", density=0.7), stop=None)[2]
        assert sparse.observe(0.5) == Grow(reason="the schedule of method 'lth' continues")
        assert sparse.observe(0.5) == Grow(reason="the schedule of method 'lth' continues")
        assert sparse.masks.num_on == 98  # 0.7 of 140
        assert sparse.observe(0.5).reason == "the masks of method 'lth' are final"

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

    def test_the_automatic_start_is_small(self) -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        sparse = attach(model, SGD(model.parameters(), lr=0.1), "gcg", torch.zeros(1, 64))
        assert sparse.masks.num_on in {round(share * sparse.masks.num) for share in (0.01, 0.02, 0.03, 0.05)}

    def test_a_step_clock_sees_the_dense_gradient_and_may_swap(self) -> None:
        model, optimizer, sparse = sparse_mlp(method=swapping(density=0.2), ema=EMA(update_interval=1))
        x = torch.randn(16, 6)
        for step in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            before = sparse.masks.clone()
            weights = {name: model.get_parameter(name).detach().clone() for name in sparse.masks}
            gradients = {name: model.get_parameter(name).grad.clone() for name in sparse.masks}
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
            # What was dropped had an average, and loses it.
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


def test_the_initial_walks_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The automatic start density is found by making the masks; these are the initial masks."""
    walks = []
    original = phew._walked_masks
    monkeypatch.setattr(phew, "_walked_masks", lambda *args: walks.append(args[2]) or original(*args))
    masks = [sparse_mlp(method=methods.create("gcg", start_density=density))[2].masks for density in (None, 0.05)]
    assert walks[-1] == walks[-2] == 0.05  # 5% for the automatic start too, with one walk for each density tried
    assert len(walks) == len(set(walks)) + 1
    assert masks[0] == masks[1]


class TestAverage:
    def test_it_is_a_mean_at_first_and_forgets_later(self) -> None:
        model, optimizer, sparse = sparse_mlp(ema=EMA(decay=0.75, update_interval=2))
        seen: list[Tensor] = []
        expected = torch.zeros(())
        for step in range(1, 17):
            train(model, optimizer, steps=1, seed=step)
            if step % 2 == 0:
                seen.append(model[0].weight.detach().double())
                n = len(seen)
                expected = torch.stack(seen).mean(0) if n <= 4 else 0.75 * expected + 0.25 * seen[-1]
        with sparse.ema_weights():
            torch.testing.assert_close(model[0].weight.double(), expected, rtol=1e-5, atol=1e-7)
            assert bool((model[0].weight[off(sparse, "0.weight")] == 0).all())

    def test_swapping_is_exact_covers_statistics_and_survives_errors(self) -> None:
        model, optimizer, sparse = sparse_mlp(ema=EMA(update_interval=1))
        train(model, optimizer, steps=6)
        before = copy.deepcopy(model.state_dict())

        def inside() -> dict[str, Tensor]:
            with sparse.ema_weights():
                return copy.deepcopy(model.state_dict())

        shown = inside()
        assert not torch.equal(shown["1.running_var"], before["1.running_var"])
        assert torch.equal(shown["1.num_batches_tracked"], before["1.num_batches_tracked"])
        with pytest.raises(RuntimeError, match="boom"), sparse.ema_weights():
            raise RuntimeError("boom")
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert all(torch.equal(value, shown[name]) for name, value in inside().items())

    def test_training_or_growing_inside_is_refused(self) -> None:
        model, optimizer, sparse = sparse_mlp(ema=EMA(update_interval=1))
        train(model, optimizer)
        with sparse.ema_weights():
            with pytest.raises(UserError, match=r"optimizer.step\(\) is not allowed inside ema_weights"):
                train(model, optimizer)
            with pytest.raises(UserError, match="a mask update is not allowed inside ema_weights"):
                sparse.grow_(1)
            with pytest.raises(UserError, match=r"observe\(\) is not allowed inside ema_weights"):
                sparse.observe(0.5)

    def test_without_an_average_the_model_is_shown_as_it_is(self) -> None:
        model, _, sparse = sparse_mlp()
        before = model[0].weight.clone()
        with sparse.ema_weights():
            assert torch.equal(model[0].weight, before)

    def test_half_precision_is_averaged_in_full(self) -> None:
        """Steps of a hundredth vanish in bfloat16; the mean must still follow."""
        model = nn.Linear(1, 1, bias=False).bfloat16()
        optimizer = SGD(model.parameters(), lr=0.0)
        sparse = attach(model, optimizer, growing(1.0), scope=Masks.full(model), ema=EMA(update_interval=1))
        for step in range(400):
            with torch.no_grad():
                model.weight.fill_(0.0 if step < 100 else 1.0)
            optimizer.step()
        with sparse.ema_weights():
            assert model.weight.item() == pytest.approx(1 - 0.99**300, abs=5e-3)

    @pytest.mark.parametrize("options", [{"decay": 1.0}, {"decay": 0.0}, {"update_interval": 0}])
    def test_bad_options(self, options: dict[str, float]) -> None:
        with pytest.raises(UserError, match="must be"):
            EMA(**options)


class TestDriven:
    """An engine calls the parts of a step itself, since a captured step runs no hooks."""

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
    def test_driven_steps_have_the_bits_of_hooked_ones(self, method: Method, make: Callable[..., Optimizer]) -> None:
        ends = []
        for hooks_disabled in (True, False):
            model = mlp()
            optimizer = make(model.parameters())
            sparse = attach(model, optimizer, method, torch.zeros(1, 6), ema=EMA(update_interval=2), stop=ALWAYS)
            first = sparse.masks.clone()
            self.drive(model, optimizer, sparse) if hooks_disabled else train(model, optimizer, steps=5)
            sparse.observe(0.5)  # grows where the clock is the round
            self.drive(model, optimizer, sparse) if hooks_disabled else train(model, optimizer, steps=5)
            assert sparse.masks != first
            assert sparse.step == 10
            with sparse.ema_weights():
                averages = [p.detach().clone() for p in model.parameters()]
            slots = [value for state in optimizer.state.values() for value in state.values()]
            ends.append([*model.state_dict().values(), *slots, *averages, *sparse.masks.values()])
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    def test_inside_the_block_the_hooks_rest(self) -> None:
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
        slot = optimizer.state[model[0].weight]["momentum_buffer"]
        for tensor in (model[0].weight, slot):
            assert bool((tensor[off(sparse, "0.weight")] == 0).all())
            assert bool((tensor[sparse.masks["0.weight"]] != 0).any())
        sparse.finish_step_()
        assert sparse.step == 1
        train(model, optimizer)
        assert sparse.step == 4, "outside of it they work as ever"
        assert bool((model[0].weight[off(sparse, "0.weight")] == 0).all())

    def test_blocks_may_lie_inside_each_other_and_end_with_an_error(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        with sparse.hooks_disabled():
            with pytest.raises(ZeroDivisionError), sparse.hooks_disabled():
                raise ZeroDivisionError
            train(model, optimizer, steps=1)
            assert sparse.step == 0, "the outer block is still there"
            sparse.mask_weights_()
        train(model, optimizer, steps=1)
        assert sparse.step == 1

    def test_a_change_is_due_when_the_schedule_says_so_and_made_once(self) -> None:
        model, optimizer, sparse = sparse_mlp(method=swapping(density=0.2))
        due = []
        for _ in range(4):
            due.append(sparse.update_is_due)
            before = sparse.masks.clone()
            self.drive(model, optimizer, sparse, steps=1)
            assert (sparse.masks - before).num_on == 3 * due[-1]
        assert due == [False, True, False, True]
        assert not sparse_mlp()[2].update_is_due, "a clock of rounds is not asked at steps"

    def test_an_average_is_not_trained(self) -> None:
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


class TestState:
    def test_states_of_others_are_refused_and_change_nothing(self) -> None:
        model, _, sparse = sparse_mlp()
        state = sparse.state_dict()
        other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
        foreign = attach(other, SGD(other.parameters(), lr=0.1), growing())
        with pytest.raises(UserError, match="another model"):
            sparse.load_state_dict(foreign.state_dict())
        with pytest.raises(UserError, match="of method 'gcg'"):
            sparse.load_state_dict({**state, "method": "gcg"})
        with pytest.raises(UserError, match="not a pathgrow state dict"):
            sparse.load_state_dict(model.state_dict())
        with pytest.raises(UserError, match="saved without ema"):
            sparse_mlp(ema=EMA())[2].load_state_dict(state)
        assert sparse.masks == Masks(state["masks"])

    def test_masks_are_edited_in_place(self) -> None:
        sparse = sparse_mlp()[2]
        held = sparse.masks["0.weight"]
        state = sparse.state_dict()
        sparse.grow_(100)
        assert held.data_ptr() == sparse.masks["0.weight"].data_ptr()
        sparse.load_state_dict(state)
        assert torch.equal(held, state["masks"]["0.weight"])


@pytest.mark.gpu
def test_a_captured_step_stays_valid_while_masks_grow() -> None:
    """The hooks run once, at capture; what they record reads the masks that growth edits in place."""
    model = mlp().cuda()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, foreach=True)
    sparse = attach(model, optimizer, growing(), torch.zeros(1, 6, device="cuda"), stop=ALWAYS)
    x = torch.randn(64, 6, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        before = sparse.masks.clone()
        sparse.grow_(20)
        grown = sparse.masks - before
        assert all(bool((model.get_parameter(name)[new] == 0).all()) for name, new in grown.items())
        for _ in range(5):
            graph.replay()
        for name, mask in sparse.masks.items():
            weight = model.get_parameter(name)
            slot = optimizer.state[weight]["momentum_buffer"]
            assert bool((weight[~mask] == 0).all())
            assert bool((slot[~mask] == 0).all())
        assert any(bool((model.get_parameter(name)[new] != 0).any()) for name, new in grown.items())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gcg", "gradient_growth", "pathgrow_d", "random_growth", "trace_growth"])
def test_masks_are_those_of_the_cpu(name: str) -> None:
    def visited(device: str) -> Masks:
        model = mlp().double().to(device)
        x = torch.ones(8, 6, dtype=torch.float64, device=device) * torch.arange(8, device=device)[:, None]
        sparse = attach(
            model, SGD(model.parameters(), lr=0.1), methods.create(name, start_density=0.2), x[:1],
            stop=ALWAYS, loss=lambda model, batch: model(batch).square().mean(), batches=[x],
        )  # fmt: skip
        sparse.observe(0.5)
        sparse.observe(0.6)
        return sparse.masks.to("cpu")

    assert visited("cuda") == visited("cpu")


def test_the_example_runs_as_it_stands() -> None:
    """In a process of its own, as a reader would run it, only shorter."""
    root = Path(__file__).parents[2]
    code = "import plain_loop; print(*plain_loop.main(epochs=20, warmup=12))"
    folders = os.pathsep.join([str(root / "src"), str(root / "examples")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=True,
    )
    density, accuracy = map(float, done.stdout.splitlines()[-1].split())
    assert density == pytest.approx(0.05 * 1.25**3, rel=1e-2)
    assert accuracy > 0.85
