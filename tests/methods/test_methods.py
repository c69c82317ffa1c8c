"""The table of methods, their schedules, and what picks may read of a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pathgrow import methods
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks
from pathgrow.methods.gradients import loss_gradients
from pathgrow.methods.method import (
    GrowEachRound,
    MaskUpdate,
    Method,
    NetworkView,
    Progress,
    ScoringCost,
    count_at,
    never,
)
from pathgrow.methods.picks import at_random
from pathgrow.rng import generator


def stranger(*, density: float = 0.5) -> Method:
    return Method(name="strange", start=at_random, start_density=density)


class TestTable:
    def test_every_name_gives_an_equal_value_each_time(self) -> None:
        for name in methods.names():
            method = methods.create(name)
            assert method == methods.create(name)
            assert method.name == name
            assert methods.entry(name).paper

    def test_every_method_has_one_row_among_the_papers(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "papers.md"
        rows = re.findall(r"^\| `(\w+)` \|", page.read_text(), flags=re.MULTILINE)
        assert sorted(rows) == sorted(methods.names())

    def test_growth_methods_take_the_same_options(self) -> None:
        for name in ("gcg", "gradient_growth", "pathgrow_d", "random_growth", "trace_growth"):
            method = methods.create(name, gamma=0.5, start_density=0.1, target_density=0.4)
            assert method == methods.create(name, gamma=0.5, start_density=0.1, target_density=0.4)
            assert method != methods.create(name)
            assert method.schedule == GrowEachRound(gamma=0.5, target_density=0.4)

    def test_unknown_names_and_options(self) -> None:
        with pytest.raises(UserError, match="unknown method 'gcq': did you mean gcg"):
            methods.create("gcq")
        with pytest.raises(UserError, match="unknown method 'gcq': did you mean gcg"):
            methods.entry("gcq")
        with pytest.raises(UserError, match="method 'gcg' has no option 'gama', did you mean gamma"):
            methods.create("gcg", gama=0.5)

    @pytest.mark.parametrize(
        ("name", "option", "value", "wanted"),
        [
            ("rigl", "allocation", 1, "a name is wanted"),
            ("rigl", "density", None, "a number is wanted"),  # not the automatic start density of growth
            ("rigl", "every", 1.5, "a whole number is wanted"),
            ("rigl", "num_steps", float("inf"), "a whole number is wanted"),
            ("erk", "density", True, "a number is wanted"),
            ("set", "anneal", 0, "a name is wanted"),
            ("set", "by_sign", 1, "true or false is wanted"),
            ("itop", "criterion", None, "a name is wanted"),
            ("itop", "every", float("nan"), "a whole number of steps"),
            ("gse", "guide", 2, "a name is wanted"),
            ("gse", "gamma", float("inf"), "candidates per weight"),
            ("dsr", "end", float("nan"), "above 0 is wanted"),
            ("dsr", "end", "late", "a number is wanted"),
            ("imp", "rewind_step", 0.5, "a whole number of steps from 0 up is wanted"),
            ("grasp", "num_batches", 1.5, "a whole number is wanted"),
            ("synflow", "num_iterations", float("nan"), "a whole number is wanted"),
            ("str", "start", float("nan"), "a finite number is wanted"),
            ("str", "start", "low", "give values of the right kind"),
            ("str", "decay", float("inf"), "from 0 up is wanted"),
        ],
    )
    def test_values_of_another_kind(self, name: str, option: str, value: object, wanted: str) -> None:
        with pytest.raises(UserError, match=f"{option}.*{wanted}"):
            methods.create(name, **{option: value})

    def test_a_whole_number_in_another_notation(self) -> None:
        assert methods.create("grasp", num_batches=2e0) == methods.create("grasp", num_batches=2)

    @pytest.mark.parametrize("option", ["start_density", "target_density"])
    @pytest.mark.parametrize("value", [0.0, -0.1, 1.1, float("nan")])
    def test_densities_outside_their_range(self, option: str, value: float) -> None:
        with pytest.raises(UserError, match=rf"{option} must be in \(0, 1\], got"):
            methods.create("gcg", **{option: value})

    @pytest.mark.parametrize("gamma", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_share_that_grows_nothing(self, gamma: float) -> None:
        with pytest.raises(UserError, match="gamma"):
            methods.create("random_growth", gamma=gamma)

    def test_a_method_of_somebody_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("their_methods")
        module.stranger, module.wrong, module.number = stranger, lambda: 3, 5
        monkeypatch.setitem(sys.modules, "their_methods", module)
        assert methods.create("their_methods:stranger", density=0.25).start_density == 0.25
        with pytest.raises(UserError, match="gave a int"):
            methods.create("their_methods:wrong")
        for place in ("their_methods:absent", "their_methods:number"):
            with pytest.raises(UserError, match="has no function"):
                methods.create(place)
        with pytest.raises(UserError, match="could not be imported"):
            methods.create("no_such_package.at_all:stranger")
        with pytest.raises(UserError, match="has no option 'gamma': choose density"):
            methods.create("their_methods:stranger", gamma=0.1)


class TestSchedule:
    def test_from_two_per_cent_to_ten_as_in_the_paper(self) -> None:
        """Full steps of a quarter until just below the target, then one smaller step onto it."""
        num, num_on, densities = 10**6, 20_000, []
        schedule = GrowEachRound(gamma=0.25, target_density=0.1)
        round = 0
        while (change := schedule(Progress(round=round, step=0, num_on=num_on, num=num))) is not None:
            num_on += change.num_grow
            round += 1
            densities.append(round and num_on / num)
        expected = [0.025, 0.03125, 0.03906, 0.04883, 0.06104, 0.07629, 0.09537, 0.1]
        assert densities == pytest.approx(expected, abs=1e-5)
        assert densities[-1] == 0.1

    @pytest.mark.parametrize(
        ("num_on", "gamma", "grown"),
        [(1, 0.25, 1), (7, 0.25, 1), (8, 0.25, 2), (100, 0.29, 29), (999, 0.5, 1), (1000, 0.5, None)],
    )
    def test_at_least_one_and_never_beyond_the_last(self, num_on: int, gamma: float, grown: int | None) -> None:
        change = GrowEachRound(gamma=gamma)(Progress(round=0, step=0, num_on=num_on, num=1000))
        assert change == (None if grown is None else MaskUpdate(num_grow=grown))

    def test_never(self) -> None:
        assert never(Progress(round=0, step=0, num_on=1, num=2)) is None

    def test_counts_come_back_from_their_own_density(self) -> None:
        for num in (7, 1000, 20_686_016):
            for count in (1, num // 3, num // 2 + 1, num):
                assert count_at(count / num, num) == max(1, count)


class TestGrowing:
    """`Method.growing` changes growth settings and keeps those of the method."""

    def test_settings_of_the_method_are_kept(self) -> None:
        method = methods.create("gcg", gamma=1.0, start_density=0.02, target_density=0.3)
        assert method.growing() == method
        changed = method.growing(gamma=0.5, start_density=0.1, target_density=0.4)
        assert changed == methods.create("gcg", gamma=0.5, start_density=0.1, target_density=0.4)
        assert changed.due(Progress(round=0, step=0, num_on=39, num=100)) == MaskUpdate(num_grow=1)

    def test_a_method_without_a_schedule_grows_each_round(self) -> None:
        method = Method(name="own", start=at_random, grow=at_random, target_density=0.5)
        assert method.growing().schedule == GrowEachRound(target_density=0.5)
        assert method.growing(gamma=0.1).schedule == GrowEachRound(gamma=0.1, target_density=0.5)

    def test_settings_without_effect_are_refused(self) -> None:
        own = Method(name="own", start=at_random, grow=at_random, schedule=lambda progress: MaskUpdate(num_grow=1))
        assert own.growing(start_density=0.1).start_density == 0.1
        with pytest.raises(UserError, match="'own' has its own schedule and does not take gamma"):
            own.growing(gamma=0.5)
        with pytest.raises(UserError, match="'rigl' does not grow"):
            methods.create("rigl").growing()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.drop(self.norm(self.first(x)))))


def squares(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return model(batch[0]).square().mean()


class TestNet:
    def test_readings_are_made_once(self) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        masks = Masks.full(model)
        calls = []

        def gradients() -> tuple[dict[str, Tensor], int]:
            calls.append(1)
            return {name: -torch.ones_like(mask, dtype=torch.float32) for name, mask in masks.items()}, 9

        net = NetworkView(model, masks, masks, torch.ones(1, 4), gradients)
        assert net.scoring_cost == ScoringCost()
        assert net.path_scores() is net.path_scores()
        assert net.gradients() is net.gradients()
        assert float(net.gradients()["0.weight"].min()) == 1.0
        assert calls == [1]
        assert net.scoring_cost == ScoringCost(num_path_passes=1, num_gradient_samples=9)
        assert set(net.weights()) == {"0.weight", "2.weight"}
        assert not net.weights()["0.weight"].requires_grad

    def test_gradients_that_nobody_can_give(self) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(UserError, match="needs loss gradients; pass attach"):
            NetworkView(model, Masks.full(model), Masks.full(model)).gradients()

    def test_looking_leaves_no_trace(self) -> None:
        torch.manual_seed(0)
        model = Normed()
        model.train()
        model.norm.eval()
        model.first.weight.grad = torch.full((6, 4), 3.0)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        modes = [module.training for module in model.modules()]
        data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
        state = torch.get_rng_state()
        names = ["first.weight", "frozen.weight", "unused.weight", "last.weight"]
        with torch.no_grad():
            found, num_samples = loss_gradients(model, names, squares, data, seed=5)
        assert num_samples == 8
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert [module.training for module in model.modules()] == modes
        assert bool((model.first.weight.grad == 3.0).all())
        assert model.last.weight.grad is None
        assert float(found["first.weight"].abs().sum()) > 0
        assert float(found["frozen.weight"].abs().sum()) == float(found["unused.weight"].abs().sum()) == 0.0
        again, _ = loss_gradients(model, names, squares, data, seed=5)
        other, _ = loss_gradients(model, names, squares, data, seed=6)
        assert torch.equal(found["first.weight"], again["first.weight"])
        assert not torch.equal(found["first.weight"], other["first.weight"])

    def test_batch_norm_uses_the_batch(self) -> None:
        """In training mode a shift of all inputs changes nothing; with running statistics it would."""
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).eval()
        x = torch.randn(32, 4)
        one, _ = loss_gradients(model, ["2.weight"], squares, [[x]], seed=0)
        two, _ = loss_gradients(model, ["2.weight"], squares, lambda: iter([[x + 100.0]]), seed=0)
        torch.testing.assert_close(one["2.weight"], two["2.weight"], rtol=1e-3, atol=1e-5)

    def test_bad_losses_and_empty_data(self) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(UserError, match="must yield at least 1 batches, got 0"):
            loss_gradients(model, ["weight"], squares, [], seed=0)
        for wrong in (lambda model, batch: 3.0, lambda model, batch: model(batch), lambda model, batch: torch.ones(())):
            with pytest.raises(UserError, match="must return a scalar tensor"):
                loss_gradients(model, ["weight"], wrong, [torch.ones(2, 2)], seed=0)
        with pytest.raises(RunFailed, match="diverged"):
            loss_gradients(model, ["weight"], squares, [[torch.full((2, 2), float("nan"))]], seed=0)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("rigl", {"rate": 0.3, "every": "a"}, "option every='a' of method 'rigl' was given, a whole number is wanted"),
        ("rigl", {"every": 3, "rate": "a"}, "option rate='a' of method 'rigl' was given, a number is wanted"),
        ("gse", {"gamma": [1, 2]}, "option gamma=[1, 2] of method 'gse' was given, a number is wanted: give for"),
        ("itop", {"every": "a", "rate": 0.5}, "every 'a' was given, a whole number of steps from 1 up is wanted"),
        ("gcg", {"start_density": "a"}, "method 'gcg' cannot be made with start_density='a' ("),
        ("rigl", {"evry": 3}, "did you mean every? (its options: allocation, density, end, every, num_steps, rate)"),
        ("snip", {"gamma": 3}, "method 'snip' has no option 'gamma': choose density"),
        ("dense", {"every": 3}, "method 'dense' has no option 'every', it has none at all"),
    ],
)
def test_a_wrong_option_is_named_and_no_others_are(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        methods.create(name, **options)
    assert sentence in str(caught.value)


def test_a_method_of_ones_own_has_an_entry_too() -> None:
    assert methods.entry("pathgrow.methods.rigl:rigl").make(density=0.3).start_density == 0.3


class TestPicks:
    """What anybody's picks give is checked; what a method drops it may take back in the same change."""

    @staticmethod
    def net(masks: Masks) -> NetworkView:
        model = nn.Sequential(nn.Linear(3, 2, bias=False))
        return NetworkView(model, masks, Masks.select(Masks.full(model)))

    @staticmethod
    def revised(method: Method, masks: Masks, change: MaskUpdate) -> Masks:
        progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
        return method.next_masks(TestPicks.net(masks), change, progress, generator(0, "draw"))

    def test_what_was_dropped_can_grow_again(self) -> None:
        full = Masks({"0.weight": torch.ones(2, 3, dtype=torch.bool)})
        method = Method(name="both", start=at_random, drop=at_random, grow=at_random)
        assert self.revised(method, full, MaskUpdate(num_drop=2, num_grow=2)) == full

    def test_a_pick_of_what_is_no_candidate_is_refused(self) -> None:
        half = Masks({"0.weight": torch.tensor([[True, True, True], [False, False, False]])})

        def present(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
            return at_random(net, net.masks.present(), count, draw)

        method = Method(name="odd", start=at_random, grow=present)
        with pytest.raises(UserError, match="exactly 2 candidates, got 2 positions of which 2 are not"):
            self.revised(method, half, MaskUpdate(num_grow=2))

    def test_a_revision_with_another_number_is_refused(self) -> None:
        half = Masks({"0.weight": torch.tensor([[True, True, True], [False, False, False]])})
        method = Method(name="odd", start=at_random, update=lambda net, change, progress, draw: net.masks)
        with pytest.raises(UserError, match="must leave 4 active weights, got 3"):
            self.revised(method, half, MaskUpdate(num_grow=1))
