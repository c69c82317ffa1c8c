"""Models with their optimizers: copied, reinitialized, packed and restored."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.sample_counter import counting
from pathgrow.masks import Masks
from pathgrow.methods import fixed
from pathgrow.methods.picks import at_random
from pathgrow.sparse.attach import attach
from pathgrow.sparse.training_state import (
    OptimizerSettings,
    clear_optimizer_state_,
    copy_model_and_optimizer,
    initial_state,
    pack_model_and_optimizer,
    reinitialize_,
    reset_optimizer_state_,
    unpack_model_and_optimizer_,
)
from pathgrow.sparse.tree import flatten_state

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "nesterov": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: Adam(p, lr=0.01, betas=(0.8, 0.95), amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=torch.tensor(0.01), foreach=False, capturable=False),
    "fused": lambda p: AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "lbfgs": lambda p: LBFGS(p, max_iter=2, history_size=3),
    "groups": lambda p: SGD([{"params": list(p)[:2], "lr": 0.1}, {"params": [nn.Parameter(torch.ones(2))]}], lr=1.0),
}


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def train(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(step))

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def assert_same(model: nn.Module, optimizer: Optimizer, other: nn.Module, other_optimizer: Optimizer) -> None:
    for here, there in (
        (model.state_dict(), other.state_dict()),
        (optimizer.state_dict(), other_optimizer.state_dict()),
    ):
        (tensors, metadata), (their_tensors, their_metadata) = flatten_state(here), flatten_state(there)
        assert metadata == their_metadata
        for key, tensor in tensors.items():
            assert tensor.dtype == their_tensors[key].dtype
            assert torch.equal(tensor, their_tensors[key]), key


class TestCopies:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_a_copy_trains_on_as_the_original_would(self, name: str) -> None:
        model = mlp()
        optimizer = OPTIMIZERS[name](model.parameters())
        train(model, optimizer, 3)
        twin, twin_optimizer = copy_model_and_optimizer(model, optimizer)
        owned = {id(p) for group in twin_optimizer.param_groups for p in group["params"]}
        assert {id(p) for p in twin.parameters()} & owned
        assert not {id(p) for p in model.parameters()} & owned
        before = copy.deepcopy(model.state_dict())
        train(twin, twin_optimizer, 3, first=3)
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        train(model, optimizer, 3, first=3)
        assert_same(model, optimizer, twin, twin_optimizer)

    def test_our_hooks_stay_behind_and_the_original_keeps_them(self) -> None:
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = dataclasses.replace(methods.create("random_growth", start_density=0.5), start=at_random)
        sparse = attach(model, optimizer, method, scope=Masks.full(model))
        with counting(model) as counter:
            twin, twin_optimizer = copy_model_and_optimizer(model, optimizer)
            train(twin, twin_optimizer, 2)
            assert counter.samples == 0
            assert bool((twin[0].weight != 0).all()), "the copy must not be masked by the original's attachment"
            train(model, optimizer, 2)
            assert counter.samples == 32
        assert bool((model[0].weight[~sparse.masks["0.weight"]] == 0).all())
        attach(twin, twin_optimizer, fixed(sparse.masks), scope=sparse.masks.scope).detach()

    def test_hooks_of_the_user_and_schedulers_do_no_harm(self) -> None:
        model = mlp()
        seen: list[str] = []
        model[0].register_forward_hook(lambda module, args, output: seen.append("forward"))
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda optimizer, args, kwargs: seen.append("step"))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train(model, optimizer, 1)
        schedule.step()
        twin, twin_optimizer = copy_model_and_optimizer(model, optimizer)
        seen.clear()
        weight = model[0].weight.clone()
        train(twin, twin_optimizer, 1)
        assert torch.equal(model[0].weight, weight)
        assert seen == ["forward"]
        assert twin_optimizer.param_groups[0]["lr"] == 0.05
        torch.optim.lr_scheduler.StepLR(twin_optimizer, 1, gamma=0.5).step()
        assert optimizer.param_groups[0]["lr"] == 0.05

    def test_what_cannot_be_copied_is_said(self) -> None:
        model = mlp()
        model.cache = model[0].weight * 2
        with pytest.raises(UserError, match="cannot be copied"):
            copy_model_and_optimizer(model, SGD(model.parameters(), lr=0.1))


class TestReinitialize:
    def test_entries_are_shuffled_masked_and_scaled_by_row(self) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        initial = initial_state(model)
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7.0)
        reinitialize_(
            model, optimizer, initial, Masks({"0.weight": mask}), seed=0, graph=trace(model, torch.ones(1, 4))
        )
        weight, values = model[0].weight.detach(), initial["0.weight"].flatten()
        assert all(float((values - entry).abs().min()) < 1e-7 for entry in weight[0])
        assert float((values - weight[1, 0] / 2).abs().min()) < 1e-7  # sqrt(4 / 1)
        assert len({round(float(v), 6) for v in (*weight[0], weight[1, 0] / 2)}) == 5, "no entry may be used twice"
        assert bool((weight[~mask] == 0).all())
        assert torch.equal(model[1].weight, initial["1.weight"])
        assert torch.equal(model[0].bias, initial["0.bias"])

    def test_the_seed_and_the_name_decide(self) -> None:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
        initial = initial_state(model)
        initial["1.weight"] = initial["0.weight"].clone()
        masks, optimizer = Masks.full(model), SGD(model.parameters(), lr=0.1)
        found = []
        for seed in (0, 0, 1):
            reinitialize_(model, optimizer, initial, masks, seed, graph=trace(model, torch.ones(1, 6)))
            found.append(model[0].weight.detach().clone())
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])
        assert not torch.equal(model[0].weight, model[1].weight)
        assert torch.equal(found[0].flatten().sort().values, initial["0.weight"].flatten().sort().values)

    def test_units_keep_the_variance_they_had_when_dense(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(400, 300, bias=False))
        x = torch.randn(200, 400)
        initial = initial_state(model)
        dense = model(x).std().item()
        mask = (
            torch.rand(300, 400, generator=torch.Generator().manual_seed(1)) < torch.linspace(0.02, 0.9, 300)[:, None]
        )
        reinitialize_(
            model,
            SGD(model.parameters(), lr=0.1),
            initial,
            Masks({"0.weight": mask}),
            seed=0,
            graph=trace(model, x[:1]),
        )
        assert model(x).std().item() == pytest.approx(dense, rel=0.03)

    def test_dense_positions_keep_their_place_and_count_as_inputs(self) -> None:
        model = nn.Sequential(nn.Linear(4, 2, bias=False))
        initial = initial_state(model)
        scope = torch.tensor([[True, True, False, False], [False] * 4])
        mask = torch.tensor([[True, False, True, True], [True] * 4])
        reinitialize_(
            model,
            SGD(model.parameters(), lr=0.1),
            initial,
            Masks({"0.weight": mask}, {"0.weight": scope}),
            seed=0,
            graph=trace(model, torch.ones(1, 4)),
        )
        scale = math.sqrt(4 / 3)
        torch.testing.assert_close(model[0].weight[0, 2:], initial["0.weight"][0, 2:] * scale)
        assert torch.equal(model[0].weight[1], initial["0.weight"][1])

    @pytest.mark.parametrize("groups", [1, 2])
    def test_a_transposed_convolution_counts_inputs_along_its_own_axis(self, groups: int) -> None:
        model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False))
        with torch.no_grad():
            model[0].weight.fill_(1.0)
        mask = torch.rand(model[0].weight.shape, generator=torch.Generator().manual_seed(0)) < 0.4
        reinitialize_(
            model,
            SGD(model.parameters(), lr=0.1),
            initial_state(model),
            Masks({"0.weight": mask}),
            seed=0,
            graph=trace(model, torch.ones(1, 4, 5, 5)),
        )
        for channel in range(6):
            group, row = divmod(channel, 6 // groups)
            rows = slice(group * 4 // groups, (group + 1) * 4 // groups)
            kept = mask[rows, row]
            expected = kept * math.sqrt(kept.numel() / int(kept.sum()))
            torch.testing.assert_close(model[0].weight[rows, row].detach(), expected)

    def test_a_weight_of_inputs_by_outputs_counts_inputs_along_its_first_axis(self) -> None:
        class InByOut(nn.Module):
            """The layout of Conv1D in transformers, and of a plain matmul."""

            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(4, 3))

            def forward(self, x: Tensor) -> Tensor:
                return torch.relu(x @ self.weight)

        model = nn.Sequential(InByOut(), nn.Linear(3, 2))
        mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=torch.bool)
        masks, graph = Masks({"0.weight": mask}), trace(model, torch.ones(1, 4))
        reinitialize_(model, SGD(model.parameters(), lr=0.1), initial_state(model), masks, seed=0, graph=graph)
        expected = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        torch.testing.assert_close(model[0].weight.detach(), expected)

    def test_a_weight_that_is_not_used_is_not_scaled(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4))
        graph = trace(model, torch.ones(1, 4))
        model.spare = nn.Linear(4, 4)
        model.spare.forward = lambda x: x  # type: ignore[method-assign]
        nn.init.ones_(model.spare.weight)
        mask = torch.eye(4, dtype=torch.bool)
        masks = Masks({"spare.weight": mask})
        reinitialize_(model, SGD(model.parameters(), lr=0.1), initial_state(model), masks, seed=0, graph=graph)
        assert torch.equal(model.spare.weight, mask.float())

    @pytest.mark.parametrize("make", [lambda p: Adam(p, lr=0.3), lambda p: Adagrad(p, initial_accumulator_value=0.5)])
    def test_the_optimizer_forgets_its_state_and_keeps_its_options(self, make: Callable[[Any], Optimizer]) -> None:
        model = mlp()
        initial = initial_state(model)
        optimizer = make(model.parameters())
        optimizer.param_groups[0]["lr"] = 0.123
        train(model, optimizer, 3)
        masks = Masks.full(model)
        reinitialize_(model, optimizer, initial, masks, seed=0, graph=trace(model, torch.ones(1, 5)))
        twin = mlp()
        twin_optimizer = make(twin.parameters())
        twin_optimizer.param_groups[0]["lr"] = 0.123
        reinitialize_(twin, twin_optimizer, initial, masks, seed=0, graph=trace(twin, torch.ones(1, 5)))
        for pair in ((model, optimizer), (twin, twin_optimizer)):
            train(*pair, 2)
        assert_same(model, optimizer, twin, twin_optimizer)

    @pytest.mark.parametrize("forget", [clear_optimizer_state_, reset_optimizer_state_])
    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (SGD, {"momentum": 0.9}),
            (SGD, {"momentum": 0.9, "dampening": 0.4}),
            (Adam, {}),
            (AdamW, {}),
            (Adagrad, {"initial_accumulator_value": 0.5}),
            (RMSprop, {"momentum": 0.9}),
        ],
    )
    def test_an_optimizer_that_has_forgotten_steps_as_a_new_one(
        self, make: type[Optimizer], options: dict[str, float], forget: Callable[[Optimizer], None]
    ) -> None:
        options = {"lr": 0.1, **options}
        model = mlp()
        optimizer = make(model.parameters(), **options)
        train(model, optimizer, 3)
        forget(optimizer)
        twin = copy.deepcopy(model)
        new = make(twin.parameters(), **options)
        if make is Adagrad:  # which has a state before its first step
            torch.testing.assert_close(optimizer.state_dict()["state"], new.state_dict()["state"], rtol=0, atol=0)
        for pair in ((model, optimizer), (twin, new)):
            train(*pair, 2)
        assert_same(model, optimizer, twin, new)

    def test_a_weight_that_is_used_in_two_ways_is_scaled_for_the_first(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3, 4))

            def forward(self, x: Tensor) -> Tensor:
                return torch.relu(x @ self.weight.T) @ self.weight

        model = Tied()
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
        masks, graph = Masks({"weight": mask}), trace(model, torch.ones(1, 4))
        reinitialize_(model, SGD(model.parameters(), lr=0.1), initial_state(model), masks, seed=0, graph=graph)
        expected = mask * torch.tensor([[1.0], [2.0], [2.0]])
        torch.testing.assert_close(model.weight.detach(), expected)

    def test_initial_values_of_another_model_are_refused(self) -> None:
        model = mlp()
        with pytest.raises(UserError, match="another model"):
            reinitialize_(
                model,
                SGD(model.parameters(), lr=0.1),
                initial_state(nn.Linear(2, 2)),
                Masks.full(model),
                seed=0,
                graph=trace(model, torch.ones(1, 5)),
            )


class TestStorage:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_a_stored_pair_trains_on_bit_for_bit(self, name: str) -> None:
        model = mlp()
        optimizer = OPTIMIZERS[name](model.parameters())
        train(model, optimizer, 3)
        optimizer.param_groups[0]["lr"] = 0.03125
        # Through bytes and text, as a store would keep them.
        tensors, metadata = pack_model_and_optimizer(model, optimizer)
        kept = safetensors.torch.load(safetensors.torch.save({key: t.clone() for key, t in tensors.items()}))
        text = json.loads(json.dumps(metadata, allow_nan=False))
        assert text == metadata
        other = mlp(seed=1)
        other_optimizer = OPTIMIZERS[name](other.parameters())
        train(other, other_optimizer, 1, first=50)
        other_optimizer.param_groups[0]["initial_lr"] = 99.0
        assert unpack_model_and_optimizer_(other, other_optimizer, kept, text) is None
        assert_same(model, optimizer, other, other_optimizer)
        train(model, optimizer, 3, first=3)
        train(other, other_optimizer, 3, first=3)
        assert_same(model, optimizer, other, other_optimizer)

    def test_half_precision_state_is_not_cast(self) -> None:
        model = nn.Linear(3, 2).bfloat16()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        moment = torch.tensor([[1 / 3, 2 / 3, 1e-9], [0.0, -1.0, 5.0]])
        optimizer.state[model.weight]["momentum_buffer"] = moment
        tensors, metadata = pack_model_and_optimizer(model, optimizer)
        optimizer.state.clear()
        unpack_model_and_optimizer_(model, optimizer, tensors, metadata)
        assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], moment)

    def test_how_to_step_is_decided_by_the_machine_that_goes_on(self) -> None:
        stored = mlp()
        on_gpu = AdamW(stored.parameters(), lr=0.5, capturable=True)
        tensors, metadata = pack_model_and_optimizer(stored, on_gpu)
        model = mlp(seed=1)
        optimizer = AdamW(model.parameters(), lr=0.01)
        unpack_model_and_optimizer_(model, optimizer, tensors, metadata)
        assert optimizer.param_groups[0]["lr"] == 0.5
        model(torch.zeros(2, next(model.parameters()).shape[1])).sum().backward()
        optimizer.step()  # a CPU refuses to be captured

    def test_masks_travel_with_their_scope(self) -> None:
        model = mlp()
        scope = torch.rand(8, 5) < 0.5
        masks = Masks(
            {"0.weight": ~scope, "3.weight": torch.rand(3, 8) < 0.5},
            {"0.weight": scope, "3.weight": torch.ones(3, 8) > 0},
        )
        optimizer = SGD(model.parameters(), lr=0.1)
        assert (
            unpack_model_and_optimizer_(model, optimizer, *pack_model_and_optimizer(model, optimizer, masks)) == masks
        )

    def test_other_models_and_optimizers_are_refused(self) -> None:
        model = mlp()
        stored = pack_model_and_optimizer(model, SGD(model.parameters(), lr=0.1))
        wide = nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
        with pytest.raises(UserError, match=r"another model: '0.bias' is \(8,\) in the state and \(9,\)"):
            unpack_model_and_optimizer_(wide, SGD(wide.parameters(), lr=0.1), *stored)
        with pytest.raises(UserError, match="1 parameter groups, this one 2"):
            unpack_model_and_optimizer_(model, OPTIMIZERS["groups"](model.parameters()), *stored)


class TestOptimizerSettings:
    @pytest.mark.parametrize(
        ("before", "difference"),
        [
            (lambda p: SGD(p, lr=0.1, momentum=0.9), ""),
            (lambda p: SGD(p, lr=0.1, momentum=0.9, foreach=True), ""),  # how, not what
            (lambda p: SGD(p, lr=torch.tensor(0.1, dtype=torch.float64), momentum=0.9), ""),
            (lambda p: SGD(p, lr=0.2, momentum=0.9), "lr was 0.2, now 0.1"),
            (lambda p: Adam(p, lr=0.1), "optimizer was Adam, now SGD"),
            (lambda p: SGD([{"params": [q]} for q in p], lr=0.1, momentum=0.9), "6 parameter groups before, now 1"),
        ],
    )
    def test_difference(self, before: Callable[[Any], Optimizer], difference: str) -> None:
        stored = json.loads(json.dumps(OptimizerSettings(before(mlp().parameters())).as_json()))
        assert OptimizerSettings(SGD(mlp().parameters(), lr=0.1, momentum=0.9)).difference(stored) == difference

    def test_settings_survive_a_schedule_and_tensors_stay_in_place(self) -> None:
        optimizer = SGD(mlp().parameters(), lr=torch.tensor(0.1), momentum=0.9)
        settings, group = OptimizerSettings(optimizer), optimizer.param_groups[0]
        lr = group["lr"]
        lr.fill_(7.0)
        group["momentum"], group["initial_lr"] = 0.0, 3.0
        settings.restore_(optimizer)
        assert group["lr"] is lr
        assert (float(lr), group["momentum"], "initial_lr" in group) == (pytest.approx(0.1), 0.9, False)
