"""`attach`: accepted models and arguments, initial masks and their cost, state dicts."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.flop_counter import FlopCounterMode

from pathgrow import discover, methods, scope
from pathgrow.errors import UserError
from pathgrow.graph import trace
from pathgrow.graph.calls import uncalled_layers
from pathgrow.graph.flops import scoring_flops
from pathgrow.masks import Masks
from pathgrow.methods.method import Method, ScoringCost
from pathgrow.methods.picks import at_random
from pathgrow.sparse import enforce
from pathgrow.sparse.attach import attach, checked_scope
from pathgrow.sparse.ema import EMA
from pathgrow.walks import phew
from tests.support.sparse_mlp import ALWAYS, growing, mlp, sparse_mlp, train


class TestErrors:
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

    @pytest.mark.parametrize("given", [torch.zeros(0), torch.ones(2, 3), np.array([1, 2])])
    def test_numbers_in_place_of_an_optimizer(self, given: Any) -> None:
        with pytest.raises(UserError, match=r"optimizer must be a torch.optim.Optimizer, got (Tensor|ndarray)"):
            attach(mlp(), given, growing())

    def test_an_object_that_is_not_an_optimizer(self) -> None:
        with pytest.raises(UserError, match=r"optimizer must be a torch.optim.Optimizer, got SimpleNamespace"):
            attach(mlp(), SimpleNamespace(), growing())

    def test_a_second_optimizer_on_weights_that_are_attached(self) -> None:
        """By weight, not by model: a submodule or a wrapper counts as well."""
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

    @pytest.mark.parametrize("example", [torch.zeros(1, 6), None], ids=["given", "guessed"])
    def test_a_lazy_layer_is_refused_and_keeps_waiting_for_its_first_batch(self, example: torch.Tensor | None) -> None:
        model = nn.Sequential(nn.LazyLinear(10), nn.ReLU(), *mlp()[2:])
        optimizer = SGD(model.parameters(), lr=0.1)
        with pytest.raises(UserError, match=r"'0\.weight' .* lazy layer .* run the model once on a batch"):
            attach(model, optimizer, "gcg", example)
        model(torch.zeros(1, 6))
        assert set(attach(model, optimizer, "gcg", example).masks) == {"0.weight", "3.weight"}

    def test_weights_without_values(self) -> None:
        model = mlp().to("meta")
        with pytest.raises(UserError, match=r"'0\.weight' is on the meta device"):
            attach(model, SGD(model.parameters(), lr=0.1), "gcg", torch.zeros(1, 6))

    def test_things_in_each_others_place(self) -> None:
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.1)
        with pytest.raises(UserError, match=r"method must be a name or a pathgrow\.Method, got NoneType"):
            attach(model, optimizer, None, torch.zeros(1, 6))  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"model must be a torch\.nn\.Module, got SGD"):
            attach(optimizer, optimizer, "gcg", torch.zeros(1, 6))  # type: ignore[arg-type]

    def test_a_scope_or_a_rule_that_is_none(self) -> None:
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.1)
        with pytest.raises(UserError, match=r"scope must be Masks .*, got str \(e.g. pathgrow\.scope"):
            attach(model, optimizer, "gcg", torch.zeros(1, 6), scope="resnet")  # type: ignore[arg-type]
        with pytest.raises(UserError, match="stop must be a density rule or its name, got 3"):
            attach(model, optimizer, "gcg", torch.zeros(1, 6), stop=3)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("name", "value"), [("optimizer", None), ("method", None), ("model", "resnet18")])
    def test_a_discovery_of_other_things(self, name: str, value: object) -> None:
        model = mlp()
        given = {"model": model, "optimizer": SGD(model.parameters(), lr=0.1), name: value}
        with pytest.raises(UserError, match=f"^{name} must be .*, got (None|'resnet18')"):
            discover(fit=lambda *_: None, evaluate=lambda _: 0.5, example_input=torch.zeros(1, 6), **given)

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_a_copy_of_an_attachment_would_enforce_nothing(self, duplicate: Callable[[object], object]) -> None:
        model = mlp()
        sparse = attach(model, SGD(model.parameters(), lr=0.1), "random")
        with pytest.raises(UserError, match=r"cannot be copied or pickled; use state_dict\(\)"):
            duplicate(sparse)
        sparse.detach()
        duplicate(sparse)  # a record of what was, like any other value

    def test_a_layer_that_no_path_can_be_followed_through_and_the_way_around_it(self) -> None:
        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell, self.hidden, self.head = nn.GRU(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.head(self.hidden(self.cell(x)[0]).relu())  # type: ignore[no-any-return]

        model = Recurrent()
        optimizer = SGD(model.parameters(), lr=0.1)
        with pytest.raises(UserError, match=r"gru' in Recurrent \(.* choose a method that uses no paths"):
            attach(model, optimizer, "gcg", torch.zeros(1, 6))
        sparse = attach(model, optimizer, methods.create("rigl"), scope=Masks.full(model))
        train(model, optimizer)
        assert set(sparse.masks) == {"hidden.weight", "head.weight"}
        assert bool((model.hidden.weight[~sparse.masks["hidden.weight"]] == 0).all())


@pytest.mark.parametrize("names", [("1.weight",), ("0.weight", "1.weight")])
def test_a_tied_weight_goes_by_one_name(names: tuple[str, ...]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    scope = {name: torch.ones(6, 6, dtype=torch.bool) for name in names}
    with pytest.raises(UserError, match=r"'1.weight', which is the same weight as '0.weight'"):
        attach(model, SGD(model.parameters(), lr=0.1), methods.create("erk", density=0.5), scope=scope)


def test_repr() -> None:
    model, optimizer, sparse = sparse_mlp()
    train(model, optimizer)
    assert repr(sparse) == "Attached(random_growth: 28 of 140 prunable weights active, density 20%, round 0, step 3)"
    sparse.observe(0.5)
    sparse.detach()
    assert repr(sparse) == (
        "Attached(random_growth: 35 of 140 prunable weights active, density 25%, round 1, step 3, detached)"
    )


def whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[no-any-return]


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def a_part(model: nn.Module) -> nn.Module:
    return nn.Sequential(torch.compile(model[:2], backend="eager"), *model[2:])  # type: ignore[index]


class TestCompiled:
    @pytest.mark.parametrize("compiled", [whole, in_place, a_part])
    @pytest.mark.parametrize("example", [torch.zeros(1, 6), None], ids=["given", "guessed"])
    def test_training_equals_that_of_the_plain_model(
        self, compiled: Callable[[nn.Module], nn.Module], example: torch.Tensor | None
    ) -> None:
        ends = []
        for make in (nn.Identity(), compiled):
            inner = mlp()
            model = make(inner)
            optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
            sparse = attach(model, optimizer, "gcg", example)
            train(model, optimizer)
            sparse.observe(0.5)
            train(model, optimizer)
            named = dict(model.named_parameters())
            assert all((named[name][~mask] == 0).all() for name, mask in sparse.masks.items())
            ends.append([parameter.detach().clone() for parameter in inner.parameters()])
        assert all(torch.equal(plain, fast) for plain, fast in zip(*ends, strict=True))

    def test_tracing_leaves_the_model_compiled(self) -> None:
        ran = []

        def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
            ran.append(len(inputs))
            return graph.forward

        model = torch.compile(mlp(), backend=backend)
        scope(model, example_input=torch.zeros(1, 6))
        assert not ran
        model(torch.zeros(2, 6))
        assert ran


class TestFrozen:
    @pytest.mark.parametrize("method", ["gcg", "rigl", "imp_c"])
    def test_frozen_weights_stay(self, method: str) -> None:
        """A frozen layer could not recover what a mask removes from it."""
        model = mlp()
        model[0].requires_grad_(False)
        before = model[0].weight.clone()
        optimizer = SGD(model.parameters(), lr=0.1)
        sparse = attach(model, optimizer, methods.create(method), torch.zeros(1, 6))
        train(model, optimizer)
        sparse.observe(0.5)
        assert list(sparse.masks) == ["3.weight"]
        assert torch.equal(model[0].weight, before)

    def test_discover_keeps_frozen_weights_in_every_network(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        before, seen = model[0].weight.clone(), []

        def fit(model: nn.Module, optimizer: SGD, epochs: int) -> None:
            seen.append(model[0].weight.clone())  # type: ignore[index]
            train(model, optimizer, steps=1)

        def evaluate(_: nn.Module) -> float:
            return 0.5 + 0.01 * len(seen)

        found = discover(model, SGD(model.parameters(), lr=0.1), fit, evaluate, torch.zeros(1, 6), budget=4)
        assert list(found.masks) == ["3.weight"]
        assert len(seen) > 2
        assert all(torch.equal(weight, before) for weight in [*seen, model[0].weight])

    def test_a_given_scope_decides(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        sparse = attach(model, SGD(model.parameters(), lr=0.1), "random", scope=Masks.full(model))
        assert bool((model[0].weight[~sparse.masks["0.weight"]] == 0).all())

    def test_nothing_left_to_sparsify(self) -> None:
        model = mlp()
        model[:4].requires_grad_(False)
        with pytest.raises(UserError, match=r"nothing to sparsify .* are frozen .*requires_grad_\(True\)"):
            attach(model, SGD(model.parameters(), lr=0.1), "gcg", torch.zeros(1, 6))


class TestStartMasks:
    def test_the_automatic_start_is_small(self) -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        sparse = attach(model, SGD(model.parameters(), lr=0.1), "gcg", torch.zeros(1, 64))
        assert sparse.masks.num_on in {round(density * sparse.masks.num) for density in (0.01, 0.02, 0.03, 0.05)}

    def test_the_initial_walks_are_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The automatic start density is found by making the masks; these are the initial masks."""
        walks = []
        original = phew._walked_masks
        monkeypatch.setattr(phew, "_walked_masks", lambda *args: walks.append(args[2]) or original(*args))
        masks = [sparse_mlp(method=methods.create("gcg", start_density=density))[2].masks for density in (None, 0.05)]
        assert walks[-1] == walks[-2] == 0.05  # 5% for the automatic start too, with one walk for each density tried
        assert len(walks) == len(set(walks)) + 1
        assert masks[0] == masks[1]


