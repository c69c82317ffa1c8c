"""What attached masks enforce, whatever the optimizer."""

from __future__ import annotations

import copy
import gc
import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from pathgrow import discover, methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.methods.method import Method
from pathgrow.sparse.attach import Attached, attach
from pathgrow.sparse.ema import EMA
from tests.support.sparse_mlp import ALWAYS, growing, mlp, off, sparse_mlp, train


def test_the_trained_weights_are_those_of_a_net_with_masks_in_its_graph() -> None:
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
    dtype: torch.dtype, bad: float, make: Callable[..., Optimizer]
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
        buffers = [value for state in optimizer.state.values() for value in state.values()]
        steps.append([*model.state_dict().values(), *ema_weights.values(), *buffers])
        assert all(bool((ema_weights[name][off(sparse, name)] == 0).all()) for name in sparse.masks)
    assert all(torch.equal(here, there) for here, there in zip(*steps, strict=True))


def test_an_overflow_in_the_backward_pass_is_masked_and_one_where_weights_are_on_is_not_hidden() -> None:
    model, _, sparse = sparse_mlp()
    weight, kept = model[0].weight, sparse.masks["0.weight"]
    weight.backward(torch.full_like(weight, math.inf))
    assert torch.equal(weight.grad, torch.full_like(weight, math.inf).where(kept, 0.0))


def test_optimizer_state_wider_than_the_weights_is_masked() -> None:
    model = mlp().to(torch.bfloat16)
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.state[model[0].weight]["master"] = torch.full((10, 6), math.pi)
    sparse = attach(model, optimizer, growing(), scope=Masks.full(model))
    expected = torch.full((10, 6), math.pi).where(sparse.masks["0.weight"], 0.0)
    assert torch.equal(optimizer.state[model[0].weight]["master"], expected)


def test_weights_start_at_zero_and_the_scope_decides_which() -> None:
    model, _, sparse = sparse_mlp()
    assert sorted(sparse.masks) == ["0.weight", "3.weight"]
    assert all(bool((model.get_parameter(name)[off(sparse, name)] == 0).all()) for name in sparse.masks)
    assert bool((model[5].weight != 0).all())


def test_positions_outside_a_partial_scope_stay_dense_and_are_not_counted() -> None:
    model = mlp()
    inside = torch.zeros(10, 6, dtype=torch.bool)
    inside[5:] = True
    optimizer = Adam(model.parameters())
    sparse = attach(model, optimizer, growing(0.1), scope=Masks.select({"0.weight": inside}, {"0.weight": inside}))
    assert (sparse.masks.num, sparse.masks.num_on) == (30, 3)
    train(model, optimizer)
    assert bool((model[0].weight[:5] != 0).all())
    assert int((model[0].weight[5:] != 0).sum()) == 3


def test_clipping_sees_masked_gradients() -> None:
    model, _, sparse = sparse_mlp()
    model(torch.randn(4, 6)).sum().backward()
    assert all(bool((model.get_parameter(name).grad[off(sparse, name)] == 0).all()) for name in sparse.masks)


def test_gradients_that_are_written_by_hand_are_masked_before_the_step() -> None:
    model, optimizer, sparse = sparse_mlp()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name in sparse.masks:
        assert torch.equal(model.get_parameter(name).grad, 1.0 * sparse.masks[name])
        assert bool((model.get_parameter(name)[off(sparse, name)] == 0).all())
        assert bool((optimizer.state[model.get_parameter(name)]["momentum_buffer"][off(sparse, name)] == 0).all())


def test_a_closure_is_masked_too() -> None:
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


def test_an_optimizer_that_moves_every_weight_is_held_back() -> None:
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


def test_loaded_weights_of_pruned_positions_do_not_return() -> None:
    model, _, sparse = sparse_mlp()
    before = sparse.masks.clone()
    model.load_state_dict(mlp(seed=1).state_dict())
    sparse.grow_(20)
    new = sparse.masks - before
    assert all(bool((model.get_parameter(name)[positions] == 0).all()) for name, positions in new.items())
    assert bool((model[0].weight[before["0.weight"]] != 0).all())


def test_old_momentum_is_cleared_where_weights_are_pruned() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    sparse = attach(model, optimizer, growing())
    buffer = optimizer.state[model[0].weight]["momentum_buffer"]
    assert torch.equal(buffer != 0, sparse.masks["0.weight"] & (buffer != 0))
    assert int((buffer != 0).sum()) > 0


def test_frozen_weights_that_the_optimizer_does_not_own_keep_their_masked_values() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = SGD([{"params": model[3].parameters(), "lr": 0.1}, {"params": [model[5].bias]}], lr=0.01)
    sparse = attach(model, optimizer, growing(), scope=Masks.full(model[:4]))
    before = model[0].weight.clone()
    train(model, optimizer)
    assert torch.equal(model[0].weight, before)
    assert bool((model[3].weight[off(sparse, "3.weight")] == 0).all())
    assert model[0].weight not in optimizer.state


