"""Methods as values: growth schedules, checked picks, and the view of a network that they decide on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.masks import Masks
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


class TestGrowEachRound:
    def test_from_two_per_cent_to_ten_as_in_the_paper(self) -> None:
        """Full steps of a quarter until just below the target, then one smaller step onto it."""
        num, num_on, densities = 10**6, 20_000, []
        schedule = GrowEachRound(gamma=0.25, target_density=0.1)
        round = 0
        while (update := schedule(Progress(round=round, step=0, num_on=num_on, num=num))) is not None:
            num_on += update.num_grow
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
        update = GrowEachRound(gamma=gamma)(Progress(round=0, step=0, num_on=num_on, num=1000))
        assert update == (None if grown is None else MaskUpdate(num_grow=grown))

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


class TestNetworkView:
    def test_scores_are_computed_once(self) -> None:
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

    def test_missing_gradients_raise(self) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(UserError, match="needs loss gradients; pass attach"):
            NetworkView(model, Masks.full(model), Masks.full(model)).gradients()


class TestPicks:
    """The results of picks are checked; a method may grow again what it drops in the same update."""

    @staticmethod
    def net(masks: Masks) -> NetworkView:
        model = nn.Sequential(nn.Linear(3, 2, bias=False))
        return NetworkView(model, masks, Masks.select(Masks.full(model)))

    @staticmethod
    def next_masks(method: Method, masks: Masks, update: MaskUpdate) -> Masks:
        progress = Progress(round=0, step=0, num_on=masks.num_on, num=masks.num)
        return method.next_masks(TestPicks.net(masks), update, progress, generator(0, "draw"))

    def test_what_was_dropped_can_grow_again(self) -> None:
        full = Masks({"0.weight": torch.ones(2, 3, dtype=torch.bool)})
        method = Method(name="both", start=at_random, drop=at_random, grow=at_random)
        assert self.next_masks(method, full, MaskUpdate(num_drop=2, num_grow=2)) == full

    def test_a_pick_outside_the_candidates_raises(self) -> None:
        half = Masks({"0.weight": torch.tensor([[True, True, True], [False, False, False]])})

        def present(net: NetworkView, candidates: Masks, count: int, draw: torch.Generator) -> Masks:
            return at_random(net, net.masks.present(), count, draw)

        method = Method(name="odd", start=at_random, grow=present)
        with pytest.raises(UserError, match="exactly 2 candidates, got 2 positions of which 2 are not"):
            self.next_masks(method, half, MaskUpdate(num_grow=2))

    def test_an_update_with_another_count_raises(self) -> None:
        half = Masks({"0.weight": torch.tensor([[True, True, True], [False, False, False]])})
        method = Method(name="odd", start=at_random, update=lambda net, update, progress, draw: net.masks)
        with pytest.raises(UserError, match="must leave 4 active weights, got 3"):
            self.next_masks(method, half, MaskUpdate(num_grow=1))