# The cost of the initial masks, by hand and as counted by torch

MACS = 4 * 3 + 3 * 2
NO_DATA = ScoringCost()


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batches(num: int, size: int, width: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(size, width, generator=draw), torch.arange(size) % 2) for _ in range(num)]


def scoring_cost(model: nn.Module, width: int, method: str, size: int, **options: Any) -> ScoringCost:
    made = methods.create(method, **({"density": 0.5} | options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = attach(
        model,
        optimizer,
        made,
        torch.zeros(1, width),
        scope=Masks.full(model),
        loss=loss,
        batches=batches(3, size, width),
    )
    cost = sparse.last_scoring_cost
    sparse.detach()
    return cost


@pytest.mark.parametrize(
    ("method", "options", "passes"),
    [
        ("random", {}, 0),
        ("magnitude", {}, 0),
        ("erk", {}, 0),
        ("phew", {}, 0),
        ("snip", {}, 5),  # one gradient of each of five samples
        ("grasp", {}, 5 + 5 + 2 * 5),  # g; then g once more, and back through it
        ("grasp", {"num_batches": 2}, 4 * 10),
        ("synflow", {"num_iterations": 4}, 4),  # 9 of 18 weights in four steps, each of which takes some
        ("dpai", {"num_search_steps": 7}, 7),
    ],
)
def test_the_cost_of_initial_masks_by_hand(method: str, options: dict[str, int], passes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    found = scoring_cost(model, 4, method, 5, **options)
    assert scoring_flops(trace(model, torch.zeros(1, 4)), **dataclasses.asdict(found)) == passes * 3 * 2 * MACS


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_the_cost_of_gradients_is_that_counted_by_torch(method: str) -> None:
    depth, width, size = 24, 16, 64
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())])
    with FlopCounterMode(display=False) as counter:
        found = scoring_cost(model, width, method, size)
    flops = scoring_flops(trace(model, torch.zeros(1, width)), **dataclasses.asdict(found))
    # The first layer's input needs no gradient, so the network takes a little less than the formula.
    assert counter.get_total_flops() == pytest.approx(flops, rel=1.5 / depth)
    assert counter.get_total_flops() < flops


