"""Models as they come out of other people's hands: compiled, partly frozen, lazy, without values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pathgrow import Masks, UserError, attach, discover, scope


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def steps(model: nn.Module, optimizer: SGD, num: int = 3) -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(num):
        optimizer.zero_grad()
        model(torch.randn(16, 6, generator=draw)).square().mean().backward()
        optimizer.step()


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
    def test_it_becomes_the_network_that_it_would_without(
        self, compiled: Callable[[nn.Module], nn.Module], example: torch.Tensor | None
    ) -> None:
        ends = []
        for make in (nn.Identity(), compiled):
            inner = mlp()
            model = make(inner)
            optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
            sparse = attach(model, optimizer, "gcg", example)
            steps(model, optimizer)
            sparse.observe(0.5)
            steps(model, optimizer)
            named = dict(model.named_parameters())
            assert all((named[name][~mask] == 0).all() for name, mask in sparse.masks.items())
            ends.append([parameter.detach().clone() for parameter in inner.parameters()])
        assert all(torch.equal(plain, fast) for plain, fast in zip(*ends, strict=True))

    def test_looking_leaves_it_compiled(self) -> None:
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
    def test_what_is_frozen_stays_as_it_is(self, method: str) -> None:
        """It could not learn again what a mask takes from it, as a layer that was trained elsewhere knows."""
        model = mlp()
        model[0].requires_grad_(False)
        before = model[0].weight.clone()
        optimizer = SGD(model.parameters(), lr=0.1)
        sparse = attach(model, optimizer, method, torch.zeros(1, 6))
        steps(model, optimizer)
        sparse.observe(0.5)
        assert list(sparse.masks) == ["2.weight"]
        assert torch.equal(model[0].weight, before)

    def test_a_discovery_leaves_it_too_and_begins_no_copy_with_other_values(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        before, seen = model[0].weight.clone(), []

        def fit(model: nn.Module, optimizer: SGD, epochs: int) -> None:
            seen.append(model[0].weight.clone())  # type: ignore[index]
            steps(model, optimizer, num=1)

        found = discover(model, SGD(model.parameters(), lr=0.1), fit, lambda _: 0.5, torch.zeros(1, 6), budget=4)
        assert list(found.masks) == ["2.weight"]
        assert len(seen) > 2
        assert all(torch.equal(weight, before) for weight in [*seen, model[0].weight])

    def test_a_scope_of_ones_own_decides(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        sparse = attach(model, SGD(model.parameters(), lr=0.1), "random", scope=Masks.full(model))
        assert bool((model[0].weight[~sparse.masks["0.weight"]] == 0).all())

    def test_nothing_is_left(self) -> None:
        model = mlp()
        model[:4].requires_grad_(False)
        with pytest.raises(UserError, match=r"nothing to sparsify .* are frozen .*requires_grad_\(True\)"):
            attach(model, SGD(model.parameters(), lr=0.1), "gcg", torch.zeros(1, 6))


class TestRefusals:
    @pytest.mark.parametrize("example", [torch.zeros(1, 6), None], ids=["given", "guessed"])
    def test_a_lazy_layer_is_refused_and_keeps_waiting_for_its_first_batch(self, example: torch.Tensor | None) -> None:
        model = nn.Sequential(nn.LazyLinear(10), nn.ReLU(), *mlp()[2:])
        optimizer = SGD(model.parameters(), lr=0.1)
        with pytest.raises(UserError, match=r"'0\.weight' .* lazy layer .* run the model once on a batch"):
            attach(model, optimizer, "gcg", example)
        model(torch.zeros(1, 6))
        assert set(attach(model, optimizer, "gcg", example).masks) == {"0.weight", "2.weight"}

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
        with pytest.raises(UserError, match=f"^{name} must be .*, got (None|str)"):
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
        with pytest.raises(UserError, match=r"'gru' in Recurrent: .* pass a scope to attach and choose a method"):
            attach(model, optimizer, "rigl", torch.zeros(1, 6))
        sparse = attach(model, optimizer, "rigl", scope=Masks.full(model))
        steps(model, optimizer)
        assert set(sparse.masks) == {"hidden.weight", "head.weight"}
        assert bool((model.hidden.weight[~sparse.masks["hidden.weight"]] == 0).all())