def test_a_wrapped_optimizer_is_unwrapped() -> None:
    model = mlp()
    inner = SGD(model.parameters(), lr=0.1)
    sparse = attach(model, SimpleNamespace(optimizer=SimpleNamespace(optimizer=inner)).optimizer, growing())
    assert sparse.optimizer is inner


def test_detach_restores_the_plain_loop() -> None:
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


@pytest.mark.parametrize("assign", [False, True])
def test_best_weights_that_are_restored_are_pruned_at_the_end(assign: bool) -> None:
    """A loop that keeps its best weights keeps those of denser masks, without their masks."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    sparse = attach(model, optimizer, methods.create("gmp", density=0.1, num_steps=5), scope=Masks.full(model))
    best = copy.deepcopy(model.state_dict())
    train(model, optimizer, steps=10)
    masks = sparse.masks.clone()
    num = sum(int((best[name][~mask] != 0).sum()) for name, mask in masks.items())
    model.load_state_dict(best, assign=assign)
    assert f"But {num} pruned weights are not zero" in sparse.summary()
    with pytest.warns(
        UserWarning, match=rf"detach: {num} pruned weights were not zero.*sparse.state_dict\(\)"
    ) as caught:
        sparse.detach()
    assert [warning.filename for warning in caught] == [__file__]
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name), best[name] * mask)
    assert "not zero" not in sparse.summary()


@pytest.mark.parametrize("name", ["set", "str", "edge_popup"])
def test_a_usual_end_is_quiet(name: str) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    sparse = attach(model, optimizer, methods.create(name), torch.zeros(1, 6), scope=Masks.full(model))
    train(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "not zero" not in sparse.summary()
        sparse.detach()


def test_weights_that_come_with_their_masks_are_kept() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    sparse = attach(model, optimizer, methods.create("gmp", density=0.1, num_steps=9), scope=Masks.full(model))
    train(model, optimizer, steps=4)
    best, state = copy.deepcopy(model.state_dict()), sparse.state_dict()
    train(model, optimizer, steps=6)
    model.load_state_dict(best)
    sparse.load_state_dict(state)
    with pytest.warns(UserWarning, match="^detach: gmp is at step 4 of 9: ") as caught:  # not about the weights
        sparse.detach()
    assert len(caught) == 1
    assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items())


def test_a_model_that_was_moved_is_pruned_where_it_is() -> None:
    model, _, sparse = sparse_mlp()
    model.load_state_dict(mlp(seed=1).state_dict())
    model.double()
    with pytest.warns(UserWarning, match="pruned weights were not zero"):
        sparse.detach()
    assert all(bool((model.get_parameter(name)[~mask] == 0).all()) for name, mask in sparse.masks.items())


@pytest.mark.parametrize(
    ("make", "factor"),
    [
        (lambda p: SGD(p, lr=0.01, momentum=0.9), lambda step: 1.0),
        (lambda p: SGD(p, lr=0.01, momentum=0.9, dampening=0.4), lambda step: 1 - 0.4),
        # m = (1 - b1) g and v = (1 - b2) g^2, both corrected for the bias of `step` steps
        (lambda p: Adam(p, lr=0.01), lambda step: 0.1 / (1 - 0.9**step) * ((1 - 0.999**step) / 0.001) ** 0.5),
    ],
)
def test_the_first_update_of_a_weight_that_grows_late(
    make: Callable[..., Optimizer], factor: Callable[[int], float]
) -> None:
    """Its state is zero, but its tensor is not new: the step counter goes on, and dampening applies."""
    model = mlp()
    optimizer = make(model.parameters())
    sparse = attach(model, optimizer, growing(), torch.zeros(1, 6))
    train(model, optimizer, steps=4)
    before = sparse.masks["0.weight"].clone()
    sparse.grow_(40)
    new = sparse.masks["0.weight"] & ~before
    train(model, optimizer, steps=1)
    gradient, step = model[0].weight.grad[new], optimizer.state[model[0].weight].get("step", torch.tensor(0))
    expected = gradient.sign() if isinstance(optimizer, Adam) else gradient
    torch.testing.assert_close(
        model[0].weight[new].detach(), -0.01 * factor(int(step)) * expected, rtol=1e-4, atol=1e-6
    )
    assert int(new.sum()) > 5


class TestSeveralOptimizers:
    """The truth: one optimizer with the same settings over all weights, whose training is the same."""

    METHODS = ("rigl", "set", "gmp", "snfs", "granet", "random_growth", "imp")

    @staticmethod
    def method(name: str) -> Method:
        if name == "random_growth":
            return growing()
        options = {"imp": {"rewind_step": 2}}.get(name, {"num_steps": 20, "update_interval": 2})
        return methods.create(name, density=0.3, **options)

    @staticmethod
    def assert_off_is_zero(sparse: Attached) -> None:
        for name, mask in sparse.masks.items():
            weight = sparse.model.get_parameter(name)
            states = [optimizer.state[weight] for optimizer in sparse.optimizers if weight in optimizer.state]
            for tensor in (weight, *(state["momentum_buffer"] for state in states)):
                assert bool((tensor[~mask] == 0).all())

    @pytest.mark.parametrize("name", METHODS)
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_training_is_that_of_one_optimizer(self, name: str, order: tuple[int, int]) -> None:
        ends = []
        for several in (False, True):
            model = mlp()
            parts = [list(model[:3].parameters()), list(model[3:].parameters())]
            groups = parts if several else [parts[0] + parts[1]]
            optimizers = [SGD(group, lr=0.1, momentum=0.9, weight_decay=0.01) for group in groups]
            given = optimizers if several else optimizers[0]
            sparse = attach(model, given, self.method(name), ema=EMA(update_interval=1), stop=ALWAYS)
            draw = torch.Generator().manual_seed(0)
            for step in range(9):
                model.zero_grad()
                model(torch.randn(16, 6, generator=draw)).square().mean().backward()
                for index in order if several else (0,):
                    optimizers[index].step()
                    self.assert_off_is_zero(sparse)
                assert sparse.step == step + 1
                if step == 5 and sparse.method.clock == "round":
                    sparse.observe(0.5)
                    self.assert_off_is_zero(sparse)
            with sparse.ema_weights():
                averages = [parameter.detach().clone() for parameter in model.parameters()]
            ends.append([*model.state_dict().values(), *averages, *sparse.masks.values()])
        assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))

    @pytest.mark.parametrize("name", ["rigl", "gmp", "snfs", "random_growth"])
    def test_a_backward_pass_for_each_makes_two_steps(self, name: str) -> None:
        """Weights that both own, by turns: the masks hold after each, and a resumed run goes on alike."""
        model = mlp()
        optimizers = [SGD(model.parameters(), lr=0.1, momentum=momentum) for momentum in (0.9, 0.5)]
        sparse = attach(model, optimizers, self.method(name), stop=ALWAYS)
        masks = set()
        for turn in range(9):
            model.zero_grad()
            model(torch.randn(16, 6, generator=torch.Generator().manual_seed(turn))).square().mean().backward()
            optimizers[turn % 2].step()
            self.assert_off_is_zero(sparse)
            masks.add(sparse.masks.digest())
        assert sparse.step == 8  # the last one may still be shared with the other optimizer
        assert len(masks) > 2 or name == "random_growth"
        other = attach(twin := mlp(), [SGD(twin.parameters(), lr=0.1) for _ in optimizers], self.method(name))
        other.load_state_dict(sparse.state_dict())
        twin(torch.ones(2, 6)).sum().backward()
        other.optimizers[1].step()
        assert other.step == 9

    def test_optimizers_that_do_not_own_the_scope(self) -> None:
        model = mlp()
        first, last = SGD(model[:3].parameters(), lr=0.1), Adam(model[3:].parameters())
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(UserError, match=r"'3\.weight' is in scope but not owned .* \(optimizer=\[a, b\]\)"):
            attach(model, first, growing(), torch.zeros(1, 6))
        with pytest.raises(UserError, match="an optimizer is listed twice"):
            attach(model, [first, first], growing(), torch.zeros(1, 6))
        with pytest.raises(UserError, match=r"optimizer must be a .*, got list"):
            attach(model, [], growing(), torch.zeros(1, 6))  # type: ignore[arg-type]
        with pytest.raises(UserError, match="'str' trains latent weights and takes a single optimizer"):
            attach(model, [first, last], "str", torch.zeros(1, 6))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        attach(model, [first, last], growing(), torch.zeros(1, 6))
        for optimizer in (first, last):
            with pytest.raises(UserError, match="already attached"):
                attach(model, optimizer, growing(), torch.zeros(1, 6))

    def test_an_optimizer_that_was_not_passed_is_stopped_before_it_steps(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        unrelated = SGD(mlp().parameters(), lr=0.1)
        other = Adam(model.parameters())
        model(torch.ones(2, 6)).sum().backward()
        before = model[0].weight.clone()
        with pytest.raises(UserError, match=r"Adam would update '0\.weight', which is attached with another optimizer"):
            other.step()
        assert torch.equal(model[0].weight, before)
        unrelated.step()
        Adam(model[5].parameters()).step()  # not in scope
        optimizer.step()
        sparse.detach()
        other.step()

    @pytest.mark.parametrize("attribute", ["base_optimizer", "optimizer"])
    def test_wrappers_that_are_optimizers_themselves(self, attribute: str) -> None:
        """`.optimizer` is attached in place of its wrapper; another one steps within the attached step."""

        class Wrapper(SGD):
            def step(self, closure: object = None) -> None:  # type: ignore[override]
                getattr(self, attribute).step()

        model = mlp()
        wrapper, inner = Wrapper(model.parameters(), lr=0.1), Adam(model.parameters(), lr=0.1)
        setattr(wrapper, attribute, inner)
        sparse = attach(model, wrapper, growing(), torch.zeros(1, 6))
        assert sparse.optimizer is (inner if attribute == "optimizer" else wrapper)
        before = model[0].weight.clone()
        train(model, wrapper)
        assert not torch.equal(model[0].weight, before)
        assert sparse.step == 3
        assert all(bool((model.get_parameter(name)[~mask] == 0).all()) for name, mask in sparse.masks.items())


def assign(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.randn(10, 6))


def assign_state(model: nn.Sequential) -> None:
    model.load_state_dict(mlp(seed=1).state_dict(), assign=True)


def new_layer(model: nn.Sequential) -> None:
    model[0] = nn.Linear(6, 10)


def shard(model: nn.Sequential) -> None:
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class TestReplacedParameters:
    @pytest.mark.usefixtures("process_group")
    @pytest.mark.parametrize("replace", [assign, assign_state, new_layer, shard])
    @pytest.mark.parametrize("name", ["random_growth", "rigl", "edge_popup"])
    def test_the_next_step_raises(self, replace: Callable[[nn.Sequential], None], name: str) -> None:
        options = {"start_density": 0.2} if "growth" in name else {}
        model, optimizer, sparse = sparse_mlp(method=methods.create(name, **options))
        train(model, optimizer)
        replace(model)
        advice = r"'0\.weight' was replaced after attach\(\) .*; copy values into"
        if replace is shard:  # attaching again would be refused too
            advice = r"'0\.weight' was sharded after attach\(\) .* use DistributedDataParallel$"
        for step in (optimizer.step, SGD(model.parameters(), lr=0.1).step, sparse.state_dict):
            with pytest.raises(UserError, match=advice):
                step()
        if "growth" in name:
            with pytest.raises(UserError, match=advice):
                sparse.observe(0.5)
        sparse.detach()
        SGD(model.parameters(), lr=0.1).step()

    def test_values_may_be_copied_into_parameters(self) -> None:
        model, optimizer, sparse = sparse_mlp()
        model.load_state_dict(mlp(seed=1).state_dict())
        model.to(torch.float32).requires_grad_(True)
        model.append(nn.Identity())
        train(model, optimizer)
        assert bool((model[0].weight[off(sparse, "0.weight")] == 0).all())

    def test_a_fit_that_replaces_a_parameter(self) -> None:
        def fit(model: nn.Sequential, optimizer: SGD, epochs: int) -> None:
            train(model, optimizer, steps=1)
            model[3].weight = nn.Parameter(model[3].weight.detach().clone())

        model = mlp()
        with pytest.raises(UserError, match=r"'3\.weight' was replaced"):
            discover(model, SGD(model.parameters(), lr=0.1), fit, lambda _: 0.5, torch.zeros(1, 6), budget=4)


@pytest.mark.parametrize("name", ["rigl", "snfs", "str", "lth", "random_growth"])
def test_a_dropped_model_is_freed_at_once(name: str) -> None:
    """Without detach(), and without the garbage collector: on a GPU memory may run out before it comes."""
    alive: WeakSet[object] = WeakSet()
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            model, optimizer, sparse = sparse_mlp(method=methods.create(name), ema=EMA(update_interval=1))
            train(model, optimizer)
            alive.update([model, model[0].weight, optimizer])
            if name == "lth":
                sparse.observe(0.5)
            sparse.state_dict()
        assert len(alive) == 3
        del model, optimizer, sparse
        assert not alive
    finally:
        gc.enable()


def test_an_attachment_that_nobody_holds_stays_and_keeps_its_optimizer() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, growing(), torch.zeros(1, 6))
    train(model, optimizer)
    assert int((model[0].weight == 0).sum()) > 30
    sparse = sparse_mlp()[2]
    gc.collect()
    train(sparse.model, sparse.optimizer)
    assert sparse.step == 3


@pytest.mark.gpu
def test_a_cuda_graph_stays_valid_while_masks_grow() -> None:
    """The hooks run once, at capture; the graph reads the masks that growth edits in place."""
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
            buffer = optimizer.state[weight]["momentum_buffer"]
            assert bool((weight[~mask] == 0).all())
            assert bool((buffer[~mask] == 0).all())
        assert any(bool((model.get_parameter(name)[new] != 0).any()) for name, new in grown.items())