def test_an_update_has_its_own_cost() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = dataclasses.replace(methods.create("imp_c"), start=methods.create("snip").start, start_density=0.9)
    sparse = attach(model, optimizer, made, scope=Masks.full(model), loss=loss, batches=batches(1, 5, 4))
    assert sparse.last_scoring_cost == ScoringCost(num_gradient_samples=5)
    assert sparse.advance_()
    assert sparse.last_scoring_cost == NO_DATA


class TestSummary:
    def test_a_lower_bound_is_not_taken_for_an_answer_relative_to_dense(self) -> None:
        """The words, with the numbers of the rule's answer."""
        sparse = sparse_mlp(method=growing(0.05), stop=None)[2]
        assert sparse.summary().startswith("No density yet after 0 observations. The dense network was not trained, ")
        while not sparse.observe(0.9 - 0.5 * math.exp(-12 * sparse.density)).stop:
            pass
        answer, grown = sparse.rule_answer(), 100 * sparse.density
        assert answer.density is not None
        assert answer.interval is not None
        low, high = answer.interval
        assert sparse.summary() == (
            f"Lower bound: {100 * answer.density:.3g}% density (90% interval {100 * low:.3g}% to {100 * high:.3g}%), "
            f"enough to stay within 0.01 of the densest network grown ({grown:.3g}%). The dense network was not "
            "trained, and staying within 0.01 of it may need a higher density: pathgrow.discover compares with dense."
        )

    def test_equal_scores_bound_nothing(self) -> None:
        sparse = sparse_mlp(method=growing(0.05), stop=None)[2]
        while not sparse.observe(0.5).stop:
            pass
        assert sparse.summary().startswith("No lower bound: even the sparsest network observed is within 0.01 of ")

    def test_losses_that_were_passed_as_scores(self) -> None:
        sparse = sparse_mlp(method=growing(0.05), stop=None)[2]
        while not sparse.observe(0.5 + math.exp(-12 * sparse.density)).stop:
            pass
        assert sparse.summary().startswith("No density: scores fell. observe() takes higher scores for better ones; ")

    @pytest.mark.parametrize("name", ["rigl", "random", "topkast"])
    def test_methods_that_are_given_their_density(self, name: str) -> None:
        sparse = sparse_mlp(method=methods.create(name))[2]
        sparse.observe(0.5)
        assert sparse.summary() == f"{100 * sparse.density:.3g}% density; method {name!r} does not search for one."

    @pytest.mark.parametrize("name", ["gmp", "granet", "mest", "acdc", "gts", "st3"])
    def test_a_schedule_that_is_longer_than_the_training_is_not_left_unnoticed(self, name: str) -> None:
        model, optimizer, sparse = sparse_mlp(method=methods.create(name, density=0.02))
        train(model, optimizer)
        where = f"{name} is at step 3 of 10,000: density {100 * sparse.density:.3g}%, target 2%"
        assert sparse.summary() == f"{where}."
        with pytest.warns(UserWarning, match=f"^detach: {re.escape(where)}; set num_steps in pathgrow") as caught:
            sparse.detach()
        assert [warning.filename for warning in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sparse.detach()

    @pytest.mark.parametrize("name", ["gmp", "granet", "mest", "acdc", "gts", "st3"])
    def test_a_schedule_as_long_as_the_training_ends_quietly(self, name: str) -> None:
        model, optimizer, sparse = sparse_mlp(method=methods.create(name, density=0.1, num_steps=12))
        train(model, optimizer, 12)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sparse.detach()
        assert sparse.masks.num_on == 14
        assert sparse.summary() == f"10% density; method {name!r} does not search for one."

    def test_pruning_between_trainings_that_was_not_continued(self) -> None:
        model, optimizer, sparse = sparse_mlp(method=methods.create("imp_c", density=0.5))
        train(model, optimizer)
        sparse.observe(0.5)
        assert sparse.summary() == "imp_c is at round 1: density 80%, target 50%."
        with pytest.warns(UserWarning, match=r"^detach: imp_c is at round 1: .*; call observe\(\) after each training"):
            sparse.detach()

    def test_what_was_never_trained_is_detached_quietly(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sparse_mlp(method=methods.create("gmp"))[2].detach()


class TestStateDict:
    def test_other_states_raise_and_change_nothing(self) -> None:
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

    def test_a_state_is_loaded_with_weights_only(self, tmp_path: Path) -> None:
        model, optimizer, sparse = sparse_mlp(method=methods.create("rigl"))
        stopped = sparse.observe(0.5)
        torch.save(sparse.state_dict(), tmp_path / "state.pt")
        sparse.detach()
        again = attach(model, optimizer, methods.create("rigl"), scope=sparse.scope)
        again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert again.observe(0.6) == stopped

    def test_masks_are_edited_in_place(self) -> None:
        sparse = sparse_mlp()[2]
        held = sparse.masks["0.weight"]
        state = sparse.state_dict()
        sparse.grow_(100)
        assert held.data_ptr() == sparse.masks["0.weight"].data_ptr()
        sparse.load_state_dict(state)
        assert torch.equal(held, state["masks"]["0.weight"])


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


@pytest.mark.parametrize(("key", "value"), [("round", -1), ("step", -3), ("step", 1.5), ("round", "2"), ("seed", None)])
def test_a_state_with_an_impossible_clock_is_refused(key: str, value: object) -> None:
    model = nn.Linear(4, 3)
    sparse = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "random", scope=Masks.full(model))
    before = sparse.state_dict()
    with pytest.raises(UserError, match=f"^{key} must be an integer"):
        sparse.load_state_dict({**before, key: value})
    assert (sparse.round, sparse.step) == (before["round"], before["step"])


def _trained(name: str, density: float | None = None, **given: Any) -> Any:
    model = mlp()
    method = methods.create(name, **({} if density is None else {"density": density}))
    sparse = attach(model, SGD(model.parameters(), lr=0.1, momentum=0.9), method, torch.zeros(1, 6), **given)
    train(model, sparse.optimizer, 3)
    return sparse


@pytest.mark.parametrize("name", ["rigl", "random", "set", "lth"])
def test_a_state_of_another_density_is_refused(name: str) -> None:
    sparse, other = _trained(name, 0.5), _trained(name, 0.2)
    before, masks = sparse.state_dict(), other.state_dict()["masks"]
    if name == "lth":  # which starts dense, whatever its density
        other.advance_()
        masks = other.state_dict()["masks"]
    with pytest.raises(UserError, match=r"have \d+ active weights, but method .* as attached has \d+ of 140"):
        sparse.load_state_dict({**before, "masks": masks})
    assert sparse.masks == Masks(before["masks"])


def _states(name: str, num: int, **options: Any) -> tuple[Any, list[dict[str, Any]], list[int]]:
    """States after every step, or every round, of a method whose density changes, and their counts."""
    model, known = mlp(), methods.defaults(name)
    method = methods.create(name, **{key: value for key, value in options.items() if key in known})
    sparse = attach(model, SGD(model.parameters(), lr=0.1), method, torch.zeros(1, 6))
    states = [sparse.state_dict()]
    for _ in range(num):
        train(model, sparse.optimizer, 1)
        if method.clock == "round":
            sparse.advance_()
        states.append(sparse.state_dict())
    return sparse, states, [Masks(state["masks"]).num_on for state in states]


@pytest.mark.parametrize("name", ["gmp", "granet", "mest", "acdc", "gts"])
def test_masks_of_another_density_than_that_of_the_step_are_refused(name: str) -> None:
    sparse, states, counts = _states(name, 20, num_steps=20, update_interval=2)
    assert len(set(counts)) > 1
    for step, state in enumerate(states):
        sparse.load_state_dict(state)
        assert sparse.masks.num_on == counts[step]
        for other, count in zip(states, counts, strict=True):
            # A state may be saved before or after the mask update of its step; the start density of gts is not fixed.
            if count not in counts[step : step + 2] and not (name == "gts" and step < 9):
                with pytest.raises(UserError, match=rf"have {count} active weights, but method '{name}' as"):
                    sparse.load_state_dict({**state, "masks": other["masks"]})


@pytest.mark.parametrize("name", ["imp_c", "lth", "gcg"])
def test_masks_of_another_density_than_that_of_the_round_are_refused(name: str) -> None:
    sparse, states, counts = _states(name, 3, density=0.1, start_density=0.2)
    assert len(set(counts)) == 4
    for round, state in enumerate(states):
        sparse.load_state_dict(state)
        assert sparse.masks.num_on == counts[round]
        others = [0] if name == "gcg" else range(4)  # growth may be by any number, but is never undone
        for other, count in ((states[at], counts[at]) for at in others):
            if count != counts[round]:
                with pytest.raises(UserError, match=rf"have {count} active weights, but method '{name}' as"):
                    sparse.load_state_dict({**state, "masks": other["masks"]})


@pytest.mark.parametrize("step", [10**6, 10**30])
def test_a_step_beyond_every_training_does_not_take_long(step: int) -> None:
    sparse, states, _ = _states("gmp", 3, num_steps=20)
    sparse.load_state_dict({**states[-1], "step": step})


def test_masks_without_values_are_refused() -> None:
    sparse = _trained("rigl")
    state = sparse.state_dict()
    with pytest.raises(UserError, match="the state dict is of another model or scope"):
        sparse.load_state_dict({**state, "masks": {name: mask.to("meta") for name, mask in state["masks"].items()}})


def test_masks_without_active_weights_are_refused() -> None:
    sparse = _trained("random_growth")
    sparse.observe(0.5)
    before = sparse.state_dict()
    nothing = {name: torch.zeros_like(mask) for name, mask in before["masks"].items()}
    with pytest.raises(UserError, match="have 0 active weights"):
        sparse.load_state_dict({**before, "masks": nothing})
    sparse.load_state_dict(before)


@pytest.mark.parametrize("name", ["lth", "snfs", "itop", "dsr", "str", "edge_popup", "topkast", "st3"])
def test_a_state_without_the_memory_of_its_method_is_refused(name: str) -> None:
    sparse = _trained(name)
    before = sparse.state_dict()
    sparse.load_state_dict(before)
    for key in [key for key in before["method_state"] if key != "explored"]:
        rest = {other: value for other, value in before["method_state"].items() if other != key}
        for memory in ({}, rest, {**rest, key: {}}, {**rest, key: "x"}, {**rest, key: torch.zeros(2, 7)}):
            with pytest.raises(UserError, match=r"^method_state"):
                sparse.load_state_dict({**before, "method_state": memory})


def test_an_average_of_other_weights_is_refused() -> None:
    sparse = _trained("random", 0.5, ema=EMA())
    before = sparse.state_dict()
    for means in ({}, {**before["ema"]["means"], "0.weight": torch.zeros(3)}):
        with pytest.raises(UserError, match=r"^ema\.means"):
            sparse.load_state_dict({**before, "ema": {**before["ema"], "means": means}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("points", [{"round": 0, "density": 2.0, "epochs": 1, "score": 0.5}]),
        ("points", [{"round": 0, "density": 0.5, "epochs": 1}]),
        ("points", [{"round": 0, "density": 0.5, "epochs": 1, "score": float("nan")}]),
        ("stopped", {"reason": "enough"}),
        ("stopped", {"reason": 3, "details": {}}),
        ("stepped", [1]),
        ("stepped", ["0"]),
    ],
)
def test_observations_that_were_never_made_are_refused(key: str, value: object) -> None:
    sparse = _trained("random_growth")
    with pytest.raises(UserError, match=f"^{key}"):
        sparse.load_state_dict({**sparse.state_dict(), key: value})


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.out = kind(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("name", ["random_growth", "synflow", "gcg", "rigl", "set", "gmp", "magnitude"])
@pytest.mark.parametrize("with_scope", [False, True])
def test_a_recurrent_network_takes_methods_that_use_no_paths(
    name: str, kind: type[nn.RNNBase], with_scope: bool
) -> None:
    model = _Recurrent(kind)
    weights = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters() if p.dim() > 1}
    method = methods.create(name)
    given = (model, SGD(model.parameters(), lr=0.1), method, torch.zeros(2, 4, 6))
    options = {"scope": weights} if with_scope else {}
    if name != "random_growth" and "paths" in method.needs:
        with pytest.raises(UserError, match=r"paths cannot be traced .* uses no paths, such as 'rigl', 'set'"):
            attach(*given, **options)
        return
    with nullcontext() if with_scope else pytest.warns(UserWarning, match="cannot be traced") as caught:
        sparse = attach(*given, **options)
    assert with_scope or caught[0].filename == __file__
    assert set(sparse.masks) == {"rnn.weight_ih_l0", "rnn.weight_hh_l0", *(["out.weight"] if with_scope else [])}
    assert sparse.masks.num_on > 0
    if name == "random_growth":
        assert sparse.density == pytest.approx(0.1, abs=0.01)


class _WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.unused, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).relu())  # type: ignore[no-any-return]


