"""Plans: nothing is trained or written, and what they say agrees with the discovery that follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathgrow
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from pathgrow.runs.plan import DiscoveryPlan
from pathgrow.trainer import Trainer
from pathgrow.trainer.recipes import recipe
from tests.support.command import leave
from tests.support.toy import INPUTS, World


def planned(world: World, **options: Any) -> DiscoveryPlan:
    return pathgrow.plan(world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1], **options)


def test_a_plan_trains_and_writes_nothing(tmp_path: Path) -> None:
    world = World()
    before = {name: tensor.clone() for name, tensor in world.model.state_dict().items()}
    state = torch.get_rng_state()
    found = planned(world, budget=40, store=tmp_path / "run")
    assert world.fits == []
    assert not (tmp_path / "run").exists()
    assert all(tensor.equal(before[name]) for name, tensor in world.model.state_dict().items())
    assert torch.get_rng_state().equal(state)
    assert not world.optimizer.state
    assert world.model.training
    assert "only your fit knows" in str(found)
    assert "in the run directory" in str(found)
    assert "in memory; store=DIR" in str(planned(world, budget=40))


@pytest.mark.parametrize(
    "options",
    [{}, {"reference": "dense"}, {"max_density": 0.5}, {"finish": "static"}, {"max_cost": 0.5}, {"reference": 0.5}],
    ids=["default", "dense", "max_density", "static", "max_cost", "reference"],
)
def test_a_plan_agrees_with_the_discovery_that_follows(options: dict[str, Any]) -> None:
    """Lengths exactly, numbers of stages and cost roughly: the rule decides on the way."""
    options = {"budget": 40, "delta": 0.1, **options}
    found, world = planned(World(), **options), World()
    result = pathgrow.discover(
        world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1], start="scratch", progress=False, **options
    )
    lengths: dict[str, set[int]] = {}
    for stage in found.forecast.stages:
        lengths.setdefault(stage.kind, set()).add(stage.epochs)
    is_compared = options.get("reference") is not None  # then finished networks are trained to the end of the budget
    for record in result.trained:
        if is_compared and record.stage.startswith("final"):
            assert record.point.epochs == options["budget"]
            continue
        assert record.num_epochs in lengths[record.stage.partition("-")[0]], record.stage
    assert result.ledger.relative is not None
    assert found.cost == pytest.approx(result.ledger.relative, rel=0.6)
    assert sum(found.scope.values()) == result.masks.num == 8 * 16 + 16 * 16
    assert found.forecast.dense_flops == 6 * (8 * 16 + 16 * 16 + 16 * 2)
    assert found.forecast.fixed_flops == 6 * 16 * 2
    assert found.training_flops is None


@pytest.mark.parametrize(
    "options",
    [
        {"finish": ["rigl", "gmp"], "reference": "dense"},
        {"finish": ["set", "gmp"], "reference": 0.95},
        {"finish": ["rigl", "gmp"]},
        {"finish": "gmp", "reference": 0.95},
    ],
    ids=["rigl+gmp-dense", "set+gmp-reference", "rigl+gmp", "gmp-reference"],
)
def test_a_plan_announces_all_that_several_finishers_train(options: dict[str, Any]) -> None:
    """Each of them searches on its own, and gmp trains more weights than its networks end with."""
    options = {"budget": 40, "delta": 0.1, **options}
    found, world = planned(World(), **options), World()
    result = pathgrow.discover(
        world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1], start="scratch", progress=False, **options
    )
    trained, cost = result.trained, result.cost
    assert cost is not None
    assert found.forecast.num_stages == pytest.approx(len(trained), rel=0.1)
    assert found.forecast.num_epochs == pytest.approx(sum(record.num_epochs for record in trained), rel=0.15)
    shown = str(found)
    low, high = re.findall(r"\((\S+) to (\S+) in most measured searches; no limit\)", shown)[0]
    assert 0.7 * found.cost <= cost <= 1.2 * found.cost
    assert float(low) <= cost <= float(high)


def test_a_plan_lists_what_each_finisher_adds() -> None:
    text = str(planned(World(), budget=40, finish=["gts", "set"], reference="dense"))
    assert "; each finisher searches from the beginning (gts " in text
    assert "  probe (set): 10 x 40 epochs" in text
    assert text.count("dense baseline: 1 x 40 epochs") == 1
    several = planned(World(), budget=40, finish=["gts", "auto"])
    assert (several.max_cost, several.usual_limit) == (6, 2)


def test_memory_is_counted() -> None:
    """By hand: float32 weights and gradients, one momentum buffer, and what the backward pass reads."""
    found, num = planned(World(), budget=40), sum(p.numel() for p in World().model.parameters())
    assert found.state_bytes == 4 * 3 * num
    adam = planned(World(make_optimizer=lambda model: torch.optim.Adam(model.parameters())), budget=40)
    assert adam.state_bytes is not None
    assert adam.state_bytes == pytest.approx(4 * 4 * num, rel=0.05)  # and a counter of steps per parameter
    assert found.sample_bytes == 4 * (8 + 3 * 16)  # the input, the input of the batch norm, both activations


def test_every_layer_left_out_has_its_reason() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
            self.inner, self.shortcut = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(8, 16, 1)
            self.frozen, self.unused, self.head = nn.Linear(16, 16), nn.Linear(3, 3), nn.Linear(16, 2)
            self.frozen.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x).relu()
            x = (self.shortcut(x) + self.inner(self.body(x).relu())).relu().mean((2, 3))
            return self.head(self.frozen(x).relu())  # type: ignore[no-any-return]

    def make(**options: Any) -> DiscoveryPlan:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        world = World()
        return pathgrow.plan(net, optimizer, world.fit, world.evaluate, torch.zeros(1, 3, 8, 8), **options)

    found = make()
    assert list(found.scope) == ["stem.weight", "body.weight", "inner.weight"]
    assert found.left_out == {
        "shortcut.weight": (128, "projection shortcut"),
        "frozen.weight": (256, "frozen"),
        "unused.weight": (9, "not reached by example_input"),
        "head.weight": (32, "output layer"),
    }
    assert "other parameters: 77 (biases" in str(found)
    net = Net()
    body = {"body.weight": torch.ones_like(net.body.weight, dtype=torch.bool)}
    given = make(scope=Masks.select(body, body))
    assert given.left_out["stem.weight"] == (216, "outside the scope that was passed")
    assert given.left_out["frozen.weight"] == (256, "frozen")


def test_an_attention_layer_keeps_its_queries_and_keys() -> None:
    model = pathgrow.models.create("vit", 10, image_size=8, in_channels=1, seed=0)
    optimizer, world = torch.optim.SGD(model.parameters(), lr=0.1), World()
    found = pathgrow.plan(model, optimizer, world.fit, world.evaluate, torch.zeros(1, 1, 8, 8))
    reasons = {reason.split(" (")[0] for _, reason in found.left_out.values()}
    assert reasons == {"output layer", "reads the raw input", "on no path from input to output"}
    assert sum(found.scope.values()) == pathgrow.scope(model, example_input=torch.zeros(1, 1, 8, 8)).num


def test_a_recurrent_network_has_a_plan() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(2, 16, batch_first=True), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(x)[0][:, -1])  # type: ignore[no-any-return]

    net, world = Net(), World()
    optimizer = torch.optim.Adam(net.parameters())
    found = pathgrow.plan(net, optimizer, world.fit, world.evaluate, torch.zeros(1, 5, 2))
    assert found.scope == {"cell.weight_ih_l0": 128, "cell.weight_hh_l0": 1024}
    assert found.left_out == {"head.weight": (32, "output layer")}


def test_the_time_of_a_trainer_is_measured() -> None:
    digits = pathgrow.data.load("digits")
    trainer = Trainer(digits, recipe("digits"))
    model, optimizer = trainer.place(pathgrow.models.create("mlp", digits.classes, seed=0, inputs=64))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = pathgrow.plan(model, optimizer, trainer, trainer.evaluate(digits.val), digits.example_input(), budget=10)
    assert found.seconds is not None
    assert 0.01 < found.seconds < 60
    assert found.num_samples == 28 * 32
    assert found.training_flops == pytest.approx(found.cost * 10 * 28 * 32 * found.forecast.dense_flops)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_the_command_prints_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert leave("discover", "--plan", "--budget", "40") == 0
    shown = capsys.readouterr().out
    for expected in ("Plan: digits-mlp", "(output layer)", "Trainings: about 9, 60 epochs in all", "Time: about "):
        assert expected in shown
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused_as_discover_refuses_them() -> None:
    with pytest.raises(UserError, match="did you mean gamma"):
        planned(World(), gama=0.5)
    with pytest.raises(UserError, match="budget"):
        planned(World(), budget=0)


def refusal(call: Any, world: World, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(world.model, world.optimizer, world.fit, world.evaluate, INPUTS[:1], **options)
    assert world.fits == []
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"finish": "snip"},
        {"finish": ["gts", "grasp"]},
        {"finish": "static", "method": "gradient_growth"},
        {"max_density": 0.5, "method": "gradient_growth"},
        {"finish": "static", "rule": "nonsense"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_what_a_search_needs_is_checked(options: dict[str, Any]) -> None:
    assert refusal(pathgrow.plan, World(), **options) == refusal(pathgrow.discover, World(), **options, progress=False)


def test_a_store_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file, foreign = tmp_path / "file", tmp_path / "foreign"
    file.write_text("")
    foreign.mkdir()
    (foreign / "letter.txt").write_text("")
    for store in (file, foreign, str(file)):
        sentence = refusal(pathgrow.plan, World(), store=store)
        assert sentence == refusal(pathgrow.discover, World(), store=store, progress=False)
        assert str(store) in sentence
    planned(World(), store=tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "foreign"]


def test_the_limit_of_a_short_search_is_not_promised() -> None:
    assert "at most 3, but no training is shorter than one epoch)" in str(planned(World(), budget=1))
    assert "(at most 3);" in str(planned(World(), budget=4))


@pytest.mark.parametrize("finish", ["static", "set", ["gts", "set"]])
def test_a_plan_promises_no_limit_to_searches_that_have_none(finish: Any) -> None:
    found = planned(World(), budget=40, finish=finish)
    assert (found.max_cost, found.usual_limit) == (None, None)
    assert "at most" not in str(found)
    assert "at most 1; up to" in str(planned(World(), budget=40))


def two_optimizers(world: World) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(world.model[number].parameters(), lr=0.1) for number in (0, 3)]


@pytest.mark.parametrize("call", [pathgrow.plan, pathgrow.discover])
def test_one_optimizer_owns_all_weights_in_scope(call: Any) -> None:
    advice = "put all weights in scope into one optimizer, .* restrict scope= .* with attach, which takes several$"
    for several in (list, tuple):
        world = World()
        world.optimizer = several(two_optimizers(world))  # type: ignore[assignment]
        assert re.match(f"discover takes one optimizer, got a {several.__name__}: {advice}", refusal(call, world))
    world = World()
    world.optimizer = two_optimizers(world)[0]
    sentence = refusal(call, world)
    assert re.match(
        f"'3.weight' is in scope but not owned by the optimizer, and discover takes only one: {advice}", sentence
    )
    assert world.fits == []


@pytest.mark.parametrize("call", [pathgrow.plan, pathgrow.discover])
def test_a_negative_seed_is_refused(call: Any) -> None:
    assert refusal(call, World(), seed=-1) == "seed must be >= 0, got -1"


class _WithUnused(nn.Sequential):
    """A network with a layer that its forward pass does not call."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        self.unused = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self[2](self[1](self[0](x)))  # type: ignore[no-any-return]


def test_layers_that_are_not_called_leave_a_scope_that_was_given() -> None:
    """They would be pruned first, and the density would be that of weights without effect."""
    model, data = _WithUnused(), torch.zeros(1, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = pathgrow.plan(model, optimizer, lambda *_: None, lambda _: 0.5, data, scope=Masks.full(model))
    assert found.scope == {"0.weight": 24, "2.weight": 12}
    assert found.left_out["unused.weight"] == (36, "not reached by example_input")