class _WithBranch(_WithUnused):
    """The input decides which of two layers is used; the tracer follows the one that it sees."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x).relu()
        return self.out(self.unused(x).relu() if x.shape[0] > 2 else x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [_WithUnused, _WithBranch])
@pytest.mark.parametrize("name", ["gcg", "rigl", "random_growth", None])
def test_a_layer_that_is_not_reached_is_named_once_without_a_scope_too(kind: type[nn.Module], name: str | None) -> None:
    model = kind()
    example, sentence = torch.zeros(2, 6), "A forward pass on example_input does not use these weights of "

    def masks() -> Masks:
        if name is None:
            return scope(model, example)
        return attach(model, SGD(model.parameters(), lr=0.1), methods.create(name), example).masks

    with pytest.warns(UserWarning, match=sentence) as caught:
        assert set(masks()) == {"hidden.weight"}
    assert [warning.filename for warning in caught] == [__file__]
    assert str(caught[0].message).endswith(f" {kind.__name__}, so they are not pruned: unused.weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scope(model, example, only="hidden*")


def test_walks_name_the_layers_that_are_not_reached() -> None:
    model = _WithUnused()
    with pytest.warns(UserWarning, match=r"of _WithUnused, so they are not pruned: unused\.weight$") as caught:
        phew.phew(model, torch.zeros(2, 6), 0.5)
    with pytest.warns(UserWarning, match=r"of _WithUnused: unused\.weight\. They are in the scope") as with_scope:
        phew.phew(model, torch.zeros(2, 6), 0.3, scope=Masks.full(model))
    assert [warning.filename for warning in (*caught, *with_scope)] == [__file__] * 2


def test_layers_that_are_not_called_leave_a_scope_that_was_given() -> None:
    model = _WithUnused()
    full, uncalled = Masks.full(model), uncalled_layers(model, torch.zeros(2, 6))
    assert set(checked_scope(model, full)) == {"hidden.weight", "unused.weight", "out.weight"}
    found = checked_scope(model, full, uncalled)
    assert (set(found), found.num) == ({"hidden.weight", "out.weight"}, 40)
    rows = {"hidden.weight": torch.arange(5).view(5, 1).expand(5, 6) < 2, "unused.weight": full["unused.weight"]}
    assert checked_scope(model, rows, uncalled).num == 12, "other weights of a layer stay out"
    with pytest.raises(UserError, match="example_input reaches no layer in the scope of _WithUnused"):
        checked_scope(model, {"unused.weight": full["unused.weight"]}, uncalled)


def test_a_scope_with_layers_that_are_not_called_is_attached_as_it_is_and_named() -> None:
    """A state dict is of one scope: which layers are called may depend on weights that are loaded later."""
    model = _WithUnused()
    given = (model, SGD(model.parameters(), lr=0.1), methods.create("gmp"), torch.zeros(2, 6))
    with pytest.warns(UserWarning, match=r"of _WithUnused: unused\.weight\. They are in the scope") as caught:
        sparse = attach(*given, scope=Masks.full(model))
    assert [warning.filename for warning in caught] == [__file__]
    assert set(sparse.masks) == {"hidden.weight", "unused.weight", "out.weight"}
    sparse.detach()
    with pytest.warns(UserWarning, match="are not pruned"):
        called = scope(model, torch.zeros(2, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(*given, scope=called)


class _WithIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ids, self.hidden = nn.Embedding(7, 6), nn.Linear(9, 16)
        self.last, self.out = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.out(self.last(self.hidden(torch.cat([self.ids(ids), x], 1)).relu()).relu())


def test_a_batch_with_a_vector_of_ids_gets_the_masks_of_one_sample() -> None:
    ids, x = torch.tensor([4, 0, 2, 6]), torch.rand(4, 3)
    found = []
    for example in ((ids, x), (ids[:1], x[:1]), {"x": x, "ids": ids}):
        model = _WithIds()
        optimizer = SGD(model.parameters(), lr=0.1)
        walked = phew.phew(model, example, 0.3)
        sparse = attach(model, optimizer, methods.create("gcg", start_density=0.1), example, stop=ALWAYS)
        for _ in range(3):
            optimizer.zero_grad()
            model(ids, x).square().mean().backward()
            optimizer.step()
        sparse.observe(0.5)
        found.append((walked, sparse.masks.clone()))
    assert found[0] == found[1] == found[2]
    assert [masks.num_on for masks in found[0]] == [120, 50]


class TestDefaultLength:
    @pytest.mark.parametrize("name", ["rigl", "gmp", "str", "imp", "pathgrow.methods.set:sparse_evolution"])
    def test_a_name_without_the_length_of_the_training_is_reported(self, name: str) -> None:
        model = mlp()
        with pytest.warns(UserWarning, match="^attach: ") as caught:
            attach(model, SGD(model.parameters(), lr=0.1), name, torch.zeros(1, 6))
        assert [(str(warning.message), warning.filename) for warning in caught] == [
            (
                f"attach: {name!r} is scheduled for 10,000 optimizer steps, its default; pass "
                f"pathgrow.methods.create({name!r}, num_steps=...) with the number of steps of your training",
                __file__,
            )
        ]

    @pytest.mark.parametrize(
        "method",
        ["gcg", "random_growth", "lth", "erk", "topkast", "dense", methods.create("rigl", num_steps=50)],
        ids=lambda method: getattr(method, "name", method),
    )
    def test_other_methods_are_quiet(self, method: Method | str) -> None:
        model = mlp()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attach(model, SGD(model.parameters(), lr=0.1), method, torch.zeros(1, 6))

    def test_only_rank_0_warns(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            enforce.warn_of_default_length("rigl", SimpleNamespace(rank=1))  # type: ignore[arg-type]
